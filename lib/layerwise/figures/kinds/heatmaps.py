"""Layers, models and checkpoints compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.association.scores import best_layers
from layerwise.config.studies import POOLED, kind
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import SCORE_AXIS, Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def checkpoint_heatmap(data: Data) -> pd.DataFrame:
    """Metrics by layer and checkpoint."""
    return data.curves()


CLOSE = 25  # so many checkpoints get smaller marks


@kind(
    "checkpoint_heatmap",
    table=checkpoint_heatmap,
    about="a metric by layer and checkpoint",
    title="Metric by layer and checkpoint",
    reads=("metrics",),
    roles={"row": ("y",), "column": ("model", "representation"), "x_axis": ("revision",)},
    takes=("row", "column"),
    revisions="all",
    needs_checkpoints=True,
    caption=(
        "Metric of each layer (0 is the embedding output) at up to {n_checkpoints} checkpoints, "
        "on {n_prompts} prompts of {corpora}. Checkpoints are evenly spaced. The table has 95% CI "
        "over prompts."
    ),
)
def plot_checkpoint_heatmap(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map for each metric, model and token selection; one scale for a metric."""
    grid = panels.facets(table, look, height=2.1)
    by_label: dict[str, list[panels.Panel]] = {}
    for panel in grid.panels:
        by_label.setdefault(panels.metric_axis(panel.table), []).append(panel)
    for label, alike in by_label.items():
        values = pd.concat([panel.table["value"] for panel in alike])
        for panel in alike:
            wide = select.by_checkpoint(panel.table)
            image = panels.heat(panel.ax, wide, vmin=values.min(), vmax=values.max())
            panels.checkpoint_axis(panel.ax, list(wide.columns), offset=0.5)
        grid.bar(image, label, alike)
    return grid.label(panels.step_label(table["revision"]), "Layer").figure


def scores_over_checkpoints(data: Data) -> pd.DataFrame:
    """Mean score by checkpoint and layer, with each checkpoint's best layer and its lead.

    ``gain`` is the best layer's score less the output's on the tasks that selected it, with a 95%
    interval that allows for the selection; ``gain_new_task`` is the gain on held-out tasks.
    """
    table = data.curves()
    columns = data.roles(table)["column"]
    scores = data.scores(table)
    groups = [d for d in POOLED if d in columns]
    frames = []
    for key, subset in scores.groupby(groups) if groups else [((), scores)]:
        best = best_layers(subset).query("task_type == 'all'")
        frames.append(best.assign(**dict(zip(groups, map(str, key), strict=True))))
    best = pd.concat(frames, ignore_index=True)
    keys = ["model", "revision", "tokens", "pooling", *groups]
    values = ["best_layer", "gain", "gain_low", "gain_high", "gain_new_task"]
    table = table.merge(best[[*keys, *values]], on=keys, how="left")
    above = table["output_is_best"].astype(bool) & (table["output_score"] > table["value"])
    return table.assign(best=(table["layer"] == table["best_layer"]) & ~above)


