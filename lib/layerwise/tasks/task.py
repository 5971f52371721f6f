"""Parts that all kinds of tasks share: the protocol, models as tasks read them, vectors."""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from layerwise.config.tasks import CustomEntry
from layerwise.errors import DiskError, LayerwiseError

if TYPE_CHECKING:
    from layerwise.activations.representation import Representation
    from layerwise.config.settings import ExtractSettings, ScoringSettings
    from layerwise.corpora.prompts import Medium
    from layerwise.models.load import LoadedModel
    from layerwise.tasks.evaluate import Score

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# Prompt type ('query', 'document' or '') and text; in place of the text the SHA-256 of the file
# of a medium, a `layerwise.activations.embedding.Word`, or what the task reads.
Key = tuple[str, Any]

# Prompt types of mteb's texts.
PROMPT_TYPES = ("query", "document")
# The name of the prompt of texts that have no prompt type, where no other fits.
DEFAULT = "default"
# Stands for mteb's instruction in a prompt.
INSTRUCTION = "{instruction}"

keep_data = lru_cache(maxsize=8)
"""Decorator of functions that read a task's data: those of the last few tasks stay in memory."""


@dataclass(frozen=True)
class Unit:
    """A part of a task that is embedded and scored as a whole.

    Attributes
    ----------
    keys : sequence of Key
        Distinct inputs.
    media : mapping
        Files of a medium by their hash, if the inputs are such.
    selection : object
        Part of the task's data, in the task's own terms; None for all.
    """

    keys: Sequence[Key]
    media: Mapping[str, Medium] = field(default_factory=dict)
    selection: Any = None


@dataclass(frozen=True)
class Vectors:
    """Vectors of one layer.

    Attributes
    ----------
    values : array, shape (N, D), float32
    rows : mapping
        Row of each input.
    """

    values: Array
    rows: Mapping[Key, int]

    def of(self, prompt_type: str, texts: Sequence[Any]) -> Array:
        """Vectors of some texts, shape (len(texts), D)."""
        return self.values[[self.rows[prompt_type, text] for text in texts]]

    def scaled(self, settings: ScoringSettings) -> Vectors:
        """The vectors at unit length, if the settings say so."""
        return replace(self, values=normalized(self.values)) if settings.normalize else self


class NoScoreError(LayerwiseError):
    """The model cannot have a score on a task; the table names the reason."""

    code = "unsupported"


class Task(ABC):
    """A task of the config: small, hashable, and sent to the processes that score.

    Its methods read its data where they are not in memory.
    """

    @property
    @abstractmethod
    def task_type(self) -> str:
        """Type in the table of scores."""

    @property
    def reader(self) -> object:
        """Tasks with equal readers share the vectors of equal inputs."""
        return None

    @property
    def is_read_ahead(self) -> bool:
        """True if its data are read while the tasks before are embedded."""
        return False

    def instruction(self, prompt_type: str) -> str:  # noqa: ARG002
        """Instruction for inputs of a prompt type; empty for none."""
        return ""

    def prompt(self, prompts: ModelPrompts, name: str, prompt_type: str) -> str:
        """A model's prompt in front of inputs of a prompt type; empty for none."""
        return prompts.of(name, self, prompt_type)

    @abstractmethod
    def units(self, most: int) -> Iterator[Unit]:
        """Parts of the task of at most `most` inputs, where it can be divided."""

    def text_of(self, item: Any) -> str:
        """The text of an input."""
        return str(item)

    def representations(self, setup: Setup) -> list[Representation]:
        """The representations of inputs: by default all of the settings."""
        from layerwise.activations import embedding

        scoring = setup.scoring
        return embedding.representations_of(
            setup.loaded, setup.extraction.tokens, scoring.poolings or (), scoring.readouts
        )

    def width(self, setup: Setup) -> int:
        """Length D of a vector."""
        return setup.loaded.width

    def read(
        self, setup: Setup, inputs: Sequence[Any], prompts: Sequence[str], into: Array
    ) -> Iterator[int]:
        """Fill an array with the vectors of inputs, all layers in one pass.

        Parameters
        ----------
        inputs : sequence of str, of `layerwise.corpora.prompts.Medium`, or of words
        prompts : sequence of str
            The prompt in front of each input; empty for none.
        into : array, shape (representations, layers, inputs, D), float32

        Yields
        ------
        int
            How many inputs have been read since the last time.

        Raises
        ------
        NoScoreError
            If the model cannot be read like this.
        """
        from layerwise.activations import embedding

        return embedding.embed_into(
            setup.loaded,
            inputs,
            into,
            self.representations(setup),
            prompts=prompts,
            include_prompt=setup.prompts.include_prompt,
            budget=setup.extraction.batch_tokens,
            sink_ratio=setup.extraction.sink_ratio,
            part=setup.scoring.part,
        )

    @abstractmethod
    def score(self, selection: Any, vectors: Vectors, settings: ScoringSettings) -> Any:
        """Score one layer on the unit with a selection."""

    def combine(self, units: Sequence[Any], settings: ScoringSettings) -> Sequence[Score]:  # noqa: ARG002
        """Scores of one layer in the table, from the scores of all units in order."""
        return units


