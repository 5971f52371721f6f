"""Standard errors of metrics of all prompts together, by one delete-a-group jackknife."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from layerwise.metrics.formulas.arrays import UndefinedMetricError
from layerwise.metrics.formulas.uncertainty import GROUPS, groups_of, jackknife
from layerwise.metrics.registry import Metric, Overall

if TYPE_CHECKING:
    from layerwise.metrics.layer import Layer


def standard_errors(
    layer: Layer, metrics: Sequence[Metric]
) -> dict[tuple[str, float | None], float]:
    """Compute metrics again without each group of prompts.

    Returns
    -------
    dict
        Standard error by metric and order, if the metric has a value without each group.
    """
    kept, settings = np.flatnonzero(layer.kept), layer.settings
    group = groups_of(len(kept), GROUPS, settings.seed)
    parts: list[dict[tuple[str, float | None], float]] = []
    for number in range(group.max(initial=-1) + 1):
        left_out = np.zeros(len(layer.prompts), dtype=bool)
        left_out[kept[group == number]] = True
        part = layer.without(left_out)
        values: dict[tuple[str, float | None], float] = {}
        for metric in metrics:
            with suppress(UndefinedMetricError):
                values |= {
                    (metric.name, result.alpha): result.value
                    for result in metric.on(part)
                    if isinstance(result, Overall)
                }
        parts.append(values)
    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    values_of = np.array([[part[name] for name in names] for part in parts])
    errors = jackknife(values_of, len(kept)) if names else ()
    return dict(zip(names, map(float, errors), strict=True))
