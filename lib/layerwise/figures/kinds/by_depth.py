"""Scores, metrics, sublayers and probes by depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerwise.association.curves import name_readouts, score_curves
from layerwise.association.scores import with_representation
from layerwise.config.kinds import DIMENSIONS, Kind
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.labels import SCORE, axis_label, with_unit
from layerwise.figures.marks import dot, entry, facets, line
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import (
    DIFFERENCE,
    POINT,
    VARIANT,
    Data,
    at_checkpoints,
    by_layer,
    matrix,
    score_change,
    shared,
    with_dimensions,
)
from layerwise.stats import ALPHA, holm, mean_ci, paired_difference
from layerwise.vocabulary import BLOCK, LABELS, SUBLAYERS


def curves(data: Data) -> pd.DataFrame:
    """Scores, metrics or both by layer; `best` is the best score or the metric's better end.

    No layer is best where the model's output is better than all or several layers are equal, or by
    a metric that selects another layer without the first token.
    """
    table = data.curves()
    best = _selected(table, data)
    metrics = data.tables.get("metrics")
    if metrics is not None and "drop_first" in set(metrics["tokens"]):
        all_tokens = data.study.model_copy(update={"tokens": None})
        bare = replace(data, study=all_tokens).metrics(metrics, table)
        bare = bare[bare["tokens"] == "drop_first"]
        same = [d for d in ("y", "model", "revision", "corpus", "sublayer", *VARIANT) if d in bare]
        keys = [*same, "layer"]
        bare = with_dimensions(bare)
        other = bare[keys].astype(str).assign(other=_selected(bare, data)).drop_duplicates(keys)
        paired = table[keys].astype(str).merge(other, how="left")
        sink = (table["tokens"] == "all") & paired["other"].eq(False).to_numpy()
        best &= ~sink | (table["y"] == SCORE)
    return table.assign(best=best)


def _selected(table: pd.DataFrame, data: Data) -> pd.Series:
    """True at the one layer of each curve with the best score or at the metric's better end."""
    is_score = table["y"] == SCORE
    values = table["value"] * table["metric"].map(dict(data.directions)).mask(is_score, 1)
    curve = [table[d] for d in (*DIMENSIONS, *LABELS) if d in table]
    top = values.groupby(curve, dropna=False).transform("max")
    of_output = is_score & (table.get("output_score", values) > top)
    found = (values == top) & ~of_output
    return found & (found.groupby(curve, dropna=False).transform("sum") == 1)


def token_selection(data: Data) -> pd.DataFrame:
    """Curves, and the score of each token selection less that of all tokens, paired by task."""
    table = curves(data)
    found = {
        (c.model, c.revision, c.pooling, c.tokens): c for c in score_curves(data.scores(table))
    }
    parts = [table]
    for (model, revision, pooling, tokens), own in found.items():
        base = found.get((model, revision, pooling, "all"))
        if base is None or tokens == "all":
            continue
        parts.append(score_change(own, base).drop(columns="p").assign(best=False))
    return with_dimensions(pd.concat(parts, ignore_index=True))


CURVES = Kind(
    name="curves",
    about="scores, metrics or both by depth, with roles that the study chooses",
    title="Curves by depth",
    reads=("metrics",),
    roles={"column": ("y",), "colour": ("model",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    metrics=("prompt_entropy", "curvature", "infonce"),
    caption=(
        "Scores and metrics by depth. Metrics on {n_prompts} prompts of {corpora}; bands: 95% CI "
        "from standard errors over prompts. Scores: bands are 95% CI over task clusters, for each "
        "layer. Filled: best layer, or best by the metric unless the first token decides it. "
        "Open: model output, or last layer."
    ),
)

SCORE_BY_DEPTH = Kind(
    name="score_by_depth",
    about="mean task score by depth, models as colours, or a panel each if they are many",
    title="Mean task score by depth",
    reads=("scores",),
    roles={"colour": ("model",), "dashes": ("representation",)},
    apart={"column": ("model",), "dashes": ("representation",)},
    over={"column": ("model", "representation"), "colour": ("revision",)},
    takes=("row", "column", "colour", "dashes"),
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) by depth. Bands: 95% "
        "CI over task clusters for each layer, without differences in level between tasks; of a "
        "single task, the evaluator's own. Filled: best layer. Open: the model's output, its last "
        "layer after its last norm.{chance}"
    ),
)

