"""Panels, one for each value of the dimensions that are rows and columns of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerwise.figures import marks, style
from layerwise.figures.frames import Rows, at
from layerwise.figures.labels import axis_label, metric_label, value_label

TALLEST = 4  # metrics one below the other
SCORE_AXIS = "Mean task score (× 100)"


@dataclass(frozen=True)
class Panel:
    """One panel: its axes, its rows of the table, its place.

    Attributes
    ----------
    values : mapping of dimension to value
        Of the dimensions that are rows and columns.
    top, left, bottom : bool
        Whether it is the first of its column, the first of its row, the last of its column.
    """

    axis: Axes
    table: pd.DataFrame
    values: Mapping[str, str]
    top: bool
    left: bool
    bottom: bool


@dataclass(frozen=True)
class Grid:
    """A figure with its panels, in the order in which a reader meets them."""

    figure: Figure
    panels: tuple[Panel, ...]
    axes: Any
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def height(self) -> int:
        """Panels one below the other."""
        return int(self.axes.shape[0])


def grid(
    rows: Rows, *, widest: int = style.COLUMNS, together: bool = False, **keywords: Any
) -> Grid:
    """Make the panels of a study: wrapped, where one line of them is too wide for a page.

    Parameters
    ----------
    widest : int
        Panels side by side at most.
    together : bool
        Whether the lines of one wrapped row stand one below the other; else all rows come again
        with the next columns.
    keywords
        For `style.grid`.
    """
    down, across = rows.roles.get("row", ()), rows.roles.get("column", ())
    row_keys, column_keys = rows.keys("row"), rows.keys("column")
    # Many metrics one below the other would be a ribbon: they change places with the columns.
    if down == ("y",) and len(row_keys) > TALLEST:
        down, across, row_keys, column_keys = across, down, column_keys, row_keys
    n_columns = min(widest, len(column_keys))
    blocks = -(-len(column_keys) // n_columns)
    n_rows = blocks * len(row_keys)
    figure, axes = style.grid(n_rows, n_columns, **keywords)
    for axis in axes.flat:
        axis.set_visible(False)
    panels = []
    for block in range(blocks):
        line = column_keys[block * n_columns : (block + 1) * n_columns]
        for r, row_key in enumerate(row_keys):
            for c, column_key in enumerate(line):
                part = at(at(rows.table, down, row_key), across, column_key)
                last = block == blocks - 1 or block * n_columns + c + n_columns >= len(column_keys)
                values = dict(zip((*down, *across), (*row_key, *column_key), strict=True))
                place = r * blocks + block if together else block * len(row_keys) + r
                axis = axes[place, c]
                bottom = r == len(row_keys) - 1 and (last or len(row_keys) > 1)
                panels.append(Panel(axis, part, values, r == 0, c == 0, bottom))
    for panel in panels:
        panel.axis.set_visible(True)
    return Grid(figure, tuple(panels), axes, down, across)


def head(grid: Grid, panel: Panel, rows: Rows, notes: Sequence[str] = ()) -> None:
    """Write above and beside a panel which values it is for."""
    colour = style.INK
    if "model" in panel.values:
        colour = style.colour_of(panel.values["model"], rows.order.models)
    shown = [d for d in grid.columns if d in panel.values and d != "y"]
    if grid.columns[-1:] == ("y",) and not shown:
        if panel.top:
            panel.axis.set_title(marks.broken(name_of(panel, rows), 27), linespacing=1.05)
    elif panel.top or notes:
        told = [value_label(d, panel.values[d]) for d in shown if d != "model"]
        told = [t for d, t in zip([d for d in shown if d != "model"], told, strict=True)
                if rows.table[d].nunique() > 1]  # fmt: skip
        first = panel.values["model"] if "model" in shown else told.pop(0) if told else ""
        marks.panel_title(
            panel.axis, first, [*([", ".join(told)] if told else []), *notes],
            colour if "model" in shown else style.INK,
        )  # fmt: skip
    beside = [d for d in grid.rows if d != "y" and rows.table[d].nunique() > 1]
    if panel.left and beside:
        text = ", ".join(value_label(d, panel.values[d]) for d in beside)
        marks.row_label(panel.axis, text, colour if "model" in beside else style.INK)


def name_of(panel: Panel, rows: Rows) -> str:
    """What a panel's y is called."""
    metric = rows.metric(y_of(panel, rows))
    return "Mean task score" if metric is None else metric_label(metric.metric)


def y_of(panel: Panel, rows: Rows) -> str:
    """The y of a panel: its own, or the only one that the study has."""
    return panel.values.get("y") or rows.values("y")[0]


def label_of(panel: Panel, rows: Rows, width: int = 22) -> str:
    """What the axis of a panel's y says."""
    metric = rows.metric(y_of(panel, rows))
    if metric is None:
        return "Main score (× 100)" if rows.table["task"].nunique() > 1 else SCORE_AXIS
    alphas, normals = (panel.table[c].unique() for c in ("alpha", "normalization"))
    alpha = float(alphas[0]) if len(alphas) == 1 and alphas[0] != "" else None
    normal = str(normals[0]) if len(normals) == 1 else "raw"
    return marks.broken(axis_label(metric.metric, alpha, normal), width)


def one_scale(grid: Grid, rows: Rows) -> None:
    """Give all panels of the same quantity the same scale, and label it where it is read."""
    by_y: dict[str, list[Panel]] = {}
    for panel in grid.panels:
        by_y.setdefault(label_of(panel, rows), []).append(panel)
    for panels in by_y.values():
        low = min(p.axis.get_ylim()[0] for p in panels)
        high = max(p.axis.get_ylim()[1] for p in panels)
        for panel in panels:
            panel.axis.set_ylim(low, high)
            if "y" not in grid.columns and not panel.left:
                panel.axis.tick_params(labelleft=False)
