"""Metrics against scores: their association over layers, and the layers that metrics select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.curves import (
    BASELINE,
    CURVE_KEYS,
    KEYS,
    ScoreCurves,
    metric_curves,
    score_curves,
    usable,
)
from layerwise.association.scores import HIGHEST, LOWEST, gains_by_task, with_representation
from layerwise.association.selection import ORACLE
from layerwise.association.table import ALL_MODELS, MATCH
from layerwise.config.settings import OWN_TEXTS
from layerwise.config.studies import Study, kind, several
from layerwise.errors import LayerwiseError
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import MEASURES, RULES, SCORE_AXIS, Data, metric_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY = "all"  # in place of a measure: all of them
# Random signs of n cosine coefficients make 2^(n - 2) curves that differ for these measures. With
# fewer than 20 of them, the curve itself is among the largest 5%.
FEWEST_LAYERS_FOR_NULL = 7
BEYOND_NULL, WITHIN_NULL, TOO_FEW_LAYERS = "beyond", "within", "too few layers to tell"
RENAMED = {
    "low": "association_low",
    "high": "association_high",
    "sign": "association_sign",
    "null95": "null95",
    "value": "association",
    "n_tasks": "over_tasks",
    "n_layers": "n_layers",
}
COLUMNS = list(RENAMED.values())


def measures_of(study: Study, associations: pd.DataFrame) -> list[str]:
    """The measures that a study shows."""
    there = set(associations["measure"].unique())
    measures = [m for m in MEASURES if m in there]
    if study.measure == EVERY:
        return measures
    wanted = several(study.measure) or measures[:1]
    select.only(associations, "measure", wanted)
    return list(wanted)


def against_null(table: pd.DataFrame, study: Study, value: str = "value") -> pd.Series:
    """Compare absolute associations over layers with their null levels.

    The null of few layers contains the curve itself. An association that equals its level up
    to rounding, or is of too few layers to exceed any level, is neither beyond nor within.

    Returns
    -------
    Series of str
        ``beyond``, ``within`` or ``too few layers to tell``; empty without a level.
    """
    size, null = table[value].abs(), table["null95"]
    too_few = pd.Series(np.isclose(size, null, rtol=1e-9, atol=0), table.index)
    if study.over == "layers":  # the null of distance correlations is of random walks
        too_few |= (table["n_layers"] < FEWEST_LAYERS_FOR_NULL) & (table["measure"] != "dcor")
    cases = [null.isna(), too_few, size > null]
    verdict = np.select(cases, ["", TOO_FEW_LAYERS, BEYOND_NULL], WITHIN_NULL)
    return pd.Series(verdict, table.index)


def metric_vs_score(data: Data) -> pd.DataFrame:
    """Value of a metric and mean score at each layer, with the association of their curves.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model with the same checkpoint and tokens, or the
        associations are over other tasks.
    """
    shown = data.checkpoints(data.tables["metrics"], data.tables["scores"])
    scores, metrics = data.scores(shown), data.metrics(data.tables["metrics"], shown)
    on_own_texts = OWN_TEXTS in (data.study.corpora or ())
    if on_own_texts:
        metrics = metrics[metrics["corpus"].isin(list(data.own_texts))]
        if metrics.empty:
            raise LayerwiseError(
                f"This study asks for {OWN_TEXTS!r}, and none of its corpora is a task's own "
                "texts; name each one's task under association.own_texts.",
                code="missing",
            )
    corpora = [OWN_TEXTS] if on_own_texts else list(metrics["corpus"].unique())
    frames: list[pd.DataFrame] = []
    points: list[pd.DataFrame] = []
    for curves in score_curves(scores):
        own_texts = data.own_texts if on_own_texts else None
        variants, values, *_ = metric_curves(metrics, curves, own_texts)
        for index in np.flatnonzero(variants["corpus"].isin(corpora)):
            tasks, layers = usable(values[index])
            if not tasks.any():
                continue
            at = curves.layers[layers]
            columns = {
                **curves.about,
                **variants.iloc[int(index)],
                "layer": at,
                "depth": at / max(curves.last_layer, 1),
                "value": values[index][tasks][:, layers].mean(axis=0),
                "score": curves.values[tasks][:, layers].mean(axis=0),
                "output_score": curves.output[tasks].mean(),
                "output_from": curves.output_from,
                "n_tasks": int(tasks.sum()),
                "n_clusters": len(set(curves.sources[tasks])),
            }
            frames.append(pd.DataFrame(columns))
            points += _of_each_task(columns, values[index], curves, tasks, layers)
    if not frames:
        raise LayerwiseError(
            "The metrics and scores of this study have no model with the same checkpoint and "
            "tokens in common; name others under `models` or `revisions`.",
            code="too_few",
        )
    y_of = metrics[[*CURVE_KEYS[1:], "y"]].drop_duplicates()
    table = with_representation(pd.concat(frames, ignore_index=True)).merge(
        y_of, on=CURVE_KEYS[1:]
    )
    without = set(shown["model"]) - set(table["model"])
    data.omit(sorted(without), "no metrics on the scored tokens")
    table = data.tidy(_with_associations(table, data))
    if data.study.over == "layers":
        return table
    keys, numbers = [*KEYS[:-1], "layer"], ["value", "score"]
    each = select.with_dimensions(pd.concat(points, ignore_index=True))[[*keys, "text", *numbers]]
    return table.drop(columns=numbers).merge(each, on=keys)


def _of_each_task(
    about: dict[str, Any], values: Any, curves: ScoreCurves, tasks: Any, layers: Any
) -> list[pd.DataFrame]:
    """Value of a metric and score of each task by layer."""
    keys = {name: about[name] for name in (*KEYS[:-1], "layer")}
    return [
        pd.DataFrame({**keys, "text": curves.tasks[at], "value": x[layers], "score": y[layers]})
        for at, (x, y) in enumerate(zip(values, curves.values, strict=True))
        if tasks[at]
    ]


def _with_associations(table: pd.DataFrame, data: Data) -> pd.DataFrame:
    """The table with the columns `COLUMNS`; those of further measures end in their names."""
    table_of_all = data.tables["associations"]
    task_type = select.task_type_of(data.study, table_of_all)
    associations = table_of_all[table_of_all["task_type"] == task_type].rename(columns=RENAMED)
    measures = measures_of(data.study, associations)
    for measure in measures:
        rows = associations.loc[associations["measure"] == measure, [*KEYS[:-1], *COLUMNS]]
        table = table.merge(rows, on=KEYS[:-1], how="left", suffixes=("", f"_{measure}"))
    other = table[table["over_tasks"].notna() & (table["over_tasks"] != table["n_tasks"])]
    if len(other):
        row = other.iloc[0]
        raise LayerwiseError(
            f"The associations of {row['metric']} in {row['model']} are over other tasks than "
            f"the {row['n_tasks']} that this study draws; associate the study's own tasks.",
            code="mismatch",
        )
    table = table.drop(columns=list(table.filter(like="over_tasks")))
    table = table.assign(measure=measures[0])
    return table.assign(against_null=against_null(table, data.study, "association"))


@kind(
    "metric_vs_score",
    table=metric_vs_score,
    about="metric against score, a point per layer",
    title="Metric against task score, by layer",
    reads=("metrics", "scores", "associations"),
    roles={"row": ("model",), "column": ("tokens", "pooling", "y")},
    roles_of_checkpoints={"row": ("model", "revision"), "column": ("tokens", "pooling", "y")},
    takes=("row", "column"),
    metrics=("prompt_entropy", "curvature", "infonce"),
    single=("task_types",),
    caption=(
        "Metric on {corpora} against the mean main score over {n_tasks} tasks ({n_clusters} task "
        "clusters), {points}"
    ),
)
def plot_metric_vs_score(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a point per layer, joined in order of depth, or per task and layer."""
    over_tasks = "text" in table
    grid = panels.facets(table, look, height=2.3, columns=6, width=2.2)
    for panel in grid.panels:
        subset, ax = panel.table.sort_values("depth"), panel.ax
        x, y = subset["value"], 100 * subset["score"]
        if not over_tasks:
            ax.plot(x, y, color=panels.FAINT, linewidth=0.8, zorder=2)
        dots: dict[str, Any] = {"s": 18, "edgecolors": "white", "linewidths": 0.4, "zorder": 3}
        ax.scatter(x, y, c=subset["depth"], cmap=panels.sequential(), vmin=0, vmax=1, **dots)
        top = subset.iloc[int(y.argmax())]
        if not over_tasks:
            ax.plot(top["value"], y.max(), **RING)
        if pd.notna(top["output_score"]) and not over_tasks:
            ax.axhline(100 * top["output_score"], **OUTPUT_LINE)
        ax.text(
            0,
            1.02,
            _association(top),
            transform=ax.transAxes,
            fontsize=panels.SMALL,
            color=panels.GREY,
        )
        ax.set_title(ax.get_title(loc="left"), pad=25)
        ax.margins(0.08)
        ax.locator_params("x", nbins=4)
        ax.set_xlabel(panels.metric_axis(subset))
        axis = SCORE_AXIS.replace("Mean task", "Task") if over_tasks else SCORE_AXIS
        ax.set_ylabel(axis if panel.left else "")
    panels.depth_bar(grid)
    handles = [panels.entry("best layer", **RING), panels.entry("model output", **OUTPUT_LINE)]
    return grid.legend([] if over_tasks else handles).figure


