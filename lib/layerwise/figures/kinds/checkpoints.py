"""Metrics and scores over checkpoints, and each task's score by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.selection import best_layers
from layerwise.config.kinds import POOLED, Kind
from layerwise.figures import marks, theme
from layerwise.figures.labels import SCORE_AXIS
from layerwise.figures.marks import checkpoint_axis, entry, facets, heat, line
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import POINT, Data, by_checkpoint

CLOSE = 25  # so many checkpoints get smaller marks


CHECKPOINT_HEATMAP = Kind(
    name="checkpoint_heatmap",
    about="a metric by layer and checkpoint",
    title="Metric by layer and checkpoint",
    reads=("metrics",),
    roles={"row": ("y",), "column": ("model", "representation"), "x": ("revision",)},
    takes=("row", "column"),
    revisions="all",
    checkpoints=True,
    caption=(
        "Metric of each layer (0 is the embedding output) at up to {n_checkpoints} checkpoints, "
        "on {n_prompts} prompts of {corpora}. Checkpoints are evenly spaced. The table has 95% CI "
        "over prompts."
    ),
)


@draws(CHECKPOINT_HEATMAP, Data.curves)
def plot_metrics(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map for each metric, model and token selection; one scale for a metric."""
    grid = facets(table, look, height=2.1)
    by_label: dict[str, list[marks.Panel]] = {}
    for panel in grid.panels:
        by_label.setdefault(marks.metric_axis(panel.table), []).append(panel)
    for label, panels in by_label.items():
        values = pd.concat([p.table["value"] for p in panels])
        for panel in panels:
            wide = by_checkpoint(panel.table)
            image = heat(panel.ax, wide, vmin=values.min(), vmax=values.max())
            checkpoint_axis(panel.ax, list(wide.columns), offset=0.5)
        grid.bar(image, label, panels)
    return grid.label(marks.step_label(table["revision"]), "Layer").figure


def scores_over_checkpoints(data: Data) -> pd.DataFrame:
    """Mean score by checkpoint and layer, with each checkpoint's best layer and its lead.

    ``gain`` is the best layer's score less the output's on the tasks that selected it, with a 95%
    interval that allows for the selection; ``gain_new_task`` is the gain on held-out tasks.
    """
    table = data.curves()
    columns = data.roles(table)["column"]
    scores = data.scores(table)
    apart = [d for d in POOLED if d in columns]
    parts = []
    for key, part in scores.groupby(apart) if apart else [((), scores)]:
        found = best_layers(part)
        found = found[found["task_type"] == "all"]
        parts.append(found.assign(**dict(zip(apart, map(str, key), strict=True))))
    best = pd.concat(parts, ignore_index=True)
    keys = ["model", "revision", "tokens", "pooling", *apart]
    values = ["best_layer", "gain", "gain_low", "gain_high", "gain_new_task"]
    table = table.merge(best[[*keys, *values]], on=keys, how="left")
    above = table["output_is_best"].astype(bool) & (table["output_score"] > table["value"])
    return table.assign(best=(table["layer"] == table["best_layer"]) & ~above)


SCORES_OVER_CHECKPOINTS = Kind(
    name="scores_over_checkpoints",
    about="task score by layer and checkpoint, with the best layer and its gain over the output",
    title="Task score by layer and checkpoint",
    reads=("scores",),
    roles={"column": ("model", "representation"), "x": ("revision",)},
    takes=("column",),
    revisions="all",
    checkpoints=True,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) of each layer at up to "
        "{n_checkpoints} checkpoints, evenly spaced. Below, the best layer's score less that of "
        "the model's output. Band: 95% CI over task clusters, which allows for the selection of "
        "the layer. Dashed: on held-out task clusters."
    ),
)


