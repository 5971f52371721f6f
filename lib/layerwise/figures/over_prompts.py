"""What the kinds of study share that look at every prompt's own values."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.frames import Rows
from layerwise.figures.labels import reading_label
from layerwise.names import step_of

log = logging.getLogger(__name__)

LEVEL = 0.05
TICKS = 6

Floats = npt.NDArray[np.float64]


def matrix(part: pd.DataFrame, unit: str = "prompt_id") -> pd.DataFrame:
    """Values of one curve as prompts x layers: those prompts that have a value at every layer.

    Parameters
    ----------
    part : DataFrame
        Of one model, checkpoint, reading and metric.
    unit : str
        What the rows are.

    Raises
    ------
    LayerwiseError
        If there is none.
    """
    whole = part.pivot(index=unit, columns="layer", values="value").sort_index()
    wide = whole.dropna()
    if len(wide) < len(whole):
        row = part.iloc[0]
        log.warning(
            "%d of %d prompts or data sets lack %s at some layer of %s and are left out",
            len(whole) - len(wide), len(whole), row["quantity"], row["model"],
        )  # fmt: skip
    if wide.empty:
        row = part.iloc[0]
        raise LayerwiseError(
            f"No prompt has a value of {row['quantity']} at every layer of {row['model']} at "
            f"{row['revision']}; name other metrics under `metrics`."
        )
    return wide


def points(rows: Rows) -> list[tuple[str, str]]:
    """The (model, checkpoint) pairs that are shown, in order."""
    found = []
    for model in rows.values("model"):
        there = rows.table.loc[rows.table["model"] == model, "revision"].unique()
        found += [(model, r) for r in rows.order.checkpoints(model, there)]
    return found


def curves(rows: Rows) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Each curve of the study with what it is of: y, reading, model, revision; in order."""
    for y in rows.values("y"):
        for reading in rows.values("reading"):
            for model, revision in points(rows):
                t = rows.table
                part = t[
                    (t["y"].astype(str) == y) & (t["reading"] == reading)
                    & (t["model"] == model) & (t["revision"] == revision)
                ]  # fmt: skip
                if len(part):
                    about = {"y": y, "reading": reading, "model": model, "revision": revision}
                    yield about, part


def together(one: pd.DataFrame, other: pd.DataFrame) -> tuple[Floats, Floats]:
    """Two matrices on the prompts that both have.

    Raises
    ------
    LayerwiseError
        If they share fewer than two prompts.
    """
    shared = one.index.intersection(other.index)
    if len(shared) < 2:
        raise LayerwiseError(
            f"These models share {len(shared)} prompts, and a difference is taken prompt by "
            "prompt; show models that were extracted on one corpus."
        )
    return one.loc[shared].to_numpy(dtype=float), other.loc[shared].to_numpy(dtype=float)


def band(
    axis: Axes, x: npt.ArrayLike, table: pd.DataFrame, colour: object, *, marked: bool = True,
    **line: object,
) -> None:  # fmt: skip
    """A line with its interval; a filled circle where a test passes, if the table says which."""
    axis.fill_between(
        np.asarray(x, dtype=float), table["low"].to_numpy(dtype=float),
        table["high"].to_numpy(dtype=float), color=colour, alpha=0.18, linewidth=0,
    )  # fmt: skip
    if len(table) == 1:  # which has no area to fill
        axis.vlines(x, table["low"].astype(float), table["high"].astype(float), color=colour,
                    linewidth=0.8)  # fmt: skip
    values = table["value"].to_numpy(dtype=float)
    axis.plot(x, values, color=colour, **line)  # type: ignore[arg-type]
    if marked and "passes" in table:
        at = np.flatnonzero(table["passes"].to_numpy(dtype=bool))
        axis.plot(
            np.asarray(x)[at], values[at], linestyle="none", marker="o", markersize=3.2,
            color=colour,
        )  # fmt: skip


def bars(axis: Axes, x: Sequence[float], table: pd.DataFrame, colour: object) -> None:
    """Points with vertical intervals, the marker filled where a test passes."""
    for at, row in zip(x, table.to_dict("records"), strict=True):
        passes = bool(row.get("passes", True))
        axis.errorbar(
            [at], [row["value"]],
            yerr=[[max(row["value"] - row["low"], 0)], [max(row["high"] - row["value"], 0)]],
            color=colour, marker="o", markersize=4, linewidth=1,
            markerfacecolor=colour if passes else "white",
        )  # fmt: skip


def checkpoint_axis(axis: Axes, names: Sequence[str], *, label: bool = True) -> None:
    """Evenly spaced checkpoints along x, the last one always named."""
    every = max(1, -(-len(names) // TICKS))
    shown = list(range(len(names) - 1, -1, -every))[::-1]
    steps = [step_of(n) for n in names]
    known = None not in steps
    axis.set_xticks(shown, [f"{steps[i]:,}" if known else marks.broken(names[i], 9)
                            for i in shown])  # fmt: skip
    axis.set_xlim(-0.5, len(names) - 0.5)
    if label:
        axis.set_xlabel("Training step" if known else "Checkpoint")


def head(axis: Axes, model: str, notes: Sequence[str], order: Sequence[str]) -> None:
    """A panel's model in its colour, with what else it is of below."""
    marks.panel_title(axis, model, [n for n in notes if n], style.colour_of(model, order))


def reading_note(rows: Rows, reading: str) -> str:
    """A reading in words where several are shown."""
    return reading_label(reading) if len(rows.values("reading")) > 1 else ""


def number(value: float) -> str:
    """A number to three digits, the minus as typeset."""
    return f"{value:.3g}".replace("-", "−")
