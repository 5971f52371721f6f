"""Heat maps: a metric or the score by layer and checkpoint, and each task's score by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from layerwise.association.best import best_layers, layers_named
from layerwise.association.curves import last_layer_of
from layerwise.config.kinds import POOLED
from layerwise.config.studies import several
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, panels, sources, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import left_out_said, output_said, parts_of, varying
from layerwise.figures.frames import Rows, at, pick_scores
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    axis_label,
    counted,
    in_sentence,
    layers_label,
    listing,
    metric_label,
    reading_label,
    span,
    value_label,
)
from layerwise.figures.panels import Panel
from layerwise.names import step_of
from layerwise.vocabulary import ONE

TICKS = 6
# Of a figure's width, what axis label and colour bar take, in inches; and between panels, points.
MARGINS, GAP = 1.4, 14
# Points that a checkpoint has; below, marks are no longer told apart and become a line.
CLOSE = 4
BEST: dict[str, Any] = {
    "marker": "o", "markersize": 4.5, "color": "white", "markeredgecolor": style.INK,
    "markeredgewidth": 0.9, "linestyle": "none",
}  # fmt: skip
BEST_IS_OUTPUT = BEST | {"marker": "s"}
# The same where checkpoints stand close.
SMALL: dict[str, Any] = {"markersize": 2.6, "markeredgewidth": 0.4}


def metrics(given: Given) -> Drawn:
    """Draw a row of heat maps per metric, a column per model and reading.

    Returns
    -------
    Drawn
        Its table is the tidy metrics drawn, in the order of the checkpoints.
    """
    rows = given.rows()
    grid = panels.grid(rows, panel_height=2.1)
    by_y: dict[str, list[Panel]] = {}
    for panel in grid.panels:
        by_y.setdefault(panels.y_of(panel, rows), []).append(panel)
    for y, mine in by_y.items():
        shown = rows.table[rows.table["y"] == int(y)]["value"]
        for panel in mine:
            image = _image(panel.axis, panel.table, rows, shown.min(), shown.max())
            _checkpoint_axes(panel, rows, label="Layer" if panel.left else "")
            panels.head(grid, panel, rows)
        metric = rows.metric(y)
        if metric is not None:
            bar = grid.figure.colorbar(
                image, ax=[p.axis for p in mine], location="right", aspect=18, pad=0.01
            )
            bar.set_label(axis_label(metric.metric, metric.alpha, metric.normalization or "raw"))
    names = rows.values("revision")
    lowest = []
    first_y = rows.table[rows.table["y"] == int(min(by_y))]
    each = [
        (name, reading, part)
        for reading in rows.values("reading")
        for name, part in parts_of(at(first_y, ("reading",), (reading,)), rows, "revision")
    ]
    for name, reading, part in each:
        ordered = rows.order.checkpoints(str(part["model"].iloc[0]), part["revision"].unique())
        first = part[part["revision"] == ordered[0]]["value"]
        last = part[part["revision"] == ordered[-1]]
        least = last.iloc[int(np.nanargmin(last["value"]))]
        lowest.append(
            {"model": name, "reading": reading, "first": float(first.min()),
             "last": float(least["value"]), "layer": int(least["layer"])}
        )  # fmt: skip
    told = []
    for f in lowest:
        if f["reading"] == lowest[0]["reading"]:
            ends = f"{f['first']:.2f}", f"{f['last']:.2f}"
            way = (
                f"stays at {ends[0]}" if len({*ends}) == 1 else f"goes from {ends[0]} to {ends[1]}"
            )
            told.append(f"{way} in {f['model']} (layer {f['layer']})")
    label = in_sentence(rows.metrics[0].metric)
    title = f"Over training the lowest {label} {listing(told)}"
    n = span(rows.table["n"].tolist())
    corpora = listing([c for c in rows.values("corpus") if c])
    style.header(
        grid.figure, title,
        f"Layer by checkpoint ({counted(len(names), 'checkpoint')}), on {n} prompts of {corpora}. "
        "One colour scale for a metric.",
    )  # fmt: skip
    caption = (
        f"{listing([metric_label(m.metric) for m in rows.metrics])} of each layer (0 is the "
        f"embedding output) at each of {counted(len(names), 'checkpoint')}, on {n} prompts of "
        f"{corpora}; a panel for each model and reading. Checkpoints are evenly spaced, in the "
        "order of the config, whatever the steps between them. The title compares the lowest "
        f"value of any layer at the first and at the last checkpoint.{left_out_said(rows)}"
    )
    facts = {"lowest": lowest, "checkpoints": names}
    return Drawn(grid.figure, rows.table, title, caption, facts)


def scores(given: Given) -> Drawn:
    """Draw the mean score by layer and checkpoint, and below it the best layer's lead.

    Returns
    -------
    Drawn
        Its table has a row per checkpoint and layer: mean score in [0, 1]; whether the layer is
        the checkpoint's best (none, where the model's own output is better than all); and of the
        checkpoint, the best layer's gain over the output with its 95 % interval, the gain on a
        task that had no say in choosing the layer, and the layers that may be the best.
    """
    rows = given.rows()
    study, table = rows.study, rows.table
    picked = pick_scores(
        given.tables["scores"], study, everything="layers" in rows.roles.get("column", ())
    )
    apart = ["layers", *(d for d in POOLED if d in rows.roles["column"])]
    bests = []
    for which, part in picked.groupby(apart):
        found_best = best_layers(part.assign(layers=ONE), poolings=several(study.pooling))
        of_all = found_best[found_best["task_type"] == "all"]
        bests.append(of_all.assign(**dict(zip(apart, map(str, which), strict=True))))
    best = pd.concat(bests, ignore_index=True)
    keys = ["model", "revision", "tokens", "pooling", *apart]
    told = ["best_layer", "gain", "gain_low", "gain_high", "gain_new_task", "may_be_best"]
    table = table.merge(best[[*keys, *told]], on=keys, how="left")
    at_best = table["layer"] == table["best_layer"]
    above = table["output_is_best"] & (table["output_score"] > table["value"])
    table["best"] = at_best & ~above
    grid_keys = rows.keys("column")
    columns = min(style.COLUMNS, len(grid_keys))
    blocks = -(-len(grid_keys) // columns)
    figure, axes = style.grid(2 * blocks, columns, panel_height=1.95)
    for axis in axes.flat:
        axis.set_visible(False)
    low, high = 100 * table["value"].min(), 100 * table["value"].max()
    top = float(np.nanmax([0.5, *(100 * table["gain_high"].fillna(table["gain"]))]))
    bottom = float(np.nanmin([0, *(100 * table["gain_new_task"]), *(100 * table["gain_low"])]))
    found = []
    shown = varying(rows, but=("model", "reading", "revision"))
    for i, key in enumerate(grid_keys):
        block, column = divmod(i, columns)
        pair = axes[2 * block, column], axes[2 * block + 1, column]
        for axis in pair:
            axis.set_visible(True)
        values = dict(zip(rows.roles["column"], key, strict=True))
        part = table
        for dimension, value in values.items():
            part = part[part[dimension].astype(str) == value]
        image = _image(pair[0], part.assign(value=100 * part["value"]), rows, low, high)
        ordered = rows.order.checkpoints(str(part["model"].iloc[0]), part["revision"].unique())
        stars = part.drop_duplicates("revision").set_index("revision").reindex(ordered)
        close = _room(pair[0]) < CLOSE * len(ordered)
        for of_output, mark in ((False, BEST), (True, BEST_IS_OUTPUT)):
            marked = stars["output_is_best"] == of_output
            if marked.any():  # an unclipped line without points would claim the page's corner
                pair[0].plot(
                    np.flatnonzero(marked), stars.loc[marked, "best_layer"],
                    **(mark | SMALL if close else mark), zorder=4, clip_on=False,
                )  # fmt: skip
        panel = Panel(pair[0], part, values, top=True, left=column == 0, bottom=False)
        panels.head(panels.Grid(figure, (), axes, (), rows.roles["column"]), panel, rows)
        _checkpoint_axes(panel, rows, label="Layer" if column == 0 else "")
        colour = style.colour_of(str(part["model"].iloc[0]), rows.order.models)
        _gains(pair[1], stars, colour, close=close)
        pair[1].set_ylim(bottom - 0.05 * (top - bottom), top + 0.08 * (top - bottom))
        pair[1].tick_params(labelleft=column == 0)
        _checkpoint_axes(
            Panel(pair[1], part, values, top=False, left=column == 0, bottom=True), rows,
            label="Best layer's lead over\nthe output (points)" if column == 0 else "",
        )  # fmt: skip
        more = ", ".join(value_label(d, values[d]) for d in shown)
        found.append(_course(part, ordered, stars, f" ({more})" if more else ""))
    bar = figure.colorbar(image, ax=list(axes[::2].flat), location="right", aspect=18, pad=0.01)
    bar.set_label("Mean task score (× 100)")
    handles = [
        Line2D([], [], label="best layer", **BEST),
        *([Line2D([], [], label="the model's output is best", **BEST_IS_OUTPUT)]
          if table["output_is_best"].any() else []),
        Line2D([], [], label="lead on the tasks it was chosen by", color=style.INK,
               marker="none" if close else "o", markersize=3),
        Line2D([], [], label="lead on a task left out of the choice", color=style.INK,
               linestyle=style.DASHES["drop_first"]),
    ]  # fmt: skip
    marks.legend(figure, handles if table["gain_new_task"].notna().any() else handles[:-1])
    n_tasks = span(table["n_tasks"].tolist()) + " task" + "s" * int(table["n_tasks"].max() > 1)
    parts = [_course_said(f) for f in found if f["reading"] == found[-1]["reading"]]
    how = reading_label(found[-1]["reading"], sentence=True)
    title = f"Over training the best layer {listing(parts)} ({how})"
    names = rows.values("revision")
    style.header(
        figure, title,
        f"Mean score over {n_tasks} by layer and checkpoint "
        f"({counted(len(names), 'checkpoint')}), and how far the best layer is above the output. "
        "Bands: 95 % over tasks, for the choice of the layer too.",
    )  # fmt: skip
    leads = [
        f"{f['model']} ({reading_label(f['reading'])}): lead of {100 * f['first_gain']:.1f} "
        f"points at {f['first']}, {100 * f['last_gain']:.1f} at {f['last']}"
        for f in found
        if f["first_gain"] is not None and f["last_gain"] is not None
    ]
    caption = (
        f"Mean main score (× 100) over {n_tasks} of each layer (0 is the embedding output) "
        f"at each of {counted(len(names), 'checkpoint')}, a circle at each checkpoint's best "
        "layer (a square at the top where the model's own output is best); below, the best "
        "layer's lead over the output with its 95 % interval "
        "over tasks, which pays for the choice of the layer, and the lead on a task that had no "
        "say in choosing the layer, which takes off the luck of the best of many. The best layer "
        "moves beyond noise where none may be the best both at the first and at the last "
        "checkpoint, with 95 % confidence at each. Checkpoints are "
        "evenly spaced, in the order of the "
        f"config. {output_said(rows)}{left_out_said(rows)} {'; '.join(leads)}."
    )
    text, numbers = sources.said(rows, given.tables["scores"])
    facts = {"course": found, "checkpoints": names, "sources": numbers}
    return Drawn(figure, table, title, caption + text, facts)


def _course(
    part: pd.DataFrame, ordered: Sequence[str], best: pd.DataFrame, more: str
) -> dict[str, Any]:
    gains = [None if pd.isna(g) else float(g) for g in best["gain"]]
    return {
        "model": str(part["model"].iloc[0]) + more,
        "reading": str(part["reading"].iloc[0]),
        "layers": last_layer_of(part),
        "first": ordered[0],
        "last": ordered[-1],
        "first_layer": int(best["best_layer"].iloc[0]),
        "last_layer": int(best["best_layer"].iloc[-1]),
        "best_layers": [int(layer) for layer in best["best_layer"]],
        "output_is_best": [bool(b) for b in best["output_is_best"]],
        "moved": _moved(best["may_be_best"].iloc[0], best["may_be_best"].iloc[-1]),
        "first_gain": gains[0],
        "last_gain": gains[-1],
    }


def _moved(first: Any, last: Any) -> bool | None:
    """Whether no layer may be the best at both ends; None where tasks cannot tell."""
    if pd.isna(first) or pd.isna(last):
        return None
    return layers_named(str(first)).isdisjoint(layers_named(str(last)))


def _course_said(course: dict[str, Any]) -> str:
    """Where the best layer goes, in words that continue "the best layer"."""
    layers, of_output = course["best_layers"], course["output_is_best"]
    places = [
        "the output" if out else f"layer {layer} of {course['layers']}"
        for layer, out in zip(layers, of_output, strict=True)
    ]
    model = course["model"]
    if len({*places}) == 1:
        return f"stays {'at ' if not of_output[0] else ''}{places[0]} in {model}"
    if places[0] == places[-1]:
        return f"ends where it began in {model}, at {places[0]}"
    start = places[0] if of_output[0] or of_output[-1] else f"layer {layers[0]}"
    end = places[-1] if of_output[-1] else f"{layers[-1]} of {course['layers']}"
    sure = {True: "", False: " (not beyond noise)", None: " (untested)"}[course["moved"]]
    return (
        f"goes from {start} to {'layer ' * (of_output[0] and not of_output[-1])}{end} in {model}"
        f"{sure}"
    )


def _gains(axis: Axes, best: pd.DataFrame, colour: str, *, close: bool) -> None:
    thin: dict[str, Any] = {"linewidth": 0.9} if close else {}
    places = np.arange(len(best))
    ends = 100 * best[["gain_low", "gain_high"]].to_numpy(dtype=float)
    axis.fill_between(places, ends[:, 0], ends[:, 1], color=colour, alpha=0.14, linewidth=0)
    marker = "none" if close else "o"
    axis.plot(places, 100 * best["gain"], color=colour, marker=marker, markersize=3, **thin)
    axis.plot(
        places, 100 * best["gain_new_task"], color=colour, **thin,
        linestyle=style.DASHES["drop_first"],
    )  # fmt: skip
    axis.axhline(0, color=style.GREY, linewidth=0.7, zorder=1)
    axis.set_xlim(-0.5, len(best) - 0.5)


def _image(axis: Axes, part: pd.DataFrame, rows: Rows, low: float, high: float) -> Any:
    """Layers, the first at the bottom, by the model's checkpoints, in order."""
    wide = part.pivot(index="layer", columns="revision", values="value").sort_index()
    wide = wide[rows.order.checkpoints(str(part["model"].iloc[0]), wide.columns)]
    colours, _ = style.depth_colours()
    image = axis.imshow(
        np.ma.masked_invalid(wide.to_numpy(dtype=float)), aspect="auto", origin="lower",
        cmap=colours, vmin=low, vmax=high, interpolation="nearest",
    )  # fmt: skip
    axis.grid(visible=False)
    return image


