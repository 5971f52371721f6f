"""Metrics against scores over layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.association.curves import (
    BASELINE,
    KEYS,
    VARIANT,
    metric_curves,
    require_columns,
    score_curves,
    usable,
)
from layerwise.association.scores import with_representation
from layerwise.association.table import ALL_MODELS, COLUMNS, MATCH
from layerwise.config.association import OWN_TEXTS
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.labels import MEASURES, RULES, SCORE_AXIS, metric_label
from layerwise.figures.marks import entry, facets, few_ticks, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import Data, task_type_of
from layerwise.stats import FEW

EVERY = "all"  # in place of a measure: all of them
NULL95 = {
    "low": "association_low",
    "high": "association_high",
    "sign": "association_sign",
    "null95": "null95",
    "value": "association",
}


def measures_of(study: Study, associations: pd.DataFrame) -> tuple[str, ...]:
    """The measures that a study shows.

    Raises
    ------
    LayerwiseError
        If the associations do not have it.
    """
    require_columns(associations, COLUMNS, "associations")
    there = [m for m in MEASURES if m in set(associations["measure"])]
    wanted = study.measure or there[0]
    if wanted not in (*there, EVERY):
        raise LayerwiseError(
            f"This study asks for the measure {wanted!r}, and its associations have "
            f"{', '.join(there)}.",
            code="unknown_name",
        )
    return tuple(there) if wanted == EVERY else (wanted,)


def points(data: Data) -> pd.DataFrame:
    """Value of a metric and mean score at each layer, with the association of their curves.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model with the same checkpoint and tokens, or the
        associations are over other tasks.
    """
    study = data.study
    shown = data.checkpoints([data.tables["metrics"], data.tables["scores"]])
    scores, metrics = data.scores(shown), data.metrics(data.tables["metrics"], shown)
    own = OWN_TEXTS in (study.corpora or ())
    if own:
        metrics = metrics[metrics["corpus"].isin(list(data.own_texts))]
        if metrics.empty:
            raise LayerwiseError(
                f"This study asks for {OWN_TEXTS!r}, and none of its corpora is a task's own "
                "texts; name each one's task under association.own_texts.",
                code="missing",
            )
    y_of = metrics[[*VARIANT[1:], "y"]].drop_duplicates()
    corpora = [OWN_TEXTS] if own else list(metrics["corpus"].unique())
    frames = []
    for curves in score_curves(scores):
        variants, values, *_ = metric_curves(metrics, curves, data.own_texts if own else None)
        for index in np.flatnonzero(variants["corpus"].isin(corpora)):
            tasks, layers = usable(values[index])
            if not tasks.any():
                continue
            frames.append(
                pd.DataFrame(
                    {
                        **curves.about,
                        **variants.iloc[int(index)],
                        "layer": curves.layers[layers],
                        "depth": (curves.layers / max(curves.last_layer, 1))[layers],
                        "value": values[index][tasks][:, layers].mean(axis=0),
                        "score": curves.values[tasks][:, layers].mean(axis=0),
                        "output_score": curves.output[tasks].mean(),
                        "output_from": curves.output_from,
                        "n_tasks": int(tasks.sum()),
                        "n_clusters": len(set(curves.sources[tasks])),
                    }
                )
            )
    if not frames:
        raise LayerwiseError(
            "The metrics and scores of this study have no model with the same checkpoint and "
            "tokens in common; name others under `models` or `revisions`.",
            code="too_few",
        )
    table = pd.concat(frames, ignore_index=True).merge(y_of, on=VARIANT[1:])
    data.omit(
        [m for m in shown if m not in set(table["model"])], "no metrics on the scored tokens"
    )
    return data.tidy(_with_associations(with_representation(table), data))


def _with_associations(table: pd.DataFrame, data: Data) -> pd.DataFrame:
    associations = data.tables["associations"]
    group = task_type_of(data.study, associations)
    found = associations[associations["task_type"] == group].rename(columns=NULL95)
    names = list(NULL95.values())
    for k, measure in enumerate(measures_of(data.study, associations)):
        one = found.loc[found["measure"] == measure, [*KEYS[:-1], *names, "n_tasks"]]
        # The first measure's columns have plain names.
        more = {c: f"{c}_{measure}" for c in names} if k else {}
        one = one.rename(columns={"n_tasks": "over_tasks", **more})
        table = table.merge(one, on=KEYS[:-1], how="left").assign(
            measure=measure if not k else table["measure"]
        )
        over = table.pop("over_tasks")
        other = table[over.notna() & (over != table["n_tasks"])]
        if len(other):
            row = other.iloc[0]
            raise LayerwiseError(
                f"The associations of {row['metric']} in {row['model']} are over other tasks than "
                f"the {row['n_tasks']} that this study draws; associate the study's own tasks.",
                code="mismatch",
            )
    return table


@kind("metric_vs_score", "Metric against task score, by layer", points)
def plot_points(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a point per layer, joined in order of depth and coloured by it."""
    t = place(table, look)
    grid = facets(
        t, look, height=2.1, columns=6 if len(t["column"].cat.categories) <= 6 else 4, width=2.1
    )
    for panel in grid.panels:
        part, ax = panel.table.sort_values("depth"), panel.ax
        ax.plot(part["value"], 100 * part["score"], color=theme.FAINT, linewidth=0.8, zorder=2)
        ax.scatter(
            part["value"],
            100 * part["score"],
            c=part["depth"],
            cmap=theme.sequential(),
            vmin=0,
            vmax=1,
            s=18,
            edgecolors="white",
            linewidths=0.4,
            zorder=3,
        )
        top = part.iloc[int(part["score"].argmax())]
        ax.plot(top["value"], 100 * top["score"], **RING)
        if pd.notna(top["output_score"]):
            ax.axhline(100 * top["output_score"], **OUTPUT)
        ax.annotate(
            _association(top),
            (0, 1),
            (2, 2),
            xycoords="axes fraction",
            fontsize=6.5,
            textcoords="offset points",
            color=theme.GREY,
        )
        ax.set_title(ax.get_title(loc="left"), pad=14)
        ax.margins(0.08)
        few_ticks(ax)
        ax.set_xlabel(marks.metric_axis(part), fontsize=7.5)
    for panel in grid.panels:
        panel.ax.set_ylabel(SCORE_AXIS if panel.left else "")
    marks.depth_bar(grid)
    return grid.legend([entry("best layer", **RING), entry("model output", **OUTPUT)]).figure


RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 7.5,
    "color": "none",
    "markeredgecolor": theme.INK,
    "markeredgewidth": 1.0,
    "linestyle": "none",
    "zorder": 4,
}
OUTPUT: dict[str, Any] = {
    "color": theme.GREY,
    "linewidth": 0.8,
    "linestyle": "dashed",
    "zorder": 1,
}


def _association(row: pd.Series) -> str:
    if pd.isna(row["association"]):
        return ""
    value = f"{MEASURES[row['measure']]} = {row['association']:.2f}"
    if row["measure"] == "slope":
        return f"{value} (95% CI {row['association_low']:.2f} to {row['association_high']:.2f})"
    return f"{value} (null 95%: {row['null95']:.2f})"


def strength(data: Data) -> pd.DataFrame:
    """Association of each metric and baseline with the score, by model and over models.

    `null95` is the level that 95% of pairs of unrelated smooth curves stay below.
    """
    found = data.tables["associations"]
    measure = measures_of(data.study, found)[0]
    of_models = found["model"] == ALL_MODELS
    wanted = np.where(of_models, MATCH if measure == "r" else measure, measure)
    table = data.results(found[found["measure"] == wanted])
    table = table[table["value"].notna()]
    # Depth and smooth functions of it leave nothing given depth.
    if measure in ("r", "slope"):
        table = table[table["protocol"] != BASELINE]
    if table.empty:
        raise LayerwiseError(
            f"No metric has {MEASURES[measure]} here: models have fewer layers than it takes.",
            code="unsupported",
        )
    table = with_representation(table).assign(y=table["metric"])
    return table.rename(columns={"n_sources": "n_clusters"})


