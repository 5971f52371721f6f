"""Scores, metrics, sublayers and probes by depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.curves import BLOCK, name_readouts, require_columns, score_curves
from layerwise.association.scores import with_representation
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.labels import SCORE, SUBLAYERS, axis_label, with_unit
from layerwise.figures.marks import dashes, depth_axis, entry, facets, line, palette, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import (
    POINT,
    Data,
    at_checkpoints,
    by_layer,
    checkpoints_in,
    curves_of,
    matrix,
    only,
    parts_of,
    with_dimensions,
)
from layerwise.stats import ALPHA, holm, mean_ci, paired_difference
from layerwise.vocabulary import LABELS

DIFFERENCE = "score difference"


def curves(data: Data) -> pd.DataFrame:
    """Scores, metrics or both by layer; `best` is the best score or the metric's better end.

    No layer is best where the model's output is better than all, and all are where all are equal.
    """
    table = data.curves()
    placed = {d for v in data.roles(table).values() for d in v if d in table}
    keys = sorted(placed | {"y", *POINT, "corpus", "sublayer", *(c for c in LABELS if c in table)})
    is_score = table["y"] == SCORE
    values = table["value"] * table["metric"].map(dict(data.directions)).mask(is_score, 1)
    top = values.groupby([table[key] for key in keys], dropna=False).transform("max")
    of_output = is_score & (table.get("output_score", values) > top)
    return table.assign(best=(values == top) & ~of_output)


def token_selection(data: Data) -> pd.DataFrame:
    """Curves, and the score of each token selection less that of all tokens, paired by task."""
    table = curves(data)
    scores = data.scores(checkpoints_in(table))
    found = {(c.model, c.revision, c.pooling, c.tokens): c for c in score_curves(scores)}
    rows = []
    for (model, revision, pooling, tokens), own in found.items():
        base = found.get((model, revision, pooling, "all"))
        if base is None or tokens == "all":
            continue
        tasks = [t for t in own.tasks if t in base.tasks]
        layers = np.intersect1d(own.layers, base.layers)
        here, there = (
            c.values[[c.tasks.index(t) for t in tasks]][:, np.isin(c.layers, layers)]
            for c in (own, base)
        )
        clusters = [own.sources[own.tasks.index(t)] for t in tasks]
        change = paired_difference(here, there, clusters)
        about = {**own.about, "y": DIFFERENCE, "metric": DIFFERENCE, "best": False}
        counts = {"n_tasks": len(tasks), "n_clusters": change.n}
        rows.append(by_layer(change, layers, **about, **counts).assign(n=np.nan))
    changes = [with_representation(one) for one in rows]
    return with_dimensions(pd.concat([table, *changes], ignore_index=True))


@kind("curves", "Curves by depth", curves)
@kind("score_by_depth", "Mean task score by depth", curves)
@kind("metrics_by_depth", "Metrics by depth", curves)
@kind("metrics_over_checkpoints", "Metrics by depth over training", curves)
@kind("model_overview", "Score and metrics by depth", curves)
@kind("token_selection", "Effect of the token selection", token_selection)
def plot_curves(table: pd.DataFrame, look: Look) -> Figure:
    """Draw lines with bands by depth; best layers filled, outputs or last layers open."""
    t = place(table, look)
    only_score = set(t["y"]) == {SCORE}
    grid = facets(t, look, height=2.4 if only_score else marks.HEIGHT)
    colours, strokes = palette(t, look), dashes(t)
    for panel in grid.panels:
        for colour, own in parts_of(panel.table, "colour"):
            ink = colours.colours[colour] or theme.colour_of(own["model"].iloc[0], look.models)
            for dash, part in parts_of(own, "dashes"):
                _curve(panel.ax, part, ink, strokes[dash], colours, colour)
        depth_axis(panel.ax)
    colours.add_to(grid)
    grid.handles += [entry(n, linestyle=s) for n, s in strokes.items() if n and len(strokes) > 1]
    scored = SCORE in set(t["y"])
    words = ("best layer", "model output") if scored else ("best by the metric", "last layer")
    if scored and not only_score:
        words = ("best layer, or best by the metric", "model output, or last layer")
    grid.handles += [entry(words[0], **marks.best())] if t["best"].any() else []
    grid.handles.append(entry(words[1], **marks.output()))
    if t.get("chance", pd.Series(dtype=float)).notna().any():
        grid.handles.append(entry("chance", color=theme.GREY, linestyle="dotted"))
    return grid.legend().label(marks.DEPTH, _axis).figure


def _curve(ax: Any, part: pd.DataFrame, ink: Any, stroke: Any, colours: Any, name: str) -> None:
    y = part["y"].iloc[0]
    scale = 100 if y in (SCORE, DIFFERENCE) else 1
    many = colours.continuous
    line(
        ax,
        part,
        "depth",
        colour=ink,
        scale=scale,
        linestyle=stroke,
        shade=0.08 if many else 0.16,
        marker=colours.markers[name],
        markersize=2.2,
    )
    last = part.loc[part["depth"] == 1, "value"]
    if y == SCORE:
        last = part["output_score"].dropna().head(1)
        if part["chance"].notna().any():
            ax.axhline(100 * part["chance"].iloc[0], color=theme.GREY, linestyle="dotted", lw=0.8)
    if y == DIFFERENCE:
        marks.zero(ax)
        return
    ax.plot([1.0] * len(last), scale * last, **marks.output(ink, small=many))
    best = part[part["best"]]
    if len(best) == 1:  # ties have no best layer
        ax.plot(best["depth"], scale * best["value"], **marks.best(ink, small=many))


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
    table = data.prompts()
    rows = []
    for about, part in curves_of(table, [*POINT, "corpus", "metric"]):
        there = [s for s in SUBLAYERS if s in set(part["sublayer"])]
        if len(there) < 2:
            raise LayerwiseError(
                f"The tables of {about['model']} hold no sublayers; name them under "
                "extract.sublayers, or leave the model out of this study.",
                code="missing",
            )
        values = {s: matrix(part[part["sublayer"] == s]) for s in there}
        prompts = sorted(set.intersection(*(set(v.index) for v in values.values())))
        values = {s: v.loc[prompts] for s, v in values.items()}
        before = values[BLOCK].to_numpy(dtype=float)[:, :-1]
        layers = values[BLOCK].columns.to_numpy()[1:]
        for sublayer, wide in values.items():
            found, more = mean_ci(wide.to_numpy(dtype=float)), {"sublayer": sublayer}
            rows.append(by_layer(found, wide.columns.to_numpy(), **about, what="metric", **more))
        for sublayer, step in STREAM.items():
            if sublayer not in there or (step == "MLP" and "mlp" not in there):
                continue
            now = values[sublayer][layers].to_numpy(dtype=float)
            more = {"what": "change", "sublayer": sublayer, "step": step}
            rows.append(by_layer(paired_difference(now, before), layers, **about, **more))
            before = now
    return pd.concat(rows, ignore_index=True)


@kind("sublayers", "A metric inside blocks by depth", sublayers)
def plot_sublayers(table: pd.DataFrame, look: Look) -> Figure:
    """Draw each sublayer by depth; below, what mixer and MLP add to the residual stream."""
    t = place(table, Look({"column": look.roles["column"]}, look.models))
    t["row"] = pd.Categorical(t["what"], ["metric", "change"])
    grid = facets(t, look)
    names = [s for s in SUBLAYERS if s in set(t["sublayer"])]
    inks = {s: theme.PALETTE[i % 7] for i, s in enumerate(names)} | {BLOCK: theme.INK}
    added = {
        "mixer": inks.get("mixer", theme.PALETTE[0]),
        "MLP": inks.get("mlp", theme.PALETTE[1]),
    }
    for panel in grid.panels:
        for sublayer, part in parts_of(panel.table, "sublayer"):
            changes = panel.row == "change"
            ink = added[STREAM[sublayer]] if changes else inks[sublayer]
            line(panel.ax, part, "depth", colour=ink)
        depth_axis(panel.ax)
        if panel.row == "change":
            marks.zero(panel.ax)
    metric = str(t["metric"].iloc[0])
    grid.label(
        marks.DEPTH,
        lambda p: (
            with_unit("Added to the stream", metric)
            if p["what"].iloc[0] == "change"
            else axis_label(metric)
        ),
    )
    return grid.legend([entry(SUBLAYERS[s], color=inks[s]) for s in names]).figure


# Columns of the scores of probes, as the table of this figure names them.
PROBE_COLUMNS = {
    "main_score": "linear",
    "score_low": "low",
    "score_high": "high",
    "control": "control",
    "selectivity": "selectivity",
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
    require_columns(table, list(PROBE_COLUMNS), "scores")
    table = table[table["control"].notna()].drop(columns=NOT_OF_PROBES, errors="ignore")
    if table.empty:
        raise LayerwiseError(
            "No score is of a probe; score a task of your own labels.", code="missing"
        )
    table = table.rename(columns=PROBE_COLUMNS)
    table = name_readouts(at_checkpoints(table, data.checkpoints([table])))
    table = data.rows(table, "tokens", "task_type")
    # A study may name tasks without probes as well.
    tasks = [t for t in study.tasks or () if t in set(table["task"])]
    if study.tasks:
        table = only(table, "task", tasks or study.tasks)
    table = with_representation(data.of_pooling(table))
    width = (table["high"] - table["low"]) / (2 * norm.isf((1 - data.confidence) / 2))
    table["p"] = norm.sf(table["selectivity"] / (np.sqrt(2) * width))
    curve = table.groupby(["model", "representation", "task"])["p"]
    table = table.assign(p_adjusted=curve.transform(lambda p: holm(p.to_numpy())), y="probe")
    return data.sort(table)


@kind("probes_by_depth", "Linear probes by depth", probes)
def plot_probes(table: pd.DataFrame, look: Look) -> Figure:
    """Draw probe, control and selectivity by depth."""
    t = place(table, look)
    grid = facets(t, look, height=2.1)
    blue, orange = theme.PALETTE[:2]
    for panel in grid.panels:
        part = panel.table
        for column, ink, style in (
            ("chance", theme.GREY, "dotted"),
            ("control", theme.GREY, "dashed"),
            ("selectivity", orange, "solid"),
            ("linear", blue, "solid"),
        ):
            low = "low" if column == "linear" else ""
            line(panel.ax, part, "depth", column, low=low, scale=100, colour=ink, linestyle=style)
        above = part[part["p_adjusted"] < ALPHA]
        marks.dots(panel.ax, above["depth"], 100 * above["linear"], colour=blue)
        depth_axis(panel.ax)
    grid.label(
        marks.DEPTH, lambda p: PROBED.get(p["task_type"].iloc[0], "Accuracy (%)"), share=False
    )
    above_control = {"color": blue, "marker": "o", "markersize": 4, "linestyle": "none"}
    handles = [
        entry("linear probe", color=blue),
        entry("above its control (adjusted p < .05)", **above_control),
        entry("control", color=theme.GREY, linestyle="dashed"),
        entry("selectivity: probe less control", color=orange),
        entry("most frequent class", color=theme.GREY, linestyle="dotted"),
    ]
    return grid.legend(handles).figure
