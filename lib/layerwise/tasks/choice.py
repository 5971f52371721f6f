"""Multiple choice at every layer: predictions through the final norm and the unembedding.

The plain logit lens (nostalgebraist 2020) reads the states after block l as if they were the last
ones. Chance at a layer means that the last layer's readout finds no answer there; one that is
trained for the layer might find it (Belrose et al. 2023, arXiv 2303.08112). At the last layer the
readout is the model's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
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
from layerwise.config.settings import ScoringSettings
from layerwise.config.tasks import ChoiceEntry
from layerwise.errors import LayerwiseError
from layerwise.models.load import DTYPES, LoadedModel
from layerwise.models.source import locate
from layerwise.tasks.questions import LETTERS, Question, Questions, read_questions
from layerwise.tasks.results import Score
from layerwise.tasks.task import (
    Array,
    ModelPrompts,
    NoScoreError,
    Setup,
    Task,
    Unit,
    Vectors,
    keep_data,
)
from layerwise.vocabulary import BLOCK, FORMS, SCORED_READOUTS

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

# Memory of the logits of one layer.
LOGITS_BYTES = 64 * 2**20
WINDOW = 128  # questions whose tokens are in memory


# Task


@dataclass(frozen=True)
class ChoiceTask(Task):
    """A task of multiple-choice questions, which reads them itself.

    See `layerwise.tasks.task.Task`. The vector of a question has
    one number: 1 if the likeliest answer is the right one, else 0; nan if the question, with its
    examples, is longer than the model takes. The forms stand in place of poolings.
    """

    entry: ChoiceEntry

    @property
    def task_type(self) -> str:
        """Multiple choice."""
        return "MultipleChoice"

    @property
    def reader(self) -> object:
        """The task: its layers answer questions."""
        return self

    def prompt(self, prompts: ModelPrompts, name: str, prompt_type: str) -> str:  # noqa: ARG002
        """None: the form of the questions is the task's."""
        return ""

    def text_of(self, item: Question) -> str:
        """The question without its answers."""
        return item.question

    def units(self, most: int) -> Iterator[Unit]:
        """At most so many different questions each."""
        asked = list(dict.fromkeys(_questions(self).asked))
        for start in range(0, len(asked), most):
            questions = asked[start : start + most]
            keys = [("", question) for question in questions]
            yield Unit(keys, selection=frozenset(questions))

    def score(
        self,
        selection: frozenset[Question],
        vectors: Vectors,
        settings: ScoringSettings,  # noqa: ARG002
    ) -> list[tuple[bool, float]]:
        """For each question that fits the model: True if the answer is right; chance."""
        asked = [question for question in _questions(self).asked if question in selection]
        right = vectors.of("", asked)[:, 0]
        return [
            (bool(is_right), 1 / len(question.choices))
            for question, is_right in zip(asked, right, strict=True)
            if not np.isnan(is_right)
        ]

    def combine(
        self,
        units: Sequence[list[tuple[bool, float]]],
        settings: ScoringSettings,  # noqa: ARG002
    ) -> list[Score]:
        """Share of right answers, with Wilson's interval."""
        answered = [answer for of_unit in units for answer in of_unit]
        if not answered:
            raise LayerwiseError(
                f"All {len(_questions(self).asked)} questions, with {self.entry.shots} examples "
                "each, are longer than the model takes; lower shots.",
                code="too_few",
            )
        right, chances = zip(*answered, strict=True)
        n = len(right)
        low, high = proportion_confint(sum(right), n, method="wilson")
        chance = float(np.mean(chances))
        return [Score(sum(right) / n, float(low), float(high), n, chance=chance)]

    def representations(self, setup: Setup) -> list[Representation]:  # noqa: ARG002
        """One for each form of the questions."""
        return [Representation("all", form, "final_norm") for form in FORMS]

    def width(self, setup: Setup) -> int:  # noqa: ARG002
        """One number."""
        return 1

    def read(
        self,
        setup: Setup,
        inputs: Sequence[Question],
        prompts: Sequence[str],  # noqa: ARG002
        into: Array,
    ) -> Iterator[int]:
        """Answer questions; raises `NoAnswersError` for a model that cannot be asked."""
        loaded, entry = setup.loaded, self.entry
        examples, budget = _questions(self).examples, setup.extraction.batch_tokens
        lens = lens_of(loaded)
        into[:] = np.nan
        for start in range(0, len(inputs), WINDOW):
            window = inputs[start : start + WINDOW]
            asked = [_tokenized(loaded, question, entry, examples) for question in window]
            fitting = [row for row, answers in enumerate(asked) if answers]
            answers = [answer for of_question in asked for answer in of_question]
            likely = _likelihoods(loaded, lens, answers, budget)
            ends = np.cumsum([len(asked[row]) for row in fitting])
            for row, end in zip(fitting, ends, strict=True):
                values = likely[:, end - len(asked[row]) : end]
                into[:, :, start + row, 0] = self._is_right(window[row], values)
            yield len(window)
        n_long = int(np.isnan(into[0, 0]).sum())
        if n_long:
            log.warning("%d of %d questions are too long and left out", n_long, len(inputs))

    def _is_right(self, question: Question, likelihoods: Floats) -> npt.NDArray[np.bool_]:
        """True where the likeliest answer is right, shape (forms, layers).

        Parameters
        ----------
        likelihoods : array, shape (layers, forms * answers)
        """
        chosen = []
        for form, likely in zip(FORMS, np.split(likelihoods, len(FORMS), axis=1), strict=True):
            if form == "answer_per_character":
                likely = likely / [len(choice) for choice in question.choices]
            chosen.append(likely.argmax(axis=1))
        return np.asarray(np.array(chosen) == question.answer)