def _checkpoint_axes(panel: Panel, rows: Rows, label: str) -> None:
    axis = panel.axis
    model = str(panel.table["model"].iloc[0])
    names = rows.order.checkpoints(model, panel.table["revision"].unique())
    shown, words = marks.checkpoint_labels(names, _room(axis))
    axis.set_xticks(shown, words)
    axis.yaxis.set_major_locator(MaxNLocator(TICKS, integer=len(axis.images) > 0))
    axis.set_ylabel(label)
    axis.tick_params(labelleft=panel.left, labelbottom=panel.bottom)
    if panel.bottom:
        known = all(step_of(name) is not None for name in names)
        axis.set_xlabel("Training step" if known else "Checkpoint")


def _room(axis: Axes) -> float:
    """Points that a panel is about wide, before the layout has settled it."""
    figure, spec = axis.get_figure(root=True), axis.get_subplotspec()
    if figure is None or spec is None:
        return 72 * style.PANEL
    width = float(figure.get_size_inches()[0]) - MARGINS
    return 72 * width / spec.get_gridspec().ncols - GAP


def tasks(given: Given) -> Drawn:
    """Draw a heat map of tasks by depth for each model (checkpoint) and reading.

    Returns
    -------
    Drawn
        Its table has a row per model, checkpoint, reading, task and layer: score in [0, 1],
        difference from the task's score of the model's output, whether it is the task's best layer
        (none is, where the output is better).

    Raises
    ------
    LayerwiseError
        If some task has no score of the output.
    """
    rows = given.rows()
    table = rows.table.sort_values(["model", "revision", "reading", "task_type", "task", "layer"])
    keys = ["model", "revision", "reading", "layers", "task"]
    lacking = table["output_score"].isna()
    if lacking.any():
        row = table[lacking].iloc[0]
        deepest = last_layer_of(table[table["model"] == row["model"]])
        raise LayerwiseError(
            f"Some task of {row['model']} at {row['revision']} has no score of the model's "
            f"output (layer {deepest}), and this study shows scores less that one; score the "
            "tasks again, or name others under `tasks` or `models`."
        )
    table = table.assign(above_output=table["value"] - table["output_score"])
    top = table.loc[table.groupby(keys)["value"].idxmax()]
    beaten = top["output_is_best"].astype(bool) & (top["above_output"] < 0)
    table["best"] = table.index.isin(top.index[~beaten])
    rows = Rows(table, rows.study, (), rows.roles, rows.order, rows.left_out)
    names = list(table[["task_type", "task"]].drop_duplicates().sort_values(
        ["task_type", "task"])["task"])  # fmt: skip
    grid = panels.grid(rows, panel_height=max(1.3, 0.19 * len(names) + 0.5))
    # Symmetric, and not stretched by a few extreme cells: those take the end colour.
    limit = float(np.ceil(np.nanquantile(100 * table["above_output"].abs(), 0.98))) or 1.0
    found = []
    for panel in grid.panels:
        image = _tasks(panel.axis, panel.table, names, limit)
        panels.head(grid, panel, rows)
        style.depth_axis(panel.axis, label=panel.bottom)
        panel.axis.set_xlim(panel.axis.dataLim.x0, panel.axis.dataLim.x1)
        panel.axis.tick_params(labelleft=panel.left)
        best = panel.table[panel.table["best"]]
        inside = panel.table.groupby("task")["layer"].nunique()
        found.append(
            {
                "model": str(panel.table["model"].iloc[0]),
                "revision": str(panel.table["revision"].iloc[0]),
                "reading": str(panel.table["reading"].iloc[0]),
                "layers": str(panel.table["layers"].iloc[0]),
                "n_tasks": int(panel.table["task"].nunique()),
                "beats_output": int((best["above_output"] > 0).sum()),
                # Were all layers and the output alike, each would be the best as often.
                "by_chance": float((inside / (inside + 1)).sum()),
                "median_depth": float(best["depth"].median()),
            }
        )
    bar = grid.figure.colorbar(
        image, ax=grid.axes, location="right", aspect=25, pad=0.01, extend="both",
        shrink=min(1.0, 2 / grid.height), anchor=(0.0, 1.0),
    )  # fmt: skip
    bar.set_label("Points above\nthe model's output")
    # With several readings, the last is the one in which no single token dominates.
    reading = rows.values("reading")[-1]
    checkpoints = table.groupby("model")["revision"].nunique().max() > 1
    told = [
        f"{f['beats_output']} of {f['n_tasks']} (by chance {f['by_chance']:.1f}) in {f['model']}"
        + (f" at {f['revision']}" if checkpoints else "")
        + (f" ({layers_label(str(f['layers']))})" if len(rows.values("layers")) > 1 else "")
        for f in found
        if f["reading"] == reading
    ]
    what = f" {reading_label(reading)}" if len(rows.values("reading")) > 1 else ""
    title = f"Tasks whose best layer is not the output{what}: {listing(told)}"
    about = f"Main score (× 100) of each of {counted(len(names), 'task')}"
    style.header(
        grid.figure, title,
        f"{about} by depth, less that of the model's output. Dots: each task's best layer.",
    )  # fmt: skip
    caption = (
        f"{about}, grouped by type, by depth in per cent of the layers, less the same task's "
        "score of the model's output; a panel for each model, checkpoint and reading. Dots mark "
        f"each task's best layer, where one is better than the output; the best of many is one "
        "of those inside by chance nearly always, as the title counts for layers that are all "
        f"alike. {output_said(rows)} "
        f"Colours are cut off at ± {limit:.0f} points.{left_out_said(rows)}"
    )
    return Drawn(grid.figure, table, title, caption, {"panels": found})


