"""Metrics by depth, a column per metric and a row per token choice: how do models differ?

The colours can mean models, the corpora of one model (perturbed inputs, say), its revisions or
the parts of its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.revisions import order_key
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_metrics
from layerwise.figures.labels import (
    SUBLAYERS,
    TOKENS,
    WITH,
    axis_label,
    counted,
    listing,
    metric_label,
    span,
)
from layerwise.figures.settings import SHOWN, MetricChoice, StudySettings, in_order
from layerwise.metrics.registry import directions

VALLEY = 0.1  # how far below both ends, as a share of the curve's largest absolute value


def draw(metrics: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw each metric by depth, one line a model (or corpus, revision or part of the block).

    Parameters
    ----------
    metrics : DataFrame
        Tidy metrics.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table is the tidy metrics drawn, with `low` and `high`, a 95 % normal interval of the
        mean over prompts.
    """
    study = study.with_default(*SHOWN)
    table = pick_metrics(metrics, study)
    margin = style.Z95 * table["stderr"].astype(float)
    table["low"], table["high"] = table["value"] - margin, table["value"] + margin
    by = study.compare
    wanted = {"model": study.models or order, "corpus": study.corpora, "revision": study.revisions,
        "sublayer": study.sublayers or list(SUBLAYERS)}  # fmt: skip
    names = in_order(list(table[by].unique()), wanted[by])
    if by == "revision" and study.revisions is None:
        names = sorted(names, key=order_key)
    looks = _looks(names, order, by, ordered=study.ordered)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))

    columns = min(style.COLUMNS, len(study.curves))
    blocks = -(-len(study.curves) // columns)
    better = directions()
    figure, axes = style.grid(blocks * len(tokens), columns, sharex=True)
    for axis in axes.flat:
        axis.set_visible(False)
    for i, choice in enumerate(study.curves):
        block, column = divmod(i, columns)
        panels = axes[block * len(tokens) : (block + 1) * len(tokens), column]
        _column(panels, table[table["curve"] == i], tokens, by, looks, better.get(choice.metric))
        panels[0].set_title(marks.broken(metric_label(choice.metric), 27), linespacing=1.05)
        for axis, which in zip(panels, tokens, strict=True):
            label = axis_label(choice.metric, choice.alpha, choice.normalization)
            axis.set_ylabel(marks.broken(label, 22))
            if len(tokens) > 1 and column == 0:
                marks.row_label(axis, TOKENS[which])
        style.depth_axis(panels[-1])
        panels[-1].tick_params(labelbottom=True)
    handles = [
        Line2D(
            [], [], color=colour, marker=marker, markersize=3.5,
            label=SUBLAYERS.get(name, name) if by == "sublayer" else name,
        )
        for name, (colour, marker) in looks.items()
    ]  # fmt: skip
    with_pick = any(choice.metric in better for choice in study.curves)
    handles += marks.pick_handles() if with_pick else marks.pick_handles()[1:]
    marks.legend(figure, handles)
    facts = _facts(table, study.curves[0], by, names, tokens)
    title = _title(facts, study.curves[0], tokens, by)
    n = span(table["n"].tolist())
    corpora = listing(sorted(table["corpus"].unique())) if by != "corpus" else "several corpora"
    parts = "Parts of each block. " if by == "sublayer" else ""
    style.header(
        figure,
        title,
        f"{parts}By depth, on {n} prompts of {corpora}. Bands: ± 1.96 standard errors.",
    )
    return Drawn(figure, table, title, _caption(facts, study, corpora, n, by), facts)


def _looks(
    names: Sequence[str], order: Sequence[str], by: str, *, ordered: bool
) -> dict[str, tuple[Any, str]]:
    """Colour and marker of each line: fixed for models, on a scale for what has an order."""
    if by == "revision" or ordered:
        colours, _ = style.depth_colours()
        return {n: (colours(i / max(1, len(names) - 1)), "o") for i, n in enumerate(names)}
    palette = order if by == "model" else names
    return {n: (style.colour_of(n, palette), style.marker_of(n, palette)) for n in names}


def _column(
    panels: Any,
    table: pd.DataFrame,
    tokens: Sequence[str],
    by: str,
    looks: Mapping[str, tuple[Any, str]],
    direction: int | None,
) -> None:
    for axis, choice in zip(panels, tokens, strict=True):
        axis.set_visible(True)
        for name, (colour, marker) in looks.items():
            part = table[(table[by] == name) & (table["tokens"] == choice)]
            for _, line in part.groupby(["model", "revision", "corpus"]):
                line = line.sort_values("depth")
                axis.fill_between(
                    line["depth"], line["low"], line["high"], color=colour, alpha=0.18, linewidth=0
                )
                axis.plot(
                    line["depth"], line["value"], color=colour,
                    marker=marker, markersize=2.4,
                )  # fmt: skip
                last = line[line["depth"] == 1]  # the deepest with a value may be another
                axis.plot(last["depth"], last["value"], **marks.last_mark(colour))
                if direction is not None and line["value"].notna().any():
                    pick = line.iloc[int(np.nanargmax(direction * line["value"].to_numpy(float)))]
                    axis.plot(pick["depth"], pick["value"], **marks.best_mark(colour))
    # One scale for all token choices of a metric, so that rows can be compared.
    low = min(a.get_ylim()[0] for a in panels)
    high = max(a.get_ylim()[1] for a in panels)
    for axis in panels:
        axis.set_ylim(low, high)


def valley(depth: pd.Series[float], value: pd.Series[float]) -> float | None:
    """Depth of a valley between the ends of a curve, or None.

    A valley lies below both ends by more than `VALLEY` of the curve's largest absolute value.
    """
    v = value.to_numpy(dtype=float)
    lowest = int(np.argmin(v))
    deep = min(v[0], v[-1]) - v[lowest]
    if 0 < lowest < len(v) - 1 and deep > VALLEY * np.abs(v).max():
        return float(depth.iloc[lowest])
    return None


def _facts(
    table: pd.DataFrame,
    first: MetricChoice,
    by: str,
    names: Sequence[str],
    tokens: Sequence[str],
) -> dict[str, Any]:
    found: dict[str, dict[str, float | None]] = {}
    for choice in tokens:
        found[choice] = {}
        for name in names:
            part = table[
                (table[by] == name) & (table["tokens"] == choice) & (table["curve"] == 0)
            ].sort_values("depth")
            if len(part):
                found[choice][name] = valley(part["depth"], part["value"])
    # Parts of blocks begin at layer 1: a mean over layers must be over the same ones.
    head = table[(table["curve"] == 0) & (table["tokens"] == tokens[0]) & (table["layer"] > 0)]
    return {
        "metric": first.metric,
        "model": listing(sorted(table["model"].unique())),
        "mean_over_layers": {
            str(k): float(v) for k, v in head.groupby(by)["value"].mean().items()
        },
        "valley_at": found,
        "n_prompts": span(table["n"].tolist()),
        "n_left_out": int(table["n_left_out"].max()),
        "compared": list(names),
    }


def _title(facts: dict[str, Any], first: MetricChoice, tokens: Sequence[str], by: str) -> str:
    label = metric_label(first.metric)
    if by == "sublayer":
        return _title_of_parts(facts, label)
    noun = {"model": "model", "corpus": "corpora", "revision": "revision"}[by]
    parts: list[str] = []
    for choice in tokens:
        found = facts["valley_at"][choice]
        n = sum(v is not None for v in found.values())
        what = (
            "" if parts else " corpora" if by == "corpus" else " " + counted(len(found), noun)[2:]
        )
        parts.append(f"in {n} of {len(found)}{what} {WITH[choice]}")
    return f"{label} has a valley between its ends {listing(parts)}"


def _title_of_parts(facts: dict[str, Any], label: str) -> str:
    means = facts["mean_over_layers"]
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return (
        f"{label}, averaged over the layers of {facts['model']}, is lowest at “{SUBLAYERS[low]}” "
        f"({means[low]:.2f}) and highest at “{SUBLAYERS[high]}” ({means[high]:.2f})"
    )


def _caption(facts: dict[str, Any], study: StudySettings, corpora: str, n: str, by: str) -> str:
    what = listing([metric_label(m.metric) for m in study.curves])
    what_by = "part of the block (the layers themselves begin with 0)" if by == "sublayer" else by
    left = (
        f" Up to {counted(facts['n_left_out'], 'prompt')} had no value and were left out."
        if facts["n_left_out"]
        else ""
    )
    return (
        f"{what} by depth in per cent of the layers (0 is the embedding output), on {n} prompts "
        f"of {corpora}, protocol {study.curves[0].protocol}; one line a {what_by}, one row of "
        "panels a choice of the tokens that count. Bands are 95 % intervals, value ± 1.96 "
        f"standard errors over prompts.{left} Filled circles are the layers that the metrics "
        "themselves pick (the better end, where their source names one; no score is looked at), "
        "open circles the last layers. A valley is a minimum between the ends that "
        f"lies below both by more than {100 * VALLEY:.0f} % of the curve's largest absolute value."
    )
