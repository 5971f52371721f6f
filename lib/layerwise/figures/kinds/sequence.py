"""Metrics over prompts: their distribution, and their course along the sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.config.studies import kind
from layerwise.errors import LayerwiseError
from layerwise.figures import panels
from layerwise.figures.panels import Look
from layerwise.figures.select import Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG_ENOUGH = 0.5  # of the prompts, for a point along the sequence
LINES = 7  # layers drawn; the table has all


def along_sequence(data: Data) -> pd.DataFrame:
    """Mean over prompts by layer and position, where half of the prompts are long enough.

    Raises
    ------
    LayerwiseError
        If a model that the study names is bidirectional and has no prefixes.
    """
    positions = data.tables["positions"]
    wanted = {m.metric for m in data.study.metric_choices or ()}
    models = data.study.models or sorted(positions["model"].unique())
    have = positions.groupby("model")["metric"].agg(set).to_dict()
    lacking = [m for m in models if wanted.isdisjoint(have.get(m, wanted))]
    if lacking and (data.study.models or len(lacking) == len(models)):
        raise LayerwiseError(
            f"{lacking[0]} has no {', '.join(sorted(wanted))}: it is bidirectional, so no prefix "
            "is independent of the tokens after it. Remove it from `models`.",
            code="unsupported",
        )
    data.omit(lacking, "bidirectional")
    table = data.curves("positions")
    full = table.groupby(["model", "revision", "corpus"])["n"].transform("max")
    return table[table["n"] >= LONG_ENOUGH * full].reset_index(drop=True)


@kind(
    "along_sequence",
    table=along_sequence,
    about="entropy of a prompt's first t tokens, or norm of its t-th token, by t",
    title="Metric along the sequence, by layer",
    reads=("positions",),
    roles={"row": ("y",), "column": ("model", "representation"), "x_axis": ("position",)},
    roles_of_checkpoints={
        "row": ("y",),
        "column": ("model", "revision", "representation"),
        "x_axis": ("position",),
    },
    takes=("row", "column"),
    metrics=("prefix_entropy",),
    caption=(
        "Mean over the prompts of {corpora} that are long enough ({n_prompts}), by number of "
        "tokens or position, for some layers. Bands: quartiles over prompts. A prompt counts up "
        "to its own length; a line ends where half of the prompts are shorter."
    ),
)
def plot_along_sequence(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a line with the quartiles over prompts for some layers."""
    grid = panels.facets(table, look, height=2.2)
    quartiles = ("quartile_1", "quartile_3")
    style: dict[str, Any] = {"marker": "o", "markersize": 2, "shade": 0.1}
    for panel in grid.panels:
        layers = np.sort(panel.table["layer"].unique())
        shown = layers[np.unique(np.linspace(0, len(layers) - 1, LINES).round().astype(int))]
        for _, subset in panel.table[panel.table["layer"].isin(shown)].groupby("layer"):
            style["color"] = panels.sequential()(subset["depth"].iloc[0])
            panels.line(panel.ax, subset, "position", "value", quartiles, **style)
        if (panel.table["metric"] == "token_norm").all():
            panel.ax.set_yscale("log")
            panel.ax.yaxis.set_major_formatter("{x:g}")
            panel.ax.yaxis.set_minor_formatter("")
        panel.ax.set_xscale("log", base=2)
        panel.ax.xaxis.set_major_formatter("{x:g}")
    grid.label("Tokens", panels.metric_axis)
    panels.depth_bar(grid)
    return grid.legend().figure
