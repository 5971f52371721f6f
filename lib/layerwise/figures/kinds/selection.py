"""Layers selected by metrics, without labels."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.scores import with_representation
from layerwise.figures import marks, theme
from layerwise.figures.kinds.association import OPEN, rows_of_rules
from layerwise.figures.labels import RULES
from layerwise.figures.marks import entry, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import Data


def selections(data: Data) -> pd.DataFrame:
    """Layer selected by each rule in each model, and its regret against the best layer.

    `unreliable` says why a metric is decided by its regulariser or by the number of prompts; its
    layer is not to be used.
    """
    table = with_representation(data.results(data.tables["selections"]))
    return table.assign(y=table["metric"]).rename(columns={"n_sources": "n_clusters"})


@kind("layer_selection", "Score lost by selecting layers without labels", selections)
def plot_selections(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per rule, a dot per model, the mean over models as a bar."""
    t = place(table, Look({"column": ("representation",)}, look.models))
    bad = set(t.loc[t["unreliable"] != "", "metric"])
    mean = t.groupby("metric")["regret"].mean().sort_values()
    # Rules that need no metric first, then metrics by their mean regret, unreliable ones last.
    rules = sorted(mean.index, key=lambda r: (r not in RULES, r in bad))
    grid = rows_of_rules(t, look, rules)
    top = 1.15 * max(100 * float(t["regret"].max()), 1.0)
    for panel in grid.panels:
        for model, part in panel.table.groupby("model"):
            marks.dots(
                panel.ax,
                100 * part["regret"],
                part["place"],
                (100 * part["regret_low"]).clip(0, top),
                (100 * part["regret_high"]).clip(0, top),
                filled=part["unreliable"] == "",
                colour=theme.colour_of(str(model), look.models),
                marker=theme.marker_of(str(model), look.models),
            )
        means = panel.table[~panel.table["metric"].isin(bad)].groupby("metric")["regret"].mean()
        places = [rules.index(rule) for rule in means.index]
        panel.ax.plot(100 * means, places, zorder=2, **MEAN)
        panel.ax.set_xlim(0, top)
        panel.ax.set_xlabel("Score lost against the best layer (points)")
    handles = [entry("mean over models", **MEAN)]
    return grid.legend([*handles, entry("unreliable metric", **OPEN)] if bad else handles).figure


MEAN: dict[str, Any] = {
    "marker": "|",
    "markersize": 11,
    "markeredgewidth": 2,
    "color": theme.INK,
    "linestyle": "none",
}
