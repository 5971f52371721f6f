"""Prompts that are files of images or sound: their bytes, and the views of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from layerwise.errors import LayerwiseError
from layerwise.io.files import sha256_bytes


class UnreadableError(LayerwiseError):
    """An image or a recording that cannot be read."""

    code = "unreadable"


@dataclass(frozen=True)
class Medium:
    """An image or a recording of a corpus, or a view of one.

    Attributes
    ----------
    name : str
        Its id, for messages.
    data : bytes
        Bytes of its file, in whatever format.
    drawn : str
        Parameters of a view (`layerwise.corpora.images`, `layerwise.corpora.audio`);
        empty for the image or the recording itself.
    kind : str
        What it is, and what a model that reads it takes.
    column : str
        Name of the column of bytes in a corpus' file, and of mteb's inputs.
    feature : str
        Class of `datasets` for such a column.
    suffixes : tuple of str
        Endings of the files that are read.
    """

    name: str
    data: bytes
    drawn: str = ""

    kind: ClassVar[str]
    column: ClassVar[str]
    feature: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    @cached_property
    def sha256(self) -> str:
        """Hash of the file's bytes."""
        return sha256_bytes(self.data)

    def measures(self) -> dict[str, Any]:
        """Its size, for the corpus' file.

        Raises
        ------
        UnreadableError
            If it cannot be read.
        """
        raise NotImplementedError


def read_file(path: str, name: str) -> bytes:
    """Read the bytes of a file; an `UnreadableError` says why they cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableError(f"{name!r} cannot be read: {path}: {error.strerror}.") from error
