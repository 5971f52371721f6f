"""How strongly each metric goes with the score, beside what baselines and chance reach."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from layerwise.association.curves import require_columns
from layerwise.association.order import in_order
from layerwise.association.table import COLUMNS, MATCH, POOLED
from layerwise.config.studies import several
from layerwise.errors import LayerwiseError
from layerwise.figures import evidence, marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import BASELINE, pick_results
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    MEASURES,
    TOKENS,
    metric_label,
    span,
    tokens_label,
)
from layerwise.figures.metric_vs_score import group_of, measures_of
from layerwise.statistics.headlines import ALPHA

NAMES = {"layer index": "Layer index", "distance from the middle": "Distance from the middle"}
RISES, FALLS = "^", "v"
SIGNLESS = ("dcor", "bcdcor")
HATCH = "////"


def draw(given: Given) -> Drawn:
    """Draw a row per metric, a point per model, a column per choice of tokens.

    With choices (kind ``beyond_depth``) the slopes beyond depth are drawn, with their intervals,
    and metrics that are decided by δ or by the number of prompts are hatched.

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
    study, order = given.study, given.order
    associations, choices = given.tables["associations"], given.tables.get("selections")
    require_columns(associations, COLUMNS, "associations")
    measure = "slope" if choices is not None else measures_of(study, associations)[0]
    if choices is not None and "slope" not in set(associations["measure"]):
        raise LayerwiseError(
            f"A study of kind {study.kind} draws slopes beyond depth, which these associations "
            "lack; add slope to association.measures."
        )
    over_models = MATCH if measure == "r" else measure
    single = (associations["model"] != POOLED) & (associations["measure"] == measure)
    pooled = (associations["model"] == POOLED) & (associations["measure"] == over_models)
    table = pick_results(associations[single | pooled], study, order)
    table = table[table["value"].notna() & ~_no_slope(table, measure)]
    if table.empty:
        raise LayerwiseError(
            f"No metric has {MEASURES[measure]} here: models have fewer layers than it takes."
        )
    table = table.assign(
        column=[tokens_label(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)]
    )
    wanted = [tokens_label(t, p) for p in several(study.pooling) for t in study.tokens or TOKENS]
    tokens = in_order(table["column"].unique(), wanted)
    names = in_order([m for m in table["model"].unique() if m != POOLED],
                     study.models or order.models)  # fmt: skip
    models = [*names, POOLED] if POOLED in set(table["model"]) else names
    table["refused"] = _refused(table, choices)
    rules = _rows(table)
    height = style.row_height(len(rules), len(models))
    figure, axes = style.grid(
        1, len(tokens), panel_height=height * len(rules) + 0.8, panel_width=4.4, sharey=True
    )
    for axis, choice in zip(axes[0], tokens, strict=True):
        _panel(axis, table[table["column"] == choice], rules, models, order.models, measure)
        axis.set_title(choice)
        axis.set_xlabel("Points of score per sd of the metric, given depth" if measure == "slope"
                        else f"{MEASURES[measure]} of metric and score")  # fmt: skip
        if measure != "slope":
            axis.set_xlim((0, 1) if measure == "dcor" else (-1, 1))
    axes[0, 0].set_yticks(range(len(rules)), [NAMES.get(r) or metric_label(r) for r in rules])
    base = set(table.loc[table["protocol"] == BASELINE, "metric"])
    for label, rule in zip(axes[0, 0].get_yticklabels(), rules, strict=True):
        label.set_fontweight("bold" if rule in base else "normal")
    marks.legend(figure, _handles(table, models, order.models, measure))
    group = group_of(study, associations)
    facts = _facts(table, associations, base, group)
    title = _title(facts, measure)
    over = (
        "lines: 95 % intervals over tasks, and over models for the diamonds"
        if measure == "slope"
        else "ticks: what 95 % of unrelated smooth curves stay below"
    )
    style.header(
        figure, title,
        f"{MEASURES[measure]}, metrics on {facts['corpus']}, scores over {facts['n_tasks']} "
        f"tasks; {over}." + (" Bold: baselines that look at no activations." if base else ""),
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, measure), facts)


