"""Standard errors over prompts.

- A mean over prompts: standard deviation over the root of n.
- Anything else: the delete-a-group jackknife (Kott 2001). The groups are of equal size, since many
  metrics depend on the number of prompts.
- Where a value is not smooth in the prompts, as nearest neighbours are not: the spread over random
  halves.

All take the prompts as independent draws; they are errors of sampling prompts, not of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array, Mask

GROUPS = 10
"""Groups of prompts that the jackknife deletes in turn."""


def of_mean(values: Array) -> float:
    """Standard error of the mean of independent values; NaN for fewer than two."""
    n = len(values)
    return float(np.std(values, ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def groups_of(n: int, groups: int, seed: int) -> npt.NDArray[np.intp]:
    """Random group of each of n prompts, shape (n,), for the jackknife.

    Groups have n // `groups` prompts, so small n gives a few more groups.
    Prompts that are left over have -1 and are never left out.
    """
    size = max(1, n // groups)
    places = np.random.default_rng(seed).permutation(n)
    return np.where(places < n // size * size, places % (n // size), -1)


def jackknife(values: Array, n: int) -> Array:
    """Standard errors from values without each group, shape (G, K) to (K,).

    ``sqrt((n - d) / (d G) Σ_g (θ_g - mean θ)²)``, d = n // G prompts in a group; NaN for fewer
    than two groups.
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], math.nan)
    size = n // count
    scale = (n - size) / (size * count)
    # A value may be infinite: without a group that is all of an anchor's sum, for one.
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(scale * np.square(values - values.mean(axis=0)).sum(axis=0)))


def delete_a_group(
    values_without: Callable[[Mask], Array], n: int, groups: int, seed: int
) -> Array:
    """Delete-a-group jackknife.

    Parameters
    ----------
    values_without : callable
        From a mask of the prompts to keep, shape (n,), to K values on them.
    n, groups, seed : int
        Number of prompts, number of groups, and the seed of the grouping.

    Returns
    -------
    array, shape (K,)
    """
    group = groups_of(n, groups, seed)
    return jackknife(
        np.stack([values_without(group != g) for g in range(group.max(initial=0) + 1)]), n
    )


def of_halves(value_on: Callable[[Mask], float], n: int, halves: int, seed: int) -> float:
    """Standard error from the spread over random halves of the prompts.

    The spread of random halves estimates that of fresh samples (half-sampling, Politis & Romano
    1994), even for values that are not smooth in the prompts.

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
