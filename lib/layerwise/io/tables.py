"""Parquet tables: the one module that writes and reads them.

A table's metadata say how it was made: versions, command, and the key of its job. Any Parquet
reader shows them. Pages have checksums, which are verified on reading.

CSV and TSV: the one reader. Every row has to fit the header.

In a ``.tsv`` file that is not consistently quoted, double quotes are characters. In others, a
quoted field that holds whole rows is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from layerwise.errors import LayerwiseError, first_line, printable
from layerwise.io.files import is_file, provenance, replacing, sha256_file, write_text

if TYPE_CHECKING:
    import pyarrow as pa

REMEDY = "delete it and run snakemake again."


class Kind(NamedTuple):
    """Content of a file and version of its columns, stored in the file and checked on reading."""

    name: str
    version: int


def write(
    path: Path,
    table: pd.DataFrame | pa.Table,
    *,
    key: str = "",
    kind: Kind | None = None,
    **facts: Any,
) -> None:
    """Write a table, whole or not at all.

    Parameters
    ----------
    table : DataFrame or pyarrow.Table
        Columns and types are kept; the index is not. NaN becomes null.
    key : str
        The key of the job that makes it.
    kind : Kind, optional
        Makes `read` refuse other tables in its place.
    **facts
        More to remember; what is no string is written as JSON.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    if kind is not None:
        facts |= {"schema": kind.name, "schema_version": str(kind.version)}
    table = table.replace_schema_metadata(None)
    options: Any = {"compression": "zstd", "store_schema": False, "write_page_checksum": True}
    with replacing(path) as partial, pq.ParquetWriter(partial, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(provenance(**facts, key=key))


def read(
    paths: Path | Iterable[Path],
    what: str,
    columns: Sequence[str] | None = None,
    *,
    kind: Kind | None = None,
) -> pd.DataFrame:
    """Read a table, or several of the same columns one under the other.

    Parameters
    ----------
    what : str
        What the tables hold, for errors: 'metrics', 'scores', …
    columns : sequence of str, optional
        The columns to read, in this order; all by default.
    kind : Kind, optional
        The kind that `write` stored.

    Raises
    ------
    LayerwiseError
        If there is none, or one is missing, no parquet, cut off, altered, of another kind or
        version, or lacks a column.
    """
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not files:
        raise LayerwiseError(
            f"No table of {what} was given; give at least one parquet file.", code="missing_file"
        )
    frames = [_read(path, what, columns, kind) for path in files]
    # Frames without rows would turn the others' numbers into objects.
    full = [frame for frame in frames if len(frame)] or frames[:1]
    return full[0] if len(full) == 1 else pd.concat(full, ignore_index=True)


def write_csv(path: Path, table: pd.DataFrame, key: str = "", **options: Any) -> None:
    """Write a table for people, whole or not at all.

    Programs for spreadsheets run what begins like a formula; an apostrophe in front makes it text.

    Parameters
    ----------
    key : str
        The key of the job that makes it. A hidden file next to the table has it, and a hash of the
        table (`csv_facts`).
    **options
        Of `pandas.DataFrame.to_csv`.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    words = table.select_dtypes(exclude=["number", "bool"])
    safe = table.assign(**{str(name): words[name].map(_no_formula) for name in words})
    with replacing(path) as partial:
        safe.to_csv(partial, index=False, **options)
    if key:
        write_text(_beside(path), json.dumps({"key": key, "sha256": sha256_file(path)}) + "\n")


def csv_facts(path: Path) -> dict[str, str]:
    """The key that `write_csv` stored; empty if the table has changed since, or has none."""
    record = json.loads(_beside(path).read_text(encoding="utf-8"))
    return dict(record) if record["sha256"] == sha256_file(path) else {}


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _no_formula(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = printable(cell)
    return f"'{cell}" if cell.lstrip().startswith(("=", "+", "-", "@")) else cell


def facts(path: Path) -> dict[str, str]:
    """A table's metadata. Reads the end of the file alone, and does not check the rest.

    Raises
    ------
    LayerwiseError
        If the file is missing or is no whole parquet file.
    """
    import pyarrow.parquet as pq

    with _readable(path, "results"):
        return _decoded(pq.read_metadata(path))


def joined_versions(of_tables: Iterable[Mapping[str, str]]) -> str:
    """The versions of each library that made some of the tables, as JSON, from their `facts`."""
    versions: dict[str, set[str]] = defaultdict(set)
    for table in of_tables:
        for library, version in json.loads(table["versions"]).items():
            versions[library].update(version.split(", "))
    return json.dumps({name: ", ".join(sorted(each)) for name, each in versions.items()})


def _read(path: Path, what: str, columns: Sequence[str] | None, kind: Kind | None) -> pd.DataFrame:
    import pyarrow.parquet as pq

    with _readable(path, what), pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = _decoded(file.metadata)
        stored = metadata.get("schema"), metadata.get("schema_version")
        if kind is not None and stored != (kind.name, str(kind.version)):
            raise LayerwiseError(
                f"{path} has the schema and version {stored}, wanted was {tuple(kind)}; {REMEDY}",
                code="mismatch",
            )
        lacking = [name for name in columns or () if name not in file.schema_arrow.names]
        if lacking:
            raise LayerwiseError(
                f"{path} lacks the columns {', '.join(lacking)}; is it a table of {what}?",
                code="unknown_name",
            )
        table = file.read(columns=None if columns is None else list(columns))
        frame: pd.DataFrame = table.to_pandas(ignore_metadata="key" in metadata)
    return frame if columns is None else frame[list(columns)]


@contextmanager
def _readable(path: Path, what: str) -> Iterator[None]:
    """Name the table that is missing or cannot be read."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise LayerwiseError(
            f"There is no table of {what} {path}; run the rule that makes it.", code="missing_file"
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise LayerwiseError(
            f"{path} is no readable parquet table of {what}, or is damaged ({first_line(error)}); "
            f"{REMEDY}",
            code="unreadable",
        ) from error


def _decoded(metadata: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in (metadata.metadata or {}).items()}


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


def read_any(path: Path) -> pd.DataFrame:
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
        As `read_any`.
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
        return read_any(path)
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
