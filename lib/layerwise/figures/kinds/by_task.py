"""Gain of the layers that metrics select for each task on its own texts."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.by_task import HIGHEST, LOWEST, gains_by_task
from layerwise.association.curves import metric_curves, score_curves
from layerwise.config.kinds import Kind
from layerwise.config.settings import OWN_TEXTS
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.labels import metric_label
from layerwise.figures.marks import dot, entry, facets
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import Data

INKS = {LOWEST: theme.PALETTE[0], HIGHEST: theme.PALETTE[1]}


def gains(data: Data) -> pd.DataFrame:
    """Mean gain of each metric's lowest and highest layer, selected for each task.

    Raises
    ------
    LayerwiseError
        If no model has metrics on the texts of a task that has scores.
    """
    shown = data.checkpoints(data.tables["metrics"], data.tables["scores"])
    metrics = data.metrics(data.tables["metrics"], shown)
    metrics = metrics[metrics["corpus"].isin(list(data.own_texts))]
    frames = []
    for curves in score_curves(data.scores(shown)):
        if curves.omitted:
            data.omit([curves.omitted], "scores are missing")
        variants, values, *_ = metric_curves(metrics, curves, data.own_texts)
        for variant, value in zip(variants.to_dict("records"), values, strict=True):
            if variant["corpus"] == OWN_TEXTS:
                about = pd.DataFrame([variant]).assign(**curves.about)
                frames.append(gains_by_task(value, curves).merge(about, how="cross"))
    if not any(map(len, frames)):
        raise LayerwiseError(
            "No model of this study has metrics on the texts of a task that it has scores of; "
            "name each task's corpus under association.own_texts.",
            code="missing",
        )
    y_of = metrics[["metric", "protocol", "alpha", "normalization", "y"]].drop_duplicates()
    return pd.concat(frames, ignore_index=True).merge(y_of)


TASK_SELECTION = Kind(
    name="task_selection",
    about="gain over the output if each task takes the layer that a metric selects on its texts",
    title="Gain of layers selected for each task",
    reads=("metrics", "scores"),
    roles={"row": ("y",), "column": ("model", "tokens", "pooling", "corpus")},
    metrics=None,
    single=("pooling", "tokens"),
    caption=(
        "Mean main score of the layers at the lowest and at the highest value of each metric on a "
        "task's own texts, less that of the model's output, over {n_tasks} tasks ({n_clusters} "
        "task clusters). Lines: 95% CI over task clusters."
    ),
)


@draws(TASK_SELECTION, gains)
def plot_gains(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per metric, a panel per model, a colour per end of the metric."""
    rows = list(dict.fromkeys(table["y"]))
    height = 0.3 * len(rows) + 1
    grid = facets(table, look.only(column=("model",)), height=height, width=3.2, columns=3)
    for panel in grid.panels:
        ax = panel.ax
        for end, part in panel.table.groupby("end", sort=False):
            place = part["y"].map(rows.index) + (0.14 if end == HIGHEST else -0.14)
            low, high = 100 * part["low"], 100 * part["high"]
            marks.dots(ax, 100 * part["gain"], place, low, high, color=INKS[str(end)])
        ax.axvline(0, color=theme.GREY, linewidth=0.8)
        ax.set_yticks(range(len(rows)), [metric_label(row) for row in rows])
        ax.tick_params(axis="y", length=0, labelleft=panel.left)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(axis="x")
        ax.grid(axis="y", visible=False)
    grid.label("Gain over the output (points)")
    handles = [entry(f"layer of the {end} value", **dot(color=INKS[end])) for end in INKS]
    return grid.legend(handles, linestyle="none", markersize=5).figure
