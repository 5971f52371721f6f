"""A corpus as a model is given it, texts or images alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Prompts:
    """Prompts and their views.

    Attributes
    ----------
    name : str
        Of the corpus.
    ids : list of str, length N
    views : V + 1 sequences of N
        Texts, or images (`layerwise.corpora.images.Picture`); view 0 is the prompt itself.
    hash : str
        SHA-256 of ids and prompts.
    is_chat : bool
        Whether the texts are messages (`layerwise.corpora.chat`).
    """

    name: str
    ids: list[str]
    views: Sequence[Sequence[Any]]
    hash: str
    is_chat: bool = False


def read(path: Path, views_path: Path) -> Prompts:
    """Read a corpus of texts or of images with its views.

    Raises
    ------
    LayerwiseError
        If a file is missing, damaged, edited, or of another kind or version, or the views are of
        another corpus.
    """
    from layerwise import tables
    from layerwise.corpora import images_table, table

    if tables.facts(path).get("schema") == images_table.IMAGES.name:
        return images_table.read(path, views_path)
    corpus, views = table.read_prompts(path, views_path)
    return Prompts(
        corpus.name, corpus.prompt_ids, [corpus.texts, *views], corpus.hash, corpus.is_chat
    )
