"""One layer or several? What layers read together score, against the best single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import Floats, ScoreCurves, score_curves
from layerwise.errors import LayerwiseError
from layerwise.figures import curves, findings
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows, at_checkpoints, pick_scores
from layerwise.figures.given import Given
from layerwise.figures.labels import counted, layers_label, listing, reading, reading_label, signed
from layerwise.statistics.headlines import ALPHA, count
from layerwise.statistics.tasks import best_set
from layerwise.vocabulary import ONE


def draw(given: Given) -> Drawn:
    """Draw scores by depth, a colour for each choice of layers.

    Raises
    ------
    LayerwiseError
        If a model has no scores of single layers, or of none read together.
    """
    rows = given.rows()
    shown = {
        str(model): list(part["revision"].unique()) for model, part in rows.table.groupby("model")
    }
    picked = at_checkpoints(
        pick_scores(given.tables["scores"], rows.study, everything=True), shown
    )
    found = compare(picked)
    return curves.lines(rows, given.better, finding=lambda *_: _finding(rows, found))


def compare(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """The best single layer against the best of those read together, model by model.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.

    Returns
    -------
    list of dict
        One a model, checkpoint and reading. Scores in [0, 1]. `gain` is the lead of the best of
        several over the best single layer (or the model's output), both the best on all tasks.
        `gain_new_task` is the mean of that lead over tasks, each with both chosen on all the
        others; `n_ahead` is on how many tasks it is above 0. Both are None for one task. `told` is
        1 if all candidates that may be the best (`layerwise.statistics.tasks.best_set`, 95 %) are
        of several layers, -1 if all are single, else 0; None for tasks of one source.

    Raises
    ------
    LayerwiseError
        If one of the two is missing.
    """
    groups: dict[tuple[str, str, str], dict[str, ScoreCurves]] = {}
    for one in score_curves(scores):
        name = (one.model, one.revision, reading(one.tokens, one.pooling))
        groups.setdefault(name, {}).setdefault(one.joined, one)
    found = []
    for (model, revision, read), ways in groups.items():
        if set(ways) <= {ONE} or ONE not in ways:
            raise LayerwiseError(
                f"A study of kind layers_together sets several layers against one, and {model} "
                f"has scores of {listing(list(ways))}; name both kinds in scoring.layers."
            )
        names = [t for t in ways[ONE].tasks if all(t in way.tasks for way in ways.values())]
        single = ways[ONE].candidates(_places(ways[ONE], names))
        others = [(way, one) for way, one in ways.items() if way != ONE]
        values = np.concatenate([one.values[_places(one, names)] for _, one in others], axis=1)
        origin = [(way, int(layer)) for way, one in others for layer in one.layers]
        best, best_single = (int(v.mean(axis=0).argmax()) for v in (values, single.values))
        ahead = _on_new_tasks(values) - _on_new_tasks(single.values) if len(names) > 1 else None
        sources, told = ways[ONE].sources_of(_places(ways[ONE], names)), None
        if len(set(sources)) > 1:
            likely = best_set(np.concatenate([single.values, values], axis=1), sources)
            alone = single.values.shape[1]
            told = int(not likely[:alone].any()) - int(not likely[alone:].any())
        found.append(
            {
                "model": model,
                "revision": revision,
                "reading": read,
                "layers": origin[best][0],
                "layer": origin[best][1],
                "score": float(values[:, best].mean()),
                "single_layer": int(single.layers[best_single]),
                "single_is_output": best_single == single.output,
                "single_score": float(single.values[:, best_single].mean()),
                "gain": float(values[:, best].mean() - single.values[:, best_single].mean()),
                "gain_new_task": None if ahead is None else float(ahead.mean()),
                "n_ahead": None if ahead is None else int((ahead > 0).sum()),
                "n_tasks": len(names),
                "told": told,
            }
        )
    return found


def _places(one: ScoreCurves, names: list[str]) -> list[int]:
    return [one.tasks.index(name) for name in names]


def _on_new_tasks(values: Floats) -> Floats:
    """Each task's score at the candidate that is best on all the others, shape (t,)."""
    chosen = (values.sum(axis=0) - values).argmax(axis=1)
    return np.asarray(values[np.arange(len(values)), chosen])


def _finding(rows: Rows, found: list[dict[str, Any]]) -> findings.Finding:
    _, subtitle, caption, facts = findings.best_layers(rows, {})
    what = "model" if len({one["model"] for one in found}) == len(found) else "curve"
    title = _title_of_one(found[0]) if len(found) == 1 else _title_of_all(found, f"{what}s")
    caption += (
        " Several are told to beat a single one, or the opposite, where all candidates that may "
        "be the best with 95 % confidence are several, or single ones."
    )
    said = "; ".join(_said(one) for one in found)
    caption += f" Several layers against one: {said}."
    return title, subtitle, caption, {**facts, "several": found}


def _title_of_one(one: Mapping[str, Any]) -> str:
    alone = one["gain_new_task"] is None
    points = signed(100 * one["gain" if alone else "gain_new_task"])
    how = "both chosen on this one task" if alone else "both chosen on other tasks"
    how += "" if alone else f" (ahead on {one['n_ahead']} of {one['n_tasks']})"
    how += ", untested" if one["told"] is None else ""
    who, than = f"several layers of {one['model']}", "its best single one"
    if one["told"] == 0:
        return f"No evidence that {who} together beat {than}, or it them: {points} points, {how}"
    return f"S{who[1:]} score {points} points against {than}, {how}"


def _title_of_all(found: Sequence[Mapping[str, Any]], what: str) -> str:
    told = [one["told"] == 1 for one in found if one["told"] is not None]
    if not told:
        return (
            "Whether several layers together beat the best single one is untested in "
            f"{len(found)} {what}: tasks of one source"
        )
    counted = count(sum(told), [ALPHA] * len(told))
    return counted.text("Several layers together beat the best single one", what)


def _said(one: Mapping[str, Any]) -> str:
    single = "the output" if one["single_is_output"] else f"layer {one['single_layer']}"
    text = (
        f"{one['model']} at {one['revision']} ({reading_label(one['reading'])}), layer "
        f"{one['layer']} as the {layers_label(one['layers'])} {100 * one['score']:.2f}, {single} "
        f"alone {100 * one['single_score']:.2f}, both the best on all tasks"
    )
    if one["gain_new_task"] is None:
        return text
    return (
        f"{text}; each task with both chosen on the others, {signed(100 * one['gain_new_task'])} "
        f"points in the mean, above 0 on {one['n_ahead']} of {counted(one['n_tasks'], 'task')}"
    )
