"""CSV and TSV: the one reader. Every row has to fit the header.

In a ``.tsv`` file that is not consistently quoted, double quotes are characters. In others, a
quoted field that holds whole rows is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from layerwise.errors import LayerwiseError, first_line
from layerwise.io.files import is_file

Quoting = Literal[0, 3]
"""`csv.QUOTE_MINIMAL` or `csv.QUOTE_NONE`."""

NAMES = (
    *("model", "revision", "task", "task_type", "subset", "hf_subset", "split", "dataset"),
    *("corpus", "metric", "representation", "weights_sha256", "same_as", "family", "size"),
    *("languages", "protocol", "normalization", "tokens", "pooling", "readout", "sublayer"),
    "prompt_id",
)
"""Columns of names in tables of layerwise, of mteb and of others."""
SEPARATORS = ",;\t"
# A carriage return inside a line, and what stands for it while csv reads, which would end a row.
LONE_RETURN, MARK = re.compile("\r(?!\n)"), "\ue00d"
ADVICE = "put texts that contain the separator or a line break into double quotes"


def read(path: Path) -> pd.DataFrame:
    """Read a table, gzipped if its name ends with ``.gz``.

    Columns of names (`NAMES`) are texts: a model may be called 007 or null. Others have the types
    that pandas infers.

    Raises
    ------
    LayerwiseError
        If it is damaged, a row has more fields than the header, or two columns have one name.
    """
    texts = read_texts(path)
    frame: pd.DataFrame = pd.read_csv(io.StringIO(texts.to_csv(index=False)), low_memory=False)
    names = [name for name in NAMES if name in frame]
    frame[names] = texts[names].to_numpy()
    return frame


def read_texts(path: Path) -> pd.DataFrame:
    """Read a table of texts; an empty field is None, "NA" is not.

    Returns
    -------
    DataFrame
        Its index, ``line``, has the line that each row begins at, from 1.

    Raises
    ------
    LayerwiseError
        As `read`.
    """
    path = Path(path)
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        text: str = file.read()
    # A lone carriage return ends a line where no line ends otherwise.
    text = LONE_RETURN.sub(MARK if "\n" in text else "\n", text)
    is_tsv = path.suffix.lower() == ".tsv"
    # Of a header "text;label" only the semicolon makes two columns.
    first = text.lstrip().partition("\n")[0]
    candidates = "\t" if is_tsv else SEPARATORS
    separator = max(candidates, key=lambda one: len(next(csv.reader([first], delimiter=one))))
    try:
        numbered = list(_fields(path, text, separator, csv.QUOTE_MINIMAL))
        _check_quotes(path, text, separator, numbered)
    except LayerwiseError:
        if not is_tsv:
            raise
        numbered = list(_fields(path, text, separator, csv.QUOTE_NONE))
    if not numbered:
        raise LayerwiseError(f"{path} has no rows.", code="too_few")
    _, header = numbered.pop(0)
    header = [name or f"Unnamed: {number}" for number, name in enumerate(header)]
    for name in header:
        if header.count(name) > 1:
            raise LayerwiseError(f"{path} has two columns {name!r}; rename one.", code="duplicate")
    for line, row in numbered:
        if len(row) > len(header):
            raise LayerwiseError(
                f"{path}, line {line}: {len(row)} fields, but the header has {len(header)}; "
                f"{ADVICE}.",
                code="wrong_shape",
            )
    index = pd.Index([line for line, _ in numbered], name="line", dtype=int)
    rows = [
        [*(field.replace(MARK, "\r") for field in row), *[""] * (len(header) - len(row))]
        for _, row in numbered
    ]
    return pd.DataFrame(rows, index, header, dtype=object).replace("", None)


def _check_quotes(
    path: Path, text: str, separator: str, numbered: Sequence[tuple[int, list[str]]]
) -> None:
    """Refuse a quoted field that holds whole rows of the table.

    Without quotes, each line of such a row has as many fields as the header, and the lines' values
    in one column are values of other rows, as labels are, or all numbers.
    """
    if not numbered or len(numbered[0][1]) < 2:
        return
    width, lines = len(numbered[0][1]), text.split("\n")
    starts = [line for line, _ in numbered] + [len(lines) + 1]
    whole: list[list[str]] = []
    broken: list[tuple[int, list[list[str]]]] = []
    for (line, row), end in zip(numbered[1:], starts[2:], strict=True):
        if any("\n" in field for field in row):
            inner = [one.rstrip("\r").split(separator) for one in lines[line - 1 : end - 1]]
            broken.append((line, [fields for fields in inner if fields != [""]]))
        elif len(row) == width:
            whole.append(row)
    values = [set(column) for column in zip(*whole, strict=True)] or [set()] * width
    for line, inner in broken:
        if any(len(fields) != width for fields in inner):
            continue
        columns = [set(column) for column in zip(*inner, strict=True)]
        are_rows = (
            column <= others or pd.to_numeric(pd.Series([*column]), errors="coerce").notna().all()
            for column, others in zip(columns, values, strict=True)
        )
        if any(are_rows):
            raise LayerwiseError(
                f"{path}, line {line}: a double quote begins a field of {len(inner)} lines, each "
                "of which looks like a row; put the text into double quotes, and write double "
                "quotes in it twice.",
                code="unreadable",
            )


def _fields(
    path: Path, text: str, separator: str, quoting: Quoting
) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row that is not blank, and the line that it begins at, from 1."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=True
    )
    limit = csv.field_size_limit(sys.maxsize)  # of the process; 128 KiB is less than some texts
    line = 1
    try:
        for row in reader:
            if len(row) > 1 or "".join(row).strip():
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise LayerwiseError(
            f"{path}, line {line}: {first_line(error)}; {ADVICE}, and "
            "write double quotes in them twice.",
            code="unreadable",
        ) from error
    finally:
        csv.field_size_limit(limit)


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV (gzipped or not) or parquet table.

    Raises
    ------
    LayerwiseError
        If the file is missing or not such a table.
    """
    path = Path(path)
    if not is_file(path):
        raise LayerwiseError(
            f"There is no table {path}; relative paths start at the current folder.",
            code="missing_file",
        )
    try:
        if path.suffix == ".parquet":
            return _without_categories(pd.read_parquet(path))
        return read(path)
    except (LayerwiseError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails in whatever part of pandas, Arrow, gzip
        raise LayerwiseError(
            f"{path} is neither CSV nor parquet, or is damaged ({first_line(error)}); get it "
            "again.",
            code="unreadable",
        ) from error


def _without_categories(table: pd.DataFrame) -> pd.DataFrame:
    kinds = {c: k.categories.dtype for c, k in table.dtypes.items() if k == "category"}
    return table.astype(kinds)
