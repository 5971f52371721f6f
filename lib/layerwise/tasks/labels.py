"""Labels as users write them: the value that a label stands for, and what kind of labels they are.

Equal numbers are one class however they are written (``1``, ``1.0`` and ``True``). Codes such as
``007`` are texts. Classes whose names differ only in blanks, in characters that look alike or in
the format of a number are refused: they would be two classes.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from layerwise.errors import LayerwiseError
from layerwise.io.files import read_text

log = logging.getLogger(__name__)

KINDS = ("classification", "regression")
# A number as programs write it; ``007`` is a code.
PLAIN = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
# Numbers with up to so many different values are classes.
MOST_VALUES = 20
# Whole numbers with so many rows a value, on average, are classes.
FEWEST_REPEATS = 3
TRUTH = {"true": "True", "false": "False", "1": "True", "0": "False"}
MOST_NAMES = 10  # classes that are listed


def number_of(label: object, *, in_text: bool = True) -> float | None:
    """The number that a label is, or None.

    Parameters
    ----------
    in_text : bool
        True if a text such as ``"1.5"`` is a number too.
    """
    if isinstance(label, bool | np.bool_):
        return None
    if isinstance(label, Real | Decimal):
        return float(label)
    if in_text and isinstance(label, str) and PLAIN.fullmatch(label):
        return float(label)
    return None


def kind_of_labels(labels: Iterable[object], *, in_text: bool = False) -> str:
    """The kind of labels, if nobody says: ``classification`` or ``regression``.

    Numbers are a scale if they have more than 20 values, unless they are whole numbers that repeat
    (three or more rows a value). Texts, truth values and categories are classes.

    Parameters
    ----------
    in_text : bool
        True if texts may be numbers, as in CSV.
    """
    if isinstance(getattr(labels, "dtype", None), pd.CategoricalDtype):
        return "classification"
    values = [number_of(one, in_text=in_text) for one in labels if not is_missing(one)]
    distinct = set(values)
    if None in distinct or len(distinct) <= MOST_VALUES:
        return "classification"
    is_whole = all(value == round(value) for value in distinct if value is not None)
    repeats = len(values) >= FEWEST_REPEATS * len(distinct)
    return "classification" if is_whole and repeats else "regression"


def class_names(labels: Sequence[object], what: str = "label") -> list[str]:
    """The name of the class that each label stands for, or of the group.

    Raises
    ------
    LayerwiseError
        If a label is a list or a mapping, or two names differ in their format alone.
    """
    for row, label in enumerate(labels):
        if isinstance(label, list | tuple | set | Mapping | np.ndarray | bytes):
            raise LayerwiseError(
                f"The {what} of row {row} (from 0) is {label!r:.40}, of type "
                f"{type(label).__name__}; give each row a text, a number or true or false.",
                code="wrong_type",
            )
    names = [_name(label) for label in labels]
    lowered = {name.lower() for name in names}
    if lowered & {"true", "false"} and lowered <= set(TRUTH):
        names = [TRUTH[name.lower()] for name in names]
    _check_alike(set(names), what)
    return names


def _name(label: object) -> str:
    """The text of a label; whole numbers have no decimals."""
    number = number_of(label)
    if number is None or not np.isfinite(number) or number != round(number):
        return str(label)
    text = str(label).lower()
    return str(int(Decimal(str(label)))) if "." in text or "e" in text else str(label).lstrip("+")


def _check_alike(names: Iterable[str], what: str) -> None:
    """Refuse names that differ in blanks or format alone; warn of those that differ in case."""
    by_form: dict[object, str] = {}
    by_case: dict[str, str] = {}
    for name in sorted(names):
        form = " ".join(unicodedata.normalize("NFKC", name).split())
        digits = re.fullmatch(r"[+-]?\d+(\.\d+)?", form)
        other = by_form.setdefault(float(form) if digits else form, name)
        if other != name:
            raise LayerwiseError(
                f"The {what}s {other!r} and {name!r} differ only in how they are written, and "
                "would be two; write one of them.",
                code="duplicate",
            )
        other = by_case.setdefault(form.casefold(), name)
        if other != name:
            log.warning("The %ss %r and %r are two; they differ in case", what, other, name)


def is_missing(label: object) -> bool:
    """True for a missing label: null, not a number, or a blank text."""
    if isinstance(label, str):
        return not label.strip()
    missing = pd.isna(label)  # type: ignore[call-overload]
    return isinstance(missing, bool) and missing


def describe_labels(kind: str, labels: Sequence[object], n_all: int, unit: str = "rows") -> str:
    """How labels are read, in a line: rows, kind, and classes with their rows.

    Parameters
    ----------
    labels : sequence
        Names of the classes of all rows that are used, or numbers.
    n_all : int
        Number of rows there are.
    unit : str
        Plural of the rows' name.
    """
    rest = n_all - len(labels)
    head = f"{len(labels)} of {n_all} {unit}" + (f" ({rest} left out)" if rest else "")
    if kind in ("regression", "pairs"):
        numbers = np.asarray(labels, dtype=float)
        what = "numbers" if kind == "regression" else "similarities"
        return f"{head}, {kind}: {what} from {numbers.min():g} to {numbers.max():g}"
    counts = Counter(str(label) for label in labels).most_common()
    listed = ", ".join(f"{name!r}: {n}" for name, n in counts[:MOST_NAMES])
    more = f" and {len(counts) - MOST_NAMES} more" if len(counts) > MOST_NAMES else ""
    return f"{head}, {kind}: {len(counts)} classes ({listed}{more})"


# Words and tags


FORM, UPOS = 2, 4
START = "-DOCSTART-"
SKIPPED = re.compile(r"#|\d+[-.]\d+\t")


class Sentence(NamedTuple):
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(path: Path, word: int | None = None, tag: int | None = None) -> list[Sentence]:
    """The sentences of a file of words and tags, a word a line, an empty line between sentences.

    Two forms, by the file's name:

    ======== =====================================================================================
    .conllu  CoNLL-U: ten columns between tabs; comments (``#``), ranges (``3-4``) and empty nodes
             (``8.1``) are skipped; the word is column 2 and the tag column 4 (UPOS) unless the
             task says otherwise
    .conll   columns between tabs or spaces, as in CoNLL-2000 and CoNLL-2003; ``-DOCSTART-`` lines
             are skipped; the word is the first column and the tag the last unless the task says
             otherwise
    ======== =====================================================================================

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
