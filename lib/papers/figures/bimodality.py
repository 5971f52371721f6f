"""Distribution of a metric over prompts: one mode or two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.config.studies import kind
from layerwise.corpora.sources import LABELS, properties
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import Data, axis_label
from papers import shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BINS = 40

PROPERTIES = {"n_tokens": "number of tokens", **LABELS, "sink": "entropy less without first token"}


def bimodality(data: Data) -> pd.DataFrame:
    """Distribution of a metric over prompts by layer, and what its two groups differ in.

    ``what`` is ``dip`` (a row per layer: Hartigan's dip, p of a single mode, mean), ``density``
    (prompts in a bin), or, at the layer with the largest dip of each panel that rejects, a
    property of prompts (Cliff's delta of the upper group against the lower). p is adjusted (Holm)
    over all layers, and over all properties.
    """
    table, texts = data.prompts(), data.tables.get("texts")
    of_texts = pd.DataFrame()
    if texts is not None and "text" in texts:
        of_texts = properties(list(texts["text"])).set_index(texts["prompt_id"].to_numpy())
    edges = np.linspace(table["value"].min(), table["value"].max(), BINS + 1)
    layers = {
        key: subset.set_index("prompt_id") for key, subset in table.groupby(LAYER, sort=False)
    }
    dips, densities = [], []
    for subset in layers.values():
        about = subset.iloc[0][[*LAYER, "depth"]].to_dict()
        dip, p = shapes.dip_test(subset["value"])
        more = {"n": len(subset), "mean": subset["value"].mean()}
        dips.append(about | {"what": "dip", "value": dip, "p": p} | more)
        counts = {"bin": edges[:-1], "value": np.histogram(subset["value"], edges)[0]}
        densities.append(pd.DataFrame(about | {"what": "density"} | counts))
    dip_rows = pd.DataFrame(dips)
    dip_rows["p_adjusted"] = stats.holm(dip_rows["p"])
    most = dip_rows.sort_values("value", ascending=False, kind="stable").drop_duplicates(PANEL)
    effects = []
    for row in most[most["p_adjusted"] < stats.ALPHA].to_dict("records"):
        subset = layers[tuple(row[name] for name in LAYER)]
        have = of_texts.reindex(subset.index).assign(n_tokens=subset["n_tokens"])
        bare = layers.get(tuple({**row, "representation": "drop_first"}[name] for name in LAYER))
        if bare is not None and row["representation"] == "all":
            have["sink"] = bare["value"] - subset["value"]
        about = {name: row[name] for name in (*LAYER, "depth")}
        effects += [{**about, **effect} for effect in _effects(subset, have)]
    groups = pd.DataFrame(effects)
    if len(groups):
        groups["p_adjusted"] = stats.holm(groups["p"])
    return pd.concat([dip_rows, *densities, groups], ignore_index=True)


PANEL = [*select.POINT, "corpus", "metric"]

LAYER = [*PANEL, "layer"]


def _effects(subset: pd.DataFrame, have: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Cliff's delta of each property between the two groups of one layer's prompts."""
    upper = shapes.two_groups(subset["value"].to_numpy(dtype=float))
    for name in (n for n in PROPERTIES if n in have):
        there = have[name].notna().to_numpy()
        values = have[name].to_numpy(dtype=float)[there]
        if len(np.unique(values)) > 1:
            effect = shapes.group_effect(values, upper[there])
            if np.isfinite(effect.estimate):
                yield {"what": name, **select.ends(effect), "n": effect.n}


@kind(
    "bimodality",
    table=bimodality,
    about="a metric over prompts by depth: one mode or two, and how two groups of prompts differ",
    title="Distribution over prompts by depth",
    reads=("prompts", "texts"),
    roles={"column": ("model", "representation")},
    roles_of_checkpoints={"column": ("model", "revision", "representation")},
    takes=("column",),
    caption=(
        "Density over {n_prompts} prompts of {corpora} by depth, each layer scaled to its peak. "
        "Triangles: p < .05 of Hartigan's dip test, adjusted (Holm) for all layers and panels. "
        "Below, at the layer with the largest dip: Cliff's delta between the two groups in "
        "properties of the prompts, with 95% bootstrap CI over prompts; filled: p < .05, adjusted "
        "(Holm)."
    ),
)
def plot_bimodality(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the density over prompts by depth; below, how the two groups differ."""
    names = [p for p in PROPERTIES if p in set(table["what"])]
    rows = np.where(table["what"].isin(names), "groups", "density")
    look = look.only(row=("part",), column=look.roles["column"])
    grid = panels.facets(table.assign(part=rows), look, height=2.1)
    label = axis_label(str(table["metric"].iloc[0]))
    for panel in grid.panels:
        subset, ax, colour = panel.table, panel.ax, grid.colour(panel)
        ax.tick_params(labelleft=panel.left)
        if panel.row != "groups":
            _density(ax, subset, colour)
            ax.set(xlabel=panels.DEPTH, ylabel=label if panel.left else "")
            continue
        at, filled = subset["what"].map(names.index), subset["p_adjusted"] < stats.ALPHA
        panels.dots(ax, subset["value"], at, subset["low"], subset["high"], filled, color=colour)
        panels.named_rows(panel, [PROPERTIES[name] for name in names])
        ax.set_xlim(-1.05, 1.05)
        ax.axvline(0, color=panels.GREY, linewidth=0.7, zorder=1)
        ax.set_xlabel(f"Cliff’s delta, layer {subset['layer'].iloc[0]}")
    handles = [panels.entry("mean over prompts", linewidth=1)]
    if (table.loc[table["what"] == "dip", "p_adjusted"] < stats.ALPHA).any():
        handles.append(panels.entry("more than one mode (adjusted p < .05)", **SPLIT))
    if names:
        handles.append(panels.entry("groups differ (adjusted p < .05)", **panels.dot()))
    return grid.legend(handles).figure


SPLIT = panels.dot(marker="v", markersize=4, zorder=5)


def _density(ax: Any, subset: pd.DataFrame, colour: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    wide = subset[subset["what"] == "density"].pivot(index="bin", columns="depth", values="value")
    bins, depths = wide.index.to_numpy(), wide.columns.to_numpy(dtype=float)
    middles = (depths[1:] + depths[:-1]) / 2
    ax.pcolormesh(
        np.r_[depths[0], middles, depths[-1]],
        np.r_[bins, 2 * bins[-1] - bins[-2]],
        wide / np.maximum(wide.max(), 1),
        vmin=0,
        vmax=1,
        rasterized=True,
        cmap=LinearSegmentedColormap.from_list("fade", ["white", colour]),
    )
    dips = subset[subset["what"] == "dip"]
    panels.line(ax, dips, "depth", "mean", linewidth=1)
    split = dips.loc[dips["p_adjusted"] < stats.ALPHA, "depth"]
    top = ax.get_xaxis_transform()
    panels.points(ax, split, [1.0] * len(split), transform=top, **SPLIT)
    ax.grid(visible=False)
    panels.depth_axis(ax)
