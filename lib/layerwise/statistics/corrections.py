"""Corrections for how many were tried."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def holm(p: npt.ArrayLike) -> Floats:
    """Adjusted p that keep the chance of *any* false positive (Holm 1979).

    Valid however the tests depend on one another. NaN stays NaN and is not counted.

    Parameters
    ----------
    p : array, shape (k,)
    """
    return _adjusted(p, lambda m: np.arange(m, 0, -1), np.maximum.accumulate)


def benjamini_hochberg(p: npt.ArrayLike) -> Floats:
    """Adjusted p that keep the expected *share* of false ones among the positives (BH 1995).

    For independent or positively dependent tests. NaN stays NaN and is not counted.
    """

    def from_the_largest(values: Floats) -> Floats:
        return np.asarray(np.minimum.accumulate(values[::-1])[::-1])

    return _adjusted(p, lambda m: m / np.arange(1, m + 1), from_the_largest)


def _adjusted(p: npt.ArrayLike, factors, monotone) -> Floats:  # type: ignore[no-untyped-def]
    values = np.asarray(p, dtype=np.float64)
    there = np.flatnonzero(np.isfinite(values))
    order = there[np.argsort(values[there], kind="stable")]
    result = np.full(values.shape, np.nan)
    if len(order):
        result[order] = np.minimum(monotone(values[order] * factors(len(order))), 1.0)
    return result