RING = panels.dot(markersize=7.5, color="none", markeredgecolor=panels.INK, zorder=4)
OUTPUT_LINE: dict[str, Any] = {"color": panels.GREY, "lw": 0.8, "linestyle": "dashed", "zorder": 1}


def _association(row: pd.Series) -> str:
    if pd.isna(row["association"]):
        return ""
    text = f"{MEASURES[row['measure']]} = {row['association']:.2f}\n"
    if row["measure"] == "slope":
        text += f"(95% CI {row['association_low']:.2f} to {row['association_high']:.2f})"
    elif row["against_null"] == TOO_FEW_LAYERS:
        text += f"({TOO_FEW_LAYERS})"
    else:
        text += f"(null 95%: {row['null95']:.2f})"
    return text.replace("-", "−")


def association_strength(data: Data) -> pd.DataFrame:
    """Association of each metric and baseline with the score, by model and over models.

    `null95` is `layerwise.association.null_level`, which `against_null` compares with the value.
    """
    table = data.tables["associations"]
    measures = measures_of(data.study, table)
    over_models = [MATCH if measure == "r" else measure for measure in measures]
    is_of_all = table["model"] == ALL_MODELS
    of_models = ~is_of_all & table["measure"].isin(measures)
    table = data.results(table[of_models | (is_of_all & table["measure"].isin(over_models))])
    order = [*measures, MATCH]
    table = table.sort_values("measure", key=lambda m: m.map(order.index), kind="stable")
    # Depth and smooth functions of it leave nothing given depth.
    given_depth = table["measure"].isin(["r", MATCH, "slope"])
    table = table[table["value"].notna() & ~(given_depth & (table["protocol"] == BASELINE))]
    if table.empty:
        raise LayerwiseError(
            f"No metric has {' or '.join(MEASURES[m] for m in measures)} here: models have fewer "
            "layers than it takes.",
            code="unsupported",
        )
    return table.assign(against_null=against_null(table, data.study))


