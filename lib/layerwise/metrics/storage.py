"""The tables of metrics as files: their columns, writing and reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa

from layerwise import sealed
from layerwise.errors import LayerwiseError

COLUMNS = (
    "model", "revision", "corpus", "sublayer", "layer", "depth", "metric", "protocol", "tokens",
    "alpha", "normalization", "value", "stderr", "n", "n_left_out",
)  # fmt: skip
PROMPT_COLUMNS = (
    "model", "revision", "corpus", "sublayer", "layer", "depth", "metric", "protocol", "tokens",
    "alpha", "prompt_id", "n_tokens", "value",
)  # fmt: skip
INTEGERS = ("layer", "n", "n_left_out", "n_tokens")
REALS = ("depth", "alpha", "value", "stderr")


def tidy(frame: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """The frame with these columns in this order, each of its type, rows numbered anew."""
    frame = frame.reindex(columns=list(columns)).reset_index(drop=True)
    kinds = {c: "int64" for c in columns if c in INTEGERS}
    kinds |= {c: "float64" for c in columns if c in REALS}
    kinds |= {c: "str" for c in columns if c not in kinds}
    return frame.astype(kinds)


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
