"""Depth and place of the valley against the number of parameters, over the sizes of a family."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter

from layerwise.association.order import Order
from layerwise.config.kinds import roles_of
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import (
    Rows,
    at_checkpoints,
    checkpoints,
    pick_metrics,
    pick_variants,
    told_apart,
)
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    axis_label,
    counted,
    in_sentence,
    in_unit,
    listing,
    metric_label,
    reading_label,
)
from layerwise.names import UNITS, size_of
from layerwise.statistics.corrections import holm
from layerwise.statistics.prompts import Estimate
from layerwise.statistics.valleys import valley

# Sizes whose labels have room side by side.
MOST_LEVEL = 4


def draw(given: Given) -> Drawn:
    """Draw each size's curve, and below it depth and place of its valley against its size.

    Of published tables, which have no values of single prompts, the data sets take their place.

    Returns
    -------
    Drawn
        Its table has a row per metric, reading and model: parameters, depth of the valley with
        95 % interval, p and p after Holm's correction over all rows, its place with interval; and
        whether it is deeper or shallower than that of the next smaller size.
    """
    study, order = given.study, given.order
    unit = "data set" if study.published else "prompt"
    rows = (
        _of_data_sets(given.tables["metrics"], study, order)
        if study.published
        else given.prompts()
    )
    sizes = {m: _size(m, study) for m in rows.values("model")}
    names = sorted(sizes, key=lambda m: sizes[m])
    table, curves = _valleys(rows, sizes, names)
    keys = list(itertools.product(rows.values("y"), rows.values("reading")))
    figure, axes = style.grid(3, len(keys), panel_height=1.75)
    scale = mpl.colormaps[style.SEQUENTIAL](np.linspace(0, 0.9, len(names)))
    colours = dict(zip(names, scale, strict=True))
    for c, (y, reading) in enumerate(keys):
        metric = rows.metric(y)
        assert metric is not None
        mine = table[(table["y"] == y) & (table["reading"] == reading)]
        for name in mine["model"]:
            values = curves[y, reading, name]
            layers = values.columns.to_numpy()
            axes[0, c].plot(layers / max(1, layers[-1]), values.mean(), color=colours[name])
        what = metric_label(metric.metric)
        notes = [reading_label(reading)] if len(rows.values("reading")) > 1 else []
        marks.panel_title(axes[0, c], what, notes)
        axes[0, c].set_ylabel(
            marks.broken(
                axis_label(metric.metric, metric.alpha, metric.normalization or "raw"), 22
            )
        )
        style.depth_axis(axes[0, c])
        depths = mine.rename(columns={"depth": "value"})
        for axis, part in ((axes[1, c], depths), (axes[2, c], _places(mine))):
            for row in part.to_dict("records"):
                over_prompts.bars(axis, [row["parameters"]], pd.DataFrame([row]),
                                  colours[row["model"]])  # fmt: skip
            axis.set_xscale("log")
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xticks(
                [sizes[n] for n in mine["model"]], [_short(sizes[n]) for n in mine["model"]]
            )
            if len(mine) > MOST_LEVEL:
                axis.tick_params(axis="x", labelrotation=90)
            axis.margins(x=0.12)
        axes[1, c].axhline(0, color=style.GREY, linewidth=0.7, zorder=1)
        deep = in_unit("Depth of the valley", metric.metric, metric.normalization or "raw")
        axes[1, c].set_ylabel(marks.broken(deep, 22))
        axes[2, c].set_ylabel("Its place\n(% of layers)")
        axes[2, c].yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
        axes[2, c].set_ylim(-0.05, 1.05)
        axes[2, c].set_xlabel("Parameters")
    marks.legend(
        figure,
        [
            *(Line2D([], [], color=colours[n], label=n) for n in names),
            Line2D([], [], linestyle="none", marker="o", markersize=4, color=style.INK,
                   label="deeper than 0 (Holm-corrected p < .05)"),
        ],
    )  # fmt: skip
    facts = _facts(table, sizes)
    title = _title(facts, rows)
    n = ", ".join(dict.fromkeys(f"{v:,}" for v in table["n"]))
    corpora = listing([c for c in rows.values("corpus") if c])
    on = f"{n} {unit}s" + ("" if study.published else f" of {corpora}")
    style.header(
        figure, title,
        f"All sizes, by depth; then how deep and where the dip is, against size. On {on}; 95 % "
        f"intervals over {unit}s.",
    )  # fmt: skip
    caption = (
        f"{listing([metric_label(m.metric) for m in rows.metrics])} by depth for "
        f"{counted(len(names), 'size')} of a family, the mean over {on}; then the depth of the "
        "valley (how far the lowest layer inside lies below the lower of its shoulders, in the "
        "units of the metric; below 0 where there is no dip) with an interval that holds whatever "
        f"layers are chosen, and its place with a bootstrap interval over {unit}s. "
        f"{_said(facts, rows)} One size is said to differ from the next where their intervals, "
        "widened to hold for all sizes together, do not meet. Sizes are single trainings: "
        "how far another training of one size would differ is in no interval."
    )
    return Drawn(figure, table, title, caption, facts)


def _places(mine: pd.DataFrame) -> pd.DataFrame:
    kept = mine[["model", "parameters", "place", "place_low", "place_high", "passes"]]
    return kept.rename(columns={"place": "value", "place_low": "low", "place_high": "high"})


def _size(model: str, study: Study) -> float:
    found = (study.sizes or {}).get(model) or size_of(model)
    if found is None:
        raise LayerwiseError(
            f"The name {model!r} tells no number of parameters (as pythia-410m does); give it "
            "under `sizes`."
        )
    return float(found)


def _short(size: float) -> str:
    for unit, one in reversed(UNITS.items()):
        if size >= one:
            return f"{size / one:.3g}{unit.upper()}"
    return f"{size:.0f}"


def _of_data_sets(metrics: pd.DataFrame, study: Study, order: Order) -> Rows:
    """Published metrics with the data set in the place of the prompt."""
    shown = checkpoints([metrics], study, order)
    kept = pick_metrics(at_checkpoints(metrics, shown), study, everything=False)
    choices, chosen = pick_variants(kept, study)
    table = chosen.assign(
        prompt_id=chosen["corpus"], corpus="", reading=chosen["tokens"], quantity=chosen["metric"]
    )
    return told_apart(table, study, order, choices, roles_of(study, several=False))


def _valleys(
    rows: Rows, sizes: Mapping[str, float], names: list[str]
) -> tuple[pd.DataFrame, dict[tuple[str, str, str], pd.DataFrame]]:
    curves = {
        (a["y"], a["reading"], a["model"]): over_prompts.matrix(part)
        for a, part in over_prompts.curves(rows)
    }
    found = []
    for y, reading in itertools.product(rows.values("y"), rows.values("reading")):
        there = [name for name in names if (y, reading, name) in curves]
        # Intervals that hold together: sizes whose intervals do not meet differ.
        level = 1 - over_prompts.LEVEL / max(1, len(there))
        wide: list[Estimate] = []
        for name in there:
            array = curves[y, reading, name].to_numpy(dtype=float)
            dip = valley(array)
            wide.append(valley(array, level, resamples=1).depth)
            row: dict[str, Any] = {
                "y": y, "metric": rows.metrics[int(y) - 1].metric, "reading": reading,
                "model": name, "parameters": sizes[name], "depth": dip.depth.value,
                "low": dip.depth.low, "high": dip.depth.high, "p": dip.depth.p,
                "layer": dip.layer, "layers": array.shape[1] - 1, "place": dip.place,
                "place_low": dip.place_low, "place_high": dip.place_high, "n": len(array),
                "smaller": None, "change": np.nan, "deeper": False, "shallower": False,
            }  # fmt: skip
            if len(wide) > 1:
                before, own = wide[-2:]
                row |= {
                    "smaller": there[len(wide) - 2], "change": own.value - before.value,
                    "deeper": own.low > before.high, "shallower": own.high < before.low,
                }  # fmt: skip
            found.append(row)
    table = pd.DataFrame(found)
    table["p_holm"] = holm(table["p"])
    table["passes"] = table["p_holm"] < over_prompts.LEVEL
    return table, curves


def _facts(table: pd.DataFrame, sizes: Mapping[str, float]) -> dict[str, Any]:
    found = []
    for (y, reading), part in table.groupby(["y", "reading"], sort=False):
        course = []
        for row in part.to_dict("records"):
            if row["deeper"] or row["shallower"]:
                course.append({"from": row["smaller"], "to": row["model"],
                               "deeper": bool(row["deeper"])})  # fmt: skip
        found.append(
            {
                "y": y, "metric": str(part["metric"].iloc[0]), "reading": reading,
                "valleys": [str(m) for m in part.loc[part["passes"], "model"]], "of": len(part),
                "course": course,
                "each": [
                    {k: (float(v) if k != "model" else str(v)) for k, v in row.items()}
                    for row in part[["model", "depth", "low", "high", "place"]].to_dict("records")
                ],
            }
        )  # fmt: skip
    return {"sizes": dict(sizes), "found": found}


def _title(facts: Mapping[str, Any], rows: Rows) -> str:
    f = facts["found"][0]
    label = in_sentence(f["metric"])
    several = len(rows.values("reading")) > 1
    how = f" ({reading_label(f['reading'], sentence=True)})" if several else ""
    told = (
        f"The valley of {label} passes a test in {len(f['valleys'])} of {counted(f['of'], 'size')}"
    )
    steps = [
        f"{'deepens' if c['deeper'] else 'gets shallower'} from {c['from']} to {c['to']}"
        for c in f["course"]
    ]
    course = listing(steps) if steps else "no change from one size to the next passes"
    return f"{told}; {'it ' if steps else ''}{course}{how}"


def _said(facts: Mapping[str, Any], rows: Rows) -> str:
    number = over_prompts.number
    said = []
    for f in facts["found"]:
        how = f", {reading_label(f['reading'])}" if len(rows.values("reading")) > 1 else ""
        each = [
            f"{e['model']} {number(e['depth'])} ({number(e['low'])} to {number(e['high'])}) at "
            f"{100 * e['place']:.0f} % depth"
            for e in f["each"]
        ]
        said.append(f"{metric_label(f['metric'])}{how}: {'; '.join(each)}.")
    return " ".join(said)
