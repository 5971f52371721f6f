"""Files of words and tags: a word a line, an empty line between sentences.

Two forms, by the file's name:

======== =====================================================================================
.conllu  CoNLL-U: ten columns between tabs; comments (``#``), ranges (``3-4``) and empty nodes
         (``8.1``) are skipped; the word is column 2 and the tag column 4 (UPOS) unless the
         task says otherwise
.conll   columns between tabs or spaces, as in CoNLL-2000 and CoNLL-2003; ``-DOCSTART-`` lines
         are skipped; the word is the first column and the tag the last unless the task says
         otherwise
======== =====================================================================================
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from layerwise.errors import LayerwiseError
from layerwise.io.files import read_text

FORM, UPOS = 2, 4
START = "-DOCSTART-"
SKIPPED = re.compile(r"#|\d+[-.]\d+\t")


class Sentence(NamedTuple):
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read(path: Path, word: int | None = None, tag: int | None = None) -> list[Sentence]:
    """The sentences of a file, in order.

    Parameters
    ----------
    word, tag : int, optional
        Columns, from 1; None for the form's own.

    Raises
    ------
    LayerwiseError
        If the file is missing, is not a text or is empty, or a line has another number of columns
        than the first, too few, or an empty word or tag; the message names the line.
    """
    treebank = path.suffix.lower() == ".conllu"
    # The last column has the index -1.
    w, t = (word or (FORM if treebank else 1)) - 1, (tag or (UPOS if treebank else 0)) - 1
    sentences: list[Sentence] = []
    rows: list[tuple[str, str]] = []
    width = 0
    # `splitlines` would take a form feed in a word for the end of a line.
    lines = read_text(path).removeprefix("\ufeff").split("\n")
    for number, line in enumerate([*lines, ""], start=1):
        if not line.strip():
            if rows:
                sentences.append(Sentence(*zip(*rows, strict=True)))
                rows = []
            continue
        if line.startswith(START) or (treebank and SKIPPED.match(line)):
            continue
        cells = line.split("\t") if treebank or "\t" in line else line.split()
        columns = [cell.strip() for cell in cells]
        width = width or len(columns)
        if len(columns) != width or width <= max(w, t, 1) or not (columns[w] and columns[t]):
            raise LayerwiseError(
                f"{path}, line {number}: {line.strip()!r:.60} has {len(columns)} columns (the "
                f"first line {width}); the word is expected in column {w + 1} and the tag in "
                f"column {t + 1 or 'the last'}.",
                code="unreadable",
            )
        rows.append((columns[w], columns[t]))
    if not sentences:
        raise LayerwiseError(
            f"{path} is empty; each line needs a word and its tag.", code="too_few"
        )
    return sentences
