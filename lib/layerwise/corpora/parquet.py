"""Parquet files that are whole, say what they are, and are checked when read.

The corpus, its views and the table of paragraphs share this. Schema name, version, ``complete``
and provenance lie in the file's own key-value metadata, where any parquet reader shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError
from layerwise.files import provenance, replacing

REMEDY = "delete it and run snakemake again."


def write(
    target: Path,
    schema: str,
    version: int,
    columns: Mapping[str, tuple[str, Sequence[Any]]],
    facts: Mapping[str, Any],
) -> None:
    """Write columns of equal length.

    Parameters
    ----------
    schema : str
        Such as ``"layerwise.corpus"``.
    columns : mapping
        Name to (type, values); types are pyarrow's names, ``large_string`` or ``int64``.
    facts : mapping
        More metadata; what is no string is written as JSON.

    Raises
    ------
    LayerwiseError
        If `target` cannot be written.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    kinds = {"large_string": pa.large_string(), "int64": pa.int64()}
    table = pa.table(
        {name: pa.array(values, type=kinds[kind]) for name, (kind, values) in columns.items()}
    )
    record = provenance(**facts, schema=schema, schema_version=str(version), complete="true")
    table = table.replace_schema_metadata(record)
    with replacing(target) as partial:
        pq.write_table(table, partial, write_page_checksum=True)


def read(
    path: Path, schema: str, version: int, columns: Mapping[str, str], facts: Sequence[str] = ()
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The named columns as lists, and the metadata, of a file that `write` made.

    Parameters
    ----------
    columns : mapping
        Names of the columns wanted, and their types as in `write`.
    facts : sequence of str, optional
        Metadata that must be there.

    Raises
    ------
    LayerwiseError
        If the file is missing, cut off, damaged, no parquet, of another schema or version, or
        lacks a column or fact. The message names the file and the reason.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if not path.is_file():
        raise LayerwiseError(f"There is no file {path}; run the rule that makes it.")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = {
                key.decode(): value.decode()
                for key, value in (file.schema_arrow.metadata or {}).items()
            }
            _check(path, metadata, schema, version, facts)
            types = {field.name: str(field.type) for field in file.schema_arrow}
            for name, kind in columns.items():
                if types.get(name, "none").removeprefix("large_") != kind.removeprefix("large_"):
                    raise LayerwiseError(
                        f"{path} has no column {name!r} of type {kind} any more (its type is "
                        f"{types.get(name)!r}); {REMEDY}"
                    )
            table = file.read(columns=list(columns))
    # A damaged footer also shows as a name that is no UTF-8.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LayerwiseError(
            f"{path} is cut off, damaged or no parquet file ({str(error).splitlines()[0]}); "
            + REMEDY
        ) from error
    for name in columns:
        if table.column(name).null_count:
            raise LayerwiseError(f"{path} lacks values in its column {name!r}; {REMEDY}")
    return {name: table.column(name).to_pylist() for name in columns}, metadata


def _check(
    path: Path, metadata: Mapping[str, str], schema: str, version: int, facts: Sequence[str]
) -> None:
    found = metadata.get("schema")
    if found != schema:
        raise LayerwiseError(
            f"{path} was not written by layerwise as {schema} (its schema is {found!r}); "
            "give the right file; to use your own texts, name them in the config as a source "
            "{'file': …}."
        )
    if metadata.get("schema_version") != str(version):
        raise LayerwiseError(
            f"{path} has version {metadata.get('schema_version')} of the schema {schema}, "
            f"this layerwise reads version {version}; {REMEDY}"
        )
    if metadata.get("complete") != "true":
        raise LayerwiseError(f"{path} is incomplete: its writer was stopped; {REMEDY}")
    for fact in facts:
        if fact not in metadata:
            raise LayerwiseError(f"{path} has lost its {fact!r} in the metadata; {REMEDY}")
