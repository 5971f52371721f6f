"""Standard errors over prompts.

The error of a mean over prompts is their standard deviation over the root of n. Any other metric
is computed again without each of ten random thirds of the prompts, and the standard deviation of
these values times √2 is its error (the delete-d jackknife, Shao & Wu 1989). On simulated prompts
it is 0.85 to 1.3 times the spread over fresh prompts, by metric. To leave out fewer prompts
overstates it where a value is not smooth in them (TwoNN 1.6, LiDAR 1.4 for tenths); to leave out
more understates it where a value grows with their number (RankMe 0.4 for halves).

Prompts are taken as independent draws. The errors say nothing about training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from layerwise.metrics.formulas.arrays import Array
from layerwise.metrics.layer import Layer

PARTS = 10


def of_mean(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for fewer than two."""
    n = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def n_left_out(n: int) -> int:
    """Number of prompts that each part leaves out: a third of n, at least one."""
    return max(1, n // 3)


def parts(layer: Layer) -> Iterator[Layer]:
    """The layer without each of `PARTS` random thirds of its prompts; none for one prompt."""
    kept = np.flatnonzero(layer.kept)
    rng = np.random.default_rng(layer.settings.seed)
    for _ in range(PARTS if len(kept) > 1 else 0):
        yield layer.part(np.sort(rng.permutation(kept)[n_left_out(len(kept)) :]))


def of_parts(values: Array, n: int) -> Array:
    """Standard errors of metrics of n prompts from their values on `parts`.

    Parameters
    ----------
    values : array, shape (PARTS, K)

    Returns
    -------
    array, shape (K,)
    """
    scale = math.sqrt((n - n_left_out(n)) / n_left_out(n))
    return np.asarray(scale * np.std(values, axis=0, ddof=1))