METRICS_BY_DEPTH = Kind(
    name="metrics_by_depth",
    about="metrics by depth, models compared",
    title="Metrics by depth",
    reads=("metrics",),
    roles={"column": ("y",), "row": ("representation",), "colour": ("model",)},
    over={"row": ("y",), "column": ("model", "representation"), "colour": ("revision",)},
    takes=("row", "column", "colour", "dashes"),
    metrics=("prompt_entropy", "curvature", "infonce"),
    caption=(
        "Metrics by depth on {n_prompts} prompts of {corpora}. Bands: 95% CI from standard errors "
        "over prompts. Filled: best layer by the metric's direction, unless the first token "
        "decides it. Open: last layer."
    ),
)

METRICS_OVER_CHECKPOINTS = Kind(
    name="metrics_over_checkpoints",
    about="metrics by depth, a line per checkpoint",
    title="Metrics by depth over training",
    reads=("metrics",),
    roles={"row": ("y",), "column": ("model", "representation"), "colour": ("revision",)},
    takes=("row", "column", "colour", "dashes"),
    revisions="all",
    metrics=("prompt_entropy", "curvature", "infonce"),
    checkpoints=True,
    caption=(
        "Metrics by depth at each checkpoint, on {n_prompts} prompts of {corpora}. Bands: 95% CI "
        "from standard errors over prompts. Filled: best layer by the metric's direction, unless "
        "the first token decides it. Open: last layer."
    ),
)

MODEL_OVERVIEW = Kind(
    name="model_overview",
    about="score and all metrics of one model by depth",
    title="Score and metrics by depth",
    reads=("metrics", "scores"),
    roles={"column": ("y",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    metrics=None,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) and metrics on "
        "{n_prompts} prompts of {corpora}, by depth. Bands: 95% CI over task clusters (scores) "
        "and over prompts (metrics), for each layer. Filled: best layer, or best by the metric "
        "unless the first token decides it. Open: model output, or last layer."
    ),
)

