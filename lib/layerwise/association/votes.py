"""Which metrics are one: a line apart, they pick the same layer whatever the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from layerwise.association.measures import FEWEST_LAYERS as MIN_LAYERS
from layerwise.association.stability import Reasons
from layerwise.statistics import headlines

Floats = npt.NDArray[np.float64]


def same_votes(
    metrics: Sequence[str], values: Floats, directions: Mapping[str, int]
) -> dict[str, str]:
    """For each metric the first of those whose curve is its own up to level and scale.

    Such are the InfoNCE loss and its bound, a constant less the loss. Metrics that only happen to
    rank the layers alike are not the same.

    Parameters
    ----------
    metrics : sequence of str, length k
    values : array, shape (k, n)
    directions : mapping of metric to 1 or -1
        Metrics that are not in it have no vote.
    """
    places = [i for i, metric in enumerate(metrics) if metric in directions]
    known = [i for i in places if np.isfinite(values[i]).sum() >= MIN_LAYERS]
    found = {metrics[i]: metrics[i] for i in places}
    if not known:
        return found
    better = np.array([directions[metrics[i]] for i in known])[:, None] * values[known]
    better = np.where(np.isfinite(better), better, np.nan)
    better -= np.nanmean(better, axis=1, keepdims=True)
    scale = np.nanstd(better, axis=1, keepdims=True)
    level = np.divide(better, scale, out=np.zeros_like(better), where=scale > 0)
    # Rounding apart; where a metric has no value, another that has one is another metric.
    codes = np.where(np.isfinite(level), np.rint(1e6 * np.nan_to_num(level)), 2**40)
    # A metric that is the same at all layers says nothing, and so not the same as another.
    codes[scale[:, 0] == 0, 0] = 2**41 + np.flatnonzero(scale[:, 0] == 0)
    first = headlines.distinct(codes.astype(np.int64))
    return found | {metrics[i]: metrics[known[f]] for i, f in zip(known, first, strict=True)}


def refused_together(same: Mapping[str, str], refused: Reasons) -> Reasons:
    """Reasons against a metric, for those too that are the same as it."""
    more = dict(refused)
    for (corpus, metric, protocol), why in refused.items():
        for other, first in same.items():
            if first == same.get(str(metric)):
                more.setdefault((corpus, other, protocol), why)
    return more
