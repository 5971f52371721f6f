"""The tables of metrics as files: writing and reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa

from layerwise import sealed
from layerwise.errors import LayerwiseError
from layerwise.metrics.table import COLUMNS


def write(frame: pd.DataFrame, target: Path, metadata: Mapping[str, str]) -> None:
    """Write a table as parquet, whole or not at all, with its provenance in the schema.

    NaN becomes null: an entropy's order where there is none, a standard error of one prompt.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    table = pa.Table.from_pandas(frame, preserve_index=False)
    sealed.write(target, table, metadata)


def read(paths: list[Path]) -> pd.DataFrame:
    """Read tables of metrics and put them one under the other.

    Raises
    ------
    LayerwiseError
        If a file is missing, no parquet, damaged, or lacks a column.
    """
    return pd.concat(list(_read_each(paths)), ignore_index=True)


def _read_each(paths: list[Path]) -> Iterator[pd.DataFrame]:
    for path in paths:
        frame = sealed.read(path, "metrics")
        missing = sorted(set(COLUMNS) - set(frame.columns))
        if missing:
            raise LayerwiseError(
                f"{path} lacks the columns {', '.join(missing)}; is it a table of metrics?"
            )
        yield frame
