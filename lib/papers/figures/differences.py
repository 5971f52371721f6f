"""Differences of models, checkpoints and token selections from the first, paired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerwise import stats
from layerwise.association.curves import ScoreCurves, score_curves
from layerwise.association.scores import with_representation
from layerwise.config.studies import kind
from layerwise.errors import LayerwiseError
from layerwise.figures import panels, select
from layerwise.figures.kinds.by_depth import curves, plot_curves
from layerwise.figures.panels import Look
from layerwise.figures.select import Data, axis_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CKA = "cka_debiased"


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
        change = score_change(curve, before)
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
        panels.line(panel.ax, subset, "depth", scale=scale, color=colour)
        differs = subset[subset["p_adjusted"] < stats.ALPHA]
        panels.dots(panel.ax, differs["depth"], scale * differs["value"], color=colour)
        if (subset["metric"] == CKA).all():
            panel.ax.set_ylim(min(0, subset["low"].min()), 1.05)
        else:
            panels.zero(panel.ax)
    grid.label(panels.DEPTH, _axis)
    differing = panels.entry("differs from 0 (adjusted p < .05)", **panels.dot(markersize=4))
    return grid.legend([differing] if (table["p_adjusted"] < stats.ALPHA).any() else []).figure


def _axis(subset: pd.DataFrame) -> str:
    metric, base = subset[["metric", "base"]].iloc[0]
    if metric == select.DIFFERENCE:
        return f"Score less that of {base} (× 100)"
    return "CKA with the base" if metric == CKA else f"Δ {axis_label(metric)}"


def score_change(curves: ScoreCurves, base: ScoreCurves) -> pd.DataFrame:
    """Mean score of one curve less that of another by layer, paired by task, as rows.

    They have the columns of `layerwise.figures.select.by_layer`, the point of `curves`, p, n_tasks
    and n_clusters, at the layers and on the tasks that both have. Tasks of one cluster count as
    one draw.
    """
    here, there = (pd.DataFrame(c.values, c.tasks, c.layers) for c in (curves, base))
    here, there = here.align(there, join="inner")
    if here.empty:
        raise LayerwiseError(
            f"{curves} and {base} share no task and layer with a score, and this study pairs them "
            "by task; show models that were scored on the same tasks.",
            code="too_few",
        )
    clusters = dict(zip(curves.tasks, curves.sources, strict=True))
    change = stats.paired_difference(here, there, [clusters[task] for task in here.index])
    counts = {"n_tasks": len(here), "n_clusters": change.n}
    rows = select.by_layer(change, here.columns, **curves.about, **counts, p=change.p)
    return with_representation(
        rows.assign(y=select.DIFFERENCE, metric=select.DIFFERENCE, n=float("nan"))
    )


def token_selection(data: Data) -> pd.DataFrame:
    """Curves, and the score of each token selection less that of all tokens, paired by task."""
    table = curves(data)
    scores = score_curves(data.scores(table))
    of_all = {(c.model, c.revision, c.pooling): c for c in scores if c.tokens == "all"}
    frames = [table]
    for curve in scores:
        base = of_all.get((curve.model, curve.revision, curve.pooling))
        if base is not None and curve is not base:
            frames.append(score_change(curve, base).drop(columns="p").assign(best=False))
    if len(frames) == 1:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} compares all tokens with other selections; name "
            "all and others under extract.tokens.",
            code="too_few",
        )
    return select.with_dimensions(pd.concat(frames, ignore_index=True))


@kind(
    "token_selection",
    table=token_selection,
    about="metrics and scores by depth for each token selection, with paired score differences",
    title="Effect of the token selection",
    reads=("metrics", "scores"),
    roles={"row": ("y",), "column": ("model",), "colour": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    caption=(
        "Metrics on {n_prompts} prompts of {corpora} and mean main score over {n_tasks} tasks "
        "({n_clusters} task clusters) by depth, for each token selection; and the score of each "
        "selection less that of all tokens, paired by task. Bands: 95% CI over prompts (metrics) "
        "and over task clusters (differences), for each layer."
    ),
)
def plot_token_selection(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the curves, and a panel of score differences."""
    return plot_curves(table, look)
