"""Reading tidy tables from parquet and writing them with their provenance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from layerwise import sealed
from layerwise.errors import LayerwiseError
from layerwise.files import provenance


def read_tables(paths: Iterable[Path], what: str) -> pd.DataFrame:
    """Read parquet tables of the same columns and stack them.

    Raises
    ------
    LayerwiseError
        If there is none, or one is missing, not parquet or damaged.
    """
    frames = [sealed.read(path, what) for path in paths]
    if not frames:
        raise LayerwiseError(f"No table of {what} was given; give at least one parquet file.")
    # Frames without rows would turn the others' numbers into objects.
    full = [f for f in frames if len(f)] or frames[:1]
    return pd.concat(full, ignore_index=True)


def write_table(path: Path, table: pd.DataFrame, **facts: Any) -> None:
    """Write a tidy table as parquet; provenance and `facts` go into the schema's metadata."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    sealed.write(path, arrow, provenance(**facts))
