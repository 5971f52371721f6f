"""An entropy inside blocks, and what each part of a block does to it, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import BLOCK
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import left_out_said
from layerwise.figures.frames import Rows
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    SUBLAYERS,
    axis_label,
    counted,
    in_sentence,
    in_unit,
    listing,
    metric_label,
    reading_label,
    span,
)
from layerwise.figures.prompts import groups, matrix
from layerwise.statistics.headlines import ALPHA
from layerwise.statistics.tasks import Interval, interval
from layerwise.statistics.valleys import depths, places

# In the order in which a block computes them, and what each step between two does.
PATH = ("input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp", BLOCK)
NORMS, MIXER, MLP, RESIDUAL = "norms", "mixer", "MLP", "adding to the stream"
STEP = {"input_norm": NORMS, "mixer": MIXER, "mixer_residual": RESIDUAL, "mlp_norm": NORMS,
        "mlp": MLP, BLOCK: RESIDUAL}  # fmt: skip
# Along the stream alone a block takes two steps.
STREAM = {"mixer_residual": "what the mixer adds", BLOCK: "what the MLP adds"}


def draw(given: Given) -> Drawn:
    """Draw each part's entropy by depth, and below it what each addition changes.

    Per-prompt values of one metric, at the layers and parts of their blocks.

    Returns
    -------
    Drawn
        Its table has a row per model, layer and step: the mean change over prompts with its 95 %
        interval; ``path`` ``stream`` are the two additions to the stream, ``parts`` all steps of
        the block, either of which sum to the change from layer to layer. Rows of layer -1 are
        the sums over the layers on which the stream falls into its valley.

    Raises
    ------
    LayerwiseError
        If a model has neither sublayer that a step needs.
    """
    rows = given.prompts()
    dimensions = rows.roles["column"]
    shown = list(groups(rows, dimensions))
    figure, axes = style.grid(2, len(shown), panel_height=2.0)
    colours = {p: style.PALETTE[i % len(style.PALETTE)] for i, p in enumerate((*PATH[:-1],))}
    colours[BLOCK] = style.INK
    tables, facts = [], []
    for column, (names, part) in enumerate(shown):
        steps, found = _steps(part, names)
        tables.append(steps.assign(**names))
        facts.append({**names, **found})
        _curves(axes[0, column], part, colours)
        _changes(axes[1, column], steps, colours)
        told = [reading_label(names["reading"])] if rows.table["reading"].nunique() > 1 else []
        marks.panel_title(
            axes[0, column], names["model"], told,
            style.colour_of(names["model"], rows.order.models),
        )  # fmt: skip
        axes[0, column].tick_params(labelbottom=False)
    for line, axis in enumerate(axes[:, 0]):
        metric = rows.metrics[0]
        label = axis_label(metric.metric, metric.alpha, "raw")
        change = in_unit("Change from\nlayer to layer", metric.metric)
        axis.set_ylabel(label if line == 0 else change)
    for line in axes:
        ends = [axis.get_ylim() for axis in line]
        for axis in line:
            axis.set_ylim(min(e[0] for e in ends), max(e[1] for e in ends))
    marks.legend(figure, _handles(rows, colours))
    title = _title(facts, rows)
    n = span(rows.table.groupby(["model", "layer", "reading", "sublayer"]).size().tolist())
    corpora = listing([c for c in rows.values("corpus") if c])
    style.header(
        figure, title,
        f"Above: each part by depth. Below: what each addition to the stream changes. {n} prompts "
        f"of {corpora}. Bands: 95 % intervals of paired differences.",
    )  # fmt: skip
    caption = (
        f"{metric_label(rows.metrics[0].metric)} inside blocks, by depth in per cent of the "
        f"layers, mean over {n} prompts of {corpora}. Below, the change of the stream from layer "
        "to layer in two steps that sum to it: what the mixer's addition makes, and what the "
        "MLP's does. Intervals are Student's, of differences taken prompt by prompt, for each "
        "layer by itself. The valley is between a layer and its shoulder, chosen by nine tenths "
        "of the prompts and measured on the last; the title names the steps that lower it, by a "
        f"test corrected for steps and models. {_told(facts)}{left_out_said(rows)}"
    )
    return Drawn(figure, pd.concat(tables, ignore_index=True), title, caption, {"panels": facts})


def _steps(part: pd.DataFrame, names: dict[str, str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The change that each step makes at each layer, and in sum on the way into the valley."""
    there = [p for p in PATH if p in set(part["sublayer"])]
    if len(there) < 2:
        raise LayerwiseError(
            f"The tables of {names['model']} hold no parts of its blocks; name them under "
            "extract.sublayers, or leave the model out of this study."
        )
    values = {p: matrix(part, sublayer=p) for p in there}
    prompts = sorted(set.intersection(*(set(v.index) for v in values.values())))
    values = {p: v.loc[prompts] for p, v in values.items()}
    stream = values[BLOCK]
    layers = [layer for layer in map(int, stream.columns.tolist()) if layer > 0]
    steps = [p for p in STREAM if p in there and (p != BLOCK or "mlp" in there)]
    paths = {"stream": steps, "parts": there}
    where = places(stream.to_numpy())
    found: dict[str, Any] = {"fall": _plain(interval(depths(stream.to_numpy(), where, left=True)))}
    last = int(stream.columns.max())
    rows: list[dict[str, Any]] = []
    for path, parts in paths.items():
        before = stream[[layer - 1 for layer in layers]].to_numpy()
        sums: dict[str, Any] = {}
        for sublayer in parts:
            now = values[sublayer][layers].to_numpy()
            change = now - before
            before = now
            kind = STREAM[sublayer] if path == "stream" else STEP[sublayer]
            for place, layer in enumerate(layers):
                at = {"path": path, "layer": layer, "depth": layer / last, "part": sublayer}
                rows.append({**at, "step": kind, **_plain(interval(change[:, place])),
                             "n": len(prompts)})  # fmt: skip
            # A prompt's changes on the way from the left shoulder to the lowest layer.
            fall = np.zeros(len(prompts))
            for one in where:
                fall[one.rows] = change[one.rows, one.left : one.low].sum(axis=1)
            sums[kind] = sums.get(kind, 0) + fall
        for kind, fall in sums.items():
            whole = interval(fall)
            made = _plain(whole)
            found[f"{path}: {kind}"] = {**made, "p": whole.p}
            rows.append({"path": path, "layer": -1, "depth": np.nan, "part": "", "step": kind,
                         **made, "n": len(prompts)})  # fmt: skip
    found["valley"] = [int(np.median([getattr(p, k) for p in where])) for k in ("left", "low")]
    return pd.DataFrame(rows), found


