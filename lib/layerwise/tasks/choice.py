"""Multiple choice at every layer: predictions through the final norm and the unembedding.

The plain logit lens (nostalgebraist 2020) reads the states after block l as if they were the last
ones. Chance at a layer means that the last layer's readout finds no answer there; one that is
trained for the layer might find it (Belrose et al. 2023, arXiv 2303.08112). At the last layer the
readout is the model's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]
from torch import Tensor, nn

from layerwise.activations import forward
from layerwise.activations.embedding import embed
from layerwise.activations.representation import Packed, Representation
from layerwise.config.models import Model
from layerwise.config.tasks import ChoiceEntry
from layerwise.errors import LayerwiseError
from layerwise.models.load import DTYPES, LoadedModel
from layerwise.models.source import locate
from layerwise.progress import Progress
from layerwise.tasks.questions import LETTERS, Question, read_questions
from layerwise.tasks.results import Score
from layerwise.vocabulary import BLOCK, SCORED_READOUTS

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

# Memory of the logits of one layer.
LOGITS_BYTES = 64 * 2**20
WINDOW = 128  # questions whose tokens are in memory


@dataclass(frozen=True)
class ChoiceTask:
    """A task of multiple-choice questions."""

    entry: ChoiceEntry

    def scores(
        self, loaded: LoadedModel, entry: Model, budget: int | None
    ) -> dict[tuple[int, int], Score]:
        """Score of each layer and form of the questions, both by number.

        A model that cannot be asked has no score, with the reason.

        Parameters
        ----------
        entry : Model
            The model's entry in the config.
        budget : int, optional
            Tokens in a batch, pads included.
        """
        questions, examples = read_questions(self.entry)
        try:
            lens = lens_of(loaded, entry)
        except NoAnswersError as error:
            places = np.ndindex(loaded.anatomy.n_layers, len(self.entry.forms))
            return dict.fromkeys(places, Score(None, why=str(error)))
        right, chance = answer(loaded, lens, self.entry, questions, examples, budget)
        counts, n = right.sum(axis=2).T, right.shape[2]
        low, high = proportion_confint(counts, n, method="wilson")
        return {
            place: Score(count / n, low[place], high[place], n, chance=chance)
            for place, count in np.ndenumerate(counts)
        }


# Readout


class NoAnswersError(LayerwiseError):
    """A model without a readout of the next token that every layer can be read with."""

    code = "unsupported"


Lens = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From states of shape (n, D), rows of them and a token each to the tokens' log-probabilities."""


