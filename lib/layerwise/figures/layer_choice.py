"""Layer choice without labels: what each rule's pick loses against the best layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from layerwise.association.choice import BASELINE, COLUMNS, CONSENSUS, MIDDLE, NESTED, OUTPUT
from layerwise.association.curves import STAND_IN, require_columns
from layerwise.association.order import in_order
from layerwise.config.studies import several
from layerwise.figures import marks, style
from layerwise.figures.association_strength import HATCH
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_results
from layerwise.figures.given import Given
from layerwise.figures.labels import TOKENS, listing, metric_label, p_value, span, tokens_label
from layerwise.metrics.registry import directions as declared
from layerwise.statistics.headlines import ALPHA

NAMES = {
    CONSENSUS: "Consensus of the metrics",
    OUTPUT: "The model's own output",
    MIDDLE: "Middle layer",
    NESTED: "Best rule of the other models",
}


def draw(given: Given) -> Drawn:
    """Draw a row per rule, a point per model, a column per choice of tokens.

    Parameters
    ----------
    given : Given
        Its choices are from `layerwise.association.choice.choose_layers`.

    Returns
    -------
    Drawn
        Its table is the part of the choices that is drawn.

    Raises
    ------
    LayerwiseError
        If the choices hold none of what the study asks for.
    """
    study, order, choices = given.study, given.order, given.tables["selections"]
    require_columns(choices, COLUMNS, "choices")
    table = pick_results(choices, study, order)
    table = table.assign(
        column=[tokens_label(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)]
    )
    wanted = [tokens_label(t, p) for p in several(study.pooling) for t in study.tokens or TOKENS]
    tokens = in_order(table["column"].unique(), wanted)
    models = in_order(table["model"].unique(), study.models or order.models)
    rules, same = _rules(table, tokens[-1])
    table = table[table["metric"].isin(rules)].reset_index(drop=True)
    height = style.row_height(len(rules), len(models))
    figure, axes = style.grid(
        1, len(tokens), panel_height=height * len(rules) + 0.9, panel_width=4.6, sharey=True
    )
    for axis, choice in zip(axes[0], tokens, strict=True):
        _panel(axis, table[table["column"] == choice], rules, models, order.models)
        axis.set_title(choice)
        axis.set_xlabel("Points lost against the best layer")
    axes[0, 0].set_yticks(range(len(rules)), [_label(r, same) for r in rules])
    for label, rule in zip(axes[0, 0].get_yticklabels(), rules, strict=True):
        label.set_fontweight("bold" if rule in NAMES else "normal")
    handles: list[Any] = [
        Line2D([], [], linestyle="none", marker=style.marker_of(m, order.models), markersize=5,
               color=style.colour_of(m, order.models), label=m)
        for m in models
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="none", marker="|", markersize=9, markeredgewidth=2,
               color=style.INK, label="mean over models")
    )  # fmt: skip
    if (table["refused"] != "").any():
        handles.append(
            Patch(facecolor="none", edgecolor=style.GREY, hatch=HATCH, linewidth=0,
                  label="refused: decided by δ or by the number of prompts")
        )  # fmt: skip
    marks.legend(figure, handles)
    facts = _facts(table, tokens, rules, same)
    title = _title(facts, tokens)
    style.header(
        figure, title,
        f"Regret of the layer that a metric picks at its better end, over {facts['n_tasks']} "
        "tasks; lines: 95 % intervals over tasks. Right: in how many models the pick can be told "
        "to lie above and below the model's own output.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts), facts)


def _rules(table: pd.DataFrame, choice: str) -> tuple[list[str], dict[str, list[str]]]:
    """The rules in one order for all columns, and those that each stands for.

    By their mean regret in one column; those that some model refuses come last. A metric with the
    same picks as another, in every column, is that other's.
    """
    same: dict[str, list[str]] = {}
    there = set(table["metric"])
    for name, part in table.groupby("metric"):
        others = set(part["same_as"])
        # A study that names its metrics may leave out the one that another equals.
        if len(others) == 1 and (other := others.pop()) in there:
            same.setdefault(str(other), []).append(str(name))
    hidden = {m for names in same.values() for m in names}
    shown = table[~table["metric"].isin(hidden)]
    refused = set(shown.loc[shown["refused"] != "", "metric"])
    mean = shown[shown["column"] == choice].groupby("metric")["regret"].mean().sort_values()
    rules = [str(r) for r in mean.index]
    rules += sorted(set(shown["metric"]) - set(rules))
    return sorted(rules, key=lambda r: r in refused), same


def _label(rule: str, same: Mapping[str, Sequence[str]]) -> str:
    others = same.get(rule, ())
    # Two fit beside one another; the caption names the rest.
    said = f"and {len(others)} more" if len(others) > 1 else "".join(map(_rule, others))
    name = marks.broken(_rule(rule), 34)
    return f"{name}\n= {said}" if len(others) == 1 else f"{name}\n{said}" if said else name


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
        step = min(0.1, 0.8 / len(models))
        spread = [(i - (len(models) - 1) / 2) * step for i in range(len(models))]
        for model, shift in zip(models, spread, strict=True):
            one = mine[mine["model"] == model]
            if one.empty:  # an unclipped line without points would claim the page's corner
                continue
            refused = bool((one["refused"] != "").any())
            if refused:
                axis.axhspan(
                    at + shift - step / 2, at + shift + step / 2, facecolor="none",
                    edgecolor=style.FAINT, hatch=HATCH, linewidth=0, zorder=0,
                )  # fmt: skip
            axis.hlines(
                [at + shift] * len(one), 100 * one["regret_low"].clip(lower=0),
                100 * one["regret_high"].clip(lower=0), linewidth=0.8, alpha=0.55,
                color=style.colour_of(model, order), zorder=1,
            )  # fmt: skip
            axis.plot(
                100 * one["regret"], [at + shift] * len(one), linestyle="none", markersize=4.5,
                marker=style.marker_of(model, order),
                color="white" if refused else style.colour_of(model, order),
                markeredgecolor=style.colour_of(model, order) if refused else "white",
                markeredgewidth=0.5, clip_on=False, zorder=3,
            )  # fmt: skip
        good = mine[mine["refused"] == ""]
        # A mean over some of the models is not one over all.
        if good["model"].nunique() == part["model"].nunique():
            axis.plot(
                [100 * mine["regret"].mean()], [at], marker="|", markersize=11,
                markeredgewidth=2, color=style.INK, zorder=2, clip_on=False,
            )  # fmt: skip
        known = good[good["gain_low"].notna()]
        told = [(known["gain_low"] > 0).sum(), (known["gain_high"] < 0).sum()]
        for column, n in enumerate(told):
            _aside(axis, at, f"{n} of {len(known)}" if len(known) else "–", column)
    _aside(axis, -0.95, "above\noutput", 0)
    _aside(axis, -0.95, "below\noutput", 1)
    axis.grid(axis="x")
    axis.grid(axis="y", visible=False)
    axis.set_ylim(len(rules) - 0.4, -0.6)
    # Few tasks make intervals many times as wide as all that regrets differ by.
    axis.set_xlim(0, 1.3 * max(100 * float(part["regret"].max()), 1.0))
    axis.tick_params(axis="y", length=0)


def _aside(axis: Any, at: float, text: str, column: int) -> None:
    """Small print to the right of a row, in one of two columns."""
    axis.annotate(
        text, (1, at), (8 + 38 * column, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", va="center", fontsize=7, color=style.GREY,
    )  # fmt: skip


def _facts(
    table: pd.DataFrame,
    tokens: Sequence[str],
    rules: Sequence[str],
    same: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    by_tokens = {}
    for choice in tokens:
        part = table[table["column"] == choice]
        allowed = part[part["refused"] == ""].groupby("metric")["model"].nunique()
        good = allowed.reindex(part["metric"].unique()) == part["model"].nunique()
        mean = part.groupby("metric")["regret"].mean()
        real = [m for m in mean.index if m not in (OUTPUT, MIDDLE, NESTED) and good[m]]
        # A mean over some of the models is not to be held against one over all.
        lacking = sorted(part.loc[part["output_score"].isna(), "model"].unique())
        p = part.loc[part["metric"] == NESTED, "p"]
        by_tokens[choice] = {
            "best_rule": min(real, key=mean.__getitem__) if real else None,
            "best_regret": min((float(mean[m]) for m in real), default=None),
            "nested_regret": float(mean[NESTED]) if NESTED in mean.index else None,
            "p": float(p.iloc[0]) if len(p) and pd.notna(p.iloc[0]) else None,
            "output_regret": None if lacking else float(mean[OUTPUT]),
            "without_output": lacking,
            "middle_regret": float(mean[MIDDLE]),
            "n_rules": len(real),
        }
    refused = table[table["refused"] != ""].drop_duplicates(["metric", "refused"])
    return {
        "by_tokens": by_tokens,
        "n_models": int(table["model"].nunique()),
        "n_tasks": span(table["n_tasks"].tolist()),
        "corpus": sorted(table.loc[table["protocol"] != BASELINE, "corpus"].unique()),
        "rules": list(rules),
        "same": {rule: list(names) for rule, names in same.items()},
        "refused": {str(m): sorted(set(part["refused"])) for m, part in refused.groupby("metric")},
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


def _against_scores(table: pd.DataFrame) -> dict[str, Any]:
    """Metrics and models whose Spearman's rho has the other sign, beyond unrelated curves."""
    known = table.dropna(subset=["direction", "spearman"])
    turned = known["direction"].astype(float) * known["spearman"] < -known["spearman_chance"]
    return {"n": int(turned.sum()), "of": len(known), "expected": 0.025 * len(known)}


