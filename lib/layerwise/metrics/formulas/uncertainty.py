"""Standard errors over prompts, at a small part of the cost of the value itself.

By what a metric is:

- a mean over prompts: standard deviation over the root of n;
- a smooth function of a spectrum: the infinitesimal jackknife (Jaeckel 1972; Efron 1982). The
  derivative of the value by each prompt's weight follows from the eigenvectors, so that one
  decomposition gives the value and its error, where the jackknife would take N of them. Not where
  each prompt is a direction of its own: one that counts twice is not two prompts;
- where a prompt can be taken out of the decomposition in closed form: the plain jackknife;
- anything else: the delete-a-group jackknife (Kott 2001), G recomputations; where that is not
  smooth in the prompts, as nearest neighbours are not, the spread over random halves.

All take the prompts as independent draws; they are errors of sampling prompts, not of training.
docs/statistics.md holds them to the spread over fresh draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array, Mask


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
    return float(_left_out(values[:, None])[0])


def _left_out(values: Array) -> Array:
    """Jackknife from values with one of N parts left out, shape (N, K) to (K,)."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], math.nan)
    return np.asarray(np.sqrt((n - 1) / n * np.square(values - values.mean(axis=0)).sum(axis=0)))


def groups_of(n: int, groups: int, seed: int) -> npt.NDArray[np.intp]:
    """A random group of nearly equal size for each of n prompts, 0 to min(groups, n) - 1."""
    return np.asarray(np.random.default_rng(seed).permutation(n) % min(groups, n))


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
    return float(each_without_a_group(lambda m: np.array([value_without(m)]), n, groups, seed)[0])


def each_without_a_group(
    values_without: Callable[[Mask], Array], n: int, groups: int, seed: int
) -> Array:
    """`delete_a_group` of K values at once, shape (K,); NaN for fewer than two groups."""
    if min(groups, n) < 2:
        return np.full(len(values_without(np.ones(n, dtype=bool))), math.nan)
    group = groups_of(n, groups, seed)
    return _left_out(np.stack([values_without(group != g) for g in range(group.max() + 1)]))


def of_halves(value_on: Callable[[Mask], float], n: int, halves: int, seed: int) -> float:
    """Standard error from the spread over random halves of the prompts.

    A half drawn from the prompts at hand varies about as much as all of them do from draw to draw
    (half-sampling, Politis & Romano 1994), also where a value is not smooth in the prompts.

    Parameters
    ----------
    value_on : callable
        From a mask of the prompts to keep, shape (n,), to the value on them.
    n, halves, seed : int

    Returns
    -------
    float
        NaN for fewer than two halves or four prompts.
    """
    if halves < 2 or n < 4:
        return math.nan
    rng = np.random.default_rng(seed)
    values = [value_on(rng.permutation(n) < n // 2) for _ in range(halves)]
    return float(np.std(values, ddof=1))
