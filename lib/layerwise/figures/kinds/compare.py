"""Layers, models and checkpoints compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.curves import score_curves
from layerwise.association.scores import best_layers
from layerwise.config.kinds import POOLED, kind
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, panels, select, theme
from layerwise.figures.labels import SCORE_AXIS, axis_label
from layerwise.figures.panels import Look
from layerwise.figures.select import Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"cka_debiased": "Debiased CKA", "rsa": "RSA (Spearman)"}
CKA = "cka_debiased"


def layer_similarity(data: Data) -> pd.DataFrame:
    """Similarity of every layer with every layer, with 95% jackknife intervals."""
    table = data.rows(data.tables["similarities"], "tokens", "model")
    if data.study.models:
        table = select.only(table, "other_model", data.study.models)
    table = stats.with_intervals(table.assign(representation=table["tokens"]))
    table[["low", "high"]] = table[["low", "high"]].clip(-1, 1)
    return data.sort(table)


@kind(
    "layer_similarity",
    table=layer_similarity,
    about="CKA and RSA between all layers of models and checkpoints",
    title="Similarity between layers",
    reads=("similarities",),
    roles={"row": ("model", "revision"), "column": ("representation",)},
    metrics=(),
    caption=(
        "Debiased linear CKA and RSA (Spearman correlation of dissimilarities) of mean-pooled "
        "embeddings of {n_prompts} prompts of {corpora}, every layer with every layer. The table "
        "has 95% jackknife CI over prompts."
    ),
)
def plot_layer_similarity(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of CKA, and of RSA below it, for each pair of models and representation."""
    t = table[table["measure"].isin(list(MEASURES))]
    t = t.assign(measure=t["measure"].map(MEASURES), one=t["model"], other=t["other_model"])
    if t.groupby("model")["revision"].nunique().max() > 1:
        t = t.assign(one=t["model"] + " " + t["revision"])
        t["other"] = t["other_model"] + " " + t["other_revision"]
    t["model"] = t["one"].where(t["one"] == t["other"], t["one"] + " and " + t["other"])
    columns = ("model", "representation")
    grid = panels.facets(t, look.only(row=("measure",), column=columns), height=2.2)
    for panel in grid.panels:
        wide = panel.table.pivot(index="layer", columns="other_layer", values="value")
        image = marks.heat(panel.ax, wide.clip(lower=0), vmin=0, vmax=1)
        places = marks.spread(len(wide.columns), marks.TICKS)
        panel.ax.set_xticks([p + 0.5 for p in places], wide.columns[places])
        one, other = panel.table[["one", "other"]].iloc[0]
        panel.ax.set_ylabel("Layer" if one == other else f"Layer of {one}")
        panel.ax.set_xlabel("Layer" if one == other else f"Layer of {other}")
    grid.bar(image, "Similarity")
    return grid.figure


def finetuning_effects(data: Data) -> pd.DataFrame:
    """Difference of each model (or checkpoint) from the first, paired by prompt, by layer.

    Rows of the metric `CKA` are the debiased CKA of the same layer of both. p is adjusted (Holm)
    over all differences.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one with another number of layers.
    """
    table = data.prompts()
    by = ["y", "metric", "representation", "corpus", "model", "revision"]
    rows = []
    for key, wide, base, before in _with_base(select.matrices(table, by), data):
        if list(before.columns) != list(wide.columns):
            raise LayerwiseError(
                f"{key[-2]} and {base[0]} differ in layers, and this study compares layer by "
                "layer; take models of one architecture, or layer_similarity.",
                code="mismatch",
            )
        first, second = select.shared(before, wide)
        change = stats.paired_difference(second, first)
        about = dict(zip(by, key, strict=True)) | {"base": base[0], "base_revision": base[1]}
        rows.append(select.by_layer(change, wide.columns, **about, p=change.p))
    result = pd.concat(rows, ignore_index=True)
    result["p_adjusted"] = stats.holm(result["p"])
    return pd.concat([result, _cka(data.tables["similarities"], result)], ignore_index=True)


Key = tuple[str, ...]