def _title(facts: dict[str, Any], tokens: Sequence[str]) -> str:
    found = {choice: facts["by_tokens"][choice] for choice in tokens}
    nested = {c: f for c, f in found.items() if f["nested_regret"] is not None}
    if not nested:
        few = "one model" if facts["n_models"] == 1 else "no two rules that all models allow"
        return f"No evidence that a metric picks a better layer than chance: {few}"
    parts = []
    for choice, f in nested.items():
        output = f" (output: {100 * f['output_regret']:.1f})" if not f["without_output"] else ""
        p = f", {p_value(f['p'])}" if f["p"] is not None else ""
        parts.append(f"{100 * f['nested_regret']:.1f} points {with_tokens(choice)}{output}{p}")
    said = f"the best rule of the other models loses {listing(parts)}"
    # One look for each reading.
    stands = [f for f in nested.values() if f["p"] is not None and f["p"] * len(nested) <= ALPHA]
    better = [
        f for f in stands
        if not f["without_output"] and f["nested_regret"] < f["output_regret"]
    ]  # fmt: skip
    if better:
        return f"Metrics pick layers better than chance: {said}"
    return f"No evidence that a metric picks a better layer than the output: {said}"


def _same_said(same: Mapping[str, Sequence[str]]) -> str:
    said = [listing([_rule(r) for r in [rule, *others]]) for rule, others in same.items()]
    return f": {'; '.join(said)}" if said else ""


