"""Layer choice without labels: what each rule's pick loses against the best layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.choice import BASELINE, COLUMNS, CONSENSUS, MIDDLE, OUTPUT
from layerwise.association.curves import STAND_IN, require_columns
from layerwise.association.order import Order, in_order
from layerwise.config.studies import Study, several
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_results
from layerwise.figures.labels import TOKENS, listing, metric_label, span, tokens_label
from layerwise.metrics.registry import directions as declared

NAMES = {
    CONSENSUS: "Consensus of the metrics",
    OUTPUT: "The model's own output",
    MIDDLE: "Middle layer",
}


def draw(choices: pd.DataFrame, study: Study, order: Order) -> Drawn:
    """Draw a row per rule, a point per model, a column per choice of tokens.

    Parameters
    ----------
    choices : DataFrame
        From `layerwise.association.choice.choose_layers`.

    Returns
    -------
    Drawn
        Its table is the part of the choices that is drawn.

    Raises
    ------
    LayerwiseError
        If the choices hold none of what the study asks for.
    """
    require_columns(choices, COLUMNS, "choices")
    table = pick_results(choices, study, order)
    table = table.assign(
        column=[tokens_label(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)]
    )
    wanted = [tokens_label(t, p) for p in several(study.pooling) for t in study.tokens or TOKENS]
    tokens = in_order(table["column"].unique(), wanted)
    models = in_order(table["model"].unique(), study.models or order.models)
    # One order of rows for all columns, by the first of them.
    mean = table[table["column"] == tokens[-1]].groupby("metric")["regret"].mean().sort_values()
    rules = [str(r) for r in mean.index]
    rules += sorted(set(table["metric"]) - set(rules))
    figure, axes = style.grid(
        1, len(tokens), panel_height=0.24 * len(rules) + 0.9, panel_width=4.6, sharey=True
    )
    for axis, choice in zip(axes[0], tokens, strict=True):
        _panel(axis, table[table["column"] == choice], rules, models, order.models)
        axis.set_title(choice)
        axis.set_xlabel("Points lost against the best layer (mean score × 100)")
    axes[0, 0].set_yticks(range(len(rules)), [_rule(r) for r in rules])
    for label, rule in zip(axes[0, 0].get_yticklabels(), rules, strict=True):
        label.set_fontweight("bold" if rule in NAMES else "normal")
    handles = [
        Line2D([], [], linestyle="none", marker=style.marker_of(m, order.models), markersize=5,
               color=style.colour_of(m, order.models), label=m)
        for m in models
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="none", marker="|", markersize=9, markeredgewidth=2,
               color=style.INK, label="mean over models")
    )  # fmt: skip
    marks.legend(figure, handles)
    facts = _facts(table, tokens, rules)
    title = _title(facts, tokens)
    style.header(
        figure, title,
        f"Regret of the layer that a metric picks at its better end, over {facts['n_tasks']} "
        "tasks; lines: 95 % bootstrap over tasks. Right: in how many models the pick beats the "
        "model's own output and the middle layer.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts), facts)


def with_tokens(tokens: str) -> str:
    return tokens if tokens.startswith("without") else f"with {tokens}"


def _rule(rule: str) -> str:
    return NAMES.get(rule) or metric_label(rule)


def _panel(
    axis: Any,
    part: pd.DataFrame,
    rules: Sequence[str],
    models: Sequence[str],
    order: Sequence[str],
) -> None:
    for at, rule in enumerate(rules):
        mine = part[part["metric"] == rule]
        if mine.empty:
            continue
        spread = [(i - (len(models) - 1) / 2) * 0.1 for i in range(len(models))]
        for model, shift in zip(models, spread, strict=True):
            one = mine[mine["model"] == model]
            if one.empty:  # an unclipped line without points would claim the page's corner
                continue
            axis.hlines(
                [at + shift] * len(one), 100 * one["regret_low"].clip(lower=0),
                100 * one["regret_high"].clip(lower=0), linewidth=0.8, alpha=0.55,
                color=style.colour_of(model, order), zorder=1,
            )  # fmt: skip
            axis.plot(
                100 * one["regret"], [at + shift] * len(one), linestyle="none", markersize=4.5,
                marker=style.marker_of(model, order), color=style.colour_of(model, order),
                markeredgecolor="white", markeredgewidth=0.5, clip_on=False, zorder=3,
            )  # fmt: skip
        axis.plot(
            [100 * mine["regret"].mean()], [at], marker="|", markersize=11, markeredgewidth=2,
            color=style.INK, zorder=2, clip_on=False,
        )  # fmt: skip
        for column, gain in enumerate(("gain_over_output", "gain_over_middle")):
            known = mine[gain].dropna()  # an output without a score is not one that was beaten
            told = f"{(known > 0).sum()} of {len(known)}" if len(known) else "–"
            _aside(axis, at, told, column)
    _aside(axis, -0.95, "beats\noutput", 0)
    _aside(axis, -0.95, "beats\nmiddle", 1)
    axis.grid(axis="x")
    axis.grid(axis="y", visible=False)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.tick_params(axis="y", length=0)


def _aside(axis: Any, at: float, text: str, column: int) -> None:
    """Small print to the right of a row, in one of two columns."""
    axis.annotate(
        text, (1, at), (8 + 38 * column, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center", fontsize=7, color=style.GREY,
    )  # fmt: skip


def _facts(table: pd.DataFrame, tokens: Sequence[str], rules: Sequence[str]) -> dict[str, Any]:
    by_tokens = {}
    for choice in tokens:
        part = table[table["column"] == choice]
        mean = part.groupby("metric")["regret"].mean()
        real = mean[[m for m in mean.index if m not in (OUTPUT, MIDDLE)]]
        # A mean over some of the models is not to be held against one over all.
        lacking = sorted(part.loc[part["output_score"].isna(), "model"].unique())
        by_tokens[choice] = {
            "best_rule": str(real.idxmin()),
            "best_regret": float(real.min()),
            "output_regret": None if lacking else float(mean[OUTPUT]),
            "without_output": lacking,
            "middle_regret": float(mean[MIDDLE]),
            "better_than_output": None if lacking else int((real < mean[OUTPUT]).sum()),
            "n_rules": len(real),
        }
    return {
        "by_tokens": by_tokens,
        "n_models": int(table["model"].nunique()),
        "n_tasks": span(table["n_tasks"].tolist()),
        "corpus": sorted(table.loc[table["protocol"] != BASELINE, "corpus"].unique()),
        "rules": list(rules),
        "stands_in": sorted(table.loc[table["output_from"] == STAND_IN, "model"].unique()),
        "turned": _turned(table),
        "against_scores": _against_scores(table),
    }


def _turned(table: pd.DataFrame) -> str:
    """Which metrics are taken at the other end than the one that they declare, in words."""
    known = declared()
    given = table.dropna(subset=["direction"]).drop_duplicates("metric")
    names = [
        metric_label(m)
        for m, d in zip(given["metric"], given["direction"], strict=True)
        if known.get(m) not in (None, d)
    ]
    return f"; turned round here: {listing(names)}" if names else ""


def _against_scores(table: pd.DataFrame) -> dict[str, int]:
    """Metrics and models whose Spearman's rho has the other sign, its interval free of 0."""
    known = table.dropna(subset=["direction", "spearman"])
    sign = known["direction"].astype(float)
    beyond = (sign * known["spearman_low"] < 0) & (sign * known["spearman_high"] < 0)
    return {"n": int(beyond.sum()), "of": len(known)}


