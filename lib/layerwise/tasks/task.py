"""The parts of an evaluation that all kinds of tasks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from layerwise.config.scoring import ScoringSettings
    from layerwise.corpora.images import Picture
    from layerwise.tasks.results import Score

Array = npt.NDArray[Any]

Key = tuple[str, Any]
"""Prompt type ('query', 'document' or '') and text; for images the SHA-256 of the file, for words
a `layerwise.activations.words.Word`."""

keep_data = lru_cache(maxsize=8)
"""Decorator of functions that read a task's data: those of the last few tasks stay in memory."""


@dataclass(frozen=True)
class Unit:
    """A part of a task that is embedded and scored as a whole.

    Attributes
    ----------
    keys : sequence of Key
        Distinct inputs.
    pictures : mapping
        Images by their hash, if the inputs are images.
    selection : object
        Part of the task's data, in the task's own terms; None for all.
    """

    keys: Sequence[Key]
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    selection: Any = None

    @property
    def sort(self) -> tuple[bool, type]:
        """Equal for units that can be embedded together: of texts, of images, or of words."""
        return bool(self.pictures), type(self.keys[0][1])


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


class Task(Protocol):
    """A task of the config: small, hashable, and sent to the processes that score.

    Its methods read its data where they are not in memory.
    """

    @property
    def task_type(self) -> str:
        """Type in the table of scores."""

    def instruction(self, prompt_type: str) -> str:  # noqa: ARG002
        """Instruction for inputs of a prompt type; empty for none."""
        return ""

    def units(self, most: int) -> Iterator[Unit]:
        """Parts of the task of at most `most` inputs, where it can be divided."""

    def score(self, selection: Any, vectors: Vectors, settings: ScoringSettings) -> Any:
        """Score one layer on the unit with a selection."""

    def scores(self, parts: Sequence[Any], settings: ScoringSettings) -> Sequence[Score]:  # noqa: ARG002
        """Scores of one layer in the table, from the scores of all units in order."""
        return parts


def normalized(vectors: Array) -> Array:
    """Scale rows to unit length, shape (N, D), float32; a zero row stays zero."""
    from sklearn.preprocessing import normalize

    return np.asarray(normalize(np.asarray(vectors, np.float32)))
