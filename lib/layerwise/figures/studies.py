"""From a study of the config to its figure: which kinds there are and what each needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from layerwise.errors import LayerwiseError, closest
from layerwise.figures import (
    association_strength,
    checkpoint_heatmap,
    layer_choice,
    metric_vs_score,
    metrics_by_depth,
    metrics_over_checkpoints,
    model_overview,
    power_law,
    score_by_depth,
    style,
    task_heatmap,
    token_choice,
    value_distribution,
)
from layerwise.figures.drawn import Drawn
from layerwise.figures.kinds import NEEDS
from layerwise.figures.settings import StudySettings


@dataclass(frozen=True)
class Tables:
    """The tidy tables a study can draw on; None where the caller has none."""

    metrics: pd.DataFrame | None = None
    scores: pd.DataFrame | None = None
    associations: pd.DataFrame | None = None
    prompts: pd.DataFrame | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of study: its function, which takes the tables of `NEEDS` in order, and a summary."""

    draw: Callable[..., Drawn]
    about: str


KINDS: Mapping[str, Kind] = {
    "score_by_depth": Kind(score_by_depth.draw, "mean task score by depth, a panel per model"),
    "metrics_by_depth": Kind(metrics_by_depth.draw, "metrics by depth, models compared"),
    "metric_vs_score": Kind(metric_vs_score.draw, "metric against score, a point per layer"),
    "metrics_over_checkpoints": Kind(
        metrics_over_checkpoints.draw, "metrics by depth, a line per checkpoint"
    ),
    "checkpoint_heatmap": Kind(checkpoint_heatmap.draw, "a metric by layer and checkpoint"),
    "task_heatmap": Kind(task_heatmap.draw, "each task's score by depth, against its last layer"),
    "model_overview": Kind(model_overview.draw, "score and all metrics of one model by depth"),
    "token_choice": Kind(token_choice.draw, "what counting the first token does, by depth"),
    "layer_choice": Kind(layer_choice.draw, "what picking a layer by a metric loses"),
    "association_strength": Kind(
        association_strength.draw, "association of each metric with the score, and baselines"
    ),
    "value_distribution": Kind(
        value_distribution.draw, "a metric over prompts by depth: one hump or two"
    ),
    "power_law": Kind(power_law.draw, "entropy of power-law spectra, no data needed"),
}


def kind_of(name: str) -> Kind:
    """The kind of that name.

    Raises
    ------
    LayerwiseError
        If there is none.
    """
    if name not in KINDS:
        raise LayerwiseError(
            f"There is no kind of study {name!r}{closest(name, KINDS)}; give one of "
            f"{', '.join(KINDS)}."
        )
    return KINDS[name]


def draw(settings: Mapping[str, Any], tables: Tables, order: Sequence[str] | None = None) -> Drawn:
    """Draw a study.

    Parameters
    ----------
    settings : mapping
        The study as the config has it.
    tables : Tables
    order : sequence of str, optional
        All models of the config, in whose order colours are given, so that a model has one colour
        in all studies. By default the models of the tables, sorted.

    Raises
    ------
    LayerwiseError
        If the settings are wrong, or a table that this kind needs is missing or lacks what the
        study asks for.
    """
    study = StudySettings.from_dict(settings)
    kind = kind_of(study.kind)
    needed = []
    for name in NEEDS[study.kind]:
        table = getattr(tables, name)
        if table is None:
            raise LayerwiseError(f"A study of kind {study.kind} needs --{name}; give it.")
        needed.append(table)
    found = sorted({m for t in needed for m in t["model"].unique()})
    names = [*(order or ()), *(m for m in found if m not in (order or ()))]
    with style.theme():
        return kind.draw(*needed, study, names)
