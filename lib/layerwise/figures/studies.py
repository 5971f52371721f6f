"""From a study of the config to its figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from layerwise.association.order import Order
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import (
    association_strength,
    curves,
    factorial,
    heatmaps,
    layer_choice,
    layers_together,
    metric_vs_score,
    paired,
    power_law,
    style,
    value_distribution,
)
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_prompts, rows
from layerwise.figures.kinds import needs
from layerwise.metrics.registry import directions as declared

__all__ = ["Order", "Tables", "draw"]


@dataclass(frozen=True)
class Tables:
    """The tidy tables a study can draw on; None where the caller has none."""

    metrics: pd.DataFrame | None = None
    prompts: pd.DataFrame | None = None
    scores: pd.DataFrame | None = None
    associations: pd.DataFrame | None = None
    choices: pd.DataFrame | None = None
    paired: pd.DataFrame | None = None


def draw(
    study: Study,
    tables: Tables,
    order: Order | None = None,
    *,
    directions: Mapping[str, int] | None = None,
    own_texts: Mapping[str, str] | None = None,
) -> Drawn:
    """Draw a study.

    Parameters
    ----------
    study : Study
    tables : Tables
        Those that `layerwise.figures.kinds.needs` names; others are not looked at.
    order : Order, optional
        The models of the config, which fixes their colours, and the checkpoints of each. Models
        that it does not name follow, sorted; their checkpoints are ordered by their steps.
    directions : mapping of metric to 1 or -1, optional
        `association.directions` of the config, in place of what the metrics declare. The study's
        own come before both.
    own_texts : mapping of corpus to task, optional
        What 'task texts' stands for.

    Raises
    ------
    LayerwiseError
        If a table that this kind needs is missing or lacks what the study asks for, or values of
        a dimension without a role would be mixed.
    """
    needed: dict[str, pd.DataFrame] = {}
    for name in needs(study):
        table = getattr(tables, name)
        if table is None:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs tables of {name}; give them."
            )
        needed[name] = table
    order = order or Order()
    found = sorted({str(m) for t in needed.values() for m in t["model"].unique()})
    names = [*order.models, *(m for m in found if m not in order.models)]
    order = Order(names, order.revisions)
    better = {**declared(), **(directions or {}), **study.directions}
    with style.theme():
        if study.kind == "power_law":
            return power_law.draw()
        if study.kind == "association_strength":
            return association_strength.draw(needed["associations"], study, order)
        if study.kind == "layer_choice":
            return layer_choice.draw(needed["choices"], study, order)
        if study.kind == "paired_by_depth":
            return paired.draw(needed["paired"], study, order)
        if study.kind == "value_distribution":
            return value_distribution.draw(pick_prompts(needed["prompts"], study, order))
        if study.kind == "metric_vs_score":
            return metric_vs_score.draw(**needed, study=study, order=order, own_texts=own_texts)
        drawn = rows(study, order, metrics=needed.get("metrics"), scores=needed.get("scores"))
        if study.kind == "factorial":
            return factorial.draw(drawn)
        if study.kind == "checkpoint_heatmap":
            return heatmaps.metrics(drawn)
        if study.kind == "scores_over_checkpoints":
            return heatmaps.scores(drawn, needed["scores"])
        if study.kind == "layers_together":
            return layers_together.draw(drawn, needed["scores"], better)
        if study.kind == "task_heatmap":
            return heatmaps.tasks(drawn)
        return curves.draw(drawn, better)