class CustomTask(CustomEntry, Task):
    """Base of a task of a user's own: its keys in a config, and how it is scored.

    A subclass declares keys as a pydantic model does, and defines at least `units`, whose inputs
    are embedded, and `score`.
    """

    def representations(self, setup: Setup) -> list[Representation]:
        """One for each of its forms, or else all of the settings."""
        from layerwise.activations.representation import Representation

        forms = [Representation("all", form, "final_norm") for form in self.forms]
        return forms or super().representations(setup)


def texts_of(task: Task) -> list[str]:
    """Distinct texts of a task, in order of first use.

    Raises
    ------
    LayerwiseError
        If the task is of another medium.
    """
    units = list(task.units(sys.maxsize))
    if file := next((file for unit in units for file in unit.media.values()), None):
        raise LayerwiseError(
            f"The task is of {file.kind}s, and has no texts for a corpus; name a corpus of "
            f"{file.kind}s.",
            code="conflict",
        )
    keys = (key for unit in units for key in unit.keys)
    return list(dict.fromkeys(task.text_of(item) for _, item in keys))


# Models as tasks read them


@dataclass(frozen=True)
class ModelPrompts:
    """The prompts of a model, by name as in sentence-transformers and mteb.

    A name is of a task and prompt type (``STS12-query``), a task, a task type and prompt type, a
    task type, or a prompt type (``query``, ``document``). The first that exists is used, in this
    order (mteb's `get_prompt_name`); texts without a prompt type may also have the prompt
    ``default``. In a prompt, ``{instruction}`` is replaced by mteb's instruction for the task.

    Attributes
    ----------
    by_name : mapping
    include_prompt : bool
        True if their tokens count in the pooling.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    include_prompt: bool = True

    def of(self, name: str, task: Task, prompt_type: str) -> str:
        """The prompt in front of a task's texts of a prompt type; empty for none.

        Parameters
        ----------
        name : str
            The task's name.
        prompt_type : {'', 'query', 'document'}
        """
        if not self.by_name:
            return ""
        from mteb.models.abs_encoder import get_prompt_name
        from mteb.types import PromptType

        about: Any = SimpleNamespace(name=name, type=task.task_type)
        kind = PromptType(prompt_type) if prompt_type else None
        prompt_name = get_prompt_name(dict(self.by_name), about, kind)
        if prompt_name is None and not prompt_type:
            prompt_name = DEFAULT
        prompt = self.by_name.get(prompt_name or "", "")
        if INSTRUCTION not in prompt:
            return prompt
        instruction = task.instruction(prompt_type)
        return instruction and prompt.replace(INSTRUCTION, instruction)


def prompts_of(loaded: LoadedModel) -> ModelPrompts:
    """The prompts that a model's entry in the config asks for; by default its saved ones.

    Raises
    ------
    LayerwiseError
        If it asks for those that sentence-transformers has saved with the model, and there are
        none.
    """
    entry, own = loaded.entry, loaded.embedder
    if isinstance(entry.prompts, dict):
        return ModelPrompts(entry.prompts, entry.include_prompt is not False)
    if not any(own.prompts.values()):
        if entry.prompts is None:
            return ModelPrompts()
        raise LayerwiseError(
            f"prompts: sentence-transformers has saved no prompts with {loaded.name}; fetch the "
            "model again, or write the prompts into the config.",
            code="missing_file",
        )
    # sentence-transformers has an empty prompt for queries and documents where none is saved.
    by_name = {**dict.fromkeys(PROMPT_TYPES, ""), **own.prompts, DEFAULT: own.prompt}
    counts = own.include_prompt if entry.include_prompt is None else entry.include_prompt
    return ModelPrompts(by_name, counts)


@dataclass(frozen=True)
class Setup:
    """A model with all that decides how it reads the inputs of tasks.

    Attributes
    ----------
    scoring : ScoringSettings
        With `normalize` and `poolings` decided.
    prompts : Prompts
        Prompts in front of inputs.
    """

    loaded: LoadedModel
    extraction: ExtractSettings
    scoring: ScoringSettings
    prompts: ModelPrompts


def set_up(loaded: LoadedModel, extraction: ExtractSettings, scoring: ScoringSettings) -> Setup:
    """A model with its prompts; texts are pooled and vectors scaled as the model does, unless the
    settings say."""
    own = loaded.embedder
    if scoring.normalize is None:
        scoring = scoring.model_copy(update={"normalize": own.normalizes})
    if scoring.poolings is None:
        scoring = scoring.model_copy(update={"poolings": (own.pooling,)})
    elif own.pooling not in scoring.poolings:
        how = " and ".join(scoring.poolings)
        log.info("%s: pooled by %s; its own pooling is %s.", loaded.name, how, own.pooling)
    return Setup(loaded, extraction, scoring, prompts_of(loaded))


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit all libraries to one thread; torch resets what others set when it first computes."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


# Vectors


def allocate(path: Path, shape: tuple[int, ...]) -> Array:
    """Make a file of float32 on the scratch disk, mapped to memory.

    Raises
    ------
    DiskError
        If the disk has no room: a write to the mapped file would end the process.
    """
    into = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if hasattr(os, "posix_fallocate"):
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise DiskError(
                f"{path.parent} has no room for {into.nbytes / 1e9:.1f} GB of vectors "
                f"({error.strerror}); free some space, or set TMPDIR to another disk."
            ) from error
    return into


def normalized(vectors: Array) -> Array:
    """Scale rows to unit length, shape (N, D), float32; a zero row stays zero."""
    from sklearn.preprocessing import normalize

    return np.asarray(normalize(np.asarray(vectors, np.float32)))
