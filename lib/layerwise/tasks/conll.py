"""Files of words and tags: a word a line, an empty line between sentences.

Two forms, told apart by the file's name:

======== =====================================================================================
.conllu  CoNLL-U: ten columns between tabs; comments (``#``), ranges (``3-4``) and empty nodes
         (``8.1``) are passed over; the word is column 2 and the tag column 4 (UPOS) unless the
         task says otherwise
.conll   columns between tabs or spaces, as in CoNLL-2000 and CoNLL-2003; ``-DOCSTART-`` lines
         are passed over; the word is the first column and the tag the last unless the task says
         otherwise
======== =====================================================================================
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from layerwise.errors import LayerwiseError, closest
from layerwise.files import is_file

FORM, UPOS = 2, 4
PASSED_OVER = re.compile(r"\d+[-.]\d+\t")
START = "-DOCSTART-"


class Sentence(NamedTuple):
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read(path: Path, word: int | None = None, tag: int | None = None) -> list[Sentence]:
    """The sentences of a file, in its order.

    Parameters
    ----------
    word, tag : int, optional
        The columns, from 1; None as the form of the file has it.

    Raises
    ------
    LayerwiseError
        If the file is missing, no text, or empty, if a line has another number of columns than
        the first, or too few, or if a word or tag is empty; the message says which line.
    """
    if not is_file(path):
        near = closest(path.name, [p.name for p in path.parent.glob("*")])
        raise LayerwiseError(f"There is no file {path}{near}; paths count from where you run.")
    treebank = path.suffix.lower() == ".conllu"
    if treebank:
        word, tag = word or FORM, tag or UPOS
    found: list[Sentence] = []
    own: list[tuple[str, str]] = []
    width = 0
    for number, line in enumerate([*_lines(path), ""], start=1):
        if not line.strip():
            if own:
                words, tags = zip(*own, strict=True)
                found.append(Sentence(words, tags))
                own = []
            continue
        passed = line.startswith("#") or PASSED_OVER.match(line) if treebank else False
        if passed or line.startswith(START):
            continue
        columns = line.split("\t") if treebank or "\t" in line else line.split()
        width = width or len(columns)
        where = f"{path}, line {number}"
        if len(columns) != width:
            hint = "" if treebank else "; files with comments and ranges are named .conllu"
            raise LayerwiseError(
                f"{where}: {len(columns)} columns came, and the first line has {width}: "
                f"{line!r:.60}; mend the line{hint}."
            )
        if width < max(word or 1, tag or 2, 2):
            raise LayerwiseError(
                f"{where}: {width} {'column' if width == 1 else 'columns'} came, and word and tag "
                f"are wanted in columns {word or 1} and {tag or 'the last'}: {line!r:.60}; mend "
                "the file, or name its columns."
            )
        one = columns[(word or 1) - 1].strip(), columns[(tag or width) - 1].strip()
        if not all(one):
            which = "tag" if one[0] else "word"
            raise LayerwiseError(f"{where}: the {which} is empty: {line!r:.60}; mend the line.")
        own.append(one)
    if not found:
        raise LayerwiseError(f"{path} is empty; a word and its tag a line are needed.")
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LayerwiseError(
            f"{path} is no text in UTF-8 (byte {error.start}); convert it, or name another file."
        ) from error
    if "\0" in text:
        raise LayerwiseError(f"{path} is no text: it holds null bytes; name another file.")
    # Not `splitlines`, to which a form feed in a word would be an end of line.
    return re.split(r"\r\n|\n|\r", text)
