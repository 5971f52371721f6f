"""The paragraphs of an encyclopedia: what is in the file, and how it is written and read.

``results/texts/wikipedia.parquet``: ``article_id``, ``title``, ``paragraph`` (from 0 within an
article) and ``text``, one row a paragraph.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from layerwise.io import tables
from layerwise.io.tables import Kind

PARAGRAPHS = Kind("layerwise.paragraphs", 2)
COLUMNS = ("article_id", "title", "paragraph", "text")

# A full stop ends a sentence after a word of two or more small letters or digits ("Dr.", "e.g."
# and initials do not), before a capital.
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\"”][a-z0-9)\"”][.!?])\s+(?=[A-Z\"“])")


class Paragraph(NamedTuple):
    """A paragraph and where it stands."""

    article_id: int
    title: str
    number: int
    text: str


def sentences_of(text: str) -> list[str]:
    """The sentences of a paragraph's text."""
    return _SENTENCE_END.split(text.strip())


def read_paragraphs(path: Path) -> list[Paragraph]:
    """All paragraphs in the table's order.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, edited, or of another kind or version.
    """
    frame = tables.read(path, "paragraphs", COLUMNS, kind=PARAGRAPHS)
    return [Paragraph(*row) for row in frame.itertuples(index=False)]
