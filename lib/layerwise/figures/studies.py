"""From a study of the config to its figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from layerwise.association.order import Order
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import (
    along_sequence,
    alpha_robustness,
    association_strength,
    block_parts,
    curves,
    factorial,
    heatmaps,
    layer_choice,
    layer_similarity,
    layers_together,
    metric_vs_score,
    model_difference,
    paired,
    power_law,
    prompt_groups,
    sink_valley,
    size_scaling,
    style,
    training_course,
    value_distribution,
)
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_prompts, rows
from layerwise.figures.kinds import needs
from layerwise.metrics.registry import directions as declared

__all__ = ["Order", "Tables", "draw"]

# Kinds that work on every prompt's own values, or on embeddings of prompts.
OF_PROMPTS = {
    "alpha_robustness": alpha_robustness.draw,
    "layer_similarity": layer_similarity.draw,
    "model_difference": model_difference.draw,
    "prompt_groups": prompt_groups.draw,
    "size_scaling": size_scaling.draw,
    "training_course": training_course.draw,
}


@dataclass(frozen=True)
class Tables:
    """The tidy tables a study can draw on; None where the caller has none."""

    metrics: pd.DataFrame | None = None
    prompts: pd.DataFrame | None = None
    positions: pd.DataFrame | None = None
    scores: pd.DataFrame | None = None
    associations: pd.DataFrame | None = None
    choices: pd.DataFrame | None = None
    similarities: pd.DataFrame | None = None
    texts: pd.DataFrame | None = None
    paired: pd.DataFrame | None = None


def draw(
    study: Study,
    tables: Tables,
    order: Order | None = None,
    *,
    directions: Mapping[str, int] | None = None,
    own_texts: Mapping[str, str] | None = None,
    labels: Mapping[str, Mapping[str, float]] | None = None,
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
    labels : mapping of corpus to what it is perturbed by, optional
        Become columns of the tables.

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
        needed[name] = _with_labels(table, labels or {})
    order = order or Order()
    found = sorted({str(m) for name, t in needed.items() if name != "texts"
                    for m in t["model"].unique()})  # fmt: skip
    names = [*order.models, *(m for m in found if m not in order.models)]
    order = Order(names, order.revisions)
    better = {**declared(), **(directions or {}), **study.directions}
    with style.theme():
        if study.kind == "power_law":
            return power_law.draw()
        if study.kind in OF_PROMPTS:
            return OF_PROMPTS[study.kind](needed, study, order, better)
        if study.kind == "association_strength":
            return association_strength.draw(needed["associations"], study, order)
        if study.kind == "beyond_depth":
            return association_strength.draw(
                needed["associations"], study, order, needed["choices"]
            )
        if study.kind == "layer_choice":
            return layer_choice.draw(needed["choices"], study, order)
        if study.kind == "paired_by_depth":
            return paired.draw(needed["paired"], study, order)
        if study.kind == "value_distribution":
            return value_distribution.draw(pick_prompts(needed["prompts"], study, order))
        if study.kind == "metric_vs_score":
            return metric_vs_score.draw(**needed, study=study, order=order, own_texts=own_texts)
        if study.kind == "along_sequence":
            table = needed["positions"]
            models = study.models or map(str, table["model"].unique())
            return along_sequence.draw(rows(study, order, metrics=table), models)
        if study.kind == "block_parts":
            return block_parts.draw(pick_prompts(needed["prompts"], study, order))
        if study.kind == "sink_valley":
            return sink_valley.draw(pick_prompts(needed["prompts"], study, order))
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


def _with_labels(table: pd.DataFrame, labels: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A table of metrics with a column for each thing that its corpora are perturbed by."""
    if "corpus" not in table:
        return table
    own = {c: given for c, given in labels.items() if c in set(table["corpus"])}
    names = dict.fromkeys(name for given in own.values() for name in given)
    columns = {n: table["corpus"].map(lambda c, n=n: own.get(c, {}).get(n, "")) for n in names}
    return table.assign(**columns) if columns else table
