"""Layers selected by metrics, without labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.curves import require_columns
from layerwise.association.scores import with_representation
from layerwise.association.selection import COLUMNS
from layerwise.figures import marks, theme
from layerwise.figures.kinds.association import row_axis
from layerwise.figures.labels import RULES, metric_label
from layerwise.figures.marks import entry, facets, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import Data


def selections(data: Data) -> pd.DataFrame:
    """Layer selected by each rule in each model, and its regret against the best layer.

    `unreliable` says why a metric is decided by its regulariser or by the number of prompts; its
    layer is not to be used.
    """
    found = data.tables["selections"]
    require_columns(found, COLUMNS, "selections")
    table = with_representation(data.results(found))
    return table.assign(y=table["metric"]).rename(columns={"n_sources": "n_clusters"})


@kind("layer_selection", "Score lost by selecting layers without labels", selections)
def plot_selections(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per rule, a dot per model, the mean over models as a bar."""
    t = place(table, Look({"column": ("representation",)}, look.models))
    bad = set(t.loc[t["unreliable"] != "", "metric"])
    mean = t.groupby("metric")["regret"].mean().sort_values()
    # Rules that need no metric first, then metrics by their mean regret, unreliable ones last.
    rules = sorted(mean.index, key=lambda r: (r not in RULES, r in bad))
    models = [m for m in look.models if m in set(t["model"])]
    step = 0.8 / len(models)
    height = max(0.27, min(0.07 * len(models), 4 / len(rules))) * len(rules) + 1
    grid = facets(t, look, height=height, width=3.6, columns=3)
    top = 1.15 * max(100 * float(t["regret"].max()), 1.0)
    for panel in grid.panels:
        for model, part in panel.table.groupby("model"):
            shift = (models.index(str(model)) - (len(models) - 1) / 2) * step
            at = np.array([rules.index(m) for m in part["metric"]]) + shift
            marks.dots(
                panel.ax,
                100 * part["regret"],
                at,
                (100 * part["regret_low"]).clip(0, top),
                (100 * part["regret_high"]).clip(0, top),
                filled=part["unreliable"] == "",
                colour=theme.colour_of(str(model), look.models),
                marker=theme.marker_of(str(model), look.models),
            )
        means = panel.table[~panel.table["metric"].isin(bad)].groupby("metric")["regret"].mean()
        panel.ax.plot(
            100 * means,
            [rules.index(r) for r in means.index],
            linestyle="none",
            marker="|",
            markersize=11,
            markeredgewidth=2,
            color=theme.INK,
            zorder=2,
        )
        row_axis(panel, [metric_label(r) for r in rules], [r in RULES for r in rules])
        panel.ax.set_xlim(0, top)
        panel.ax.set_xlabel("Score lost against the best layer (points)")
    handles = [
        entry(
            m,
            marker=theme.marker_of(m, look.models),
            color=theme.colour_of(m, look.models),
            linestyle="none",
            markersize=5,
        )
        for m in models
    ]
    handles.append(entry("mean over models", marker="|", linestyle="none", markersize=9))
    if bad:
        handles.append(
            entry(
                "unreliable metric",
                marker="o",
                color="white",
                linestyle="none",
                markeredgecolor=theme.INK,
                markersize=5,
            )
        )
    return grid.legend(handles).figure