TOKEN_SELECTION = Kind(
    name="token_selection",
    about="metrics and scores by depth for each token selection, with paired score differences",
    title="Effect of the token selection",
    reads=("metrics", "scores"),
    roles={"row": ("y",), "column": ("model",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    compares=("tokens",),
    caption=(
        "Metrics on {n_prompts} prompts of {corpora} and mean main score over {n_tasks} tasks "
        "({n_clusters} task clusters) by depth, for each token selection; and the score of each "
        "selection less that of all tokens, paired by task. Bands: 95% CI over prompts (metrics) "
        "and over task clusters, for each layer."
    ),
)


@draws(CURVES, curves)
@draws(SCORE_BY_DEPTH, curves)
@draws(METRICS_BY_DEPTH, curves)
@draws(METRICS_OVER_CHECKPOINTS, curves)
@draws(MODEL_OVERVIEW, curves)
@draws(TOKEN_SELECTION, token_selection)
def plot_curves(table: pd.DataFrame, look: Look) -> Figure:
    """Draw lines with bands by depth; best layers filled, outputs or last layers open."""
    only_score = set(table["y"]) == {SCORE}
    grid = facets(table, look, height=2.4 if only_score else marks.HEIGHT)
    for panel in grid.panels:
        for style, part in grid.curves(panel):
            _curve(panel.ax, part, style, small=grid.many)
    scored = SCORE in set(table["y"])
    words = ("best layer", "model output") if scored else ("best by the metric", "last layer")
    if scored and not only_score:
        words = ("best layer, or best by the metric", "model output, or last layer")
    handles = [entry(words[0], **marks.best())] if table["best"].any() else []
    handles.append(entry(words[1], **marks.output()))
    if "chance" in table and table["chance"].notna().any():
        handles.append(entry("chance", color=theme.GREY, linestyle="dotted"))
    return grid.legend(handles).label(marks.DEPTH, _axis).figure


def _curve(ax: Axes, part: pd.DataFrame, style: dict[str, Any], *, small: bool) -> None:
    y, ink = part["y"].iloc[0], style["color"]
    scale = 100 if y in (SCORE, DIFFERENCE) else 1
    line(ax, part, "depth", scale=scale, shade=0.08 if small else 0.16, markersize=2.2, **style)
    if y == DIFFERENCE:
        marks.zero(ax)
        return
    last = part.loc[part["depth"] == 1, "value"]
    if y == SCORE:
        last = part["output_score"].dropna().head(1)
        if part["chance"].notna().any():
            ax.axhline(100 * part["chance"].iloc[0], color=theme.GREY, linestyle="dotted", lw=0.8)
    ax.plot([1.0] * len(last), scale * last, **marks.output(ink, small=small))
    best = part[part["best"]]
    if len(best):  # an unclipped line without points would claim the page's corner
        ax.plot(best["depth"], scale * best["value"], **marks.best(ink, small=small))


def _axis(part: pd.DataFrame) -> str:
    if part["y"].iloc[0] == DIFFERENCE:
        return "Score less that of all tokens (× 100)"
    return marks.metric_axis(part)


# The steps of a block along the residual stream, in the order in which it computes them.
STREAM = {"mixer_residual": "mixer", BLOCK: "MLP"}


def sublayers(data: Data) -> pd.DataFrame:
    """Mean of each sublayer by layer, and changes of the residual stream, paired by prompt.

    ``what`` is ``metric`` or ``change``: by mixer and by MLP (``step``), which sum to the change
    from layer to layer.
    """
    by = [*POINT, "corpus", "metric"]
    rows = []
    for key, part in data.prompts().groupby(by, sort=False):
        about = dict(zip(by, key, strict=True))
        there = [s for s in SUBLAYERS if s in set(part["sublayer"])]
        curves = shared(*(matrix(part[part["sublayer"] == s]) for s in there))
        values = dict(zip(there, curves, strict=True))
        for sublayer, wide in values.items():
            rows.append(
                by_layer(mean_ci(wide), wide.columns, **about, what="metric", sublayer=sublayer)
            )
        before = values[BLOCK].iloc[:, :-1]
        layers = values[BLOCK].columns[1:]
        for sublayer, step in STREAM.items():
            if sublayer not in there or (step == "MLP" and "mlp" not in there):
                continue
            now = values[sublayer][layers]
            change = paired_difference(now, before)
            more = {"what": "change", "sublayer": sublayer, "step": step}
            rows.append(by_layer(change, layers, **about, **more))
            before = now
    return pd.concat(rows, ignore_index=True)


INSIDE_BLOCKS = Kind(
    name="sublayers",
    about="a metric at each sublayer, and the change that mixer and MLP make in each block",
    title="A metric inside blocks by depth",
    reads=("prompts",),
    roles={"column": ("model", "representation"), "colour": ("sublayer",)},
    over={"column": ("model", "revision", "representation"), "colour": ("sublayer",)},
    compares=("sublayer",),
    caption=(
        "Metric inside blocks by depth, mean over {n_prompts} prompts of {corpora}. Below, the "
        "change of the residual stream that mixer and MLP make in each block. Bands: 95% CI over "
        "prompts, paired."
    ),
)


@draws(INSIDE_BLOCKS, sublayers)
def plot_sublayers(table: pd.DataFrame, look: Look) -> Figure:
    """Draw each sublayer by depth; below, what mixer and MLP add to the residual stream."""
    names = [s for s in SUBLAYERS if s in set(table["sublayer"])]
    inks = {s: theme.PALETTE[i % 7] for i, s in enumerate(names)} | {BLOCK: theme.INK}
    added = {"mixer_residual": inks.get("mixer", theme.PALETTE[0]), BLOCK: inks.get("mlp")}
    grid = facets(table, look.only(row=("what",), column=look.roles["column"]))
    for panel in grid.panels:
        is_change = panel.row == "change"
        for sublayer, part in panel.table.groupby("sublayer", sort=False):
            line(panel.ax, part, "depth", color=(added if is_change else inks)[str(sublayer)])
        if is_change:
            marks.zero(panel.ax)
    metric = str(table["metric"].iloc[0])
    changes = with_unit("Added to the stream", metric)
    grid.label(marks.DEPTH, {"metric": axis_label(metric), "change": changes})
    return grid.legend([entry(SUBLAYERS[s], color=inks[s]) for s in names]).figure


# Columns of the scores of probes, as the table of this figure names them.
PROBE_COLUMNS = {
    "main_score": "linear",
    "score_low": "low",
    "score_high": "high",
    "baseline": "chance",
    "n_runs": "n_test",
}
NOT_OF_PROBES = ["subset", "split", "why", "chance", "text_source"]
PROBED = {"Regression": "R² (× 100)"}


def probes(data: Data) -> pd.DataFrame:
    """Linear probes by layer with their control; `p_adjusted` is of no difference between them.

    The test is one-sided, with the control's error taken to be as large as the probe's, and Holm's
    correction over the layers of a curve.
    """
    from scipy.stats import norm

    study, table = data.study, data.tables["scores"]
    # A study may name tasks without probes as well.
    known = table["control"].notna() if "control" in table else False
    table = table[known & table["task"].isin(study.tasks or table["task"])]
    if table.empty:
        raise LayerwiseError(
            "No score is of a probe; score a task of your own labels.", code="missing"
        )
    table = table.drop(columns=NOT_OF_PROBES, errors="ignore").rename(columns=PROBE_COLUMNS)
    table = name_readouts(at_checkpoints(table, data.checkpoints(table)))
    table = data.rows(table, "tokens", "task_type")
    table = with_representation(data.of_pooling(table))
    width = (table["high"] - table["low"]) / (2 * norm.isf(0.025))
    table["p"] = norm.sf(table["selectivity"] / (np.sqrt(2) * width))
    curve = table.groupby(["model", "representation", "task"])["p"]
    table = table.assign(p_adjusted=curve.transform(lambda p: holm(p.to_numpy())), y="probe")
    return data.sort(table)


PROBES_BY_DEPTH = Kind(
    name="probes_by_depth",
    about="linear probes of your own labels by depth, with their control and selectivity",
    title="Linear probes by depth",
    reads=("scores",),
    roles={"row": ("model", "representation"), "column": ("task",)},
    probes=True,
    caption=(
        "Linear probes by depth on test rows that they were not trained on. Band: 95% CI over "
        "groups of test rows. Control: the same probe on random labels (of tags: a random tag for "
        "each word type, Hewitt and Liang 2019). Filled: above the control, p < .05 one-sided "
        "after Holm's correction over layers."
    ),
)


@draws(PROBES_BY_DEPTH, probes)
def plot_probes(table: pd.DataFrame, look: Look) -> Figure:
    """Draw probe, control and selectivity by depth."""
    grid = facets(table, look, height=2.1)
    blue, orange = theme.PALETTE[:2]
    for panel in grid.panels:
        part = panel.table
        for column, ink, style in (
            ("chance", theme.GREY, "dotted"),
            ("control", theme.GREY, "dashed"),
            ("selectivity", orange, "solid"),
            ("linear", blue, "solid"),
        ):
            ends = ("low", "high") if column == "linear" else ()
            line(panel.ax, part, "depth", column, ends, scale=100, color=ink, linestyle=style)
        above = part[part["p_adjusted"] < ALPHA]
        marks.dots(panel.ax, above["depth"], 100 * above["linear"], color=blue)
    grid.label(
        marks.DEPTH, lambda p: PROBED.get(p["task_type"].iloc[0], "Accuracy (%)"), share=False
    )
    handles = [
        entry("linear probe", color=blue),
        entry("above its control (adjusted p < .05)", **dot(color=blue, markersize=4)),
        entry("control", color=theme.GREY, linestyle="dashed"),
        entry("selectivity: probe less control", color=orange),
        entry("most frequent class", color=theme.GREY, linestyle="dotted"),
    ]
    return grid.legend(handles).figure