@kind(
    "scores_over_checkpoints",
    table=scores_over_checkpoints,
    about="task score by layer and checkpoint, with the best layer and its gain over the output",
    title="Task score by layer and checkpoint",
    reads=("scores",),
    roles={"column": ("model", "representation"), "x_axis": ("revision",)},
    takes=("column",),
    revisions="all",
    needs_checkpoints=True,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) of each layer at up to "
        "{n_checkpoints} checkpoints, evenly spaced. Below, the best layer's score less that of "
        "the model's output. Band: 95% CI over task clusters, which allows for the selection of "
        "the layer. Dashed: on held-out task clusters."
    ),
)
def plot_scores_over_checkpoints(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of scores with the best layers; below, the best layer's lead."""
    first = table.drop_duplicates([*select.POINT, *look.roles["column"]])
    t = pd.concat([table.assign(what="score"), first.assign(what="lead")], ignore_index=True)
    grid = panels.facets(t, look.only(row=("what",), column=look.roles["column"]))
    low, high = 100 * t["value"].min(), 100 * t["value"].max()
    small = grid.table.groupby("column")["revision"].nunique().max() > CLOSE
    disc = panels.output(small=small)
    square = disc | {"marker": "s"}
    for panel in grid.panels:
        first = panel.table.drop_duplicates("revision").reset_index(drop=True)
        names = list(first["revision"])
        if panel.row == "score":
            wide = 100 * select.by_checkpoint(panel.table)
            image = panels.heat(panel.ax, wide, vmin=low, vmax=high)
            panels.checkpoint_axis(panel.ax, names, offset=0.5)
            for of_output, subset in first.groupby(first["output_is_best"].astype(bool)):
                places = wide.index.get_indexer(pd.Index(subset["best_layer"])) + 0.5
                panel.ax.plot(subset.index + 0.5, places, **(square if of_output else disc))
            continue
        style: dict[str, Any] = {"scale": 100, "color": grid.colour(panel), "markersize": 3}
        ends, marker = ("gain_low", "gain_high"), "" if small else "o"
        panels.course(panel.ax, first, names, "gain", ends, marker=marker, **style)
        panels.course(panel.ax, first, names, "gain_new_task", (), linestyle="dashed", **style)
        panels.zero(panel.ax)
        panels.checkpoint_axis(panel.ax, names)
    labels = {"score": "Layer", "lead": "Best layer less output (points)"}
    grid.label(panels.step_label(t["revision"]), labels)
    grid.bar(image, SCORE_AXIS, grid.row("score"))
    is_best = table["output_is_best"].astype(bool)
    handles = [
        panels.entry("gain on the tasks that selected the layer", marker="o", markersize=3),
        panels.entry("gain on held-out tasks", linestyle="dashed"),
    ]
    if is_best.any():
        handles.insert(0, panels.entry("model output is best", **square))
    if not is_best.all():
        handles.insert(0, panels.entry("best layer", **disc))
    return grid.legend(handles).figure


def task_heatmap(data: Data) -> pd.DataFrame:
    """Score of each task by layer, `above_output`: less the task's score of the output."""
    table = data.curves()
    table = table.sort_values(["task_type", "task"], kind="stable", ignore_index=True)
    lacking = table["output_score"].isna()
    data.omit(sorted(set(table.loc[lacking, "task"])), "no score of the model's output")
    table = table[~lacking]
    table = table.assign(above_output=table["value"] - table["output_score"])
    return table.assign(best=select.best_rows(table, data.directions))


@kind(
    "task_heatmap",
    table=task_heatmap,
    about="score of each task by depth, relative to the model's output",
    title="Task scores by depth, relative to the output",
    reads=("scores",),
    roles={"column": ("model", "representation"), "y_axis": ("task",)},
    roles_of_checkpoints={"column": ("model", "revision", "representation"), "y_axis": ("task",)},
    takes=("row", "column"),
    caption=(
        "Main score of each of {n_tasks} tasks by depth, less the task's score of the model's "
        "output. Dots: best layer of a task, where a layer is better than the output. Colours end "
        "at the 98th percentile."
    ),
)
def plot_task_heatmap(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of tasks by depth for each model and representation."""
    names = list(table["task"].unique())
    grid = panels.facets(table, look, height=0.19 * len(names) + 1)
    # Not stretched by a few extreme cells, which get the end colour.
    limit = float(np.ceil(np.nanquantile(100 * table["above_output"].abs(), 0.98))) or 1.0
    for panel in grid.panels:
        subset = panel.table
        wide = subset.pivot(index="task", columns="depth", values="above_output").reindex(names)
        image = panels.heat(
            panel.ax, 100 * wide, vmin=-limit, vmax=limit, cmap=panels.DIVERGING, up=False
        )
        best = subset[subset["best"]]
        columns = wide.columns.get_indexer(pd.Index(best["depth"])) + 0.5
        panels.dots(panel.ax, columns, wide.index.get_indexer(pd.Index(best["task"])) + 0.5)
        ends = np.linspace(0, len(wide.columns) - 1, 5)
        panel.ax.set_xticks(ends + 0.5, ["0", "25", "50", "75", "100"])
        panel.ax.tick_params(axis="y", rotation=0, labelleft=panel.left)
    grid.bar(image, "Points above the model output", extend="both")
    grid.label(panels.DEPTH)
    return grid.legend([panels.entry("best layer", marker="o", linestyle="none")]).figure
