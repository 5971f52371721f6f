"""Spearman's correlation of the cosine of two texts with their label, with its interval.

The standard error comes from the influence of each pair (Hampel 1974). Pairs that share a text are
not independent (Fafchamps & Gubert 2007).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from layerwise.errors import LayerwiseError
from layerwise.tasks.results import Score

Floats = npt.NDArray[np.float64]

FEWEST = 10  # pairs; below, a normal law of the estimate is out of reach


def correlate(measure: npt.ArrayLike, judged: npt.ArrayLike, texts: npt.ArrayLike) -> Score:
    """Correlate a measure of pairs with their labels; the interval is normal on Fisher's scale.

    With mid-ranks F and G scaled to (0, 1), ``ρ = a / sqrt(b c)``, a their covariance and b, c
    their variances; the influence of a pair on each is that of a U-statistic of order 3.

    Parameters
    ----------
    measure, judged : array, shape (N,)
    texts : array of int, shape (2, N)
        The two texts of each pair.

    Returns
    -------
    Score
        Without a score if one side does not vary; its parts are the pairs.

    Raises
    ------
    LayerwiseError
        For fewer than ten pairs.
    """
    x, y = _Ranks(np.asarray(measure, dtype=float)), _Ranks(np.asarray(judged, dtype=float))
    n = len(y.centred)
    if n < FEWEST:
        raise LayerwiseError(
            f"{n} pairs are too few for a correlation; give {FEWEST} or more.", code="too_few"
        )
    a, of_a = x.covariance(y)
    b, of_b = x.covariance(x)
    c, of_c = y.covariance(y)
    if b <= 0 or c <= 0:
        return Score(None, n_runs=n, why="the similarities of all pairs are alike")
    rho = float(np.clip(a / np.sqrt(b * c), -1.0, 1.0))
    influence = of_a / np.sqrt(b * c) - rho / 2 * (of_b / b + of_c / c)
    inside = np.clip(rho, -1 + 1e-12, 1 - 1e-12)
    error = standard_error(influence, np.sort(np.asarray(texts), axis=0))
    margin = norm.isf(0.025) * error / (1 - inside**2)
    low, high = np.tanh(np.arctanh(inside) + margin * np.array([-1, 1]))
    return Score(rho, float(low), float(high), n, parts=(rho + influence) / n)


def standard_error(influence: Floats, pairs: npt.NDArray[Any]) -> float:
    """Standard error from influences of shape (N,).

    The products of the influences of all pairs with a text in common are summed, or the squares
    alone where that is more. `pairs` has shape (2, N), the smaller number first.
    """
    n = len(influence)
    first, second = pairs
    apart = first != second
    each = np.concatenate([first, second[apart]])
    shared = np.square(np.bincount(each, np.concatenate([influence, influence[apart]]))).sum()
    # Pairs that have both texts in common were counted for each.
    same = np.unique(pairs[:, apart], axis=1, return_inverse=True)[1].reshape(-1)
    shared -= np.square(np.bincount(same, influence[apart])).sum()
    return float(np.sqrt(max(shared, np.square(influence).sum()) / (n * (n - 1))))


class _Ranks:
    """Mid-ranks of N values in (0, 1), and means over the values beyond each."""

    def __init__(self, values: Floats) -> None:
        ranks = rankdata(values)
        self.centred = (ranks - 0.5) / len(values) - 0.5
        self._order = np.argsort(values, kind="stable")
        # Of each value the numbers of smaller ones, and of smaller or equal ones.
        self._below = rankdata(values, "min") - 1
        self._up_to = rankdata(values, "max")

    def beyond(self, weights: Floats) -> Floats:
        """Mean of the weights of larger values, equal ones by half, for each value."""
        total = np.r_[0.0, np.cumsum(weights[self._order])]
        inside = (total[self._below] + total[self._up_to]) / 2
        return np.asarray((total[-1] - inside) / len(weights))

    def covariance(self, other: _Ranks) -> tuple[float, Floats]:
        """Covariance of two rankings of the same pairs, and each pair's influence on it."""
        product = self.centred * other.centred
        value = float(product.mean())
        influence = product + self.beyond(other.centred) + other.beyond(self.centred) - 3 * value
        return value, influence