def _caption(facts: dict[str, Any]) -> str:
    told = []
    for choice, f in facts["by_tokens"].items():
        if f["without_output"]:
            told.append(f"the output of {listing(f['without_output'])} has no score "
                        f"{with_tokens(choice)}")  # fmt: skip
        if f["best_rule"]:
            told.append(
                f"best in hindsight of {f['n_rules']} rules is {_rule(f['best_rule'])} with "
                f"{100 * f['best_regret']:.1f} points lost {with_tokens(choice)}"
            )
    said = listing(told)
    signs = facts["against_scores"]
    against = (
        f" In {signs['n']} of {signs['of']} cases the scores speak for the other end (Spearman's "
        "rho over layers beyond what 95 % of unrelated smooth curves reach; by chance in "
        f"{signs['expected']:.1f})."
        if signs["of"]
        else ""
    )
    names = facts["stands_in"]
    stood_in = (
        f" No output of {listing(names)} was scored; the last layer stands in for it."
        if names else ""
    )  # fmt: skip
    refused = (
        " Hatched picks are refused, since the metric is decided by its regulariser or by the "
        "number of prompts: "
        + "; ".join(f"{_rule(m)} ({why[0]})" for m, why in facts["refused"].items())
        + "."
        if facts["refused"]
        else ""
    )
    return (
        "Layer choice without labels: each metric picks the layer at its better end (as its "
        f"source declares, before any look at scores{facts['turned']}); shown is what that "
        f"layer's mean score over {facts['n_tasks']} tasks lacks against the best layer's, a "
        f"point per model ({facts['n_models']}), with an interval that holds the regret over the "
        "population of tasks with 95 % confidence or more (cut off at the panel's edge; the "
        "table has its ends), metrics on "
        f"{listing(facts['corpus'])}. The model's output (its last layer after its "
        "last norm, itself one of the candidates for best) and the middle layer need no "
        "metric at all; the consensus is the layer with the best mean rank over those of the "
        "paper's metrics that are not refused. The best rule of the other models is chosen "
        "without the model it is judged on; its p deals each rule's picks out among the models "
        "at random. The numbers on the right count the models in which the 95 % interval of the "
        "pick's lead over the output lies above 0, and below; chance gives .025 of them each. "
        f"Metrics with the same picks in all models are one rule{_same_said(facts['same'])}."
        f"{refused}{stood_in} "
        f"{said[:1].upper()}{said[1:]}.{against}"
    )
