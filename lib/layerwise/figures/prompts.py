"""Per-prompt values as matrices, for figures that pair them prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from layerwise.figures.frames import Rows


def groups(rows: Rows, dimensions: Sequence[str]) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """The rows of each combination of values, in the order in which they are shown."""
    from layerwise.figures.frames import at, combinations

    for key in combinations(rows.table, dimensions, rows.study, rows.order):
        part = at(rows.table, dimensions, key)
        yield dict(zip(dimensions, key, strict=True)), part


def matrix(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Values by prompt (rows) and layer (columns); prompts without one at some layer left out."""
    for column, value in where.items():
        table = table[table[column] == value]
    return table.pivot_table(index="prompt_id", columns="layer", values="value").dropna()
