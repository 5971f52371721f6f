"""The table of paragraphs of an encyclopedia: what is in the file, and the one way to use it.

``results/texts/wikipedia.parquet``: ``article_id``, ``title``, ``paragraph`` (from 0 within an
article) and ``text``, one row a paragraph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerwise.corpora import parquet

SCHEMA, VERSION = "layerwise.paragraphs", 1


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and where it stands."""

    article_id: int
    title: str
    number: int
    text: str


def write_paragraphs(path: Path, rows: Sequence[Paragraph], facts: Mapping[str, Any]) -> None:
    """Write the table; `facts` say where the texts came from.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    parquet.write(
        path,
        SCHEMA,
        VERSION,
        {
            "article_id": ("int64", [row.article_id for row in rows]),
            "title": ("large_string", [row.title for row in rows]),
            "paragraph": ("int64", [row.number for row in rows]),
            "text": ("large_string", [row.text for row in rows]),
        },
        facts,
    )


def read_paragraphs(path: Path) -> tuple[list[Paragraph], dict[str, str]]:
    """All paragraphs in the table's order, and the file's metadata.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, foreign or of another version.
    """
    kinds = {
        "article_id": "int64", "title": "large_string", "paragraph": "int64",
        "text": "large_string",
    }  # fmt: skip
    columns, metadata = parquet.read(path, SCHEMA, VERSION, kinds)
    rows = zip(*(columns[name] for name in kinds), strict=True)
    return [Paragraph(*row) for row in rows], metadata
