"""Standard errors over prompts, at a small part of the cost of the value itself.

By what a metric is:

- a mean over prompts: standard deviation over the root of n;
- a smooth function of a spectrum: the infinitesimal jackknife (Jaeckel 1972; Efron 1982). The
  derivative of the value by each prompt's weight follows from the eigenvectors, so that one
  decomposition gives the value and its error, where the jackknife would take N of them;
- where a prompt can be taken out of the decomposition in closed form: the plain jackknife;
- anything else: the delete-a-group jackknife (Kott 2001), G recomputations; where one computation
  takes long, the spread over G disjoint groups.

All take the prompts as independent draws. They are errors of sampling prompts, not of training,
and no more than a scale: against the spread over fresh draws of synthetic prompts (45 in 60
dimensions, 120 in 576, 150 in 12) they were 0.8 to 2.1 times it, most often above; DiME's 0.6 to
0.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array, Mask

SMALLEST_GROUP = 8


def of_mean(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for fewer than two."""
    n = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def from_weights(derivative: Array) -> float:
    """Infinitesimal jackknife: standard error from the derivative by each prompt's weight.

    Parameters
    ----------
    derivative : array, shape (N,)
        dθ/dw_n at w = 1. Centred here, so that θ need not be invariant to a common factor.

    Returns
    -------
    float
        ``sqrt(N / (N - 1) Σ_n (dθ/dw_n)²)``; NaN for fewer than two prompts.
    """
    n = len(derivative)
    if n < 2:
        return math.nan
    return float(np.sqrt(n / (n - 1) * np.square(derivative - derivative.mean()).sum()))


def from_leave_one_out(values: Array) -> float:
    """Jackknife: standard error from the N values with one prompt left out each."""
    n = len(values)
    if n < 2:
        return math.nan
    return float(np.sqrt((n - 1) / n * np.square(values - values.mean()).sum()))


def delete_a_group(
    value_without: Callable[[Mask], float], n: int, groups: int, seed: int
) -> float:
    """Delete-a-group jackknife.

    Parameters
    ----------
    value_without : callable
        From a mask of the prompts to keep, shape (n,), to the value on them.
    n : int
        Number of prompts.
    groups : int
        Number G of random groups of nearly equal size; at most n.
    seed : int
        Of the grouping.

    Returns
    -------
    float
        ``sqrt((G - 1) / G Σ_g (θ_(g) - mean θ)²)``; NaN for fewer than two groups.
    """
    groups = min(groups, n)
    if groups < 2:
        return math.nan
    group = np.random.default_rng(seed).permutation(n) % groups
    values: Sequence[float] = [value_without(group != g) for g in range(groups)]
    return from_leave_one_out(np.asarray(values))


def of_groups(
    value_on: Callable[[npt.NDArray[np.intp]], Array], n: int, groups: int, seed: int
) -> Array:
    """Standard errors from the value on disjoint random groups: their spread over √G.

    For values whose cost grows with N³, G of these cost 1/G² of the value itself. Assumes that
    the variance falls as 1/N. Groups hold at least `SMALLEST_GROUP` prompts.

    Parameters
    ----------
    value_on : callable
        From indices of prompts to K values, shape (K,).
    n, groups, seed : int

    Returns
    -------
    array, shape (K,)
        NaN where there are fewer than two groups of that size.
    """
    groups = min(groups, n // SMALLEST_GROUP)
    order = np.random.default_rng(seed).permutation(n)
    if groups < 2:
        return np.full_like(value_on(order[:2]), math.nan)
    values = np.stack([value_on(np.sort(order[g::groups])) for g in range(groups)])
    return np.asarray(np.std(values, axis=0, ddof=1) / math.sqrt(groups))
