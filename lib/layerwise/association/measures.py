"""Measures of association between two curves over layers: dCor, Spearman, Kendall.

Each of the three is the cosine between two *embeddings*, one made of either curve alone:

=========  ==================================================================================
dcor       double-centred matrix of pairwise distances (Székely et al. 2007); the square root
           of the cosine is the distance correlation (V-statistic)
spearman   centred mid-ranks; the cosine is Spearman's rho
kendall    signs of all pairwise differences; the cosine is Kendall's tau-b, ties included
=========  ==================================================================================

So any number of metrics against any number of permuted, shifted or resampled score curves is one
matrix product (`strengths`), which is what makes the null distributions cheap. The functions for
one pair of curves (`distance_correlation`, `spearman`, `kendall`) go through the well-known
libraries instead; the tests hold the two routes together to 1e-12.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Measure = Literal["dcor", "spearman", "kendall"]
MEASURES: tuple[Measure, ...] = get_args(Measure)

Floats = npt.NDArray[np.float64]

# Relative norm below which an embedding is that of a constant curve and has no direction.
FLAT = 1e-14


def distance_correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Distance correlation of two curves, in [0, 1]; 0 if either is constant.

    V-statistic of Székely, Rizzo & Bakirov (2007), by `dcor.distance_correlation`. Biased upwards
    for few points: two independent curves of 25 layers reach about 0.3.

    Parameters
    ----------
    x, y : array, shape (n,)

    Raises
    ------
    LayerwiseError
        If the curves differ in length, are shorter than 2, or hold a NaN or infinity.
    """
    import dcor  # numba behind it takes seconds to load, and only this function needs it

    a, b = _pair(x, y)
    return float(dcor.distance_correlation(a, b))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Spearman's rho of two curves, in [-1, 1], mid-ranks for ties (`scipy.stats.spearmanr`).

    Raises
    ------
    LayerwiseError
        If the curves differ in length, are shorter than 2, hold a NaN or infinity, or one of them
        is constant, for which rho is not defined.
    """
    from scipy.stats import spearmanr

    a, b = _pair(x, y, vary=True)
    return float(spearmanr(a, b).statistic)


def kendall(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Kendall's tau-b of two curves, in [-1, 1] (`scipy.stats.kendalltau`).

    Raises
    ------
    LayerwiseError
        If the curves differ in length, are shorter than 2, hold a NaN or infinity, or one of them
        is constant, for which tau-b is not defined.
    """
    from scipy.stats import kendalltau

    a, b = _pair(x, y, vary=True)
    return float(kendalltau(a, b, variant="b").statistic)


def embed(measure: Measure, curves: npt.ArrayLike) -> Floats:
    """The unit-length embedding of each curve, whose cosines are the measure.

    Parameters
    ----------
    curves : array, shape (k, n)

    Returns
    -------
    array, shape (k, f)
        f = n (n + 1) / 2 for dcor, n for spearman, n (n - 1) / 2 for kendall: of a symmetric or
        antisymmetric matrix one triangle is enough. The embedding of a constant curve is zero.
    """
    values = np.asarray(curves, dtype=np.float64)
    n = values.shape[1]
    if measure == "spearman":
        from scipy.stats import rankdata

        ranks = np.asarray(rankdata(values, axis=1), dtype=np.float64)
        return _unit(ranks - (n + 1) / 2, np.sqrt(n) * n)
    if measure == "kendall":
        upper = np.triu_indices(n, 1)
        return _unit(np.sign(values[:, upper[0]] - values[:, upper[1]]), n)
    upper = np.triu_indices(n)
    distances = np.abs(values[:, :, None] - values[:, None, :])
    scale = distances.max(axis=(1, 2), initial=0.0)
    rows = distances.mean(axis=2)
    centred = distances - rows[:, :, None] - rows[:, None, :] + rows.mean(axis=1)[:, None, None]
    # Off-diagonal entries stand for two equal ones of the full matrix.
    weights = np.where(upper[0] == upper[1], 1.0, np.sqrt(2.0))
    return _unit(centred[:, upper[0], upper[1]] * weights, scale * n)


def strengths(measure: Measure, left: Floats, right: Floats) -> Floats:
    """The measure between every embedding on the left and every one on the right.

    Parameters
    ----------
    left : array, shape (k, f), from `embed`
    right : array, shape (p, f), from `embed`

    Returns
    -------
    array, shape (k, p)
        In [0, 1] for dcor, else in [-1, 1]; 0 where either curve is constant.
    """
    return _finish(measure, left @ right.T)


def paired_strengths(measure: Measure, left: Floats, right: Floats) -> Floats:
    """The measure between embeddings that stand side by side, shapes (k, f), (k, f) to (k,)."""
    return _finish(measure, np.einsum("kf,kf->k", left, right))


def _finish(measure: Measure, cosines: Floats) -> Floats:
    if measure == "dcor":
        # Rounding can leave a cosine of -1e-17; the V-statistic itself is never negative.
        result: Floats = np.sqrt(np.clip(cosines, 0.0, 1.0))
        return result
    return np.clip(cosines, -1.0, 1.0)


def _unit(vectors: Floats, scale: Floats | float) -> Floats:
    norms = np.linalg.norm(vectors, axis=1)
    flat = norms <= FLAT * np.asarray(scale)
    return np.where(flat[:, None], 0.0, vectors / np.where(flat, 1.0, norms)[:, None])


def _pair(x: npt.ArrayLike, y: npt.ArrayLike, *, vary: bool = False) -> tuple[Floats, Floats]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or a.size < 2:
        raise LayerwiseError(
            f"An association needs two curves over the same two or more layers; these have the "
            f"shapes {a.shape} and {b.shape}."
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise LayerwiseError(
            "An association needs finite values; leave out the layers with NaN or infinity first."
        )
    if vary and (np.ptp(a) == 0 or np.ptp(b) == 0):
        raise LayerwiseError(
            "A rank correlation with a constant curve is not defined; leave that metric out."
        )
    return a, b
