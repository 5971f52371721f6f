"""Valleys over layers, and the share of one that goes with something else, prompt by prompt.

Where a valley is, is chosen by some of the prompts and its depth read off the others, so that a
flat curve has a depth of 0 on average. How the intervals do where the truth is known:
tests/calibration/test_shares.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.statistics.prompts import curves_of
from layerwise.statistics.tasks import Interval, interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

FOLDS = 10


@dataclass(frozen=True)
class Place:
    """Where a valley is, as nine tenths of the prompts have it.

    Attributes
    ----------
    rows : array of int
        The prompts that had no say in it.
    left, shoulder, low : int
        The highest layer before it, the lower of that and the highest after it, and its lowest.
    """

    rows: Ints
    left: int
    shoulder: int
    low: int


def places(values: npt.ArrayLike, *, seed: int = 0) -> list[Place]:
    """Where the valley of the mean curve is, for each tenth of the prompts by the others.

    The lowest layer is the one furthest below the lower of the highest layers before and after it;
    that is its shoulder.

    Parameters
    ----------
    values : array, shape (N, L)
        Of each prompt at each layer, first layer first.

    Raises
    ------
    LayerwiseError
        For fewer than eight prompts or three layers.
    """
    array = curves_of(values)
    n = len(array)
    fold = np.random.default_rng(seed).permutation(n) % min(FOLDS, n)
    found = []
    for f in range(fold.max() + 1):
        found.append(Place(np.flatnonzero(fold == f), *lowest(array[fold != f].mean(axis=0))))
    return found


def lowest(curve: npt.ArrayLike) -> tuple[int, int, int]:
    """Left shoulder, lower shoulder and lowest layer of a curve's deepest valley; L ≥ 3 layers."""
    values = np.asarray(curve, dtype=np.float64)
    before = np.maximum.accumulate(values)[:-2]
    after = np.maximum.accumulate(values[::-1])[::-1][2:]
    low = 1 + int(np.argmax(np.minimum(before, after) - values[1:-1]))
    left, right = int(np.argmax(values[:low])), low + 1 + int(np.argmax(values[low + 1 :]))
    return left, (left if values[left] <= values[right] else right), low


def depths(values: npt.ArrayLike, where: list[Place], *, left: bool = False) -> Floats:
    """How far each prompt's lowest layer lies below the shoulder, both chosen without it; (N,).

    With `left`, below the shoulder on the left: how far the curve falls.
    """
    array = np.asarray(values, dtype=np.float64)
    found = np.full(len(array), np.nan)
    for place in where:
        top = place.left if left else place.shoulder
        found[place.rows] = array[place.rows, top] - array[place.rows, place.low]
    return found


def share(parts: npt.ArrayLike, wholes: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Mean of the parts over mean of the wholes, prompts being draws: Fieller's interval (1954).

    Parameters
    ----------
    parts, wholes : array, shape (N,)
        Of the same prompts.

    Returns
    -------
    Interval
        `p` is that of a share of 0. Where the mean of the wholes cannot be told from 0, the ends
        are infinite.
    """
    from scipy.stats import t as student

    a, b = (np.asarray(v, dtype=np.float64) for v in (parts, wholes))
    n = len(a)
    p = interval(a).p
    covariance = np.cov(np.stack([a, b]), ddof=1) / n
    critical = float(student.ppf((1 + level) / 2, n - 1)) ** 2
    x, y = a.mean(), b.mean()
    # Shares r for which mean(a - r b) cannot be told from 0: a quadratic in r.
    square = y**2 - critical * covariance[1, 1]
    middle = x * y - critical * covariance[0, 1]
    rest = x**2 - critical * covariance[0, 0]
    if square <= 0:
        return Interval(float(x / y) if y else float("nan"), -np.inf, np.inf, p)
    half = float(np.sqrt(max(middle**2 - square * rest, 0.0)))
    low, high = (float((middle + side * half) / square) for side in (-1, 1))
    return Interval(float(x / y), low, high, p)
