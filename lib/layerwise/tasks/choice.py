"""Multiple choice at every layer: predictions through the final norm and the unembedding.

The plain logit lens (nostalgebraist 2020) reads the states after block l as if they were the last
ones. Chance at a layer means that the last layer's readout finds no answer there; one that is
trained for the layer might find it (Belrose et al. 2023, arXiv 2303.08112). At the last layer the
readout is the model's own.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerwise.activations import forward
from layerwise.activations.representation import Packed
from layerwise.config.models import Model
from layerwise.config.scoring import ScoringSettings
from layerwise.config.tasks import ChoiceTask
from layerwise.errors import LayerwiseError
from layerwise.models import hooks
from layerwise.models.architectures import BLOCK
from layerwise.models.failures import not_finite, why
from layerwise.models.load import DTYPES, LoadedModel
from layerwise.models.probe import pass_options, states_out
from layerwise.models.source import Location, locate
from layerwise.progress import Progress
from layerwise.tasks.probes import wilson
from layerwise.tasks.questions import LETTERS, Question, read_questions

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

# Memory of the logits of one layer.
LOGITS_BYTES = 64 * 2**20
WINDOW = 128  # questions whose tokens are in memory
PROBE = 9  # tokens on which a readout is tried
# Largest difference of logits by rounding, for each type.
ROUNDING = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
# Names of unembeddings in files, where they differ from the module's: GPT-NeoX and RWKV.
IN_FILES = ("embed_out", "head")


class NoAnswersError(LayerwiseError):
    """A model without a readout of the next token that every layer can be read with."""


@dataclass(frozen=True)
class QuestionTask:
    """A task of multiple-choice questions.

    Attributes
    ----------
    paragraphs : Path, optional
        Table of Wikipedia paragraphs, for questions that are made of them.
    """

    entry: ChoiceTask
    paragraphs: Path | None = None

    def rows(
        self, loaded: LoadedModel, entry: Model, settings: ScoringSettings, budget: int | None
    ) -> list[dict[str, Any]]:
        """Rows of the table of scores: one for each layer and form of the questions.

        A model that cannot be asked has rows without a score, which give the reason.

        Parameters
        ----------
        entry : Model
            The model's entry in the config.
        budget : int, optional
            Tokens in a batch, pads included.
        """
        questions, examples = read_questions(self.entry, self.paragraphs)
        about = {
            "task_type": "MultipleChoice",
            "subset": "default",
            "split": "test",
            "tokens": "all",
            "readout": "final_norm",
        }
        last = loaded.anatomy.n_layers - 1
        places = itertools.product(self.entry.forms, range(last + 1))
        rows: list[dict[str, Any]] = [
            {**about, "pooling": form, "layer": layer, "depth": layer / max(last, 1)}
            for form, layer in places
        ]
        try:
            lens = lens_of(loaded, entry)
        except NoAnswersError as error:
            return [{**row, "main_score": None, "n_runs": 1, "why": str(error)} for row in rows]
        right, chance = answer(loaded, lens, self.entry, questions, examples, budget)
        n = right.shape[2]
        for row, count in zip(rows, right.sum(axis=2).ravel().tolist(), strict=True):
            low, high = wilson(count, n, settings.confidence)
            row |= {"main_score": count / n, "score_low": low, "score_high": high}
            row |= {"n_runs": n, "chance": chance}
        return rows


# Readout


@dataclass(frozen=True)
class Lens:
    """From states of shape (n, D) to log-probabilities of the next token, shape (n, V)."""

    norm: nn.Module | None
    head: nn.Module
    scale: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    device: torch.device

    @property
    def at_once(self) -> int:
        """Number of states whose log-probabilities are in memory together."""
        return max(1, LOGITS_BYTES // (4 * len(next(self.head.parameters()))))

    def __call__(self, states: Tensor) -> Tensor:
        states = states.to(self.device, self.dtype)
        logits = self.head(states if self.norm is None else self.norm(states))
        return torch.log_softmax(self.scale(logits.float()), dim=-1)


@torch.inference_mode()
def lens_of(loaded: LoadedModel, entry: Model) -> Lens:
    """The readout of a causal language model; of its files, the unembedding alone is loaded.

    Parameters
    ----------
    entry : Model
        The model's entry in the config, from which `loaded` was made.

    Raises
    ------
    NoAnswersError
        If the model takes images or sees later tokens, has no unembedding of its own, or its
        logits are not a (scaled or capped) linear map of its last states.
    """
    if loaded.images is not None:
        raise NoAnswersError(f"{loaded.name} takes images and predicts no next token.")
    network: Any = loaded.model
    tokens = torch.arange(1, 1 + PROBE, device=loaded.device)[None]
    tokens %= len(network.get_input_embeddings().weight)
    _look_back(loaded, tokens)
    full = _with_head(loaded, entry)
    # Of a model that is spread over several devices, the last norm is on the last.
    norm = loaded.anatomy.final_norm
    device = next((p.device for p in norm.parameters()), loaded.device) if norm else loaded.device
    head = full.get_output_embeddings().to(device, DTYPES[loaded.dtype])
    try:
        logits = full(input_ids=tokens, **pass_options(full)).logits[0].float()
    except (RuntimeError, NotImplementedError) as error:  # of parts that are not loaded
        raise _unlike(loaded) from error
    states = states_out(network(input_ids=tokens, **pass_options(network)))
    if states is None or (norm is None and not _hands_out_last(loaded, tokens)):
        raise _unlike(loaded)
    tolerance = ROUNDING[loaded.dtype] * float(logits.abs().max())
    for scale in _scales(full.config.get_text_config()):
        scaled = scale(head(states[0].to(device)).float())
        if torch.allclose(scaled, logits.to(device), rtol=0, atol=tolerance):
            return Lens(norm, head, scale, DTYPES[loaded.dtype], device)
    raise _unlike(loaded)


def _look_back(loaded: LoadedModel, tokens: Tensor) -> None:
    """Refuse a model in which a later token changes an earlier one's states."""
    network: Any = loaded.model
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % len(network.get_input_embeddings().weight)
    one, two = (
        states_out(network(input_ids=ids, **pass_options(network))) for ids in (tokens, other)
    )
    alike = (
        one is not None
        and two is not None
        and torch.allclose(
            one[:, :-1].float(), two[:, :-1].float(), rtol=0, atol=1e-3 * float(one.abs().max())
        )
    )
    if not alike:
        raise NoAnswersError(f"{loaded.name} sees later tokens and so predicts no next one.")


