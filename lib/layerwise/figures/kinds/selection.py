"""Layers selected by metrics, without labels."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.selection import ORACLE
from layerwise.config.kinds import Kind
from layerwise.figures import marks
from layerwise.figures.kinds.association import OPEN, rows_of_rules
from layerwise.figures.labels import RULES
from layerwise.figures.marks import dot, entry
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import Data


def selections(data: Data) -> pd.DataFrame:
    """Layer selected by each rule in each model, and its regret against the best layer.

    `unreliable` says why a metric is decided by its regulariser or by the number of prompts; its
    layer is not to be used.
    """
    return data.results(data.tables["selections"])


LAYER_SELECTION = Kind(
    name="layer_selection",
    about="score lost by selecting the layer with a metric, without labels",
    title="Score lost by selecting layers without labels",
    reads=("selections",),
    roles={"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
    metrics=None,
    single=("task_types",),
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) of the best layer less "
        "that of the layer selected by each rule, in each model. A metric selects the layer at "
        "its declared better end, without scores. Lines: 95% CI over task clusters, cut off at "
        "the axis. Bold: rules that need no metric, and rules over all metrics. Unreliable "
        "metrics are decided by their regulariser or by the number of prompts."
    ),
)


@draws(LAYER_SELECTION, selections)
def plot_selections(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per rule, a dot per model, the mean over models as a bar."""
    table = table[table["metric"] != ORACLE]  # It loses nothing by definition.
    bad = set(table.loc[table["unreliable"] != "", "metric"])
    mean = table.groupby("metric")["regret"].mean().sort_values()
    # Rules that need no metric first, then metrics by their mean regret, unreliable ones last.
    rules = sorted(mean.index, key=lambda r: (r not in RULES, r in bad))
    grid = rows_of_rules(table, look, rules)
    top = 1.15 * max(100 * float(table["regret"].max()), 1.0)
    for panel in grid.panels:
        for style, part in grid.curves(panel):
            low, high = (100 * part[["regret_low", "regret_high"]].clip(0, top / 100)).to_numpy().T
            reliable = part["unreliable"] == ""
            x, y = 100 * part["regret"], part["place"]
            marks.dots(panel.ax, x, y, low, high, reliable, **style)
        means = panel.table[~panel.table["metric"].isin(bad)].groupby("metric")["regret"].mean()
        panel.ax.plot(100 * means, [rules.index(r) for r in means.index], **MEAN)
        panel.ax.set_xlim(0, top)
        panel.ax.set_xlabel("Score lost against the best layer (points)")
    handles = [entry("mean over models", **MEAN)]
    handles += [entry("unreliable metric", **OPEN)] if bad else []
    return grid.legend(handles, linestyle="none", markersize=5).figure


MEAN = dot(marker="|", markersize=11, markeredgewidth=2, clip_on=True)
