"""The one mark of most studies: curves over depth, told apart by colour and dashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.lines import Line2D

from layerwise.figures import findings, marks, panels, sources, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows, at
from layerwise.figures.given import Given
from layerwise.figures.labels import of_all_tokens, value_label
from layerwise.figures.panels import Grid, Panel
from layerwise.names import step_of
from layerwise.vocabulary import LABELS

BAR = 9  # so many checkpoints get a colour bar in place of a legend

# As many lines as checkpoints lie close together; marks of the usual size would hide them.
SMALL_PICK = {"markersize": 4.5, "markeredgewidth": 0.6}
SMALL_LAST = {"markersize": 3.8, "markeredgewidth": 0.9}


@dataclass(frozen=True)
class Look:
    """What of a kind's look is its own.

    Attributes
    ----------
    finding : callable
        What the title says; None where the caller of `lines` brings it.
    marked : ``own``, ``score`` or ``none``
        Whether the best layer and the model's output (of metrics: the last layer) are marked on
        every curve, on scores, or not at all.
    lines : bool
        Whether a vertical line stands at the layer with the best score.
    shaded : bool
        Whether the difference from the curve with all tokens is shaded, in place of intervals.
    """

    finding: Any
    marked: str = "own"
    lines: bool = False
    shaded: bool = False


LOOKS: Mapping[str, Look] = {
    "curves": Look(findings.ends),
    "score_by_depth": Look(findings.best_layers),
    "layers_together": Look(findings.best_layers),
    "metrics_by_depth": Look(findings.valleys),
    "metrics_over_checkpoints": Look(findings.training),
    "model_overview": Look(findings.overview, marked="none", lines=True),
    "token_choice": Look(None, marked="score", shaded=True),
}


def draw(given: Given) -> Drawn:
    """Draw scores and metrics by depth; of scores, what their differences vary with."""
    rows = given.rows()
    drawn = lines(rows, given.better)
    if given.study.kind != "score_by_depth":
        return drawn
    text, numbers = sources.said(rows, given.tables["scores"])
    return replace(drawn, caption=drawn.caption + text, facts={**drawn.facts, "sources": numbers})


def draw_tokens(given: Given) -> Drawn:
    """Draw choices of tokens by depth; their scores are compared task by task."""
    scores = given.tables["scores"]
    return lines(given.rows(), given.better, lambda rows, _: findings.token_choice(rows, scores))


def lines(rows: Rows, directions: Mapping[str, int], finding: Any = None) -> Drawn:
    """Draw scores and metrics by depth.

    Parameters
    ----------
    rows : Rows
    directions : mapping of metric to 1 or -1
        Which end the layer that a metric picks is at.
    finding : callable, optional
        What the title says, in place of the kind's own.

    Returns
    -------
    Drawn
        Its table is that of `rows`, with `best`: whether the layer has the best score (no layer
        has, where the model's own output is better), or is the one that the metric picks.
    """
    look = LOOKS[rows.study.kind]
    table = rows.table
    keys = curve_keys(rows)
    table["best"] = False
    table.loc[best_of(table, keys, directions), "best"] = True
    colours = _colours(rows)
    alone = rows.roles.get("row", ()) == () and rows.scored and len(rows.values("y")) == 1
    grid = panels.grid(rows, panel_height=2.55 if alone else 1.75 if look.lines else 1.9)
    for panel in grid.panels:
        notes = findings.notes(panel.table, rows) if alone and not colours.names else []
        _panel(panel, rows, colours, look)
        _axes(grid, panel, rows, look)
        panels.head(grid, panel, rows, notes)
    if not look.lines:
        panels.one_scale(grid, rows)
    if colours.bar is not None:
        _bar(grid, colours)
    marks.legend(grid.figure, _handles(rows, colours, look, directions))
    title, subtitle, caption, facts = (finding or look.finding)(rows, directions)
    style.header(grid.figure, title, subtitle)
    return Drawn(grid.figure, table, title, caption, facts)


def curve_keys(rows: Rows) -> list[str]:
    """The columns that tell one curve from another."""
    placed = {d for v in rows.roles.values() for d in v}
    always = {"y", "model", "revision", "corpus", "reading", "sublayer"}
    return sorted(placed | always)


def best_of(table: pd.DataFrame, keys: Sequence[str], directions: Mapping[str, int]) -> list[Any]:
    """The rows with each curve's best score, or the better end of its metric.

    None on curves of which the model's own output has a better score than all layers.
    """
    found = []
    for _, curve in table.groupby(list(keys), dropna=False):
        direction = 1 if curve["y"].iloc[0] == 0 else directions.get(curve["quantity"].iloc[0])
        ordered = curve.sort_values("layer")
        if direction is not None and ordered["value"].notna().any():
            values = direction * ordered["value"].to_numpy(dtype=float)
            if findings.above_all(ordered):
                continue
            found.append(ordered.index[int(np.nanargmax(values))])
    return found


@dataclass(frozen=True)
class _Colours:
    """What the colours mean: by key of the role, colour and marker; a bar for many steps."""

    dimensions: tuple[str, ...]
    names: dict[tuple[str, ...], tuple[Any, str]]
    bar: tuple[Any, list[Any], list[str], str] | None = None


def _colours(rows: Rows) -> _Colours:
    dimensions = rows.roles.get("colour", ())
    if not dimensions:
        return _Colours((), {})
    keys = rows.keys("colour")
    models = rows.order.models
    looks: dict[tuple[str, ...], tuple[Any, str]]
    if dimensions == ("model",) and not rows.study.ordered:
        looks = {k: (style.colour_of(k[0], models), style.marker_of(k[0], models)) for k in keys}
        return _Colours(dimensions, looks)
    if rows.study.ordered or dimensions[0] in ("revision", "alpha", *LABELS):
        colours, _ = style.depth_colours()
        steps = [step_of(k[0]) for k in keys] if dimensions == ("revision",) else [None]
        known = [s for s in steps if s is not None]
        if len(known) == len(keys) and known == sorted(set(known)) and len(known) > 2:
            scale, norm = style.step_colours(known)
            looks = {k: (scale(norm(s)), "o") for k, s in zip(keys, known, strict=True)}
            bar = ScalarMappable(norm, scale), known, [f"{s:,}" for s in known], "Training step"
            return _Colours(dimensions, looks, bar)
        looks = {k: (colours(i / max(1, len(keys) - 1)), "o") for i, k in enumerate(keys)}
        if len(keys) < BAR:
            return _Colours(dimensions, looks)
        norm = style.depth_colours()[1]
        places = [i / (len(keys) - 1) for i in range(len(keys))]
        words = [", ".join(k) for k in keys]
        return _Colours(
            dimensions, looks, (ScalarMappable(norm, colours), places, words, "Checkpoint")
        )
    names = [", ".join(k) for k in keys]
    looks = {
        k: (style.colour_of(n, names), style.marker_of(n, names))
        for k, n in zip(keys, names, strict=True)
    }
    return _Colours(dimensions, looks)


def _bar(grid: Grid, colours: _Colours) -> None:
    """A colour bar, ticked at values that were drawn (at most nine)."""
    assert colours.bar is not None
    mappable, places, words, label = colours.bar
    every = max(1, -(-len(places) // BAR))
    shown = sorted({0, *range(len(places) - 1, -1, -every)})
    bar = grid.figure.colorbar(
        mappable, ax=grid.axes, location="right", aspect=30, pad=0.015,
        ticks=[places[i] for i in shown], shrink=min(1.0, 2.0 / grid.height), anchor=(0.0, 1.0),
    )  # fmt: skip
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels([words[i] for i in shown])
    bar.set_label(label)


def _panel(panel: Panel, rows: Rows, colours: _Colours, look: Look) -> None:
    axis = panel.axis
    dashes = rows.roles.get("dashes", ())
    strokes = [", ".join(k) for k in rows.keys("dashes")]
    for colour_key in colours.names or {(): (None, "")}:
        mine = at(panel.table, colours.dimensions, colour_key)
        for dash_key in rows.keys("dashes"):
            line = at(mine, dashes, dash_key).sort_values("depth")
            if line.empty:
                continue
            scored = line["y"].iloc[0] == 0
            scale = 100 if scored else 1
            colour, marker = colours.names.get(colour_key) or (
                style.colour_of(line["model"].iloc[0], rows.order.models), ""
            )  # fmt: skip
            many = colours.dimensions[:1] == ("revision",)
            stroke = style.stroke_of(", ".join(dash_key), strokes)[0] if dashes else "solid"
            curve = scale * line.set_index("depth")["value"]
            if look.shaded:
                all_tokens = tuple(
                    of_all_tokens(v) if d == "reading" else "all" if d == "tokens" else v
                    for d, v in zip(dashes, dash_key, strict=True)
                )
                whole = scale * at(mine, dashes, all_tokens).set_index("depth")["value"]
                shared = curve.index.intersection(whole.index)
                if all_tokens != dash_key and len(shared):
                    axis.fill_between(
                        shared, whole.loc[shared], curve.loc[shared], color=colour, alpha=0.12,
                        linewidth=0,
                    )  # fmt: skip
            elif line["low"].notna().any():
                axis.fill_between(
                    line["depth"], scale * line["low"], scale * line["high"], color=colour,
                    alpha=0.1 if many else 0.14 if scored or look.lines else 0.18, linewidth=0,
                )  # fmt: skip
            axis.plot(
                line["depth"], curve, color=colour, linestyle=stroke,
                marker=marker, markersize=2.2 if many else 2.4,
                linewidth=1.3 if many else 1.5,
            )  # fmt: skip
            if scored and line["chance"].notna().any():
                axis.axhline(100 * line["chance"].iloc[0], color=style.GREY, linewidth=0.8,
                             linestyle="dotted", zorder=1)  # fmt: skip
            if look.marked == "own" or (look.marked == "score" and scored):
                last, best = line[line["depth"] == 1]["value"], line[line["best"]]
                small = many and not (scored and len(colours.names) < BAR)
                ring = marks.last_mark(colour) | (SMALL_LAST if small else {})
                disc = marks.best_mark(colour) | (SMALL_PICK if small else {})
                if scored:  # beside the end of the curve, which is not yet what users get
                    last = line["output_score"].iloc[:1].dropna()
                # The deepest with a value may be another layer than the last.
                # The output is one and the same for all choices of layers.
                if line["layers"].iloc[0] in ("", rows.values("layers")[0]):
                    axis.plot([1.0] * len(last), scale * last.astype(float), **ring)
                if findings.above_all(line):
                    axis.plot([1.0], scale * last.astype(float), **disc)
                elif len(best):
                    axis.plot(best["depth"], scale * best["value"], **disc)
            if look.lines:
                for depth in findings.best_depths(rows, dashes, dash_key):
                    axis.axvline(
                        depth, color=style.GREY, linewidth=0.7, linestyle=stroke, zorder=1
                    )


def _axes(grid: Grid, panel: Panel, rows: Rows, look: Look) -> None:
    axis = panel.axis
    style.depth_axis(axis, label=panel.bottom)
    if not panel.bottom and not look.lines:
        axis.tick_params(labelbottom=False)
    if look.lines:  # the title has the name already
        name = panels.name_of(panel, rows)
        label = panels.label_of(panel, rows, width=99).removeprefix(name).strip(" ()")
        axis.set_ylabel("× 100" if label == panels.SCORE_AXIS[:-1] else label or "value")
        if panels.y_of(panel, rows) == "0":
            axis.set_ylabel("× 100")
    elif panel.left or "y" in grid.columns:
        axis.set_ylabel(panels.label_of(panel, rows))


def _handles(
    rows: Rows, colours: _Colours, look: Look, directions: Mapping[str, int]
) -> list[Line2D]:
    handles = []
    if colours.bar is None:
        handles += [
            Line2D([], [], color=colour, marker=marker, markersize=3.5,
                   label=", ".join(map(value_label, colours.dimensions, key)))
            for key, (colour, marker) in colours.names.items()
        ]  # fmt: skip
    dashes = rows.roles.get("dashes", ())
    strokes = [", ".join(k) for k in rows.keys("dashes")]
    if dashes or not colours.names:
        shown = dashes or ("reading",)
        keys = rows.keys("dashes") if dashes else [(rows.values("reading")[0],)]
        handles += [
            Line2D([], [], color=style.INK, linewidth=1.4,
                   linestyle=style.stroke_of(", ".join(k), strokes)[0] if dashes else "solid",
                   label=", ".join(map(value_label, shown, k)))
            for k in keys
        ]  # fmt: skip
    if rows.scored and rows.scored_rows["chance"].notna().any():
        handles.append(
            Line2D([], [], color=style.GREY, linewidth=0.8, linestyle="dotted", label="chance")
        )
    if look.lines:
        return [*handles, marks.best_line()]
    picks = any(m.metric in directions for m in rows.metrics)
    if rows.scored:
        both = picks and look.marked == "own"
        return handles + (marks.either_handles() if both else marks.mark_handles())
    return handles + (marks.pick_handles() if picks else marks.pick_handles()[1:])