def _with_base(curves: Mapping[Any, Any], data: Data) -> Iterator[tuple[Key, Any, Key, Any]]:
    """Each curve but the first model's, with its key, which ends with model and revision, and that
    model and its curve.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one without a counterpart.
    """
    base = next(iter(curves))[-2:]
    if all(key[-2:] == base for key in curves):
        raise LayerwiseError(
            f"A study of kind {data.study.kind} compares models with the first; these tables have "
            f"{' at '.join(base)} alone: name another under `models` or `revisions`.",
            code="too_few",
        )
    for key, curve in curves.items():
        if key[-2:] == base:
            continue
        if (*key[:-2], *base) not in curves:
            raise LayerwiseError(
                f"{key[-2]} has {', '.join(key[:-2])}, which {base[0]} lacks; name the metrics, "
                "`tokens` and `pooling` that both have.",
                code="mismatch",
            )
        yield key, curve, base, curves[*key[:-2], *base]


def _cka(similarities: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """CKA of the same layer of the base and each model that is compared with it."""
    same = similarities["layer"] == similarities["other_layer"]
    rows = stats.with_intervals(similarities[same & (similarities["measure"] == CKA)])
    rows = rows.rename(columns={"model": "base", "revision": "base_revision"})
    names = {"other_model": "model", "other_revision": "revision", "tokens": "representation"}
    keys = ["base", "base_revision", "model", "revision", "representation"]
    rows = rows.rename(columns=names).merge(like[keys].drop_duplicates())
    rows = rows.assign(y=CKA, metric=CKA)
    return rows[[column for column in like if column in rows]]


def score_differences(data: Data) -> pd.DataFrame:
    """Mean score of each model (or checkpoint) less that of the first, paired by task, by layer.

    p is adjusted (Holm) over all differences.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one with other poolings or without a task of the first.
    """
    scores = data.scores(data.checkpoints(data.tables["scores"]))
    curves = {(c.tokens, c.pooling, c.model, c.revision): c for c in score_curves(scores)}
    rows = []
    for _, curve, base, before in _with_base(curves, data):
        change = select.score_change(curve, before)
        rows.append(change.assign(base=base[0], base_revision=base[1]))
    result = pd.concat(rows, ignore_index=True)
    result["p_adjusted"] = stats.holm(result["p"])
    return data.tidy(result)


@kind(
    "finetuning_effects",
    table=finetuning_effects,
    about="difference of models or checkpoints from the first, paired by prompt",
    title="Difference from the base model by depth",
    reads=("prompts", "similarities"),
    roles={"row": ("y",), "column": ("model", "representation")},
    roles_of_checkpoints={"row": ("y",), "column": ("model", "revision", "representation")},
    metrics=("prompt_entropy", "effective_rank", "curvature"),
    needs_pairs=True,
    caption=(
        "Difference from the base model, paired by prompt, on {n_prompts} prompts of {corpora}, "
        "and debiased CKA of the same layer of both. Bands: 95% CI over prompts. Filled: p < .05, "
        "adjusted (Holm) for all differences. Intervals do not cover the variation between "
        "training runs."
    ),
)
@kind(
    "score_differences",
    table=score_differences,
    about="mean task score less that of the first model or checkpoint, paired by task",
    title="Score difference from the base by depth",
    reads=("scores",),
    roles={"row": ("model",), "column": ("representation",)},
    roles_of_checkpoints={"row": ("model", "revision"), "column": ("representation",)},
    needs_pairs=True,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) less that of the base "
        "model at the same layer, paired by task. Bands: 95% CI over task clusters, for each "
        "layer. Filled: p < .05, adjusted (Holm) for all differences."
    ),
)
def plot_finetuning_effects(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the difference of scores or of each metric by depth, and CKA with the base."""
    grid = panels.facets(table, look, height=1.7)
    for panel in grid.panels:
        subset, colour = panel.table, grid.colour(panel)
        scale = 100 if (subset["metric"] == select.DIFFERENCE).all() else 1
        marks.line(panel.ax, subset, "depth", scale=scale, color=colour)
        differs = subset[subset["p_adjusted"] < stats.ALPHA]
        marks.dots(panel.ax, differs["depth"], scale * differs["value"], color=colour)
        if (subset["metric"] == CKA).all():
            panel.ax.set_ylim(min(0, subset["low"].min()), 1.05)
        else:
            marks.zero(panel.ax)
    grid.label(marks.DEPTH, _axis)
    differing = marks.entry("differs from 0 (adjusted p < .05)", **marks.dot(markersize=4))
    return grid.legend([differing] if (table["p_adjusted"] < stats.ALPHA).any() else []).figure


def _axis(subset: pd.DataFrame) -> str:
    metric, base = subset[["metric", "base"]].iloc[0]
    if metric == select.DIFFERENCE:
        return f"Score less that of {base} (× 100)"
    return "CKA with the base" if metric == CKA else f"Δ {axis_label(metric)}"


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
        by_label.setdefault(marks.metric_axis(panel.table), []).append(panel)
    for label, alike in by_label.items():
        values = pd.concat([panel.table["value"] for panel in alike])
        for panel in alike:
            wide = select.by_checkpoint(panel.table)
            image = marks.heat(panel.ax, wide, vmin=values.min(), vmax=values.max())
            marks.checkpoint_axis(panel.ax, list(wide.columns), offset=0.5)
        grid.bar(image, label, alike)
    return grid.label(marks.step_label(table["revision"]), "Layer").figure


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
    disc = marks.output(small=small)
    square = disc | {"marker": "s"}
    for panel in grid.panels:
        first = panel.table.drop_duplicates("revision").reset_index(drop=True)
        names = list(first["revision"])
        if panel.row == "score":
            wide = 100 * select.by_checkpoint(panel.table)
            image = marks.heat(panel.ax, wide, vmin=low, vmax=high)
            marks.checkpoint_axis(panel.ax, names, offset=0.5)
            for of_output, subset in first.groupby(first["output_is_best"].astype(bool)):
                places = wide.index.get_indexer(pd.Index(subset["best_layer"])) + 0.5
                panel.ax.plot(subset.index + 0.5, places, **(square if of_output else disc))
            continue
        style: dict[str, Any] = {"scale": 100, "color": grid.colour(panel), "markersize": 3}
        ends, marker = ("gain_low", "gain_high"), "" if small else "o"
        marks.course(panel.ax, first, names, "gain", ends, marker=marker, **style)
        marks.course(panel.ax, first, names, "gain_new_task", (), linestyle="dashed", **style)
        marks.zero(panel.ax)
        marks.checkpoint_axis(panel.ax, names)
    labels = {"score": "Layer", "lead": "Best layer less output (points)"}
    grid.label(marks.step_label(t["revision"]), labels)
    grid.bar(image, SCORE_AXIS, grid.row("score"))
    is_best = table["output_is_best"].astype(bool)
    handles = [
        marks.entry("gain on the tasks that selected the layer", marker="o", markersize=3),
        marks.entry("gain on held-out tasks", linestyle="dashed"),
    ]
    if is_best.any():
        handles.insert(0, marks.entry("model output is best", **square))
    if not is_best.all():
        handles.insert(0, marks.entry("best layer", **disc))
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
        image = marks.heat(
            panel.ax, 100 * wide, vmin=-limit, vmax=limit, cmap=theme.DIVERGING, up=False
        )
        best = subset[subset["best"]]
        columns = wide.columns.get_indexer(pd.Index(best["depth"])) + 0.5
        marks.dots(panel.ax, columns, wide.index.get_indexer(pd.Index(best["task"])) + 0.5)
        ends = np.linspace(0, len(wide.columns) - 1, 5)
        panel.ax.set_xticks(ends + 0.5, ["0", "25", "50", "75", "100"])
        panel.ax.tick_params(axis="y", rotation=0, labelleft=panel.left)
    grid.bar(image, "Points above the model output", extend="both")
    grid.label(marks.DEPTH)
    return grid.legend([marks.entry("best layer", marker="o", linestyle="none")]).figure
