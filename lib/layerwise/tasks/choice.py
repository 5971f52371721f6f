"""Multiple choice at every layer: predictions through the final norm and the unembedding.

The plain logit lens (nostalgebraist 2020) reads the states after block l as if they were the last
ones. Chance at a layer means that the last layer's readout finds no answer there; one that is
trained for the layer might find it (Belrose et al. 2023, arXiv 2303.08112). At the last layer the
readout is the model's own.
"""

from __future__ import annotations

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
from layerwise.probes import wilson
from layerwise.progress import Progress
from layerwise.tasks.questions import LETTERS, Question, read_questions

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

# Memory of the logits of one layer.
LOGITS_BYTES = 64 * 2**20
WINDOW = 128  # questions whose tokens are in memory
PROBE = 9  # tokens on which a readout is tried
# How far logits may be off: the rounding of each type.
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
        about = {"task_type": "MultipleChoice", "subset": "default", "split": "test",
                 "tokens": "all", "readout": "final_norm"}  # fmt: skip
        n_layers, n = loaded.anatomy.n_layers, 1
        places = [(form, layer) for form in self.entry.forms for layer in range(n_layers)]
        scores: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            found = answer(loaded, lens_of(loaded, entry), self.entry, questions, examples, budget)
        except NoAnswersError as error:
            scores = {place: {"main_score": None, "n_runs": n, "why": str(error)}
                      for place in places}  # fmt: skip
        else:
            for k, form in enumerate(found.forms):
                for layer, right in enumerate(found.right[k]):
                    n, count = len(right), int(right.sum())
                    low, high = wilson(count, n, settings.confidence)
                    scores[form, layer] = {
                        "main_score": count / n, "score_low": low, "score_high": high,
                        "n_runs": n, "chance": found.chance,
                    }  # fmt: skip
        return [
            {**about, "layer": layer, "depth": layer / max(n_layers - 1, 1), "pooling": form,
             **scores[form, layer]}
            for form, layer in places
        ]  # fmt: skip


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
    alike = one is not None and two is not None and torch.allclose(
        one[:, :-1].float(), two[:, :-1].float(), rtol=0, atol=1e-3 * float(one.abs().max())
    )  # fmt: skip
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
            location.name, name, revision=location.revision,
            _raise_exceptions_for_missing_entries=required,
        )  # fmt: skip
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
    except Exception as error:  # the hub's, the network's, the disk's: `why` tells them apart
        raise LayerwiseError(f"{location.name}: {why(error, location)}") from error


def _scales(config: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """What models do to their logits: nothing, a cap (Gemma 2), a factor (Cohere, Granite)."""
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
            loaded.anatomy, loaded.name, (), lambda _, __, s: last.__setitem__(slice(None), [s]),
            stack,
        )  # fmt: skip
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
class Correct:
    """Which questions each layer answers rightly.

    Attributes
    ----------
    forms : tuple of str
    right : array of bool, shape (forms, layers, questions)
    chance : float
        What guessing gives.
    n_left_out : int
        Questions that with their examples are longer than the model takes.
    """

    forms: tuple[str, ...]
    right: npt.NDArray[np.bool_]
    chance: float
    n_left_out: int


def answer(
    loaded: LoadedModel,
    lens: Lens,
    task: ChoiceTask,
    questions: Sequence[Question],
    examples: Sequence[Question],
    budget: int | None = None,
) -> Correct:
    """Let every layer choose the likeliest answer of each question, all layers from one pass.

    The log-likelihood of an answer is that of its tokens after the prompt, where the tokens of
    both together part from those of the prompt alone. The unembedding is applied at these tokens
    alone.

    Raises
    ------
    LayerwiseError
        If no question fits the model, or a log-likelihood is not finite.
    """
    shots = {
        s: [e for e in examples if e.subject == s][: task.shots]
        for s in dict.fromkeys(q.subject for q in questions)
    }
    texts = tuple(dict.fromkeys("letter" if f == "letter" else "answer" for f in task.forms))
    parts: list[npt.NDArray[np.bool_]] = []
    kept: list[Question] = []
    with Progress(len(questions), f"{loaded.name} {loaded.revision}", "question") as bar:
        for start in range(0, len(questions), WINDOW):
            window = questions[start : start + WINDOW]
            found, fit = _window(loaded, lens, window, texts, shots, budget)
            whole = [q for q, fits in zip(window, fit, strict=True) if fits]
            if whole:
                parts.append(_right(found, task.forms, texts, whole))
            kept += whole
            bar.update(len(window))
    n_left_out = len(questions) - len(kept)
    if not kept:
        raise LayerwiseError(
            f"All {len(questions)} questions are longer than the {loaded.max_length} tokens that "
            f"{loaded.name} takes, with {task.shots} examples each; lower shots."
        )
    if n_left_out:
        log.warning(
            "%d of %d questions are too long and were left out", n_left_out, len(questions)
        )
    chance = float(np.mean([1 / len(q.choices) for q in kept]))
    return Correct(task.forms, np.concatenate(parts, axis=2), chance, n_left_out)