def _title(facts: dict[str, Any], tokens: Sequence[str]) -> str:
    parts = []
    for choice in tokens:
        f = facts["by_tokens"][choice]
        output = f" (output: {100 * f['output_regret']:.1f})" if not f["without_output"] else ""
        parts.append(
            f"{_rule(f['best_rule'])} loses {100 * f['best_regret']:.1f} points "
            f"{with_tokens(choice)}{output}"
        )
    return f"Best of the rules that need no labels: {listing(parts)}"


def _caption(facts: dict[str, Any]) -> str:
    told = [
        f"the output of {listing(f['without_output'])} has no score {with_tokens(choice)}"
        if f["without_output"]
        else f"{f['better_than_output']} of {f['n_rules']} rules lose less than the model's "
        f"output {with_tokens(choice)}"
        for choice, f in facts["by_tokens"].items()
    ]
    said = listing(told)
    signs = facts["against_scores"]
    against = (
        f" In {signs['n']} of {signs['of']} cases the scores speak for the other end (Spearman's "
        "rho over layers, its 95 % interval free of 0)."
        if signs["n"]
        else ""
    )
    names = facts["stands_in"]
    stood_in = (
        f" No output of {listing(names)} was scored; the last layer stands in for it."
        if names else ""
    )  # fmt: skip
    return (
        "Layer choice without labels: each metric picks the layer at its better end (as its "
        f"source declares, before any look at scores{facts['turned']}); shown is what that "
        f"layer's mean score over {facts['n_tasks']} tasks lacks against the best layer's, a "
        f"point per model ({facts['n_models']}), with a 95 % bootstrap interval over tasks (one "
        "that reaches 0 cannot be told from the best layer), metrics on "
        f"{listing(facts['corpus'])}. The model's output (its last layer after its "
        "last norm, itself one of the candidates for best) and the middle layer need no "
        "metric at all; the consensus is the layer with the best mean rank over the "
        "paper's metrics. The numbers on the right count the models in which the pick scores "
        f"above the model's output, and above the middle layer.{stood_in} "
        f"{said[:1].upper()}{said[1:]}.{against}"
    )
