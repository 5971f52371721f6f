"""Prompts that are files, such as images: what an add-on that reads them defines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from layerwise import addons
from layerwise.errors import LayerwiseError
from layerwise.io.files import sha256_bytes, visible_files
from layerwise.section import Section

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Medium(ABC):
    """A prompt that is a file, or a view of one. A subclass is a medium, such as images.

    A subclass in `layerwise.addons.MEDIA` reads corpora, tasks and models of its medium.

    Attributes
    ----------
    name : str
        Its id, for messages.
    data : bytes
        Bytes of its file, in whatever format.
    drawn : str
        Parameters of a view, as `draw_views` gives them; empty for the file itself.
    kind : str
        What it is, and what a model that reads it takes.
    column : str
        Name of the column of bytes in a corpus' file, and of mteb's inputs.
    suffixes : tuple of str
        Endings of the files that are read.
    objects : str
        Objects in memory that `of_object` takes, for messages.
    task_types : tuple of str
        Types of mteb's tasks that the scoring has been checked on.
    corpus : subclass of Section
        Settings of a corpus.
    preprocess : subclass of Section, or None
        Settings of a model's processor, if an entry can give them.
    """

    name: str
    data: bytes
    drawn: str = ""

    kind: ClassVar[str]
    column: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    objects: ClassVar[str]
    task_types: ClassVar[tuple[str, ...]]
    corpus: ClassVar[type[Section]]
    preprocess: ClassVar[type[Section] | None] = None

    @cached_property
    def sha256(self) -> str:
        """Hash of the file's bytes."""
        return sha256_bytes(self.data)

    @classmethod
    @abstractmethod
    def read_corpus(cls, settings: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The table of a corpus (`layerwise.corpora.prompts`), and facts such as counts."""

    @classmethod
    @abstractmethod
    def draw_views(cls, table: pd.DataFrame, settings: Any) -> pd.DataFrame:
        """The parameters of views of a corpus: columns ``prompt_id``, ``view``, ``drawn``."""

    @classmethod
    @abstractmethod
    def list_folder(cls, folder: Path) -> Files:
        """The files of a folder."""

    @classmethod
    @abstractmethod
    def read_rows(cls, data: Any, hub: str, name: str) -> Iterator[Self]:
        """The rows of a data set of `datasets`, named after it and their number."""

    @classmethod
    @abstractmethod
    def of_object(cls, name: str, item: Any) -> Self | None:
        """A prompt of an object in memory, or of a path; None if it is none of this medium."""

    @classmethod
    def undecoded(cls, data: Any, column: str) -> Any:  # noqa: ARG003
        """A data set whose column `of_object` takes."""
        return data

    @classmethod
    @abstractmethod
    def reader_of(cls, config: Any) -> Any:
        """The `layerwise.models.reader.Reader` of a model with this configuration, or None."""


class Files(NamedTuple):
    """Files of a folder, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Their paths in the folder.
    labels : list of str or None
        Their subfolders.
    read : callable
        From an index to the prompt.
    """

    ids: list[str]
    labels: list[str | None]
    read: Callable[[int], Medium]


def media() -> list[type[Medium]]:
    """Every medium of the add-ons."""
    return addons.media()


def in_folder(folder: Path) -> Files:
    """List the files of a folder of one medium, whose labels are its subfolders.

    Raises
    ------
    LayerwiseError
        If it holds none of any medium, or of several.
    """
    endings = {path.suffix.lower() for path in visible_files(folder)}
    kinds = [medium for medium in media() if not endings.isdisjoint(medium.suffixes)]
    if len(kinds) != 1:
        expected = " or of ".join(f"{medium.kind}s" for medium in media())
        raise LayerwiseError(
            f"{folder}: expected a folder of {expected or 'files that an add-on reads'}; it holds "
            f"{'both' if kinds else 'neither'}.",
            code="wrong_type",
        )
    return kinds[0].list_folder(folder)
