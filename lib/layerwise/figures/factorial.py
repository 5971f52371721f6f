"""Two factors in which models differ, and what each does to the valley of a metric over depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from layerwise.errors import LayerwiseError
from layerwise.figures import style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows, at
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    counted,
    in_sentence,
    listing,
    metric_label,
    metric_unit,
    p_value,
    reading_label,
    span,
)
from layerwise.statistics.corrections import holm
from layerwise.statistics.factorial import CONTRASTS, Effect, over_replicates, two_by_two
from layerwise.statistics.valleys import SHALLOW, dips, of_means

LEVEL = 0.05
INTERACTION = "interaction"

Factors = Mapping[str, Mapping[str, tuple[str, ...]]]


def depth(values: pd.Series[float]) -> float:
    """How deep a curve's valley is (`layerwise.statistics.valleys.dips`), in the curve's unit.

    Negative for a curve without one.

    Raises
    ------
    LayerwiseError
        For fewer than three layers, or a gap.
    """
    v = np.asarray(values, dtype=np.float64)
    if len(v) < 3 or not np.isfinite(v).all():
        raise LayerwiseError(
            "A valley needs a value at three or more layers, all of them; a model of this study "
            "has fewer."
        )
    return float(dips(v).max())


def draw(given: Given) -> Drawn:
    """Draw a row a metric and reading: the curves of each cell, valleys by cell, three effects.

    Returns
    -------
    Drawn
        Its table has a row a model (``what`` = model; ``valley_told``: whether its own curve has
        a valley beyond noise over prompts) and a row an effect (``what`` = effect).
    """
    rows = given.rows()
    factors = rows.study.factors
    assert factors is not None
    models, effects = _tables(rows, factors)
    pairs = list(models[["y", "reading"]].drop_duplicates().itertuples(index=False))
    figure, axes = style.grid(len(pairs), 3, panel_height=2.3, panel_width=3.1)
    for line, pair in zip(axes, pairs, strict=True):
        own = at(models, ("y", "reading"), tuple(map(str, pair)))
        mine = at(effects, ("y", "reading"), tuple(map(str, pair)))
        metric = rows.metric(pair.y)
        assert metric is not None
        unit = metric_unit(metric.metric, str(metric.normalization or "raw"))
        behind = f" ({unit})" if unit else ""
        _curves(line[0], at(rows.table, ("y", "reading"), tuple(map(str, pair))), own, factors)
        line[0].set_ylabel(f"{metric_label(metric.metric)}{behind}")
        line[0].set_title(reading_label(str(pair.reading)))
        _cells(line[1], own, factors)
        line[1].set_ylabel(f"Valley{behind}")
        _effects(line[2], mine)
        line[2].set_xlabel(f"Effect on the valley{behind}")
    title = _title(effects)
    n = models.groupby(["y", "reading", *factors]).size()
    subtitle = (
        f"Left: means of {span(n.tolist())} models (seeds) a cell with 95 % intervals over seeds. "
        "Valley: how far a curve dips below the lower of its shoulders (below 0: it has none). "
        "Right: effects with 95 % intervals over seeds; filled: p < .05, corrected (Holm)."
    )
    style.header(figure, title, subtitle)
    table = pd.concat(
        [models.assign(what="model"), effects.assign(what="effect")], ignore_index=True
    )
    facts = {"effects": effects.to_dict("records")}
    return Drawn(figure, table, title, _caption(rows, factors, models, effects), facts)


def _tables(rows: Rows, factors: Factors) -> tuple[pd.DataFrame, pd.DataFrame]:
    level_of = {
        name: {model: level for level, models in levels.items() for model in models}
        for name, levels in factors.items()
    }
    found = []
    for keys, curve in rows.table.groupby(["y", "reading", "model"], sort=False):
        y, reading, model = keys
        own = {name: level_of[name][str(model)] for name in factors}
        ordered = curve.sort_values("layer")
        told = of_means(ordered["value"], ordered["stderr"]) is not None
        found.append(
            {"y": y, "reading": reading, "model": model, **own,
             "valley": depth(ordered["value"]), "valley_told": told}
        )  # fmt: skip
    models = pd.DataFrame(found)
    first, second = factors
    effects = []
    for (y, reading), part in models.groupby(["y", "reading"], sort=False):
        cells = [
            part.loc[(part[first] == a) & (part[second] == b), "valley"].to_numpy()
            for a in factors[first] for b in factors[second]
        ]  # fmt: skip
        for name, effect in two_by_two(cells).items():
            effects.append(
                {"y": y, "reading": reading, "effect": _named(name, factors), **_numbers(effect)}
            )
    table = pd.DataFrame(effects)
    table["p_holm"] = holm(table["p"])
    return models, table


def _numbers(effect: Effect) -> dict[str, float]:
    return {name: getattr(effect, name) for name in ("value", "low", "high", "p", "df")}


def _named(contrast: str, factors: Factors) -> str:
    if contrast == INTERACTION:
        return INTERACTION
    name = list(factors)[list(CONTRASTS).index(contrast)]
    one, other = factors[name]
    return f"{name}: {other} − {one}"


def _curves(axis: Axes, table: pd.DataFrame, own: pd.DataFrame, factors: Factors) -> None:
    """Mean curve of each cell with its interval; single curves where depths differ."""
    first, second = factors
    for k, a in enumerate(factors[first]):
        for b, dashes in zip(factors[second], ("--", "-"), strict=True):
            models = own.loc[(own[first] == a) & (own[second] == b), "model"]
            curves = table[table["model"].isin(models)].pivot_table(
                index="depth", columns="model", values="value"
            )
            look: dict[str, Any] = {
                "color": style.PALETTE[k],
                "linestyle": dashes,
                "linewidth": 1.2,
            }
            if curves.isna().to_numpy().any():
                axis.plot(curves.index, curves.interpolate(limit_area="inside"), **look)
                continue
            mean, low, high = over_replicates(curves.to_numpy().T)
            axis.plot(curves.index, mean, label=f"{a}, {b}", **look)
            axis.fill_between(curves.index, low, high, color=style.PALETTE[k], alpha=0.15, lw=0)
    style.depth_axis(axis)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6, loc="best")


def _cells(axis: Axes, own: pd.DataFrame, factors: Factors) -> None:
    first, second = factors
    places = list(factors[second])
    axis.axhline(0, color=style.GREY, linewidth=0.8, zorder=1)
    for k, level in enumerate(factors[first]):
        colour = style.PALETTE[k]
        mine = own[own[first] == level]
        means = [mine.loc[mine[second] == p, "valley"].mean() for p in places]
        axis.plot(range(len(places)), means, color=colour, linewidth=1.2, label=level)
        shift = 0.06 * (2 * k - 1)
        at_x = [places.index(p) + shift for p in mine[second]]
        axis.plot(at_x, mine["valley"], "o", color=colour, markersize=3.5, alpha=0.8)
    axis.set_xticks(range(len(places)), places)
    axis.set_xlim(-0.4, len(places) - 0.6)
    axis.set_xlabel(second)
    axis.legend(title=first, fontsize=7, title_fontsize=7, loc="best")


def _effects(axis: Axes, mine: pd.DataFrame) -> None:
    axis.axvline(0, color=style.GREY, linewidth=0.8, zorder=1)
    for k, row in enumerate(mine.to_dict("records")):
        axis.plot([row["low"], row["high"]], [k, k], color=style.INK, linewidth=1.1)
        beyond = row["p_holm"] < LEVEL
        axis.plot([row["value"]], [k], "o", color=style.INK if beyond else "white",
                  markeredgecolor=style.INK, markersize=5)  # fmt: skip
    axis.set_yticks(range(len(mine)), mine["effect"])
    axis.set_ylim(len(mine) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x")


def _title(effects: pd.DataFrame) -> str:
    beyond = effects[effects["p_holm"] < LEVEL]
    if beyond.empty:
        return "No effect on the valley stands out from what seeds do"
    names = list(dict.fromkeys(beyond["effect"]))
    return f"{counted(len(beyond), 'effect')} of {len(effects)} on the valley beyond what seeds " \
        f"do: {listing(names)}"  # fmt: skip


def _caption(rows: Rows, factors: Factors, models: pd.DataFrame, effects: pd.DataFrame) -> str:
    told = []
    for row in effects.to_dict("records"):
        metric = rows.metric(row["y"])
        assert metric is not None
        told.append(
            f"{row['effect']} on {in_sentence(metric.metric)} "
            f"({reading_label(row['reading'])}): {row['value']:+.3f} "
            f"[{row['low']:+.3f}, {row['high']:+.3f}], {p_value(row['p_holm'])}"
        )
    some = int(models["valley_told"].sum())
    return (
        "Left, the mean curve of each cell with Student's 95 % interval over its models, at each "
        "layer by itself. Then the valley of each model's curve over depth: how far its lowest "
        "layer inside lies below the lower of the highest layers before and after it (below 0: it "
        f"has none), by {listing(list(factors))}. Points are models of one cell, which differ by "
        "their seed alone; lines join means of cells. Effects are contrasts of the four means "
        "with 95 % intervals (Satterthwaite's degrees of freedom), an interaction the first "
        "factor's effect at the second's second level less that at its first; p corrected over "
        "all effects shown (Holm). They speak of other seeds, not of other sizes or data. In "
        f"{some} of {len(models)} curves the valley is deeper than {100 * SHALLOW:.0f} % of the "
        "largest absolute value, and than errors over prompts would let a flat curve dip in 1 of "
        f"40 cases. {'; '.join(told)}."
    )
