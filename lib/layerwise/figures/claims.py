"""Which claims about metrics and scores stand: leads over the last layer, and what metrics say."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.claims import LAST, claims
from layerwise.association.curves import select
from layerwise.association.order import in_order
from layerwise.config.kinds import roles_of
from layerwise.config.studies import several
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import at_checkpoints, checkpoints, pick_metrics, pick_scores
from layerwise.figures.given import Given
from layerwise.figures.labels import metric_label
from layerwise.statistics.headlines import ALPHA, Count

RISE = 0.16  # of a row, between two points in it


def draw(given: Given) -> Drawn:
    """Draw leads over the last layer, slopes given depth, and what own texts say.

    Returns
    -------
    Drawn
        Its table is that of `layerwise.association.claims.claims`: every test, also those that
        the figure has no room for.
    """
    study = given.study
    shown = checkpoints([given.tables["scores"], given.tables["metrics"]], study, given.order)
    roles_of(study, several=any(len(r) > 1 for r in shown.values()))
    scores = at_checkpoints(pick_scores(given.tables["scores"], study), shown)
    metrics = at_checkpoints(pick_metrics(given.tables["metrics"], study), shown)
    wanted = [m.metric for m in study.curves or ()]
    chosen = select(metrics, names=wanted or None, protocols=several(study.protocol) or None)
    table = claims(scores, chosen, given.own_texts, list(shown), wanted)
    models = in_order(table["model"].dropna().unique(), list(shown))
    own = "own texts" in set(table["part"])
    named = list(dict.fromkeys(table.loc[table["part"] == "associations", "what"]))
    height = 0.34 * max(len(models), len(named)) + 1.0
    figure, axes = style.grid(1, 2 + own, panel_height=height, panel_width=3.6)
    _leads(axes[0, 0], table, models, given.order.models)
    _by_metric(axes[0, 1], table, "associations", named, models, given.order.models)
    axes[0, 1].set_title("Metric and score, given depth")
    axes[0, 1].set_xlabel("Points of score per sd of the metric")
    if own:
        _by_metric(axes[0, 2], table, "own texts", named, models, given.order.models)
        axes[0, 2].set_title("On a task's own texts")
        axes[0, 2].set_xlabel("Matched correlation; filled: p ≤ .05 within types")
    handles = [
        Line2D([], [], linestyle="none", marker=style.marker_of(m, given.order.models),
               color=style.colour_of(m, given.order.models), markersize=5, label=m)
        for m in models
    ]  # fmt: skip
    marks.legend(figure, handles)
    facts = _facts(table)
    title = Count(**facts["leads"]).text(
        "A lead over the last layer that can be told from 0", "models"
    )
    style.header(
        figure, title,
        "Left: the chosen layer on a new task (filled) and the middle layer (open), over the last "
        "one. Lines: 95 % intervals over tasks.",
    )  # fmt: skip
    caption = (
        "Left: the lead over the last layer, in points, of the layer that the tasks choose, on a "
        "task left out of the choice (filled; the interval pays for the choice), and of the "
        "middle layer, named beforehand (open). Middle: points of score that go with one standard "
        "deviation of the metric at fixed depth; the interval is over tasks, for this model's one "
        "curve, and is no test of the metric: those of unrelated smooth curves leave out 0 too. "
        + (
            "Right: how a metric's curve on a task's own texts goes with that task's scores, both "
            "less their mean over tasks; filled where permuting the texts within types of tasks "
            "gives p ≤ .05 after correction for all metrics. "
            if own
            else ""
        )
        + "The table holds every test, also by type of task, and of all rules that pick a layer."
    )
    return Drawn(figure, table, title, caption, facts)


def _leads(axis: Any, table: pd.DataFrame, models: list[str], order: Any) -> None:
    for at, model in enumerate(models):
        mine = table[table["model"] == model]
        lead = mine[mine["part"] == "leads"].iloc[0]
        middle = mine[(mine["part"] == "middle") & (mine["what"] == LAST)].iloc[0]
        for row, place, filled in ((lead, at - RISE, True), (middle, at + RISE, False)):
            _point(axis, row, place, model, order, filled=filled)
    axis.set_yticks(range(len(models)), models)
    axis.set_title("Lead over the last layer")
    axis.set_xlabel("Points")
    _rows(axis, len(models))


def _by_metric(
    axis: Any, table: pd.DataFrame, part: str, metrics: list[str], models: list[str], order: Any
) -> None:
    for row in table[table["part"] == part].to_dict("records"):
        shift = (models.index(row["model"]) - (len(models) - 1) / 2) * 0.6 / max(len(models), 1)
        filled = row["p_within"] <= ALPHA if part == "own texts" else (
            row["low"] > 0 or row["high"] < 0
        )  # fmt: skip
        _point(axis, row, metrics.index(row["what"]) + shift, row["model"], order,
               filled=bool(filled))  # fmt: skip
    axis.set_yticks(range(len(metrics)), [metric_label(m) for m in metrics])
    _rows(axis, len(metrics))


def _point(axis: Any, row: Any, at: float, model: str, order: Any, *, filled: bool) -> None:
    colour = style.colour_of(model, order)
    axis.plot([row["low"], row["high"]], [at, at], color=colour, linewidth=1, alpha=0.7)
    axis.plot(
        [row["value"]], [at], linestyle="none", marker=style.marker_of(model, order),
        markersize=4.4, color=colour if filled else "white", markeredgecolor=colour,
    )  # fmt: skip


def _rows(axis: Any, count: int) -> None:
    axis.axvline(0, color=style.GREY, linewidth=0.7, zorder=1)
    axis.set_ylim(count - 0.4, -0.6)
    axis.grid(axis="x")
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)


def _facts(table: pd.DataFrame) -> dict[str, Any]:
    apart = table[table["part"] == "leads told apart"].iloc[0]
    return {
        "leads": {"k": int(apart["k"]), "n": int(apart["n"]),
                  "expected": float(apart["expected"]), "p": float(apart["p"])},
    }  # fmt: skip
