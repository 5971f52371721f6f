"""Parquet tables in which one altered byte is noticed, not read as another value.

Parquet has checksums for its pages, off by default, and none for what describes them: a flipped
bit there can turn a depth of 0.5 into 1e252. So our tables carry a seal, a hash over names, types
and values of the columns, in the file's own key-value metadata. To other readers they are ordinary
tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from layerwise.errors import LayerwiseError
from layerwise.files import replacing, sha256_text

SEAL = b"seal"


def write(target: Path, table: pa.Table, facts: Mapping[str, str]) -> None:
    """Write a table, whole or not at all, with `facts` and its seal in the metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    named = {str(key).encode(): str(value).encode() for key, value in facts.items()}
    described = table.replace_schema_metadata({**named, SEAL: _seal(table)})
    with replacing(target) as partial:
        pq.write_table(described, partial, compression="zstd", write_page_checksum=True)


def read(path: Path, what: str) -> pd.DataFrame:
    """Read a table. One without a seal, from elsewhere, is read as it is.

    Parameters
    ----------
    what : str
        What the table holds, for errors: 'metrics', 'scores', …

    Raises
    ------
    LayerwiseError
        If it is missing, no parquet, cut off, or not as it was written.
    """
    path = Path(path)
    if not path.is_file():
        raise LayerwiseError(f"There is no table of {what} {path}; run the rule that makes it.")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        seal = (table.schema.metadata or {}).get(SEAL)
        if seal is not None and seal != _seal(table):
            raise ValueError("its contents are not those that were written")
        # A seal stands in for what pandas notes about its own columns, which nothing protects.
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=seal is not None)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise LayerwiseError(
            f"{path} is no readable parquet table of {what}, or is damaged ({reason}); delete it "
            "and run snakemake again."
        ) from error
    return frame


def _seal(table: pa.Table) -> bytes:
    """Hash over names, types and values of all columns."""
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.columns, strict=True):
        digest.update(f"{field.name}: {field.type}, {len(column)};".encode())
        values = column.combine_chunks()
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            # Names repeat over thousands of rows: hash each once, and then which row has which.
            values = values.dictionary_encode()
            digest.update(sha256_text(*(v or "" for v in values.dictionary.to_pylist())).encode())
            values = values.indices
        digest.update(values.is_null().to_numpy(zero_copy_only=False).tobytes())
        present = values.drop_null()
        plain = pa.types.is_primitive(present.type)
        digest.update(
            present.to_numpy(zero_copy_only=False).tobytes()
            if plain
            else repr(present.to_pylist()).encode()
        )
    return digest.hexdigest().encode()
