"""Golden tables: read, write, compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parent / "values"
SHOWN = 12
"""Differences that a failing test names."""


def read(name: str) -> pd.DataFrame:
    """The golden table of a case; text stays text, whatever it looks like."""
    frame = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
    return frame.apply(_numbers)


def write(name: str, frame: pd.DataFrame) -> Path:
    """Write the golden table of a case, floats with ten significant digits."""
    path = FOLDER / f"{name}.csv"
    frame.to_csv(path, index=False, float_format="%.10g", lineterminator="\n")
    return path


def differences(
    golden: pd.DataFrame, found: pd.DataFrame, keys: list[str], rtol: float, atol: float
) -> list[str]:
    """Missing rows and columns of a golden table, and different values, a line each.

    Rows are matched by `keys`. Rows and columns that are only in `found` do not count. A key
    that `found` lacks counts only if golden rows are not unique without it.
    """
    keys = [key for key in keys if key in golden]
    found = _like(golden, found)
    lacking = [key for key in keys if key not in found]
    if lacking and golden.drop_duplicates([k for k in keys if k in found]).shape != golden.shape:
        return [f"the columns {', '.join(lacking)} are missing; rows are not unique without them"]
    keys = [key for key in keys if key in found]
    if not keys:
        keys, golden, found = ["row"], golden.assign(row=0), found.assign(row=0)
    golden, found = _matchable(golden, keys), _matchable(found, keys)
    lines = []
    if found.duplicated(keys).any():
        # A dimension that golden tables do not know.
        twice = found[found.duplicated(keys, keep=False)].iloc[0][keys].to_dict()
        lines.append(f"several rows are {twice}")
        found = found.drop_duplicates(keys)
    both = golden.merge(found, on=keys, how="left", suffixes=("", " now"), indicator=True)
    for _, row in both[both["_merge"] == "left_only"].iterrows():
        lines.append(f"no row {row[keys].to_dict()}")
    both = both[both["_merge"] == "both"]
    for column in golden.columns.difference(keys, sort=False):
        if column not in found:
            lines.append(f"no column {column!r}")
            continue
        old, new = both[column], both[f"{column} now"]
        if pd.api.types.is_numeric_dtype(old) and pd.api.types.is_numeric_dtype(new):
            same = np.isclose(new, old, rtol=rtol, atol=atol, equal_nan=True)
        else:
            same = (old.astype(str) == new.astype(str)).to_numpy()
        for (_, row), good in zip(both.iterrows(), same, strict=True):
            if not good:
                where = {key: row[key] for key in keys}
                lines.append(f"{column} of {where}: {row[column]} was, {row[f'{column} now']} is")
    return lines


def _matchable(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The table with keys that are numbers as near as files keep them."""
    numeric = [key for key in keys if pd.api.types.is_numeric_dtype(table[key])]
    return table.assign(**{k: [float(f"{v:.8g}") for v in table[k]] for k in numeric})


def _like(golden: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """`found` as reading it from a file would give it."""
    text = found.astype(object).where(found.notna(), "").reset_index(drop=True)
    found = text.astype(str)
    for column in found:
        numeric = column in golden and pd.api.types.is_numeric_dtype(golden[column])
        if numeric:
            found[column] = _numbers(found[column])
    return found


def _numbers(column: pd.Series) -> pd.Series:
    """The column as floats, if all of it can be; an empty cell is NaN."""
    as_numbers = pd.to_numeric(column.where(column != "", "nan"), errors="coerce")
    is_text = as_numbers.isna() & ~column.str.lower().isin(["", "nan"])
    return column if is_text.any() or (column == "").all() else as_numbers.astype(float)