@draws(SCORES_OVER_CHECKPOINTS, scores_over_checkpoints)
def plot_scores(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of scores with the best layers; below, the best layer's lead."""
    first = table.drop_duplicates([*POINT, *look.roles["column"]])
    t = pd.concat([table.assign(what="score"), first.assign(what="lead")], ignore_index=True)
    grid = facets(t, look.only(row=("what",), column=look.roles["column"]))
    low, high = 100 * t["value"].min(), 100 * t["value"].max()
    small = grid.table.groupby("column")["revision"].nunique().max() > CLOSE
    disc = marks.output(small=small)
    square = disc | {"marker": "s"}
    for panel in grid.panels:
        first = panel.table.drop_duplicates("revision").reset_index(drop=True)
        names = list(first["revision"])
        if panel.row == "score":
            wide = 100 * by_checkpoint(panel.table)
            image = heat(panel.ax, wide, vmin=low, vmax=high)
            checkpoint_axis(panel.ax, names, offset=0.5)
            for of_output, part in first.groupby(first["output_is_best"].astype(bool)):
                places = wide.index.get_indexer(pd.Index(part["best_layer"])) + 0.5
                panel.ax.plot(part.index + 0.5, places, **(square if of_output else disc))
            continue
        lead, colour = first.assign(place=first.index), grid.colour(panel)
        style: dict[str, Any] = {"scale": 100, "color": colour, "markersize": 3}
        ends, marker = ("gain_low", "gain_high"), "" if small else "o"
        line(panel.ax, lead, "place", "gain", ends, marker=marker, **style)
        line(panel.ax, lead, "place", "gain_new_task", (), linestyle="dashed", **style)
        marks.zero(panel.ax)
        checkpoint_axis(panel.ax, names)
    labels = {"score": "Layer", "lead": "Best layer less output (points)"}
    grid.label(marks.step_label(t["revision"]), labels)
    grid.bar(image, SCORE_AXIS, grid.row("score"))
    handles = [
        entry("best layer", **disc),
        entry("model output is best", **square),
        entry("gain on the tasks that selected the layer", marker="o", markersize=3),
        entry("gain on held-out tasks", linestyle="dashed"),
    ]
    return grid.legend(handles).figure


def task_scores(data: Data) -> pd.DataFrame:
    """Score of each task by layer, `above_output`: less the task's score of the output."""
    table = data.curves()
    table = table.sort_values(["task_type", "task"], kind="stable", ignore_index=True)
    lacking = table["output_score"].isna()
    data.omit(sorted(set(table.loc[lacking, "task"])), "no score of the model's output")
    table = table[~lacking]
    table = table.assign(above_output=table["value"] - table["output_score"])
    curve = table.groupby([*POINT, "task"])["value"]
    unbeaten = table["output_is_best"].astype(bool) & (table["above_output"] < 0)
    best = (table["value"] == curve.transform("max")) & ~unbeaten
    single = best.groupby([table[d] for d in (*POINT, "task")]).transform("sum") == 1
    return table.assign(best=best & single)


TASK_HEATMAP = Kind(
    name="task_heatmap",
    about="score of each task by depth, relative to the model's output",
    title="Task scores by depth, relative to the output",
    reads=("scores",),
    roles={"column": ("model", "representation"), "y": ("task",)},
    over={"column": ("model", "revision", "representation"), "y": ("task",)},
    takes=("row", "column"),
    caption=(
        "Main score of each of {n_tasks} tasks by depth, less the task's score of the model's "
        "output. Dots: best layer of a task, where a layer is better than the output. Colours end "
        "at the 98th percentile."
    ),
)


@draws(TASK_HEATMAP, task_scores)
def plot_tasks(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of tasks by depth for each model and representation."""
    names = list(table["task"].unique())
    grid = facets(table, look, height=0.19 * len(names) + 1)
    # Not stretched by a few extreme cells, which get the end colour.
    limit = float(np.ceil(np.nanquantile(100 * table["above_output"].abs(), 0.98))) or 1.0
    for panel in grid.panels:
        part = panel.table
        wide = part.pivot(index="task", columns="depth", values="above_output").reindex(names)
        image = heat(panel.ax, 100 * wide, vmin=-limit, vmax=limit, cmap=theme.DIVERGING, up=False)
        best = part[part["best"]]
        columns = wide.columns.get_indexer(pd.Index(best["depth"])) + 0.5
        marks.dots(panel.ax, columns, wide.index.get_indexer(pd.Index(best["task"])) + 0.5)
        ends = np.linspace(0, len(wide.columns) - 1, 5)
        panel.ax.set_xticks(ends + 0.5, ["0", "25", "50", "75", "100"])
        panel.ax.tick_params(axis="y", rotation=0, labelleft=panel.left)
    grid.bar(image, "Points above the model output", extend="both")
    grid.label(marks.DEPTH)
    return grid.legend([entry("best layer", marker="o", linestyle="none")]).figure
