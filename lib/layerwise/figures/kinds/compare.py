"""Layers and models compared: similarity, and differences from a base model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.curves import score_curves
from layerwise.config.kinds import Kind
from layerwise.errors import LayerwiseError
from layerwise.figures import marks
from layerwise.figures.labels import axis_label
from layerwise.figures.marks import dot, entry, facets, heat, line
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import (
    DIFFERENCE,
    Data,
    by_layer,
    matrices,
    only,
    score_change,
    shared,
)
from layerwise.stats import ALPHA, holm, paired_difference, with_intervals

MEASURES = {"cka_debiased": "Debiased CKA", "rsa": "RSA (Spearman)"}
CKA = "cka_debiased"


def similarity(data: Data) -> pd.DataFrame:
    """Similarity of every layer with every layer, with 95% jackknife intervals."""
    table = data.rows(data.tables["similarities"], "tokens", "model")
    if data.study.models:
        table = only(table, "other_model", data.study.models)
    table = with_intervals(table.assign(representation=table["tokens"]))
    table[["low", "high"]] = table[["low", "high"]].clip(-1, 1)
    return data.sort(table)


LAYER_SIMILARITY = Kind(
    name="layer_similarity",
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


@draws(LAYER_SIMILARITY, similarity)
def plot_similarity(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of CKA, and of RSA below it, for each pair of models and representation."""
    t = table[table["measure"].isin(list(MEASURES))]
    t = t.assign(measure=t["measure"].map(MEASURES), one=t["model"], other=t["other_model"])
    if t.groupby("model")["revision"].nunique().max() > 1:
        t = t.assign(one=t["model"] + " " + t["revision"])
        t["other"] = t["other_model"] + " " + t["other_revision"]
    t["model"] = t["one"].where(t["one"] == t["other"], t["one"] + " and " + t["other"])
    columns = ("model", "representation")
    grid = facets(t, look.only(row=("measure",), column=columns), height=2.2)
    for panel in grid.panels:
        wide = panel.table.pivot(index="layer", columns="other_layer", values="value")
        image = heat(panel.ax, wide.clip(lower=0), vmin=0, vmax=1)
        places = marks.spread(len(wide.columns), marks.TICKS)
        panel.ax.set_xticks([p + 0.5 for p in places], wide.columns[places])
        one, other = panel.table[["one", "other"]].iloc[0]
        panel.ax.set_ylabel("Layer" if one == other else f"Layer of {one}")
        panel.ax.set_xlabel("Layer" if one == other else f"Layer of {other}")
    grid.bar(image, "Similarity")
    return grid.figure


def differences(data: Data) -> pd.DataFrame:
    """Difference of each model (or checkpoint) from the first, paired by prompt, by layer.

    Rows of the metric `CKA` are the debiased CKA of the same layer of both. p is adjusted (Holm)
    over all differences.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one with another number of layers.
    """
    table = data.prompts()
    base = _first(data.checkpoints(table), data)
    by = ["y", "metric", "representation", "corpus", "model", "revision"]
    wide = matrices(table, by)
    rows = []
    for key, own in wide.items():
        *curve, model, revision = key
        if (model, revision) == base:
            continue
        before = wide.get((*curve, *base))
        if before is None or list(before.columns) != list(own.columns):
            raise LayerwiseError(
                f"{model} and {base[0]} differ in layers or token selections, and this study "
                "compares layer by layer; take models of one architecture, or layer_similarity.",
                code="mismatch",
            )
        first, second = shared(before, own)
        found = paired_difference(second, first)
        about = dict(zip(by, key, strict=True)) | {"base": base[0], "base_revision": base[1]}
        rows.append(by_layer(found, own.columns, **about, p=found.p))
    result = pd.concat(rows, ignore_index=True)
    result["p_adjusted"] = holm(result["p"])
    return pd.concat([result, _cka(data.tables["similarities"], result)], ignore_index=True)


def _first(points: pd.DataFrame, data: Data) -> tuple[str, str]:
    """The model and revision that the others are compared with.

    Raises
    ------
    LayerwiseError
        If there are no others.
    """
    model, revision = points.iloc[0]
    if len(points) < 2:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} compares models with the first; these tables have "
            f"{model} at {revision} alone: name another under `models` or `revisions`.",
            code="too_few",
        )
    return str(model), str(revision)