def _right(
    likelihoods: list[Floats], forms: Sequence[str], texts: Sequence[str], whole: list[Question]
) -> npt.NDArray[np.bool_]:
    """Per form and layer, whether the likeliest answer is the right one."""
    n_layers = likelihoods[0].shape[0]
    right = np.zeros((len(forms), n_layers, len(whole)), dtype=bool)
    for place, form in enumerate(forms):
        text = texts.index("letter" if form == "letter" else "answer")
        for k, question in enumerate(whole):
            values = likelihoods[k * len(texts) + text]
            if form == "answer_per_character":
                values = values / np.array([len(choice) for choice in question.choices])
            right[place, :, k] = values.argmax(axis=1) == question.answer
    return right


def _window(
    loaded: LoadedModel,
    lens: Lens,
    window: Sequence[Question],
    texts: Sequence[str],
    shots: dict[str, list[Question]],
    budget: int | None,
) -> tuple[list[Floats], list[bool]]:
    """Log-likelihoods, shape (layers, answers), of each question that fits under each text."""
    asked = [prompts(q, text, shots[q.subject]) for q in window for text in texts]
    befores, _ = loaded.tokenize([before for before, _ in asked])
    joined = [before + after for before, choices in asked for after in choices]
    wholes, cut = loaded.tokenize(joined)
    special = set(loaded.tokenizer.all_special_ids)
    inputs: dict[tuple[int, ...], int] = {}
    targets: list[tuple[int, list[int], list[int]]] = []  # input, places, tokens
    owner: list[int] = []
    fits = [True] * len(window)
    place = 0
    for number, (_, choices) in enumerate(asked):
        for _ in choices:
            ids = list(wholes[place])
            while ids and ids[-1] in special:
                ids.pop()
            start = next(
                (k for k, (a, b) in enumerate(zip(ids, befores[number], strict=False)) if a != b),
                min(len(ids), len(befores[number])),
            )
            if cut[place] or not 0 < start < len(ids):
                fits[number // len(texts)] = False
            else:
                row = inputs.setdefault(tuple(ids[:-1]), len(inputs))
                targets.append((row, list(range(start - 1, len(ids) - 1)), ids[start:]))
                owner.append(number)
            place += 1
    sums = np.zeros((loaded.anatomy.n_layers, len(targets)))
    by_input: dict[int, list[int]] = {}
    for k, (row, _, _) in enumerate(targets):
        by_input.setdefault(row, []).append(k)
    forward.run(
        loaded, list(inputs), lambda rows: _Batch(lens, rows, by_input, targets, sums),
        budget=budget,
    )  # fmt: skip
    if not np.isfinite(sums).all():
        layer = int(np.argwhere(~np.isfinite(sums))[0, 0])
        raise LayerwiseError(
            not_finite(loaded.name, loaded.revision, loaded.dtype, f"layer {layer}, its lens")
        )
    found = []
    for number in range(len(asked)):
        if fits[number // len(texts)]:
            found.append(sums[:, [k for k, of in enumerate(owner) if of == number]])
    return found, fits


class _Batch:
    """The log-likelihoods of one batch's answers, kept until the pass is over."""

    def __init__(
        self,
        lens: Lens,
        rows: list[int],
        by_input: dict[int, list[int]],
        targets: list[tuple[int, list[int], list[int]]],
        sums: Floats,
    ) -> None:
        self.lens, self.sums = lens, sums
        self.mine: list[int] = []
        states: dict[tuple[int, int], int] = {}
        at: list[int] = []
        wanted: list[int] = []
        of: list[int] = []
        for row, source in enumerate(rows):
            for k in by_input[source]:
                _, places, tokens = targets[k]
                for place, token in zip(places, tokens, strict=True):
                    at.append(states.setdefault((row, place), len(states)))
                    wanted.append(token)
                    of.append(len(self.mine))
                self.mine.append(k)
        self.states = torch.tensor(list(states))
        self.at, self.wanted = torch.tensor(at), torch.tensor(wanted)
        self.of = np.array(of)
        self.values = np.zeros((len(sums), len(self.mine)))

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Read one layer at the tokens before the answers'."""
        if sublayer != BLOCK:
            return
        rows, places = self.states.to(packed.states.device).T
        states = packed.states[rows, places]
        at, wanted = self.at.to(self.lens.device), self.wanted.to(self.lens.device)
        found = torch.empty(len(at), dtype=torch.float32, device=self.lens.device)
        size = self.lens.at_once
        for start in range(0, len(states), size):
            inside = (at >= start) & (at < start + size)
            logs = self.lens(states[start : start + size])
            found[inside] = logs[at[inside] - start, wanted[inside]]
        np.add.at(self.values[layer], self.of, found.double().cpu().numpy())

    def finish(self) -> None:
        """Hand the values over."""
        self.sums[:, self.mine] = self.values