def _tasks(axis: Axes, part: pd.DataFrame, tasks: list[str], limit: float) -> Any:
    wide = part.pivot(index="task", columns="depth", values="above_output").reindex(tasks)
    depths = wide.columns.to_numpy(dtype=float)
    middle = (depths[1:] + depths[:-1]) / 2
    # The first and the last cell are as wide as the others, so that a dot is inside its own.
    edges = np.r_[2 * depths[0] - middle[0], middle, 2 * depths[-1] - middle[-1]]
    image = axis.pcolormesh(
        edges, np.arange(len(tasks) + 1) - 0.5,
        np.ma.masked_invalid(100 * wide.to_numpy(dtype=float)),
        cmap=style.DIVERGING, vmin=-limit, vmax=limit, rasterized=True,
    )  # fmt: skip
    best = part[part["best"]].set_index("task").reindex(tasks)["depth"].to_numpy(dtype=float)
    axis.plot(
        best, np.arange(len(tasks)), linestyle="none", marker="o", markersize=3.2, color=style.INK,
        markeredgecolor="white", markeredgewidth=0.5, clip_on=False, zorder=4,
    )  # fmt: skip
    axis.set_yticks(range(len(tasks)), tasks)
    axis.set_ylim(len(tasks) - 0.5, -0.5)
    axis.grid(visible=False)
    return image