@keep_data
def _questions(task: ChoiceTask) -> Questions:
    return read_questions(task.entry)


# Readout


class NoAnswersError(NoScoreError):
    """A model without a readout of the next token that every layer can be read with."""


# From states of shape (n, D), rows of them and a token each to the tokens' log-probabilities.
Lens = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.inference_mode()
def lens_of(loaded: LoadedModel) -> Lens:
    """The readout of a causal language model; of its files, no block is loaded.

    Raises
    ------
    NoAnswersError
        If the model takes images, sees later tokens, has no unembedding in its files, or hands out
        other states than its last block's (after its final norm).
    """
    if loaded.reader.takes != "text" or not loaded.is_causal:
        raise NoAnswersError(f"{loaded.name} predicts no next token.")
    norm = loaded.anatomy.final_norm
    if not loaded.anatomy.output or (norm is None and not _hands_out_last(loaded)):
        raise NoAnswersError(
            f"{loaded.name} hands out other states than its last block's, so its unembedding "
            "cannot read other layers."
        )
    # Of a model that is spread over several devices, the last norm is on the last.
    device = next((p.device for p in norm.parameters()), loaded.device) if norm else loaded.device
    # The unembedding, with all that the model does to its logits: the language model around a body
    # that hands out the states that it is given.
    head = _head(loaded).to(device)
    output = type(loaded.model(**loaded.inputs([[0]])))
    body = getattr(head, head.base_model_prefix).to("meta")
    for module in (body, getattr(body, "decoder", body)):  # OPT calls the one within.
        module.forward = lambda *_, inputs_embeds, **__: output(last_hidden_state=inputs_embeds)
    size = max(1, LOGITS_BYTES // (4 * len(head.get_output_embeddings().weight)))

    def lens(states: Tensor, at: Tensor, ids: Tensor) -> Tensor:
        at, ids = at.to(device), ids.to(device)
        logs = torch.empty(len(ids), device=device)
        for number, some in enumerate(torch.split(states, size)):
            inside = at // size == number
            some = some.to(device, DTYPES[loaded.dtype])
            some = loaded.anatomy.read_out(some[None]) if norm else some[None]
            logits = head(inputs_embeds=some).logits[0].float()
            logs[inside] = torch.log_softmax(logits, dim=-1)[at[inside] % size, ids[inside]]
        return logs

    return lens


def _head(loaded: LoadedModel) -> Any:
    """The language model around a loaded model, without its blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    entry = loaded.entry
    location = locate(entry.source, loaded.revision)
    common = {"trust_remote_code": entry.trust_remote_code, **location.options()}
    headless = NoAnswersError(f"{loaded.name} has no unembedding in its files.")
    config = AutoConfig.from_pretrained(location.name, **common)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    for kinds in {"layer_types", "layers_block_type"} & set(vars(text)):
        setattr(text, kinds, [])
    try:
        head, loading = AutoModelForCausalLM.from_pretrained(
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
    if unembedding is None or loading["missing_keys"]:
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


def _tokenized(
    loaded: LoadedModel,
    question: Question,
    entry: ChoiceEntry,
    examples: Sequence[Question],
) -> list[Answer]:
    """Answers to a question in each form; none if one is too long.

    The tokens of an answer are those where prompt and answer together differ from the prompt.
    """
    shown = [e for e in examples if e.subject == question.subject][: entry.shots]
    special = set(loaded.texts.tokenizer.all_special_ids)
    answers = []
    for form in FORMS:
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
    if not answers:
        return values
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
        # For each token of each answer: the state that predicts it, as its row in the batch and
        # its place in the row; the token; and the answer's number.
        states: list[tuple[int, int]] = []
        ids: list[int] = []
        self.of: list[int] = []
        for row, of_row in enumerate(numbers):
            for number in of_row:
                answer = answers[number]
                first = len(answer.before) - len(answer.ids)
                states += [(row, first + k) for k in range(len(answer.ids))]
                ids += answer.ids
                self.of += [number] * len(answer.ids)
        # Letters have one state in common.
        distinct, at = np.unique(np.array(states).T, axis=1, return_inverse=True)
        self.states, self.at = torch.tensor(distinct), torch.tensor(at.reshape(-1))
        self.ids = torch.tensor(ids)
        self.logs: dict[int, Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Read one layer at the tokens before the answers'."""
        if sublayer != BLOCK:
            return
        rows, places = self.states.to(packed.states.device)
        states = packed.states if packed.streams is None else packed.streams
        self.logs[layer] = self.lens(states[rows, places], self.at, self.ids)

    def finish(self) -> None:
        """Add the tokens' log-likelihoods up."""
        for layer, logs in self.logs.items():
            np.add.at(self.values[layer], self.of, logs.double().cpu().numpy())