@kind("association_strength", "Association of metrics with task scores", strength)
def plot_strength(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a row per metric, a dot per model; open where no more than unrelated curves."""
    t = place(table, Look({"column": ("representation",)}, look.models))
    size = t.assign(size=t["value"].abs()).groupby("metric")["size"].mean()
    rules = list(size.sort_values(ascending=False).index)
    rules = sorted(rules, key=lambda r: r in set(t.loc[t["protocol"] == BASELINE, "metric"]))
    measure = t.loc[t["measure"] != MATCH, "measure"].iloc[0]
    grid = rows_of_rules(t, look, rules)
    for panel in grid.panels:
        for (model, rough), part in panel.table.groupby(["model", panel.table["n"] < FEW]):
            colour = theme.colour_of(str(model), look.models)
            beyond = part["value"].abs() > part["null95"]
            if measure == "slope" or model == ALL_MODELS:
                beyond = (part["low"] > 0) | (part["high"] < 0) | (part["p_adjusted"] <= 0.05)
            marker = marks.ROUGH if rough else theme.marker_of(str(model), look.models)
            style: dict[str, Any] = {"colour": colour, "marker": marker, "filled": beyond}
            marks.dots(panel.ax, part["value"], part["place"], part["low"], part["high"], **style)
            for end in (1, -1) if measure != "dcor" else (1,):
                panel.ax.plot(end * part["null95"], part["place"], "|", markersize=6, color=colour)
        # A wide interval must not squeeze the dots.
        low, high = panel.ax.get_xlim()
        reach = max(1.0 if measure != "slope" else 0.0, 1.5 * t["value"].abs().max())
        panel.ax.set_xlim(max(low, -reach), min(high, reach))
        if measure != "dcor":
            panel.ax.axvline(0, color=theme.GREY, linewidth=0.7, zorder=1)
        panel.ax.set_xlabel(f"{MEASURES[measure]} of metric and score")
    handles = [entry("no more than unrelated curves", **OPEN)]
    if measure != "slope":
        handles.append(entry("null 95%", marker="|", color=theme.GREY, linestyle="none"))
    return grid.legend(handles).figure


OPEN: dict[str, Any] = {
    "marker": "o",
    "markersize": 5,
    "color": "white",
    "markeredgecolor": theme.INK,
    "linestyle": "none",
}


def rows_of_rules(t: pd.DataFrame, look: Look, rules: list[str]) -> marks.Facets:
    """Make panels with a row per rule, the first on top, and legend entries of the models.

    The column ``place`` of the panels' tables is the height of each model's dot.
    """
    models = [m for m in [*look.models, ALL_MODELS] if m in set(t["model"])]
    shift = 0.8 * ((t["model"].map(models.index) + 0.5) / len(models) - 0.5)
    t = t.assign(place=t["metric"].map(rules.index) + shift)
    height = max(0.27, min(0.07 * len(models), 4 / len(rules))) * len(rules) + 1
    grid = facets(t, look, height=height, width=3.6, columns=3)
    for panel in grid.panels:
        ax = panel.ax
        ax.set_yticks(range(len(rules)), [metric_label(rule) for rule in rules])
        for label, rule in zip(ax.get_yticklabels(), rules, strict=True):
            label.set_fontweight("bold" if rule in RULES else "normal")
        ax.tick_params(axis="y", length=0, labelleft=panel.left)
        ax.set_ylim(len(rules) - 0.4, -0.6)
        ax.grid(axis="x")
        ax.grid(axis="y", visible=False)
        ax.set_title(panel.column)
    for m in models:
        style = {"marker": theme.marker_of(m, look.models), "linestyle": "none", "markersize": 5}
        name = "over models" if m == ALL_MODELS else m
        grid.handles.append(entry(name, color=theme.colour_of(m, look.models), **style))
    return grid