@kind(
    "association_strength",
    table=association_strength,
    about="association of each metric with the task score, and of baselines",
    title="Association of metrics with task scores",
    reads=("associations",),
    roles={"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
    metrics=None,
    single=("task_types",),
    caption=(
        "Association over layers of each metric on {n_prompts} prompts of {corpora} with the mean "
        "main score over {n_tasks} tasks ({n_clusters} task clusters). Ticks: the level that 95% "
        "of unrelated curves as smooth as the score's stay below; for distance correlations, of "
        "random walks.{slopes}{over_models} Bold: baselines that use no activations."
    ),
)
def plot_association_strength(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a panel per measure, with a row per metric and a dot per model.

    A dot is open where its association does not exceed that of unrelated curves, and a triangle
    where too few layers allow no comparison.
    """
    first = table[table["measure"].isin([table["measure"].iloc[0], MATCH])]
    size = first["value"].abs().groupby(first["metric"]).mean().sort_values(ascending=False)
    baselines = set(table.loc[table["protocol"] == BASELINE, "metric"])
    # Of models with few layers only the match over models is left.
    table = table.assign(measure=table["measure"].replace(MATCH, "r"))
    others = [name for name in table["metric"].unique() if name not in size]
    grid = rows_of_rules(table, look, sorted([*size.index, *others], key=lambda r: r in baselines))
    for panel in grid.panels:
        ax, measure = panel.ax, str(panel.table["measure"].iloc[0])
        for style, curve in grid.curves(panel):
            rough_or_untold = [curve["n"] < stats.FEW, curve["against_null"] == TOO_FEW_LAYERS]
            for (rough, untold), rows in curve.groupby(rough_or_untold):
                beyond = rows["against_null"] == BEYOND_NULL
                if measure == "slope" or (rows["model"] == ALL_MODELS).all():
                    beyond = (rows["low"] > 0) | (rows["high"] < 0) | (rows["p_adjusted"] <= 0.05)
                marker = {"marker": panels.ROUGH} if rough else UNTOLD if untold else {}
                ends = rows["low"], rows["high"]
                panels.dots(ax, rows["value"], rows["height"], *ends, beyond, **style | marker)
                for end in (1, -1) if measure != "dcor" else (1,):
                    ax.plot(end * rows["null95"], rows["height"], "|", ms=6, color=style["color"])
        # A wide interval must not squeeze the dots.
        low, high = ax.get_xlim()
        largest = table.loc[table["measure"] == measure, "value"].abs().max()
        reach = max(1.0 if measure != "slope" else 0.0, 1.5 * largest)
        ax.set_xlim(max(low, -reach), min(high, reach))
        if measure != "dcor":
            ax.axvline(0, color=panels.GREY, linewidth=0.7, zorder=1)
        ax.set_xlabel(f"{MEASURES[measure]} of metric and score")
    handles = [panels.entry("no more than unrelated curves", **OPEN)]
    if (table["against_null"] == TOO_FEW_LAYERS).any():
        handles.append(panels.entry(TOO_FEW_LAYERS, **OPEN | UNTOLD))
    if (table["measure"] != "slope").any():
        handles.append(panels.entry("null 95%", **panels.dot(marker="|", color=panels.GREY)))
    return grid.legend(handles, linestyle="none", markersize=5).figure


OPEN = panels.dot(markersize=5, color="white", markeredgecolor=panels.INK)
UNTOLD: dict[str, Any] = {"marker": "^"}


def rows_of_rules(
    table: pd.DataFrame,
    look: Look,
    rules: list[str],
    colour: str = "model",
    column: tuple[str, ...] = ("measure", "representation"),
) -> panels.Facets:
    """Make panels with a row per rule, the first on top, a colour per model or end of a metric.

    The column ``height`` of the panels' tables is that of each dot. The names of rules that need
    no metric are bold.
    """
    order = [*look.models, ALL_MODELS, LOWEST, HIGHEST]
    names = sorted(table[colour].unique(), key=order.index)
    shift = 0.8 * ((table[colour].map(names.index) + 0.5) / len(names) - 0.5)
    t = table.assign(height=table["y"].map(rules.index) + shift)
    t = t.sort_values(colour, key=lambda n: n.map(names.index), kind="stable")
    tall = max(0.27, min(0.07 * len(names), 4 / len(rules))) * len(rules) + 1
    roles = look.only(column=column, colour=(colour,))
    grid = panels.facets(t, roles, height=tall, width=3.6, columns=3)
    for panel in grid.panels:
        panels.named_rows(panel, [metric_label(rule) for rule in rules], bold=RULES.values())
    return grid


def layer_selection(data: Data) -> pd.DataFrame:
    """Layer selected by each rule in each model, and its regret against the best layer.

    `unreliable` says why a metric is decided by its regulariser or by the number of prompts; its
    layer is not to be used.
    """
    return data.results(data.tables["selections"])


@kind(
    "layer_selection",
    table=layer_selection,
    about="score lost by selecting the layer with a metric, without labels",
    title="Score lost by selecting layers without labels",
    reads=("selections",),
    roles={"row": ("y",), "column": ("tokens", "pooling"), "colour": ("model",)},
    metrics=None,
    single=("task_types",),
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) of the best layer less "
        "that of the layer selected by each rule, in each model. A metric selects the layer at "
        "its declared better end, without scores. Lines: 95% CI over task clusters; arrows: "
        "beyond the axis. Bold: rules that need no metric, and rules over all metrics. Unreliable "
        "metrics are decided by their regulariser or by the number of prompts; one near chance at "
        "every layer selects none."
    ),
)
def plot_layer_selection(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per rule, a dot per model, the mean over models as a bar."""
    table = table[table["metric"] != ORACLE]  # It loses nothing by definition.
    bad = set(table.loc[table["unreliable"] != "", "metric"])
    table = table.assign(counts=~table["model"].isin([*look.copies]))
    mean = table[table["counts"]].groupby("metric")["regret"].mean().sort_values()
    # Rules that need no metric first, then metrics by their mean regret, unreliable ones last.
    rules = sorted(mean.index, key=lambda r: (r not in RULES, r in bad))
    grid = rows_of_rules(table, look, rules)
    top = 1.15 * max(100 * float(table["regret"].max()), 1.0)
    for panel in grid.panels:
        for style, subset in grid.curves(panel):
            low, high = (
                (100 * subset[["regret_low", "regret_high"]].clip(0, top / 100)).to_numpy().T
            )
            x, y = 100 * subset["regret"], subset["height"]
            panels.dots(panel.ax, x, y, low, high, subset["unreliable"] == "", **style)
            beyond = y[100 * subset["regret_high"] > top]
            panels.points(
                panel.ax, [top] * len(beyond), beyond, **BEYOND | {"color": style["color"]}
            )
        counted = panel.table[panel.table["counts"] & ~panel.table["metric"].isin(bad)]
        means = counted.groupby("metric")["regret"].mean()
        panel.ax.plot(100 * means, [rules.index(r) for r in means.index], **MEAN)
        panel.ax.set_xlim(0, top)
        panel.ax.set_xlabel("Score lost against the best layer (points)")
    handles = [panels.entry("mean over models", **MEAN)]
    if (100 * table["regret_high"] > top).any():
        handles.append(panels.entry("interval goes on", **BEYOND))
    handles += [panels.entry("unreliable metric", **OPEN)] if bad else []
    return grid.legend(handles, linestyle="none", markersize=5).figure


BEYOND = panels.dot(marker=">", markersize=4)
MEAN = panels.dot(marker="|", markersize=11, markeredgewidth=2, clip_on=True)


def task_selection(data: Data) -> pd.DataFrame:
    """Mean gain of each metric's lowest and highest layer, selected for each task.

    Raises
    ------
    LayerwiseError
        If no model has metrics on the texts of a task that has scores.
    """
    shown = data.checkpoints(data.tables["metrics"], data.tables["scores"])
    metrics = data.metrics(data.tables["metrics"], shown)
    metrics = metrics[metrics["corpus"].isin(list(data.own_texts))]
    frames = []
    for curves in score_curves(data.scores(shown)):
        if curves.omitted:
            data.omit([curves.omitted], "scores are missing")
        variants, values, *_ = metric_curves(metrics, curves, data.own_texts)
        for variant, value in zip(variants.to_dict("records"), values, strict=True):
            if variant["corpus"] == OWN_TEXTS:
                about = pd.DataFrame([variant]).assign(**curves.about)
                frames.append(gains_by_task(value, curves).merge(about, how="cross"))
    if not any(map(len, frames)):
        raise LayerwiseError(
            "No model of this study has metrics on the texts of a task that it has scores of; "
            "name each task's corpus under association.own_texts.",
            code="missing",
        )
    y_of = metrics[["metric", "protocol", "alpha", "normalization", "y"]].drop_duplicates()
    return pd.concat(frames, ignore_index=True).merge(y_of)


@kind(
    "task_selection",
    table=task_selection,
    about="gain over the output if each task takes the layer that a metric selects on its texts",
    title="Gain of layers selected for each task",
    reads=("metrics", "scores"),
    roles={"row": ("y",), "column": ("model", "tokens", "pooling", "corpus")},
    metrics=None,
    single=("pooling", "tokens"),
    caption=(
        "Mean main score of the layers at the lowest and at the highest value of each metric on a "
        "task's own texts, less that of the model's output, over {n_tasks} tasks ({n_clusters} "
        "task clusters). Lines: 95% CI over task clusters."
    ),
)
def plot_task_selection(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per metric, a panel per model, a colour per end of the metric."""
    metrics = list(dict.fromkeys(table["y"]))
    grid = rows_of_rules(table, look, metrics, colour="end", column=("model",))
    for panel in grid.panels:
        for style, rows in grid.curves(panel):
            gain, low, high = (100 * rows[column] for column in ("gain", "low", "high"))
            panels.dots(panel.ax, gain, rows["height"], low, high, **style)
        panel.ax.axvline(0, color=panels.GREY, linewidth=0.8)
    grid.label("Gain over the output (points)")
    return grid.legend(linestyle="none", markersize=5).figure