@torch.inference_mode()
def lens_of(loaded: LoadedModel, entry: Model) -> Lens:
    """The readout of a causal language model; of its files, no block is loaded.

    Parameters
    ----------
    entry : Model
        The model's entry in the config, from which `loaded` was made.

    Raises
    ------
    NoAnswersError
        If the model takes images, sees later tokens, has no unembedding in its files, or hands out
        other states than its last block's (after its final norm).
    """
    if loaded.reader.takes != "text" or not loaded.is_causal():
        raise NoAnswersError(f"{loaded.name} predicts no next token.")
    norm = loaded.anatomy.final_norm
    if not loaded.anatomy.has_output or (norm is None and not _hands_out_last(loaded)):
        raise NoAnswersError(
            f"{loaded.name} hands out other states than its last block's, so its unembedding "
            "cannot read other layers."
        )
    # Of a model that is spread over several devices, the last norm is on the last.
    device = next((p.device for p in norm.parameters()), loaded.device) if norm else loaded.device
    # The unembedding, with all that the model does to its logits: the language model around a body
    # that hands out the states that it is given.
    head = _head(loaded, entry).to(device)
    output = type(loaded.model(**loaded.inputs([[0]])))
    body = getattr(head, head.base_model_prefix).to("meta")
    for module in (body, getattr(body, "decoder", body)):  # OPT calls the one within.
        module.forward = lambda *_, inputs_embeds, **__: output(last_hidden_state=inputs_embeds)
    size = max(1, LOGITS_BYTES // (4 * len(head.get_output_embeddings().weight)))

    def lens(states: Tensor, at: Tensor, ids: Tensor) -> Tensor:
        at, ids = at.to(device), ids.to(device)
        logs = torch.empty(len(ids), device=device)
        for number, part in enumerate(torch.split(states, size)):
            inside = at // size == number
            part = part.to(device, DTYPES[loaded.dtype])
            part = norm(part) if norm else part
            logits = head(inputs_embeds=part[None]).logits[0].float()
            logs[inside] = torch.log_softmax(logits, dim=-1)[at[inside] % size, ids[inside]]
        return logs

    return lens


def _head(loaded: LoadedModel, entry: Model) -> Any:
    """The language model around a loaded model, without its blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    location = locate(entry.source, loaded.revision)
    common = {"trust_remote_code": entry.trust_remote_code, **location.options()}
    headless = NoAnswersError(f"{loaded.name} has no unembedding in its files.")
    config = AutoConfig.from_pretrained(location.name, **common)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    for kinds in {"layer_types", "layers_block_type"} & set(vars(text)):
        setattr(text, kinds, [])
    try:
        head, found = AutoModelForCausalLM.from_pretrained(
            location.name,
            config=config,
            dtype=DTYPES[loaded.dtype],
            use_safetensors=True,
            output_loading_info=True,
            **common,
        )
    except ValueError as error:  # as transformers says that there is no such class
        raise headless from error
    unembedding = head.get_output_embeddings()
    if unembedding is None or found["missing_keys"]:
        raise headless
    if text.tie_word_embeddings:
        # The loaded model's, which adapters may have changed; not moved with the head.
        tied = loaded.model.get_input_embeddings().weight  # type: ignore[operator]
        unembedding.weight = nn.Parameter(tied.data, requires_grad=False)
    return head.eval()


def _hands_out_last(loaded: LoadedModel) -> bool:
    """True if the model's output is its last block's states."""
    ways = [Representation(readout=readout) for readout in SCORED_READOUTS]
    last, output = embed(loaded, ["the quick brown fox jumps"], ways)[:, -1]
    return np.array_equal(last, output)


# Prompts


def prompts(
    question: Question, form: str, examples: Sequence[Question]
) -> tuple[str, tuple[str, ...]]:
    """The text before the answer, and what may follow it.

    Parameters
    ----------
    form : {'letter', 'answer', 'answer_per_character'}
        letter: as in MMLU (Hendrycks et al. 2021), answers listed and lettered.
    examples : sequence of Question
        Stand before the question with their right answers.
    """
    if form != "letter":
        shown = [f"Question: {q.question}\nAnswer: {q.choices[q.answer]}\n\n" for q in examples]
        return (
            f"{''.join(shown)}Question: {question.question}\nAnswer:",
            tuple(f" {choice}" for choice in question.choices),
        )
    about = f" about {question.subject}" if question.subject else ""
    head = f"The following are multiple choice questions (with answers){about}.\n\n"
    shown = [f"{_listed(q)} {LETTERS[q.answer]}\n\n" for q in examples]
    letters = tuple(f" {letter}" for letter in LETTERS[: len(question.choices)])
    return f"{head}{''.join(shown)}{_listed(question)}", letters


def _listed(question: Question) -> str:
    lines = (f"{LETTERS[k]}. {choice}" for k, choice in enumerate(question.choices))
    return "\n".join([question.question.strip(), *lines, "Answer:"])


# Scoring


class Answer(NamedTuple):
    """An answer to a question as tokens.

    Attributes
    ----------
    before, ids : tuple of int
        Tokens that the model reads, and those of the answer; the last of `before` predicts the
        first of `ids`, and so on.
    """

    before: tuple[int, ...]
    ids: tuple[int, ...]


def answer(
    loaded: LoadedModel,
    lens: Lens,
    task: ChoiceEntry,
    questions: Sequence[Question],
    examples: Sequence[Question],
    budget: int | None = None,
) -> tuple[npt.NDArray[np.bool_], float]:
    """Let every layer choose the likeliest answer of each question, all layers in one pass.

    Returns
    -------
    right : array of bool, shape (forms, layers, questions)
        Without questions that, with their examples, are longer than the model takes.
    chance : float
        Share of right answers when guessing.

    Raises
    ------
    LayerwiseError
        If no question fits the model, or a log-likelihood is not finite.
    """
    right: list[list[npt.NDArray[np.bool_]]] = []
    chances: list[float] = []
    with Progress(len(questions), f"{loaded.name} {loaded.revision}", "question") as bar:
        for start in range(0, len(questions), WINDOW):
            window = questions[start : start + WINDOW]
            asked = [(q, _tokenized(loaded, q, task, examples)) for q in window]
            fitting = [(question, answers) for question, answers in asked if answers]
            each = [one for _, answers in fitting for one in answers]
            ends = np.cumsum([len(answers) for _, answers in fitting], dtype=int)
            values = np.split(_likelihoods(loaded, lens, each, budget), ends, axis=1)
            for (question, _), of_question in zip(fitting, values, strict=False):
                found = []
                for form, likely in zip(
                    task.forms, np.split(of_question, len(task.forms), axis=1), strict=True
                ):
                    if form == "answer_per_character":
                        likely = likely / [len(choice) for choice in question.choices]
                    found.append(likely.argmax(axis=1) == question.answer)
                right.append(found)
                chances.append(1 / len(question.choices))
            bar.update(len(window))
    if not right:
        raise LayerwiseError(
            f"All {len(questions)} questions are longer than the {loaded.max_length} tokens that "
            f"{loaded.name} takes, with {task.shots} examples each; lower shots.",
            code="too_few",
        )
    if len(right) < len(questions):
        log.warning("%d questions are too long and left out", len(questions) - len(right))
    return np.moveaxis(np.array(right), 0, 2), float(np.mean(chances))


def _tokenized(
    loaded: LoadedModel,
    question: Question,
    task: ChoiceEntry,
    examples: Sequence[Question],
) -> list[Answer]:
    """Answers to a question in each form; none if one is too long.

    The tokens of an answer are those where prompt and answer together differ from the prompt.
    """
    shown = [e for e in examples if e.subject == question.subject][: task.shots]
    special = set(loaded.texts.tokenizer.all_special_ids)
    answers = []
    for form in task.forms:
        prompt, choices = prompts(question, form, shown)
        texts = [prompt, *(prompt + choice for choice in choices)]
        (alone, *wholes), (_, *cut) = loaded.texts.prompts(texts)
        for ids in wholes:
            while ids and ids[-1] in special:
                ids.pop()
            same = [a == b for a, b in zip(ids, alone, strict=False)]
            start = same.index(False) if False in same else len(same)
            if any(cut) or not 0 < start < len(ids):
                return []
            answers.append(Answer(tuple(ids[:-1]), tuple(ids[start:])))
    return answers


def _likelihoods(
    loaded: LoadedModel, lens: Lens, answers: Sequence[Answer], budget: int | None
) -> Floats:
    """Log-likelihood of each answer at each layer, shape (layers, answers)."""
    values = np.zeros((loaded.anatomy.n_layers, len(answers)))
    by_input: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(answers):
        by_input.setdefault(one.before, []).append(number)
    numbers = list(by_input.values())
    forward.run(
        loaded,
        list(by_input),
        lambda rows: _Batch(lens, answers, [numbers[row] for row in rows], values),
        budget=budget,
    )
    if not np.isfinite(values).all():
        raise loaded.not_finite(f"layer {np.argwhere(~np.isfinite(values))[0, 0]}, its lens")
    return values


class _Batch:
    """Log-likelihoods of the answers of one batch.

    Parameters
    ----------
    numbers : list of lists of int
        The answers of each row of the batch.
    values : array, shape (layers, answers)
        Filled when the pass is over.
    """

    def __init__(
        self,
        lens: Lens,
        answers: Sequence[Answer],
        numbers: list[list[int]],
        values: Floats,
    ) -> None:
        self.lens, self.values = lens, values
        tokens = [
            (row, len(one.before) - len(one.ids) + k, token, number)
            for row, own in enumerate(numbers)
            for number in own
            for one in [answers[number]]
            for k, token in enumerate(one.ids)
        ]
        rows, places, ids, self.of = np.array(tokens).T
        # Letters have one state in common.
        states, at = np.unique(np.stack([rows, places]), axis=1, return_inverse=True)
        self.states, self.at = torch.tensor(states), torch.tensor(at.reshape(-1))
        self.ids = torch.tensor(ids)
        self.logs: dict[int, Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Read one layer at the tokens before the answers'."""
        if sublayer != BLOCK:
            return
        rows, places = self.states.to(packed.states.device)
        self.logs[layer] = self.lens(packed.states[rows, places], self.at, self.ids)

    def finish(self) -> None:
        """Add the tokens' log-likelihoods up."""
        for layer, logs in self.logs.items():
            np.add.at(self.values[layer], self.of, logs.double().cpu().numpy())
