"""How a metric is spread over prompts at each layer: one hump or more?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap

from layerwise.figures import marks, panels, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import left_out_said
from layerwise.figures.given import Given
from layerwise.figures.labels import in_sentence, listing, metric_label, reading_label, span
from layerwise.statistics.corrections import holm

TOLD = 8  # panels that a title names
BINS = 40
LEVEL = 0.05


def draw(given: Given) -> Drawn:
    """Draw the density of a metric's per-prompt values by depth.

    Per-prompt values of one metric.

    Returns
    -------
    Drawn
        Its table has a row per panel and layer: mean, quartiles, Hartigan's dip and its p-value,
        plain and with Holm's correction over all layers of all panels.
    """
    rows = given.prompts()
    values = rows.table
    grid = panels.grid(rows, panel_height=2.0)
    edges = np.linspace(values["value"].min(), values["value"].max(), BINS + 1)
    table = pd.concat(
        [_summary(panel.table).assign(panel=i) for i, panel in enumerate(grid.panels)],
        ignore_index=True,
    )
    table["p_holm"] = holm(table["p"])
    for i, panel in enumerate(grid.panels):
        mine = table[table["panel"] == i]
        colour = style.colour_of(str(mine["model"].iloc[0]), rows.order.models)
        _panel(panel.axis, panel.table, mine, edges, colour)
        panels.head(grid, panel, rows)
        style.depth_axis(panel.axis, label=panel.bottom)
        panel.axis.tick_params(labelbottom=panel.bottom)
        if panel.left:
            panel.axis.set_ylabel(panels.label_of(panel, rows))
    panels.one_scale(grid, rows)
    table = table.drop(columns="panel")
    handles = [marks.mean_handle(), marks.split_handle()]
    marks.legend(grid.figure, handles)
    facts = _facts(table, values)
    label = metric_label(rows.metrics[0].metric)
    title = _title(facts, rows.metrics[0].metric)
    style.header(
        grid.figure, title,
        f"Density over {facts['n_prompts']} prompts of {facts['corpus']} by depth; darker is "
        "denser. Hartigan’s dip test per layer, Holm-corrected over all layers and panels.",
    )  # fmt: skip
    caption = (
        f"{label} of each prompt by depth in per cent of the layers, as a density over "
        f"{facts['n_prompts']} prompts of {facts['corpus']} (darker is denser, each layer scaled "
        "to its own peak), with the mean over prompts; a panel for each model, checkpoint and "
        "reading. Marked on top: layers in which Hartigan's dip test says more than one hump "
        "(p < .05 after Holm's correction over all layers of all panels)."
        f"{left_out_said(rows)}"
    )
    return Drawn(grid.figure, table, title, caption, facts)


def _summary(part: pd.DataFrame) -> pd.DataFrame:
    from diptest import diptest

    names = {
        c: str(part[c].iloc[0])
        for c in ("model", "revision", "corpus", "reading", "sublayer", "metric", "protocol")
    }
    found = []
    for (layer, depth), group in part.groupby(["layer", "depth"]):
        v = group["value"].to_numpy(dtype=float)
        # A dip is not defined below four points, nor where all are the same.
        dip, p = diptest(v) if len(v) > 3 and np.ptp(v) > 0 else (np.nan, np.nan)
        low, middle, high = np.quantile(v, [0.25, 0.5, 0.75])
        found.append(
            {
                **names, "layer": layer, "depth": depth, "n": len(v), "mean": v.mean(),
                "quartile_1": low, "median": middle, "quartile_3": high, "dip": dip, "p": p,
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def _panel(axis: Any, part: pd.DataFrame, summary: pd.DataFrame, edges: Any, colour: str) -> None:
    depths = np.sort(part["depth"].unique())
    density = np.stack(
        [np.histogram(part.loc[part["depth"] == d, "value"], bins=edges)[0] for d in depths],
        axis=1,
    ).astype(float)
    density /= np.maximum(density.max(axis=0), 1)
    middle = (depths[1:] + depths[:-1]) / 2
    fade = LinearSegmentedColormap.from_list("fade", ["white", colour])
    axis.pcolormesh(
        np.r_[depths[0], middle, depths[-1]], edges, density, cmap=fade, vmin=0, vmax=1,
        rasterized=True,
    )  # fmt: skip
    axis.plot(summary["depth"], summary["mean"], color=style.INK, linewidth=1)
    split = summary[summary["p_holm"] < LEVEL]
    if len(split):  # an unclipped line without points would claim the page's corner
        axis.plot(
        split["depth"], [1.0] * len(split), transform=axis.get_xaxis_transform(), clip_on=False,
        **marks.split_mark(),
    )  # fmt: skip
    axis.grid(visible=False)


def _facts(table: pd.DataFrame, values: pd.DataFrame) -> dict[str, Any]:
    found = []
    keys = ["model", "revision", "reading", "corpus"]
    for (model, revision, reading, _), part in table.groupby(keys, sort=False):
        split = part[part["p_holm"] < LEVEL]
        found.append(
            {
                "model": str(model),
                "revision": str(revision),
                "reading": str(reading),
                "n_layers": len(part),
                "layers": [int(v) for v in split["layer"]],
            }
        )
    return {
        "panels": found,
        "n_prompts": span(table["n"].tolist()),
        "corpus": listing(sorted(values["corpus"].unique())),
    }


def _title(facts: dict[str, Any], metric: str) -> str:
    label, name = metric_label(metric), in_sentence(metric)
    several = {k: len({f[k] for f in facts["panels"]}) > 1 for k in ("revision", "reading")}
    models = len({f["model"] for f in facts["panels"]})
    told = []
    for f in facts["panels"]:
        if f["layers"]:
            # Each model has a last checkpoint of its own name.
            at = several["revision"] and len(facts["panels"]) > models * (1 + several["reading"])
            what = f" at {f['revision']}" if at else ""
            what += f" {reading_label(f['reading'], sentence=True)}" if several["reading"] else ""
            told.append(f"{len(f['layers'])} of {f['n_layers']} layers of {f['model']}{what}")
    if not told:
        n = sum(f["n_layers"] for f in facts["panels"])
        return f"No evidence that {name} has more than one hump over " + (
            f"prompts, at any of {n} layers"
        )
    if len(told) > TOLD:
        return (
            f"{label} has more than one hump over prompts in {len(told)} of "
            f"{len(facts['panels'])} panels"
        )
    return f"{label} has more than one hump over prompts in {listing(told)}"
