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
from layerwise.figures.labels import listing, metric_label, reading_label, span

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
        plain and with Holm's correction over the layers of the panel.
    """
    rows = given.prompts()
    values = rows.table
    grid = panels.grid(rows, panel_height=2.0)
    edges = np.linspace(values["value"].min(), values["value"].max(), BINS + 1)
    summaries = []
    for panel in grid.panels:
        mine = _summary(panel.table)
        summaries.append(mine)
        colour = style.colour_of(str(mine["model"].iloc[0]), rows.order.models)
        _panel(panel.axis, panel.table, mine, edges, colour)
        panels.head(grid, panel, rows)
        style.depth_axis(panel.axis, label=panel.bottom)
        panel.axis.tick_params(labelbottom=panel.bottom)
        if panel.left:
            panel.axis.set_ylabel(panels.label_of(panel, rows))
    panels.one_scale(grid, rows)
    table = pd.concat(summaries, ignore_index=True)
    handles = [marks.mean_handle(), marks.split_handle()]
    marks.legend(grid.figure, handles)
    facts = _facts(table, values)
    label = metric_label(rows.metrics[0].metric)
    title = _title(facts, label)
    style.header(
        grid.figure, title,
        f"Density over {facts['n_prompts']} prompts of {facts['corpus']} by depth; darker is "
        "denser. Hartigan’s dip test per layer, Holm-corrected over the layers of a panel.",
    )  # fmt: skip
    caption = (
        f"{label} of each prompt by depth in per cent of the layers, as a density over "
        f"{facts['n_prompts']} prompts of {facts['corpus']} (darker is denser, each layer scaled "
        "to its own peak), with the mean over prompts; a panel for each model, checkpoint and "
        "reading. Marked on top: layers in which Hartigan's dip test says more than one hump "
        "(p < .05 after Holm's correction over the layers of the panel)."
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
    table = pd.DataFrame(found)
    table["p_holm"] = holm(table["p"].to_numpy(dtype=float))
    return table


def holm(p: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
    """Holm's step-down correction; NaN stays NaN and does not count."""
    corrected = np.full(p.shape, np.nan)
    known = np.flatnonzero(np.isfinite(p))
    rank = known[np.argsort(p[known])]
    steps = p[rank] * np.arange(len(rank), 0, -1)
    corrected[rank] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


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


def _title(facts: dict[str, Any], label: str) -> str:
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
        return f"{label} shows no layer with more than one hump over prompts"
    if len(told) > TOLD:
        return (
            f"{label} has more than one hump over prompts in {len(told)} of "
            f"{len(facts['panels'])} panels"
        )
    return f"{label} has more than one hump over prompts in {listing(told)}"
