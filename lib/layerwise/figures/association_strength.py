"""How strongly each metric goes with the score, beside what baselines and chance reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.curves import OWN_TEXTS, require_columns
from layerwise.association.measures import check_measure
from layerwise.association.revisions import last_revision
from layerwise.association.table import COLUMNS, POOLED
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.labels import MEASURES, SYMBOLS, TOKENS, WITH, listing, metric_label, span
from layerwise.figures.settings import StudySettings, in_order

LEVEL = 0.05
BASELINE = "baseline"
NAMES = {"layer index": "Layer index", "distance from the middle": "Distance from the middle"}


def draw(associations: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw a row per metric, a point with its interval per model, a column per token choice.

    Parameters
    ----------
    associations : DataFrame
        From `layerwise.association.table.associate`.
    order : sequence of str
        All models of the config, which fixes their colours.

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
    table = _pick(associations, study)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    names = in_order([m for m in table["model"].unique() if m != POOLED], study.models or order)
    models = [*names, POOLED] if POOLED in set(table["model"]) else names
    rules = _rows(table)
    figure, axes = style.grid(
        1, len(tokens), panel_height=0.27 * len(rules) + 0.8, panel_width=4.4, sharey=True
    )
    for axis, choice in zip(axes[0], tokens, strict=True):
        _panel(axis, table[table["tokens"] == choice], rules, models, order)
        axis.set_title(TOKENS[choice])
        axis.set_xlabel(f"{MEASURES[study.measure]} with the mean task score over layers")
        axis.set_xlim((0, 1) if study.measure == "dcor" else (-1, 1))
    axes[0, 0].set_yticks(range(len(rules)), [NAMES.get(r) or metric_label(r) for r in rules])
    base = set(table.loc[table["protocol"] == BASELINE, "metric"])
    for label, rule in zip(axes[0, 0].get_yticklabels(), rules, strict=True):
        label.set_fontweight("bold" if rule in base else "normal")
    handles = [
        Line2D([], [], linestyle="none", marker=_marker(m, order), markersize=5,
               color=_colour(m, order), label="all models pooled" if m == POOLED else m)
        for m in models
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="none", marker="o", markersize=5, color="white",
               markeredgecolor=style.INK, label="not beyond circular shifts (p ≥ .05)")
    )  # fmt: skip
    marks.legend(figure, handles)
    facts = _facts(table, base)
    title = _title(facts, tokens, study)
    style.header(
        figure, title,
        f"{MEASURES[study.measure]} over layers on {facts['corpus']}, with 95 % bootstrap "
        f"intervals over {facts['n_tasks']} tasks. Bold: baselines that look at no activations.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study), facts)


def _pick(associations: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    group = study.task_types[0] if study.task_types and len(study.task_types) == 1 else "all"
    base = associations["protocol"] == BASELINE
    variant = (
        (associations["protocol"] == study.protocol)
        & (associations["normalization"] == study.normalization)
        & (associations["alpha"].isna() | (associations["alpha"] == study.alpha))
    )
    if study.metrics is not None:
        variant &= associations["metric"].isin([m.metric for m in study.metrics])
    corpus = OWN_TEXTS if study.own_texts else None
    if corpus is not None:
        variant &= associations["corpus"] == corpus
    elif study.corpora is not None:
        variant &= associations["corpus"].isin(list(study.corpora))
    kept = associations[
        (base | variant)
        & (associations["measure"] == check_measure(study.measure))
        & (associations["task_type"] == group)
        & (associations["pooling"] == study.pooling)
    ]
    if study.models is not None:
        kept = kept[kept["model"].isin([*study.models, POOLED])]
    if study.tokens is not None:
        kept = kept[kept["tokens"].isin(list(study.tokens))]
    last = kept.groupby("model")["revision"].agg(lambda r: last_revision(r.unique()))
    kept = kept[kept["revision"] == kept["model"].map(last)]
    corpora = sorted(kept.loc[kept["protocol"] != BASELINE, "corpus"].unique())
    if len(corpora) != 1:
        raise LayerwiseError(
            f"This study needs associations on one corpus; these are on "
            f"{listing(corpora) or 'none that fits'}: name one under `corpora`."
        )
    return kept.reset_index(drop=True)


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
    for choice, part in single.groupby("tokens"):
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


def _title(facts: dict[str, Any], tokens: Sequence[str], study: StudySettings) -> str:
    parts = []
    for choice in tokens:
        f = facts["by_tokens"].get(choice)
        if f:
            parts.append(f"{f['above_baselines']} of {f['n']} {WITH[choice]}")
    return (
        f"Metrics and models whose {SYMBOLS[study.measure]} with the score beats the layer's mere "
        f"position: "
        f"{listing(parts)}"
    )


def _caption(facts: dict[str, Any], study: StudySettings) -> str:
    told = [
        f"{f['beyond_shift']} of {f['n']} lie beyond the circular-shift null (p < .05) and "
        f"{f['beyond_permutation']} beyond the permutation null {WITH[choice]}"
        for choice, f in facts["by_tokens"].items()
    ]
    return (
        f"{MEASURES[study.measure]} between each metric on {facts['corpus']} and the mean main "
        f"score over {facts['n_tasks']} tasks, over the layers of a model ({facts['n_layers']}), "
        "with 95 % bootstrap intervals over tasks; pooled over models with each model as a block. "
        "Filled: beyond the circular-shift null at p < .05, which with n layers needs n > 20. Two "
        "baselines look at no activations: the layer's index and its distance from the middle. "
        f"{listing(told)}."
    )
