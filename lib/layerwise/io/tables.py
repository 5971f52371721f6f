"""Parquet tables: the one module that writes and reads them.

A table's metadata say how it was made: versions, command, and the key of its job. Any Parquet
reader shows them. Pages have checksums, which are verified on reading.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from layerwise.errors import LayerwiseError, first_line, printable
from layerwise.io.files import provenance, replacing, sha256_file, write_text

if TYPE_CHECKING:
    import pandas as pd
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
    import pandas as pd

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
