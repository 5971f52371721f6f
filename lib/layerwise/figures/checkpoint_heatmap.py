"""A metric over layers and checkpoints at once, as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_metrics, with_steps
from layerwise.figures.labels import (
    TOKENS,
    axis_label,
    counted,
    in_sentence,
    listing,
    metric_label,
    span,
)
from layerwise.figures.settings import StudySettings, in_order


def draw(metrics: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw a row of heat maps per metric, a column per model and token choice.

    Parameters
    ----------
    metrics : DataFrame
        Tidy metrics of models with several checkpoints.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table is the tidy metrics drawn, with the training step.

    Raises
    ------
    LayerwiseError
        If no model has two checkpoints with a step in their name.
    """
    study = study.with_default("prompt_entropy")
    table = with_steps(pick_metrics(metrics, study, all_revisions=True))
    models = in_order(list(table["model"].unique()), study.models or order)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    panels = [(m, c) for m in models for c in tokens]
    figure, axes = style.grid(len(study.curves), len(panels), panel_height=2.1)
    for i, row in enumerate(axes):
        mine = table[table["curve"] == i]
        low, high = float(mine["value"].min()), float(mine["value"].max())
        for (model, choice), axis in zip(panels, row, strict=True):
            image = _panel(
                axis, mine[(mine["model"] == model) & (mine["tokens"] == choice)], low, high
            )
            axis.tick_params(labelleft=axis is row[0])
            if i == len(axes) - 1:
                axis.set_xlabel("Training step")
            else:
                axis.tick_params(labelbottom=False)
        row[0].set_ylabel("Layer")
        metric = study.curves[i]
        bar = figure.colorbar(image, ax=row, location="right", aspect=18, pad=0.01)
        bar.set_label(axis_label(metric.metric, metric.alpha, metric.normalization))
    for (model, choice), axis in zip(panels, axes[0], strict=True):
        notes = [TOKENS[choice]] if len(tokens) > 1 else []
        marks.panel_title(axis, model, notes, style.colour_of(model, order))
    facts = _facts(table, models, tokens)
    title = _title(facts, in_sentence(study.curves[0].metric))
    n = span(table["n"].tolist())
    corpora = listing(sorted(table["corpus"].unique()))
    style.header(
        figure, title,
        f"Layer by training step ({counted(facts['n_steps'], 'checkpoint')}), on {n} prompts of "
        f"{corpora}. One colour scale for a metric.",
    )  # fmt: skip
    caption = (
        f"{listing([metric_label(c.metric) for c in study.curves])} of each layer (0 is the "
        f"embedding output) at each of {counted(facts['n_steps'], 'checkpoint')}, on {n} prompts "
        f"of {corpora}; a column per model and choice of the tokens that count. Steps are evenly "
        "spaced, whatever their distance. The title compares the lowest value of any layer at the "
        "first and at the last checkpoint."
    )
    return Drawn(figure, table, title, caption, facts)


def _panel(axis: Any, part: pd.DataFrame, low: float, high: float) -> Any:
    wide = part.pivot_table(index="layer", columns="step", values="value").sort_index()
    colours, _ = style.depth_colours()
    image = axis.imshow(
        np.ma.masked_invalid(wide.to_numpy(dtype=float)), aspect="auto", origin="lower",
        cmap=colours, vmin=low, vmax=high, interpolation="nearest",
    )  # fmt: skip
    every = max(1, -(-wide.shape[1] // 6))
    at = sorted({*range(wide.shape[1] - 1, -1, -every)})
    axis.set_xticks(at, [f"{int(wide.columns[i]):,}" for i in at])
    axis.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axis.grid(visible=False)
    return image


def _facts(table: pd.DataFrame, models: Sequence[str], tokens: Sequence[str]) -> dict[str, Any]:
    lowest = []
    for model in models:
        for choice in tokens:
            part = table[
                (table["model"] == model) & (table["tokens"] == choice) & (table["curve"] == 0)
            ]
            first = part[part["step"] == part["step"].min()]
            last = part[part["step"] == part["step"].max()]
            at = last.iloc[int(last["value"].argmin())]
            lowest.append(
                {
                    "model": model,
                    "tokens": choice,
                    "first": float(first["value"].min()),
                    "last": float(at["value"]),
                    "layer": int(at["layer"]),
                }
            )
    return {"lowest": lowest, "n_steps": int(table["step"].nunique())}


def _title(facts: dict[str, Any], label: str) -> str:
    first = facts["lowest"][0]["tokens"]
    told = [
        f"from {f['first']:.2f} to {f['last']:.2f} in {f['model']} (layer {f['layer']})"
        for f in facts["lowest"]
        if f["tokens"] == first
    ]
    return f"Over training the lowest {label} goes {listing(told)}"
