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
SKIPPED = re.compile(r"\d+[-.]\d+\t")
START = "-DOCSTART-"


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
    if treebank:
        word, tag = word or FORM, tag or UPOS
    sentences: list[Sentence] = []
    rows: list[tuple[str, str]] = []
    width = 0
    for number, line in enumerate([*_lines(path), ""], start=1):
        if not line.strip():
            if rows:
                sentences.append(Sentence(*zip(*rows, strict=True)))
                rows = []
            continue
        skipped = treebank and (line.startswith("#") or SKIPPED.match(line))
        if skipped or line.startswith(START):
            continue
        columns = line.split("\t") if treebank or "\t" in line else line.split()
        width = width or len(columns)
        problem = ""
        if len(columns) != width:
            problem = f"{len(columns)} columns, where the first line has {width}"
        elif width < max(word or 1, tag or 2, 2):
            problem = f"no columns {word or 1} and {tag or 'the last'} of word and tag"
        else:
            rows.append((columns[(word or 1) - 1].strip(), columns[(tag or width) - 1].strip()))
            if not all(rows[-1]):
                problem = "the word or the tag is empty"
        if problem:
            raise LayerwiseError(
                f"{path}, line {number}: {problem}: {line!r:.60}; fix the line.", code="unreadable"
            )
    if not sentences:
        raise LayerwiseError(
            f"{path} is empty; each line needs a word and its tag.", code="too_few"
        )
    return sentences


def _lines(path: Path) -> list[str]:
    text = read_text(path)
    if "\0" in text:
        raise LayerwiseError(
            f"{path} is not a text: it holds null bytes; name another file.", code="unreadable"
        )
    # Unlike `splitlines`, which takes a form feed in a word for the end of a line.
    return re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff"))