def _with_head(loaded: LoadedModel, entry: Model) -> Any:
    """The language model around a loaded model, with the weights of its unembedding."""
    from transformers import AutoModelForCausalLM

    network: Any = loaded.model
    try:
        with torch.device("meta"):
            full = AutoModelForCausalLM.from_config(
                network.config, trust_remote_code=entry.trust_remote_code
            )
    except ValueError as error:  # as transformers says that there is no such class
        raise _headless(loaded) from error
    setattr(full, full.base_model_prefix, network)
    head = full.get_output_embeddings()
    if head is None:
        raise _headless(loaded)
    if full.config.get_text_config().tie_word_embeddings:
        tensors = {"weight": network.get_input_embeddings().weight}
    else:
        (name,) = (name for name, module in full.named_modules() if module is head)
        tensors = _tensors(locate(entry.source, loaded.revision), (name, *IN_FILES))
    if set(tensors) != {name for name, _ in head.named_parameters()}:
        raise _headless(loaded)
    head.load_state_dict(tensors, assign=True)
    return full.eval()


def _tensors(location: Location, modules: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of a module in a model's safetensors files, under the first of its names.

    Raises
    ------
    LayerwiseError
        If the files cannot be had.
    """
    from safetensors import safe_open
    from transformers.utils import cached_file

    def file(name: str, *, required: bool) -> str | None:
        found: str | None = cached_file(
            location.name,
            name,
            revision=location.revision,
            _raise_exceptions_for_missing_entries=required,
        )
        return found

    try:
        index = file(INDEX, required=False)
        names = {WEIGHTS}
        if index is not None:
            listed = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
            names = {part for name, part in listed.items() if name.rpartition(".")[0] in modules}
        found: dict[str, dict[str, Tensor]] = {}
        for name in names:
            with safe_open(file(name, required=True), "pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118  (not a dictionary)
                    module, _, parameter = key.rpartition(".")
                    if module in modules:
                        found.setdefault(module, {})[parameter] = tensors.get_tensor(key)
        return next((found[module] for module in modules if module in found), {})
    except Exception as error:  # of the hub, the network or the disk; `why` explains it
        raise LayerwiseError(f"{location.name}: {why(error, location)}") from error


def _scales(config: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Transform of the logits: none, a cap (Gemma 2) or a factor (Cohere, Granite)."""
    yield lambda logits: logits
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        yield lambda logits: cap * torch.tanh(logits / cap)
    for name, power in (("logit_scale", 1), ("logits_scaling", -1)):
        factor = getattr(config, name, None)
        if factor:
            yield lambda logits, by=float(factor) ** power: logits * by  # type: ignore[misc]


def _hands_out_last(loaded: LoadedModel, tokens: Tensor) -> bool:
    last: list[Tensor] = []
    with ExitStack() as stack:
        hooks.attach(
            loaded.anatomy,
            loaded.name,
            (),
            lambda _, __, s: last.__setitem__(slice(None), [s]),
            stack,
        )
        output = states_out(loaded.model(input_ids=tokens, **pass_options(loaded.model)))
    return output is not None and torch.equal(last[0], output)


def _headless(loaded: LoadedModel) -> NoAnswersError:
    return NoAnswersError(f"{loaded.name} has no unembedding in its files.")


def _unlike(loaded: LoadedModel) -> NoAnswersError:
    return NoAnswersError(
        f"The logits of {loaded.name} are more than its final norm and its unembedding, so other "
        "layers cannot be read with them."
    )


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


@dataclass(frozen=True)
class Answer:
    """An answer to a question as tokens.

    Attributes
    ----------
    asked : (int, str)
        Number of the question, and 'letter' or 'answer'.
    before, ids : tuple of int
        Tokens that the model reads, and those of the answer; the last of `before` predicts the
        first of `ids`, and so on.
    """

    asked: tuple[int, str]
    before: tuple[int, ...]
    ids: tuple[int, ...]


def answer(
    loaded: LoadedModel,
    lens: Lens,
    task: ChoiceTask,
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
    texts = list(dict.fromkeys("letter" if f == "letter" else "answer" for f in task.forms))
    right: list[list[npt.NDArray[np.bool_]]] = []
    chances: list[float] = []
    with Progress(len(questions), f"{loaded.name} {loaded.revision}", "question") as bar:
        for start in range(0, len(questions), WINDOW):
            window = questions[start : start + WINDOW]
            answers = _tokenized(loaded, window, texts, examples, task.shots)
            likelihoods = _likelihoods(loaded, lens, answers, budget)
            numbers: dict[tuple[int, str], list[int]] = {}
            for number, one in enumerate(answers):
                numbers.setdefault(one.asked, []).append(number)
            for place in dict.fromkeys(place for place, _ in numbers):
                question = window[place]
                chances.append(1 / len(question.choices))
                found = []
                for form in task.forms:
                    text = "letter" if form == "letter" else "answer"
                    values = likelihoods[:, numbers[place, text]]
                    if form == "answer_per_character":
                        values = values / np.array([len(choice) for choice in question.choices])
                    found.append(values.argmax(axis=1) == question.answer)
                right.append(found)
            bar.update(len(window))
    if not right:
        raise LayerwiseError(
            f"All {len(questions)} questions are longer than the {loaded.max_length} tokens that "
            f"{loaded.name} takes, with {task.shots} examples each; lower shots."
        )
    if len(right) < len(questions):
        log.warning("%d questions are too long and left out", len(questions) - len(right))
    return np.moveaxis(np.array(right), 0, 2), float(np.mean(chances))


def _tokenized(
    loaded: LoadedModel,
    questions: Sequence[Question],
    texts: Sequence[str],
    examples: Sequence[Question],
    shots: int,
) -> list[Answer]:
    """Answers to questions in each form, without questions that are too long.

    The tokens of an answer are those where prompt and answer together differ from the prompt.
    """
    shown = {
        subject: [e for e in examples if e.subject == subject][:shots]
        for subject in {q.subject for q in questions}
    }
    special = set(loaded.tokenizer.all_special_ids)
    answers, too_long = [], set()
    for number, question in enumerate(questions):
        for text in texts:
            prompt, choices = prompts(question, text, shown[question.subject])
            (alone, *wholes), (_, *cut) = loaded.tokenize([prompt, *(prompt + c for c in choices)])
            for whole, n_cut in zip(wholes, cut, strict=True):
                ids = list(whole)
                while ids and ids[-1] in special:
                    ids.pop()
                same = [a == b for a, b in zip(ids, alone, strict=False)]
                start = same.index(False) if False in same else len(same)
                if n_cut or not 0 < start < len(ids):
                    too_long.add(number)
                answers.append(Answer((number, text), tuple(ids[:-1]), tuple(ids[start:])))
    return [one for one in answers if one.asked[0] not in too_long]


def _likelihoods(
    loaded: LoadedModel, lens: Lens, answers: Sequence[Answer], budget: int | None
) -> Floats:
    """Log-likelihood of each answer at each layer, shape (layers, answers)."""
    values = np.zeros((loaded.anatomy.n_layers, len(answers)))
    by_input: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(answers):
        by_input.setdefault(one.before, []).append(number)
    inputs = list(by_input)

    def batch(rows: list[int]) -> _Batch:
        return _Batch(lens, answers, [by_input[inputs[row]] for row in rows], values)

    forward.run(loaded, inputs, batch, budget=budget)
    if not np.isfinite(values).all():
        where = f"layer {int(np.argwhere(~np.isfinite(values))[0, 0])}, its lens"
        raise LayerwiseError(not_finite(loaded.name, loaded.revision, loaded.dtype, where))
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
        states = packed.states[rows, places]
        at, ids = self.at.to(self.lens.device), self.ids.to(self.lens.device)
        logs = torch.empty(len(ids), device=self.lens.device)
        size = self.lens.at_once
        for start in range(0, len(states), size):
            inside = (at >= start) & (at < start + size)
            logs[inside] = self.lens(states[start : start + size])[at[inside] - start, ids[inside]]
        self.logs[layer] = logs

    def finish(self) -> None:
        """Add the tokens' log-likelihoods up."""
        for layer, logs in self.logs.items():
            np.add.at(self.values[layer], self.of, logs.double().cpu().numpy())
