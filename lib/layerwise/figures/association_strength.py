"""How strongly each metric goes with the score, beside what baselines and chance reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.curves import require_columns
from layerwise.association.order import Order, in_order
from layerwise.association.table import COLUMNS, POOLED
from layerwise.config.studies import Study, several
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import BASELINE, pick_results
from layerwise.figures.labels import (
    MEASURES,
    SYMBOLS,
    TOKENS,
    listing,
    metric_label,
    span,
    tokens_label,
)
from layerwise.figures.layer_choice import with_tokens
from layerwise.figures.metric_vs_score import measures_of

LEVEL = 0.05
NAMES = {"layer index": "Layer index", "distance from the middle": "Distance from the middle"}


def draw(associations: pd.DataFrame, study: Study, order: Order) -> Drawn:
    """Draw a row per metric, a point with its interval per model, a column per choice of tokens.

    Parameters
    ----------
    associations : DataFrame
        From `layerwise.association.table.associate`.

    Returns
    -------
    Drawn
        Its table is the part of the associations that is drawn.

    Raises
    ------
    LayerwiseError
        If the associations hold none of what the study asks for, or several corpora of which it
        names none.
    """
    require_columns(associations, COLUMNS, "associations")
    measure = measures_of(study, associations)[0]
    table = pick_results(associations[associations["measure"] == measure], study, order)
    table = table.assign(
        column=[tokens_label(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)]
    )
    wanted = [tokens_label(t, p) for p in several(study.pooling) for t in study.tokens or TOKENS]
    tokens = in_order(table["column"].unique(), wanted)
    names = in_order([m for m in table["model"].unique() if m != POOLED],
                     study.models or order.models)  # fmt: skip
    models = [*names, POOLED] if POOLED in set(table["model"]) else names
    rules = _rows(table)
    figure, axes = style.grid(
        1, len(tokens), panel_height=0.27 * len(rules) + 0.8, panel_width=4.4, sharey=True
    )
    for axis, choice in zip(axes[0], tokens, strict=True):
        _panel(axis, table[table["column"] == choice], rules, models, order.models)
        axis.set_title(choice)
        axis.set_xlabel(f"{MEASURES[measure]} with the mean task score over layers")
        axis.set_xlim((0, 1) if measure == "dcor" else (-1, 1))
    axes[0, 0].set_yticks(range(len(rules)), [NAMES.get(r) or metric_label(r) for r in rules])
    base = set(table.loc[table["protocol"] == BASELINE, "metric"])
    for label, rule in zip(axes[0, 0].get_yticklabels(), rules, strict=True):
        label.set_fontweight("bold" if rule in base else "normal")
    handles = [
        Line2D([], [], linestyle="none", marker=_marker(m, order.models), markersize=5,
               color=_colour(m, order.models), label="all models pooled" if m == POOLED else m)
        for m in models
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="none", marker="o", markersize=5, color="white",
               markeredgecolor=style.INK, label="not beyond circular shifts (p ≥ .05)")
    )  # fmt: skip
    marks.legend(figure, handles)
    facts = _facts(table, base)
    title = _title(facts, tokens, measure)
    style.header(
        figure, title,
        f"{MEASURES[measure]} over layers on {facts['corpus']}, with 95 % bootstrap "
        f"intervals over {facts['n_tasks']} tasks. Bold: baselines that look at no activations.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, measure), facts)


def _rows(table: pd.DataFrame) -> list[str]:
    """Metrics by their mean strength, the strongest first."""
    mean = table.assign(size=table["value"].abs()).groupby("metric")["size"].mean()
    return [str(m) for m in mean.sort_values(ascending=False).index]


def _colour(model: str, order: Sequence[str]) -> str:
    return style.INK if model == POOLED else style.colour_of(model, order)


def _marker(model: str, order: Sequence[str]) -> str:
    return "D" if model == POOLED else style.marker_of(model, order)


def _panel(
    axis: Any,
    part: pd.DataFrame,
    rules: Sequence[str],
    models: Sequence[str],
    order: Sequence[str],
) -> None:
    for k, model in enumerate(models):
        shift = (k - (len(models) - 1) / 2) * min(0.15, 0.7 / len(models))
        for row in part[part["model"] == model].to_dict("records"):
            at = rules.index(row["metric"]) + shift
            colour = _colour(model, order)
            # Without an interval both ends are NaN, and nothing is drawn.
            ends = [row["low"], row["high"]]
            axis.plot(ends, [at, at], color=colour, linewidth=1, alpha=0.6)
            beyond = row["p_shift"] < LEVEL
            axis.plot(
                [row["value"]], [at], marker=_marker(model, order), markersize=4.4, zorder=3,
                color=colour if beyond else "white", markeredgecolor=colour,
                markeredgewidth=1.0, linestyle="none", clip_on=False,
            )  # fmt: skip
    axis.grid(axis="x")
    axis.grid(axis="y", visible=False)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)


def _facts(table: pd.DataFrame, base: set[str]) -> dict[str, Any]:
    single = table[table["model"] != POOLED]
    by_tokens = {}
    for choice, part in single.groupby("column", sort=False):
        bar = (
            part[part["metric"].isin(base)].groupby("model")["value"].agg(lambda v: v.abs().max())
        )
        real = part[~part["metric"].isin(base)]
        above = real["value"].abs() > real["model"].map(bar).fillna(0.0)
        by_tokens[str(choice)] = {
            "n": len(real),
            "above_baselines": int(above.sum()),
            "beyond_shift": int((real["p_shift"] < LEVEL).sum()),
            "beyond_permutation": int((real["p_permutation"] < LEVEL).sum()),
        }
    corpora = table.loc[table["protocol"] != BASELINE, "corpus"].unique()
    return {
        "by_tokens": by_tokens,
        "corpus": str(corpora[0]),
        "n_tasks": span(single["n_tasks"].tolist()),
        "n_layers": span(single["n_layers"].tolist()),
    }


def _title(facts: dict[str, Any], tokens: Sequence[str], measure: str) -> str:
    parts = []
    for choice in tokens:
        f = facts["by_tokens"].get(choice)
        if f:
            parts.append(f"{f['above_baselines']} of {f['n']} {with_tokens(choice)}")
    return (
        f"Metrics and models whose {SYMBOLS[measure]} with the score beats the layer's mere "
        f"position: "
        f"{listing(parts)}"
    )


def _caption(facts: dict[str, Any], measure: str) -> str:
    told = [
        f"{f['beyond_shift']} of {f['n']} lie beyond the circular-shift null (p < .05) and "
        f"{f['beyond_permutation']} beyond the permutation null {with_tokens(choice)}"
        for choice, f in facts["by_tokens"].items()
    ]
    return (
        f"{MEASURES[measure]} between each metric on {facts['corpus']} and the mean main "
        f"score over {facts['n_tasks']} tasks, over the layers of a model ({facts['n_layers']}), "
        "with 95 % bootstrap intervals over tasks; pooled over models with each model as a block. "
        "Filled: beyond the circular-shift null at p < .05, which with n layers needs n > 20. Two "
        "baselines look at no activations: the layer's index and its distance from the middle. "
        f"{listing(told)}."
    )
