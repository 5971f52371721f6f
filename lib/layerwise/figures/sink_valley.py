"""How much of a valley over layers is the first token, or the sinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import left_out_said
from layerwise.figures.frames import Rows
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    TOKENS,
    axis_label,
    in_sentence,
    in_unit,
    listing,
    metric_label,
    reading_label,
    span,
)
from layerwise.figures.prompts import groups, matrix
from layerwise.statistics.shares import share
from layerwise.statistics.tasks import interval
from layerwise.statistics.valleys import depths, places

LEAST = 0.1  # of the curve's highest value: a shallower valley is not asked what it is made of


def draw(given: Given) -> Drawn:
    """Draw the metric by depth (or its valley by checkpoint) under each choice of tokens.

    Per-prompt values of one metric, with all tokens and under another choice.

    Returns
    -------
    Drawn
        Its table has a row per model, checkpoint and choice of tokens: depth of the valley that
        all tokens have, measured under this choice, and of the choice's own; the share of the
        former that is gone under this choice; each with its 95 % interval.

    Raises
    ------
    LayerwiseError
        If there is no choice to compare with all tokens.
    """
    rows = given.prompts()
    choices = rows.values("tokens")
    if "all" not in choices or len(choices) < 2:
        raise LayerwiseError(
            f"A study of kind {rows.study.kind} compares all tokens with another choice; these "
            f"tables have {listing(choices)}: name all and others under extract.tokens."
        )
    models = rows.values("model")
    figure, axes = style.grid(1, len(models), panel_height=2.4)
    found = []
    for axis, model in zip(axes[0], models, strict=True):
        part = rows.table[rows.table["model"] == model]
        steps = rows.order.checkpoints(model, part["revision"].unique())
        mine = []
        for names, one in groups(rows, ("model", "revision")):
            if names["model"] == model:
                mine += [{**names, **row} for row in _of(one, choices)]
        own = pd.DataFrame(mine)
        found.append(own)
        colour = style.colour_of(model, rows.order.models)
        (_by_checkpoint if len(steps) > 1 else _by_depth)(axis, part, own, choices, steps, colour)
        marks.panel_title(axis, model, [_note(own.tail(len(choices)))], colour)
    label = axis_label(rows.metrics[0].metric, rows.metrics[0].alpha, "raw")
    sweeps = rows.table.groupby("model")["revision"].nunique().max() > 1
    deep = in_unit("Depth of the valley", rows.metrics[0].metric)
    axes[0, 0].set_ylabel(deep if sweeps else label)
    marks.legend(figure, [
        Line2D([], [], color=style.INK, linewidth=1.4, label=TOKENS[c],
               linestyle=style.stroke_of(c, choices)[0]) for c in choices
    ])  # fmt: skip
    table = pd.concat(found, ignore_index=True)
    title, told = _said(table, rows)
    n = span(table["n"].tolist())
    corpora = listing([c for c in rows.values("corpus") if c])
    what = "The valley's depth by checkpoint" if sweeps else "By depth"
    style.header(
        figure, title,
        f"{what}, on {n} prompts of {corpora}. Bands, and brackets: 95 % intervals over prompts.",
    )  # fmt: skip
    caption = (
        f"{metric_label(rows.metrics[0].metric)} on {n} prompts of {corpora}, from one pass, "
        f"under {listing([reading_label(c) for c in choices])}. A valley's depth is how far its "
        "lowest layer lies below the lower of its two shoulders (the highest layers before and "
        "after it); both layers are chosen by nine tenths of the prompts and measured on the "
        "last tenth. The share that is gone without some tokens is 1 less the ratio of the fall "
        "between those same two layers, with Fieller's interval over prompts; above 100 % the "
        "lowest layer then lies above its shoulder. "
        f"{told}{left_out_said(rows)}"
    )
    return Drawn(figure, table, title, caption, {"valleys": _records(table)})


def _of(part: pd.DataFrame, choices: list[str]) -> list[dict[str, Any]]:
    values = {c: matrix(part, tokens=c) for c in choices}
    prompts = sorted(set.intersection(*(set(v.index) for v in values.values())))
    arrays = {c: v.loc[prompts].to_numpy() for c, v in values.items()}
    where = places(arrays["all"])
    whole = depths(arrays["all"], where)
    deep = interval(whole)
    top = float(arrays["all"].mean(axis=0).max())
    valley = deep.low > 0 and deep.value > LEAST * top
    rows = []
    for choice, array in arrays.items():
        same = depths(array, where)
        elsewhere = places(array)
        here, own = interval(same), interval(depths(array, elsewhere))
        gone = share(whole - same, whole) if valley and choice != "all" else None
        rows.append(
            {
                "tokens": choice, "n": len(prompts), "valley": valley,
                "shoulder": int(np.median([p.shoulder for p in where])),
                "lowest": int(np.median([p.low for p in where])),
                "depth": here.value, "depth_low": here.low, "depth_high": here.high,
                "own_lowest": int(np.median([p.low for p in elsewhere])),
                "own_depth": own.value, "own_low": own.low, "own_high": own.high,
                "gone": gone.value if gone else np.nan,
                "gone_low": gone.low if gone else np.nan,
                "gone_high": gone.high if gone else np.nan,
            }
        )  # fmt: skip
    return rows


def _by_depth(
    axis: Any, part: pd.DataFrame, own: pd.DataFrame, choices: list[str], _: Any, colour: str
) -> None:
    for choice in choices:
        curve = part[part["tokens"] == choice].groupby("depth")["value"].agg(["mean", "sem"])
        ends = curve["mean"] - 1.96 * curve["sem"], curve["mean"] + 1.96 * curve["sem"]
        axis.fill_between(curve.index, *ends, color=colour, alpha=0.14, linewidth=0)
        axis.plot(curve.index, curve["mean"], color=colour, linewidth=1.5,
                  linestyle=style.stroke_of(choice, choices)[0])  # fmt: skip
    if own["valley"].any():
        last = int(part["layer"].max())
        for name in ("shoulder", "lowest"):
            axis.axvline(own[name].iloc[0] / last, color=style.GREY, linewidth=0.7, zorder=1)
    style.depth_axis(axis)


def _by_checkpoint(
    axis: Any, _: Any, own: pd.DataFrame, choices: list[str], steps: list[str], colour: str
) -> None:
    places_of = {name: place for place, name in enumerate(steps)}
    axis.axhline(0, color=style.GREY, linewidth=0.7)
    for choice in choices:
        line = own[own["tokens"] == choice]
        x = line["revision"].map(places_of)
        axis.fill_between(x, line["depth_low"], line["depth_high"], color=colour, alpha=0.14,
                          linewidth=0)  # fmt: skip
        axis.plot(x, line["depth"], color=colour, linewidth=1.5, marker="o", markersize=2.4,
                  linestyle=style.stroke_of(choice, choices)[0])  # fmt: skip
    every = max(1, -(-len(steps) // 6))
    axis.set_xticks(range(0, len(steps), every), steps[::every], rotation=30, ha="right")


def _note(own: pd.DataFrame) -> str:
    rows = _records(own)
    if not any(r["valley"] for r in rows):
        return f"no valley of {100 * LEAST:.0f} % of its height"
    told = [r for r in rows if r["tokens"] != "all"]
    return ", ".join(f"{100 * r['gone']:.0f} % gone {TOKENS[r['tokens']]}" for r in told)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _said(table: pd.DataFrame, rows: Rows) -> tuple[str, str]:
    label = in_sentence(rows.metrics[0].metric)
    told, without, sentences = [], [], []
    first = next(c for c in rows.values("tokens") if c != "all")
    for model, own in table.groupby("model", sort=False):
        steps = list(dict.fromkeys(own["revision"]))
        for revision in steps:
            part = _records(own[own["revision"] == revision])
            last = revision == steps[-1]
            name = f"{model} at {revision}" if len(steps) > 1 else str(model)
            whole = next(r for r in part if r["tokens"] == "all")
            if not whole["valley"]:
                without.append((name, last))
                continue
            for row in part:
                if row["tokens"] == "all":
                    continue
                if last and row["tokens"] == first:
                    low, high = (f"{100 * row[f'gone_{end}']:.0f}" for end in ("low", "high"))
                    told.append(f"{100 * row['gone']:.0f} % ({low} to {high}) in {name}")
                sentences.append(
                    f"{name}, layer {row['shoulder']} to {row['lowest']}: {whole['depth']:.2f} "
                    f"({whole['depth_low']:.2f} to {whole['depth_high']:.2f}) with all tokens; "
                    f"{TOKENS[row['tokens']]} {100 * row['gone']:.0f} % "
                    f"({100 * row['gone_low']:.0f} to {100 * row['gone_high']:.0f}) of that is "
                    f"gone, and the deepest valley left is at layer {row['own_lowest']}, "
                    f"{row['own_depth']:.2f} ({row['own_low']:.2f} to {row['own_high']:.2f})."
                )
    if without:
        names = listing([name for name, _ in without])
        sentences.append(
            f"No valley of {100 * LEAST:.0f} % of the highest value or more: {names}."
        )
    none = [name for name, last in without if last]
    what = f"Of the valley of {label}, what goes {TOKENS[first]}: {listing(told)}"
    what = what if told else f"No valley of {label} that could go {TOKENS[first]}"
    if told and none:
        what = f"{what}; no valley of {100 * LEAST:.0f} % of the curve's height in {listing(none)}"
    return what, " ".join(sentences)