def _cka(similarities: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """CKA of the same layer of the base and each model that is compared with it."""
    same = similarities["layer"] == similarities["other_layer"]
    kept = with_intervals(similarities[same & (similarities["measure"] == CKA)])
    kept = kept.rename(columns={"model": "base", "revision": "base_revision"})
    names = {"other_model": "model", "other_revision": "revision", "tokens": "representation"}
    keys = ["base", "base_revision", "model", "revision", "representation"]
    found = kept.rename(columns=names).merge(like[keys].drop_duplicates())
    found = found.assign(y=CKA, metric=CKA)
    return found[[column for column in like if column in found]]


FINETUNING_EFFECTS = Kind(
    name="finetuning_effects",
    about="difference of models or checkpoints from the first, paired by prompt",
    title="Difference from the base model by depth",
    reads=("prompts", "similarities"),
    roles={"row": ("y",), "column": ("model", "representation")},
    over={"row": ("y",), "column": ("model", "revision", "representation")},
    metrics=("prompt_entropy", "effective_rank", "curvature"),
    pairs=True,
    caption=(
        "Difference from the base model, paired by prompt, on {n_prompts} prompts of {corpora}, "
        "and debiased CKA of the same layer of both. Bands: 95% CI over prompts. Filled: p < .05, "
        "adjusted (Holm) for all differences. Intervals do not cover the variation between "
        "training runs."
    ),
)


def score_differences(data: Data) -> pd.DataFrame:
    """Mean score of each model (or checkpoint) less that of the first, paired by task, by layer.

    p is adjusted (Holm) over all differences.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one with other poolings or without a task of the first.
    """
    points = data.checkpoints(data.tables["scores"])
    first = _first(points, data)
    curves = {tuple(c.about.values()): c for c in score_curves(data.scores(points))}
    rows = []
    for (model, revision, *how), own in curves.items():
        if (model, revision) == first:
            continue
        before = curves.get((*first, *how))
        if before is None:
            raise LayerwiseError(
                f"{own} has no counterpart in {first[0]}; name the `tokens` and `pooling` that "
                "both have.",
                code="mismatch",
            )
        change = score_change(own, before)
        rows.append(change.assign(base=first[0], base_revision=first[1]))
    result = pd.concat(rows, ignore_index=True)
    result["p_adjusted"] = holm(result["p"])
    return data.tidy(result)


SCORE_DIFFERENCES = Kind(
    name="score_differences",
    about="mean task score less that of the first model or checkpoint, paired by task",
    title="Score difference from the base by depth",
    reads=("scores",),
    roles={"row": ("model",), "column": ("representation",)},
    over={"row": ("model", "revision"), "column": ("representation",)},
    pairs=True,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) less that of the base "
        "model at the same layer, paired by task. Bands: 95% CI over task clusters, for each "
        "layer. Filled: p < .05, adjusted (Holm) for all differences."
    ),
)


@draws(FINETUNING_EFFECTS, differences)
@draws(SCORE_DIFFERENCES, score_differences)
def plot_differences(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the difference of scores or of each metric by depth, and CKA with the base."""
    grid = facets(table, look, height=1.7)
    for panel in grid.panels:
        part, colour = panel.table, grid.colour(panel)
        scale = 100 if (part["metric"] == DIFFERENCE).all() else 1
        line(panel.ax, part, "depth", scale=scale, color=colour)
        differs = part[part["p_adjusted"] < ALPHA]
        marks.dots(panel.ax, differs["depth"], scale * differs["value"], color=colour)
        if (part["metric"] == CKA).all():
            panel.ax.set_ylim(min(0, part["low"].min()), 1.05)
        else:
            marks.zero(panel.ax)
    grid.label(marks.DEPTH, _axis)
    differing = entry("differs from 0 (adjusted p < .05)", **dot(markersize=4))
    return grid.legend([differing] if (table["p_adjusted"] < ALPHA).any() else []).figure


def _axis(part: pd.DataFrame) -> str:
    metric, base = part[["metric", "base"]].iloc[0]
    if metric == DIFFERENCE:
        return f"Score less that of {base} (× 100)"
    return "CKA with the base" if metric == CKA else f"Δ {axis_label(metric)}"