def _no_slope(table: pd.DataFrame, measure: str) -> pd.Series[bool]:
    """A smooth of depth, such as the layer's index, leaves nothing given depth."""
    return (table["protocol"] == BASELINE) & (measure in ("r", "slope"))


def _refused(table: pd.DataFrame, choices: pd.DataFrame | None) -> pd.Series[str]:
    """Why a model's metric is decided by δ or by the number of prompts; empty where it is not."""
    if choices is None:
        return pd.Series("", index=table.index)
    keys = ["model", "revision", "corpus", "metric", "protocol", "tokens", "pooling"]
    why = choices[choices["refused"] != ""].drop_duplicates(keys).set_index(keys)["refused"]
    found = why.reindex(pd.MultiIndex.from_frame(table[keys]))
    return pd.Series(found.fillna("").to_numpy(), index=table.index)


def _rows(table: pd.DataFrame) -> list[str]:
    """Metrics by their mean strength, the strongest first."""
    mean = table.assign(size=table["value"].abs()).groupby("metric")["size"].mean()
    return [str(m) for m in mean.sort_values(ascending=False).index]


def _colour(model: str, order: Sequence[str]) -> str:
    return style.INK if model == POOLED else style.colour_of(model, order)


def _marker(model: str, order: Sequence[str]) -> str:
    return "D" if model == POOLED else style.marker_of(model, order)


def _handles(
    table: pd.DataFrame, models: Sequence[str], order: Sequence[str], measure: str
) -> list[Any]:
    handles: list[Any] = [
        Line2D([], [], linestyle="none", marker=_marker(m, order), markersize=5,
               color=_colour(m, order), label="over models" if m == POOLED else m)
        for m in models
    ]  # fmt: skip
    hollow: dict[str, Any] = {"linestyle": "none", "markersize": 5, "markeredgecolor": style.INK}
    if measure == "slope":
        handles.append(
            Line2D([], [], marker="o", color="white", label="interval holds 0", **hollow)
        )
    else:
        handles.append(
            Line2D([], [], marker="o", color="white", label="no more than unrelated curves",
                   **hollow)
        )  # fmt: skip
        handles.append(
            Line2D([], [], linestyle="none", marker="|", markersize=8, color=style.GREY,
                   label="95 % of unrelated curves, by number of layers")
        )  # fmt: skip
    if measure in SIGNLESS:
        handles += [
            Line2D([], [], marker=m, color=style.INK, label=f"score {w} with the metric", **hollow)
            for m, w in ((RISES, "rises"), (FALLS, "falls"))
        ]
    if (table["refused"] != "").any():
        handles.append(
            Patch(facecolor="none", edgecolor=style.GREY, hatch=HATCH, linewidth=0,
                  label="decided by δ or by the number of prompts")
        )  # fmt: skip
    return handles


def _panel(
    axis: Any,
    part: pd.DataFrame,
    rules: Sequence[str],
    models: Sequence[str],
    order: Sequence[str],
    measure: str,
) -> None:
    shifts = {m: (k - (len(models) - 1) / 2) * min(0.15, 0.7 / len(models))
              for k, m in enumerate(models)}  # fmt: skip
    half = min(0.075, 0.35 / len(models))
    for row in part.to_dict("records"):
        at = rules.index(row["metric"]) + shifts[row["model"]]
        colour = _colour(row["model"], order)
        # Without an interval both ends are NaN, and nothing is drawn.
        axis.plot([row["low"], row["high"]], [at, at], color=colour, linewidth=1, alpha=0.6)
        if pd.notna(row["chance"]):
            ends = [row["chance"]] if measure == "dcor" else [row["chance"], -row["chance"]]
            axis.vlines(ends, at - half, at + half, color=colour, linewidth=1.2, alpha=0.6)
        if row["refused"]:
            axis.axhspan(at - half, at + half, facecolor="none", edgecolor=style.FAINT,
                         hatch=HATCH, linewidth=0, zorder=0)  # fmt: skip
        marker = _marker(row["model"], order)
        if measure in SIGNLESS and row["sign"]:
            marker = RISES if row["sign"] > 0 else FALLS
        axis.plot(
            [row["value"]], [at], marker=marker, markersize=4.4, zorder=3,
            color=colour if _stands(row) else "white", markeredgecolor=colour,
            markeredgewidth=1.0, linestyle="none", clip_on=False,
        )  # fmt: skip
    if measure != "dcor":
        axis.axvline(0, color=style.GREY, linewidth=0.7, zorder=1)
    axis.grid(axis="x")
    axis.grid(axis="y", visible=False)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)


