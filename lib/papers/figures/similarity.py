"""Similarity of every layer with every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from layerwise import stats
from layerwise.config.studies import kind
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MEASURES = {"cka_debiased": "Debiased CKA", "rsa": "RSA (Spearman)"}


def layer_similarity(data: Data) -> pd.DataFrame:
    """Similarity of every layer with every layer, with 95% jackknife intervals."""
    table = data.rows(data.tables["similarities"], "tokens", "model")
    if data.study.models:
        table = select.only(table, "other_model", data.study.models)
    table = stats.with_intervals(table.assign(representation=table["tokens"]))
    table[["low", "high"]] = table[["low", "high"]].clip(-1, 1)
    return data.sort(table)


@kind(
    "layer_similarity",
    table=layer_similarity,
    about="CKA and RSA between all layers of models and checkpoints",
    title="Similarity between layers",
    reads=("similarities",),
    roles={"row": ("model", "revision"), "column": ("representation",)},
    metrics=(),
    caption=(
        "Debiased linear CKA and RSA (Spearman correlation of dissimilarities) of mean-pooled "
        "embeddings of {n_prompts} prompts of {corpora}, every layer with every layer. The table "
        "has 95% jackknife CI over prompts."
    ),
)
def plot_layer_similarity(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of CKA, and of RSA below it, for each pair of models and representation."""
    t = table[table["measure"].isin(list(MEASURES))]
    t = t.assign(measure=t["measure"].map(MEASURES), one=t["model"], other=t["other_model"])
    if t.groupby("model")["revision"].nunique().max() > 1:
        t = t.assign(one=t["model"] + " " + t["revision"])
        t["other"] = t["other_model"] + " " + t["other_revision"]
    t["model"] = t["one"].where(t["one"] == t["other"], t["one"] + " and " + t["other"])
    columns = ("model", "representation")
    grid = panels.facets(t, look.only(row=("measure",), column=columns), height=2.2)
    for panel in grid.panels:
        wide = panel.table.pivot(index="layer", columns="other_layer", values="value")
        image = panels.heat(panel.ax, wide.clip(lower=0), vmin=0, vmax=1)
        places = panels.spread(len(wide.columns), panels.TICKS)
        panel.ax.set_xticks([p + 0.5 for p in places], wide.columns[places])
        one, other = panel.table[["one", "other"]].iloc[0]
        panel.ax.set_ylabel("Layer" if one == other else f"Layer of {one}")
        panel.ax.set_xlabel("Layer" if one == other else f"Layer of {other}")
    grid.bar(image, "Similarity")
    return grid.figure