def _plain(made: Interval) -> dict[str, float]:
    return {"value": made.value, "low": made.low, "high": made.high}


def _curves(axis: Any, part: pd.DataFrame, colours: dict[str, Any]) -> None:
    for sublayer in PATH:
        mine = part[part["sublayer"] == sublayer]
        if mine.empty:
            continue
        curve = mine.groupby("depth")["value"].agg(["mean", "sem"])
        ends = curve["mean"] - 1.96 * curve["sem"], curve["mean"] + 1.96 * curve["sem"]
        axis.fill_between(curve.index, *ends, color=colours[sublayer], alpha=0.15, linewidth=0)
        axis.plot(curve.index, curve["mean"], color=colours[sublayer],
                  linewidth=2 if sublayer == BLOCK else 1.2)  # fmt: skip
    style.depth_axis(axis, label=False)


def _changes(axis: Any, steps: pd.DataFrame, colours: dict[str, Any]) -> None:
    axis.axhline(0, color=style.GREY, linewidth=0.7)
    mine = steps[(steps["path"] == "stream") & (steps["layer"] > 0)]
    for sublayer, line in mine.groupby("part", sort=False):
        colour = colours["mixer" if sublayer == "mixer_residual" else "mlp"]
        axis.fill_between(line["depth"], line["low"], line["high"], color=colour, alpha=0.2,
                          linewidth=0)  # fmt: skip
        axis.plot(line["depth"], line["value"], color=colour, marker="o", markersize=2.4,
                  linewidth=1.4)  # fmt: skip
    style.depth_axis(axis)


def _handles(rows: Rows, colours: dict[str, Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    there = set(rows.table["sublayer"])
    return [
        Line2D([], [], color=colours[p], linewidth=2 if p == BLOCK else 1.2, label=SUBLAYERS[p])
        for p in PATH
        if p in there
    ]


def _title(facts: list[dict[str, Any]], rows: Rows) -> str:
    label = in_sentence(rows.metrics[0].metric)
    models = sum(f["reading"] == facts[0]["reading"] for f in facts)
    told = []
    for f in facts:
        if f["reading"] != facts[0]["reading"]:
            continue
        if f["fall"]["low"] <= 0:
            told.append(f"no evidence in {f['model']} that it falls")
            continue
        passing = _lowering(f, models)
        if not passing:
            told.append(f"in {f['model']} neither step for certain")
            continue
        parts = [f"{n} (−{-v['value']:.2f})" for n, v in passing.items()]
        told.append(f"in {f['model']} {listing(parts)}, of a fall of {f['fall']['value']:.2f}")
    return f"What makes {label} fall: {'; '.join(told)}"


def _lowering(found: dict[str, Any], models: int) -> dict[str, Any]:
    """The steps that lower the stream, by Bonferroni over the steps of all panels in the title."""
    steps = {n.removeprefix("stream: "): v for n, v in found.items() if n.startswith("stream: ")}
    return {
        n: v for n, v in steps.items()
        if v["value"] < 0 and v["p"] * len(steps) * models <= ALPHA
    }  # fmt: skip


def _told(facts: list[dict[str, Any]]) -> str:
    told = []
    for f in facts:
        parts = [
            f"{name.split(': ')[1]} {v['value']:+.2f} ({v['low']:+.2f} to {v['high']:+.2f})"
            for name, v in f.items()
            if name.startswith(("stream: ", "parts: "))
        ]
        stream = sum(name.startswith("stream: ") for name in f)
        fall = f["fall"]
        told.append(
            f"{f['model']}, {reading_label(f['reading'])}, from layer {f['valley'][0]} to layer "
            f"{f['valley'][1]}: a fall of {fall['value']:.2f} ({fall['low']:.2f} to "
            f"{fall['high']:.2f}), made of {listing(parts[:stream])}; step by step inside the "
            f"blocks {listing(parts[stream:])}."
        )
    return f"Over {counted(len(facts), 'panel')}: {' '.join(told)}"
