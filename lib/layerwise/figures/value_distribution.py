"""How a metric is spread over prompts at each layer: one hump or two?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_prompts
from layerwise.figures.labels import TOKENS, axis_label, listing, metric_label, span
from layerwise.figures.settings import StudySettings, in_order

BINS = 40
LEVEL = 0.05


def draw(prompts: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw the density of a metric's per-prompt values by depth, a panel per model and tokens.

    Parameters
    ----------
    prompts : DataFrame
        Tidy per-prompt values.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per model, tokens and layer: mean, quartiles, Hartigan's dip and its
        p-value, plain and with Holm's correction over the layers of the panel.

    Raises
    ------
    LayerwiseError
        If the study names more than one metric, or one without per-prompt values.
    """
    study = study.with_default("prompt_entropy")
    if len(study.curves) != 1:
        raise LayerwiseError(
            f"A distribution over prompts shows one metric, this study names {len(study.curves)}."
        )
    values = pick_prompts(prompts, study)
    models = in_order(list(values["model"].unique()), study.models or order)
    tokens = in_order(list(values["tokens"].unique()), study.tokens or list(TOKENS))
    there = set(zip(values["model"], values["tokens"], strict=True))
    panels = [(m, c) for m in models for c in tokens if (m, c) in there]
    table = pd.concat([_summary(values, *panel) for panel in panels], ignore_index=True)
    columns = min(style.COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = style.grid(rows, columns, panel_height=2.0, sharex=True, sharey=True)
    edges = np.linspace(values["value"].min(), values["value"].max(), BINS + 1)
    for i, axis in enumerate(axes.flat):
        axis.set_visible(i < len(panels))
        if i >= len(panels):
            continue
        model, choice = panels[i]
        part = values[(values["model"] == model) & (values["tokens"] == choice)]
        mine = table[(table["model"] == model) & (table["tokens"] == choice)]
        _panel(axis, part, mine, edges, style.colour_of(model, order))
        notes = [TOKENS[choice]] if len(tokens) > 1 else []
        marks.panel_title(axis, model, notes, style.colour_of(model, order))
        style.depth_axis(axis, label=i + columns >= len(panels))
        axis.tick_params(labelbottom=i + columns >= len(panels))
        if i % columns == 0:
            metric = study.curves[0]
            axis.set_ylabel(axis_label(metric.metric, metric.alpha, metric.normalization))
    handles = [marks.mean_handle(), marks.split_handle()]
    marks.legend(figure, handles)
    facts = _facts(table, values)
    label = metric_label(study.curves[0].metric)
    title = _title(facts, label, tokens)
    style.header(
        figure, title,
        f"Density over {facts['n_prompts']} prompts of {facts['corpus']} by depth; darker is "
        "denser. Hartigan’s dip test per layer, Holm-corrected over the layers of a panel.",
    )  # fmt: skip
    caption = (
        f"{label} of each prompt by depth in per cent of the layers, as a density over "
        f"{facts['n_prompts']} prompts of {facts['corpus']} (darker is denser, each layer scaled "
        "to its own peak), with the mean over prompts; a panel per model and choice of the tokens "
        "that count. Marked on top: layers in which Hartigan's dip test says more than one hump "
        "(p < .05 after Holm's correction over the layers of the panel)."
    )
    return Drawn(figure, table, title, caption, facts)


def _summary(values: pd.DataFrame, model: str, tokens: str) -> pd.DataFrame:
    from diptest import diptest

    part = values[(values["model"] == model) & (values["tokens"] == tokens)]
    rows = []
    for (layer, depth), group in part.groupby(["layer", "depth"]):
        v = group["value"].to_numpy(dtype=float)
        # A dip is not defined below four points, nor where all are the same.
        dip, p = diptest(v) if len(v) > 3 and np.ptp(v) > 0 else (np.nan, np.nan)
        low, middle, high = np.quantile(v, [0.25, 0.5, 0.75])
        rows.append(
            {
                "model": model, "tokens": tokens, "layer": layer, "depth": depth, "n": len(v),
                "mean": v.mean(), "quartile_1": low, "median": middle, "quartile_3": high,
                "dip": dip, "p": p,
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
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
    for (model, tokens), part in table.groupby(["model", "tokens"], sort=False):
        split = part[part["p_holm"] < LEVEL]
        found.append(
            {
                "model": str(model),
                "tokens": str(tokens),
                "n_layers": len(part),
                "layers": [int(v) for v in split["layer"]],
            }
        )
    return {
        "panels": found,
        "n_prompts": span(table["n"].tolist()),
        "corpus": listing(sorted(values["corpus"].unique())),
    }


def _title(facts: dict[str, Any], label: str, tokens: Sequence[str]) -> str:
    told = []
    for f in facts["panels"]:
        if f["layers"]:
            what = f" {TOKENS[f['tokens']]}" if len(tokens) > 1 else ""
            told.append(f"{len(f['layers'])} of {f['n_layers']} layers of {f['model']}{what}")
    if not told:
        return f"{label} has no layer in which prompts fall into two humps"
    return f"{label} splits prompts into two humps in {listing(told)}".replace(
        " all tokens", " with all tokens"
    )
