"""Mean task score by depth, a panel per model: which layer should one use?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from layerwise.association.curves import last_layer_of
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import mean_scores
from layerwise.figures.labels import (
    TOKENS,
    counted,
    listing,
    percent,
    reading,
    reading_label,
)
from layerwise.figures.settings import StudySettings, in_order


def draw(scores: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw the mean score of each layer, all readings (token choices, poolings) in one panel.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per model, tokens, pooling and layer: mean score in [0, 1], interval,
        number of tasks, whether the layer is the best.
    """
    table = _readings(scores, study)
    best_at = table.groupby(["model", "revision", "reading"])["score"].idxmax()
    table["best"] = table.index.isin(best_at)
    models = in_order(list(table["model"].unique()), study.models or order)
    wanted = [reading(t, p) for p in poolings_of(study) for t in study.tokens or TOKENS]
    readings = in_order(list(table["reading"].unique()), list(dict.fromkeys(wanted)))
    columns = min(style.COLUMNS, len(models))
    rows = -(-len(models) // columns)
    figure, axes = style.grid(rows, columns, panel_height=2.55, sharey=True)
    summary = [_panel(axes.flat[i], table, m, readings, order) for i, m in enumerate(models)]
    for i, axis in enumerate(axes.flat):
        axis.set_visible(i < len(models))
        if i < len(models):
            style.depth_axis(axis, label=i + columns >= len(models))
            if i + columns < len(models):
                axis.tick_params(labelbottom=False)
        if i % columns == 0:
            axis.set_ylabel("Mean task score (× 100)")
    handles = marks.reading_handles(readings)
    handles += marks.mark_handles()
    marks.legend(figure, handles)
    facts = _facts(table, [s for panel in summary for s in panel], readings)
    title = _title(facts, readings)
    style.header(figure, title, _subtitle(facts))
    return Drawn(figure, table, title, _caption(facts), facts)


def poolings_of(study: StudySettings) -> tuple[str, ...]:
    """The poolings that a study names."""
    return (study.pooling,) if isinstance(study.pooling, str) else study.pooling


def _readings(scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """Mean scores of every reading, each once."""
    pieces = [
        mean_scores(scores, replace(study, pooling=p)).assign(pooling=p)
        for p in poolings_of(study)
    ]
    table = pd.concat(pieces, ignore_index=True)
    names = [reading(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)]
    table.insert(3, "reading", names)
    return table.drop_duplicates(["model", "revision", "reading", "layer"], ignore_index=True)


def _panel(
    axis: Any, table: pd.DataFrame, model: str, readings: Sequence[str], order: Sequence[str]
) -> list[dict[str, Any]]:
    colour = style.colour_of(model, order)
    lines, summary = [], []
    for choice in readings:
        part = table[(table["model"] == model) & (table["reading"] == choice)]
        if part.empty:
            continue
        dashes, stroke = style.stroke_of(choice, readings)
        if part["low"].notna().any():
            axis.fill_between(
                part["depth"], 100 * part["low"], 100 * part["high"],
                color=colour, alpha=0.14, linewidth=0,
            )  # fmt: skip
        axis.plot(part["depth"], 100 * part["score"], color=colour, linestyle=dashes)
        best, last = part[part["best"]].iloc[0], part[part["depth"] == 1]
        last_layer = last_layer_of(part)
        axis.plot(last["depth"], 100 * last["score"], **marks.last_mark(colour))
        axis.plot(best["depth"], 100 * best["score"], **marks.best_mark(colour))
        summary.append(
            {
                "model": model,
                "reading": choice,
                "best_layer": int(best["layer"]),
                "n_layers": len(part),
                "last_layer": last_layer,
                "best_depth": float(best["depth"]),
                "best_score": float(best["score"]),
                "last_score": None if last.empty else float(last["score"].iloc[0]),
            }
        )
        where = f"layer {int(best['layer'])} of {last_layer}"
        against = (
            "no score of the last" if last.empty
            else "the last" if best["layer"] == last_layer
            else f"last {100 * last['score'].iloc[0]:.1f}"
        )  # fmt: skip
        lines.append(
            (f"{stroke}  " if len(readings) > 1 else "")
            + f"best {100 * best['score']:.1f} ({where}), {against}"
        )
    marks.panel_title(axis, model, lines, colour)
    return summary


def _facts(
    table: pd.DataFrame, summary: list[dict[str, Any]], readings: Sequence[str]
) -> dict[str, Any]:
    counts = sorted({int(n) for n in table["n_tasks"]})
    by_choice = {}
    for choice in readings:
        # Whether a layer beats a last one without a score isn't known.
        mine = [s for s in summary if s["reading"] == choice and s["last_score"] is not None]
        by_choice[choice] = {
            "n_models": len(mine),
            "before_last": [s["model"] for s in mine if s["best_layer"] < s["last_layer"]],
            "intermediate": [s["model"] for s in mine if 0 < s["best_layer"] < s["last_layer"]],
        }
    return {"layers": summary, "n_tasks": counts, "by_reading": by_choice}


def _title(facts: dict[str, Any], readings: Sequence[str]) -> str:
    parts: list[str] = []
    for choice in readings:
        found = facts["by_reading"][choice]
        n, of = len(found["before_last"]), found["n_models"]
        models = "" if parts else " model" if of == 1 else " models"
        parts.append(f"in {n} of {of}{models} {reading_label(choice, sentence=True)}")
    one = len(facts["layers"]) == 1
    if one:
        s = facts["layers"][0]
        if s["last_score"] is None:
            return f"Layer {s['best_layer']} of {s['model']} is its best; the last has no score"
        if s["best_layer"] == s["last_layer"]:
            return f"The last layer of {s['model']} is its best"
        return (
            f"Layer {s['best_layer']} of {s['model']} is its best, "
            f"{100 * (s['best_score'] - s['last_score']):.1f} points above the last"
        )
    return f"An earlier layer beats the last one {listing(parts)}"


def _subtitle(facts: dict[str, Any]) -> str:
    n = facts["n_tasks"]
    tasks = counted(n[0], "task") if len(n) == 1 else f"{n[0]}–{n[-1]} tasks"
    return (
        f"Mean main score over {tasks} by depth. "
        "Bands: 95 % bootstrap over tasks, level differences between tasks removed."
    )


def _caption(facts: dict[str, Any]) -> str:
    n = facts["n_tasks"]
    tasks = counted(n[0], "task") if len(n) == 1 else f"{n[0]} to {n[-1]} tasks"
    told = [
        f"{s['model']} ({reading_label(s['reading'])}): best at layer {s['best_layer']} of "
        f"{s['last_layer']} ({percent(s['best_depth'])} depth) with {100 * s['best_score']:.2f}, "
        + (
            "last layer without a score"
            if s["last_score"] is None
            else f"last layer {100 * s['last_score']:.2f}"
        )
        for s in facts["layers"]
    ]
    return (
        f"Mean main score (× 100) over {tasks}, by depth in per cent of the model's layers; layer "
        "0 is the embedding output. Filled circle: best layer; open circle: last layer. Bands are "
        "95 % bootstrap intervals over tasks after each task's own mean over layers is taken off, "
        f"so they speak of differences between layers. {listing(told)}."
    )
