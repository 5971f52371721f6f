"""The parts of an evaluation that all kinds of tasks share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from layerwise.activations.representation import Representation
    from layerwise.config.settings import ScoringSettings
    from layerwise.corpora.media import Medium
    from layerwise.tasks.reading import Prompts, Setup
    from layerwise.tasks.results import Score

Array = npt.NDArray[Any]

Key = tuple[str, Any]
"""Prompt type ('query', 'document' or '') and text; in place of the text the SHA-256 of the file
of an image or a recording, a `layerwise.activations.embedding.Word` or a
`layerwise.tasks.questions.Question`."""

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
        Images or recordings by their hash, if the inputs are such.
    selection : object
        Part of the task's data, in the task's own terms; None for all.
    """

    keys: Sequence[Key]
    media: Mapping[str, Medium] = field(default_factory=dict)
    selection: Any = None

    @property
    def sort(self) -> tuple[bool, type]:
        """Equal for units that can be embedded together: of texts, of files, or of words."""
        return bool(self.media), type(self.keys[0][1])


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


class Reader(Protocol):
    """Turns inputs into a vector for each layer, all layers in one pass.

    Readers are compared: units with equal ones are read together.
    """

    def representations(self, setup: Setup) -> list[Representation]:
        """The representations that inputs are read in."""

    def width(self, setup: Setup) -> int:
        """Length D of a vector."""

    def read(
        self, setup: Setup, inputs: Sequence[Any], prompts: Sequence[str], into: Array
    ) -> Iterator[int]:
        """Fill an array with the vectors of inputs.

        Parameters
        ----------
        inputs : sequence of str, of images or recordings, of words or of questions
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


class Task(Protocol):
    """A task of the config: small, hashable, and sent to the processes that score.

    Its methods read its data where they are not in memory.
    """

    @property
    def task_type(self) -> str:
        """Type in the table of scores."""

    @property
    def reader(self) -> Reader:
        """Settings for reading the inputs."""

    def instruction(self, prompt_type: str) -> str:  # noqa: ARG002
        """Instruction for inputs of a prompt type; empty for none."""
        return ""

    def prompt(self, prompts: Prompts, name: str, prompt_type: str) -> str:
        """A model's prompt in front of inputs of a prompt type; empty for none."""
        return prompts.of(name, self, prompt_type)

    def units(self, most: int) -> Iterator[Unit]:
        """Parts of the task of at most `most` inputs, where it can be divided."""

    def texts(self) -> list[str]:
        """Distinct texts, in order of first use.

        Raises
        ------
        LayerwiseError
            If the task is of images or recordings.
        """
        units = list(self.units(sys.maxsize))
        if any(unit.media for unit in units):
            raise LayerwiseError(
                "The task is of images or recordings, and has no texts for a corpus; name a "
                "corpus of images or of audio.",
                code="conflict",
            )
        keys = (key for unit in units for key in unit.keys)
        return list(dict.fromkeys(self.text_of(item) for _, item in keys))

    def text_of(self, item: Any) -> str:
        """The text of an input."""
        return str(item)

    def score(self, selection: Any, vectors: Vectors, settings: ScoringSettings) -> Any:
        """Score one layer on the unit with a selection."""

    def scores(self, parts: Sequence[Any], settings: ScoringSettings) -> Sequence[Score]:  # noqa: ARG002
        """Scores of one layer in the table, from the scores of all units in order."""
        return parts


class Combination(NamedTuple):
    """Layers whose vectors become one.

    Attributes
    ----------
    layers : tuple of int
        Ascending.
    combine : {'mean', 'concat'} or ''
        Empty for a single layer.
    """

    layers: tuple[int, ...]
    combine: str = ""

    def __str__(self) -> str:
        return " ".join(map(str, self.layers)) + (f" ({self.combine})" if self.combine else "")


def combined(layers: Sequence[Array], combine: str) -> Array:
    """Combine the vectors of several layers, of shape (N, D) each.

    Each layer's vectors are first scaled to unit length, so that layers count equally. A single
    layer's stay unchanged.

    Parameters
    ----------
    combine : {'mean', 'concat'}

    Returns
    -------
    array, shape (N, D), or (N, k D) if they are concatenated, float32
    """
    if len(layers) == 1:
        return layers[0]
    units = [normalized(layer) for layer in layers]
    return np.concatenate(units, axis=1) if combine == "concat" else np.mean(units, axis=0)


def normalized(vectors: Array) -> Array:
    """Scale rows to unit length, shape (N, D), float32; a zero row stays zero."""
    from sklearn.preprocessing import normalize

    return np.asarray(normalize(np.asarray(vectors, np.float32)))
