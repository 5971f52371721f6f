"""Spearman's correlation of several measures with one and the same judgement, and their errors.

The error comes from the influence of each observation (Hampel 1974), so that two measures of the
same observations can be set against each other: the influence of a difference is the difference of
the influences. Ties are ranked at their middle and counted as such.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]

FEWEST = 10  # below, a normal law of the estimate is out of reach


def spearman(measures: npt.ArrayLike, judged: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Spearman's correlation of each measure with a judgement, and each observation's influence.

    With mid-ranks F and G scaled to (0, 1), ``ρ = a / sqrt(b c)``, a their covariance and b, c
    their variances; the influence of an observation on each is that of a U-statistic of order 3.

    Parameters
    ----------
    measures : array, shape (k, n)
    judged : array, shape (n,)

    Returns
    -------
    correlations : array, shape (k,)
        In [-1, 1]; NaN where a measure, or the judgement, does not vary.
    influences : array, shape (k, n)
        Of mean 0. The variance of a correlation is the mean of the squares over n; that of a
        difference the same of the difference.

    Raises
    ------
    LayerwiseError
        For fewer than ten observations, or shapes that don't fit.
    """
    values, y = np.asarray(measures, dtype=np.float64), np.asarray(judged, dtype=np.float64)
    if values.ndim != 2 or y.shape != values.shape[1:] or len(y) < FEWEST:
        raise LayerwiseError(
            f"A rank correlation with its error needs measures of shape (k, n) and n judgements, "
            f"n at least {FEWEST}; {values.shape} and {y.shape} came."
        )
    known, rho = _Ranks(y), np.full(len(values), np.nan)
    influences = np.full(values.shape, np.nan)
    c, of_c = known.covariance(known)
    for row, x in enumerate(values):
        ranks = _Ranks(x)
        a, of_a = ranks.covariance(known)
        b, of_b = ranks.covariance(ranks)
        if b <= 0 or c <= 0:
            continue
        rho[row] = np.clip(a / np.sqrt(b * c), -1.0, 1.0)
        influences[row] = of_a / np.sqrt(b * c) - rho[row] / 2 * (of_b / b + of_c / c)
    return rho, influences


def errors(influences: npt.ArrayLike, pairs: npt.ArrayLike | None = None) -> Floats:
    """Standard errors from influences of shape (..., n), one for each row.

    Parameters
    ----------
    pairs : array of int, shape (2, n), optional
        Which two texts each observation is of. Observations that share a text are not taken for
        independent (Fafchamps & Gubert 2007): the products of the influences
        of all of them are summed, or the squares alone where that is more.
    """
    values = np.asarray(influences, dtype=np.float64)
    n = values.shape[-1]
    squares = np.square(values).sum(axis=-1)
    if pairs is not None:
        squares = np.maximum(squares, _of_sharing(values, np.sort(np.asarray(pairs), axis=0)))
    return np.asarray(np.sqrt(squares / (n * (n - 1))))


def _of_sharing(values: Floats, pairs: npt.NDArray[Any]) -> Floats:
    """Sum of products of all observations with a text in common, each pair of them once a side."""
    low, high = pairs
    apart = low != high

    def squares(of: npt.NDArray[Any], own: Floats) -> Floats:
        sums = np.zeros((int(of.max(initial=-1)) + 1, *own.shape[:-1]))
        np.add.at(sums, of, np.moveaxis(own, -1, 0))
        return np.asarray(np.square(sums).sum(axis=0))

    each = np.concatenate([low, high[apart]])
    of_texts = squares(each, np.concatenate([values, values[..., apart]], axis=-1))
    # Those that have both texts in common were counted for each.
    same = np.unique(pairs[:, apart], axis=1, return_inverse=True)[1].reshape(-1)
    return of_texts - squares(same, values[..., apart])


def fisher_interval(rho: Floats, error: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Interval of correlations, normal on Fisher's scale; NaN stays NaN."""
    from scipy.stats import norm

    inside = np.clip(rho, -1 + 1e-12, 1 - 1e-12)
    margin = norm.isf((1 - confidence) / 2) * error / (1 - inside**2)
    return np.tanh(np.arctanh(inside) - margin), np.tanh(np.arctanh(inside) + margin)


class _Ranks:
    """The mid-ranks of n values, and sums over the values beyond each."""

    def __init__(self, values: Floats) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        sizes = np.diff(np.r_[first, len(values)])
        self._ends = np.repeat(first + sizes, sizes)
        self._starts = np.repeat(first, sizes)
        ranks = np.empty(len(values))
        ranks[self.order] = (self._starts + self._ends) / 2
        self.centred = ranks / len(values) - 0.5

    def beyond(self, weights: Floats) -> Floats:
        """Mean of the weights of larger values, equal ones by half, of each value."""
        total = np.r_[0.0, np.cumsum(weights[self.order])]
        found = np.empty(len(weights))
        found[self.order] = total[-1] - (total[self._starts] + total[self._ends]) / 2
        return found / len(weights)

    def covariance(self, other: _Ranks) -> tuple[float, Floats]:
        """Covariance of two rankings of the same observations, and the influences on it."""
        product = self.centred * other.centred
        value = float(product.mean())
        influence = product + self.beyond(other.centred) + other.beyond(self.centred) - 3 * value
        return value, influence