def _stands(row: Mapping[Hashable, Any]) -> bool:
    """Whether a point is filled: by its p over models, its interval, or its chance level."""
    if row["model"] == POOLED:
        return bool(row["p_all"] <= ALPHA)
    if row["measure"] == "slope":
        return bool(row["low"] > 0 or row["high"] < 0)
    return bool(abs(row["value"]) > row["chance"])


def _facts(
    table: pd.DataFrame, associations: pd.DataFrame, base: set[str], group: str
) -> dict[str, Any]:
    single = table[(table["model"] != POOLED) & ~table["metric"].isin(base)]
    pooled = table[(table["model"] == POOLED) & (table["measure"] == "slope")]
    known = single[single["low"].notna()]
    # Models of fewer than four layers are in what is pooled over models alone.
    sized = single if len(single) else table
    return {
        "match": evidence.matched(associations, single, group),
        "beyond_chance": evidence.beyond_chance(single),
        "slopes": {
            "n": len(known),
            "k": int(((known["low"] > 0) | (known["high"] < 0)).sum()),
            "expected": 0.05 * len(known),
            "over_models": len(pooled),
            "standing": int((pooled["p_all"] <= ALPHA).sum()),
        },
        "refused": int((single["refused"] != "").sum()),
        "corpus": str(table.loc[table["protocol"] != BASELINE, "corpus"].iloc[0]),
        "n_tasks": span(sized["n_tasks"].tolist()),
        "n_layers": span(sized["n_layers"].tolist()),
    }


def _title(facts: dict[str, Any], measure: str) -> str:
    if measure != "slope":
        return evidence.title(facts["match"], facts["beyond_chance"], measure)
    f = facts["slopes"]
    within = (
        f"in {f['k']} of {f['n']} cases tasks agree on a slope within a model, by chance in "
        f"{f['expected']:.1f}"
        if f["n"]
        else "tasks of one text source say nothing of other tasks"
    )
    if f["standing"]:
        return (
            f"{f['standing']} of {f['over_models']} metrics add to depth over models (corrected p "
            f"≤ .05); {within}"
        )
    why = (
        f"0 of {f['over_models']} slopes over models pass" if f["over_models"]
        else facts["match"]["reason"] or "no slope over models"
    )  # fmt: skip
    return f"No evidence that a metric adds to depth ({why}); {within}"


def _caption(facts: dict[str, Any], measure: str) -> str:
    sizes, f = facts["beyond_chance"], facts["slopes"]
    head = (
        f"{MEASURES[measure]}: each metric on {facts['corpus']} and the mean main score over "
        f"{facts['n_tasks']} tasks, over the layers of a model ({facts['n_layers']}). "
    )
    if measure == "slope":
        return (
            f"{head}A smooth of depth is taken off both. Lines are 95 % intervals over tasks, "
            "tasks of the same texts being one draw: they say how far other tasks would agree for "
            "this model, and are no test of the metric. Diamonds are means over models of curves "
            "less their mean over models at each depth, with intervals over models "
            f"({f['standing']} of {f['over_models']} with a corrected p ≤ .05; filled). Hatched: "
            "the metric is decided by its regulariser or by the number of prompts in that "
            "model, and its slope says "
            f"nothing ({facts['refused']} of {f['n'] or sizes['n']} cases)."
        )
    return (
        f"{head}Filled: beyond the tick, which 95 % of pairs of unrelated curves as smooth as a "
        "random walk stay below with so many layers: a size, not a test, since real curves may be "
        f"smoother ({sizes['k']} of {sizes['n']}, by chance {sizes['expected']:.1f}). "
        f"{evidence.explained(facts['match'])}"
        + (" Diamonds: the mean of the matched correlations." if measure == "r" else "")
        + (" Two baselines look at no activations: the layer's index and its distance from the "
           "middle." if measure not in ("r", "slope") else "")
    )  # fmt: skip
