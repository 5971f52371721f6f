"""Golden tables: read, write, compare."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent / "values"


def read(source: Path | io.StringIO) -> pd.DataFrame:
    """A table; text stays text, whatever it looks like."""
    frame = pd.read_csv(source, dtype=str, keep_default_na=False)
    return frame.apply(_numbers)


def write(frame: pd.DataFrame, target: Path | io.StringIO) -> None:
    """Write a table, floats with ten significant digits."""
    frame.to_csv(target, index=False, float_format="%.10g", lineterminator="\n")


# Golden tables with some rows of what is computed now.
SOME_ROWS = ("evaluate.", "select.", "figure.layer_selection")


def compare(name: str, found: pd.DataFrame, keys: list[str], rtol: float, atol: float) -> None:
    """Assert that a table has the rows, columns and values of its golden one.

    Rows are matched by `keys`. Columns that are only in `found` do not count, nor do further rows
    of the cases in `SOME_ROWS`.
    """
    golden = read(FOLDER / f"{name}.csv")
    buffer = io.StringIO()
    write(found, buffer)
    buffer.seek(0)
    keys = [key for key in keys if key in golden]
    golden, found = (_indexed(table, keys) for table in (golden, read(buffer)))
    missing = golden.index.difference(found.index)
    assert missing.empty, f"{len(missing)} of {len(golden)} rows are missing: {missing[:5]}"
    assert name.startswith(SOME_ROWS) or len(found) == len(golden), "further rows"
    found = found.loc[golden.index]
    pd.testing.assert_frame_equal(found[golden.columns], golden, rtol=rtol, atol=atol)


def _indexed(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    if not keys:
        return table
    numeric = [key for key in keys if pd.api.types.is_numeric_dtype(table[key])]
    table = table.assign(**{key: table[key].map("{:.8g}".format) for key in numeric})
    return table.set_index(keys, verify_integrity=True)


def _numbers(column: pd.Series) -> pd.Series:
    """The column as floats, if all of it can be; an empty cell is NaN."""
    as_numbers = pd.to_numeric(column.where(column != "", "nan"), errors="coerce")
    is_text = as_numbers.isna() & ~column.str.lower().isin(["", "nan"])
    return column if is_text.any() or (column == "").all() else as_numbers.astype(float)
