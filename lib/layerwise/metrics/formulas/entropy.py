"""Matrix-based entropy of a set of vectors: the Rényi entropy of its spectrum.

For a matrix Z of T rows, ``K = Z Zᵀ`` has eigenvalues λ_i ≥ 0, ``p_i = λ_i / Σλ``, and

    S_α = log(Σ p_i^α) / (1 - α),  S_1 = -Σ p log p,  S_2 = -log Σ p²,  S_∞ = -log max p

in nats (Giraldo et al. 2014; Skean et al. 2025, arXiv 2502.02013, equation 1). All is float64.

Bounds and theorems:

- ``0 ≤ S_α ≤ log rank(Z) ≤ log min(T, D)``; S_α does not grow with α.
- Theorem 1 of Skean et al. (2025) prints ``EffRank(Z) ≤ exp(S_1(Z))``. With Roy & Vetterli's
  effective rank, over singular values, it is the other way round: ``exp(S_1) ≤ EffRank ≤ rank``.
  The proof infers majorisation from σ_i ≥ λ_i, but once both are made to sum to 1 the squares
  are the more concentrated of the two.
- Lemma 1 there holds: S_α is Schur-concave for every α > 0, infinity included. With the
  majorisation that there is (σ by λ, each made to sum to 1) it turns Theorem 1 round.
- Proposition 1 there holds: m random directions in D dimensions have all cosines within ±ε with a
  chance of at least ``1 - m² √(2π) exp(-D ε² / 2)``. Its proof bounds a band of half that width,
  for which the bound fails. Theorem 5 uses it with ε / N: for 1,000 prompts in 1,024 dimensions it
  promises nothing below ε = 169, and ``exp(-S_2)`` is at most 1.
- Theorems 5 and 6 there (Theorem 2 in the text) are about ``‖K‖_F²`` without the trace that
  equation 1 divides by. With it, both of their cases (prompts of maximal and of minimal entropy,
  independent directions) give a dataset entropy S_2 of about log N: nothing is left of the
  difference. The mean of L identical unit rows is that row, not N/L times it, so Theorem 6's
  N³/L² is N.
- Theorem 3 there ends in ``… ≤ H(Z)``, read as the matrix-based entropy. S_1 cannot exceed
  log D, while log N - InfoNCE can: two dimensions and many well-separated prompts suffice.
- Appendix B says of Figure 7 that larger α lets smaller eigenvalues count more: it is less.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import gram, gram_spectrum, significant

# So near to 1, log(Σ p^α) / (1 - α) is mostly rounding, and S_1 with its slope in α,
# minus half the variance of log p, is exact to the square of the distance.
NEAR_ONE = 1e-5
# Orders that need no eigenvalues, but products of the matrix.
BY_PRODUCTS = (2, 3, 4)


def entropy_from_eigenvalues(eigenvalues: Array, alpha: float = 1.0) -> Array:
    """Rényi entropy of order `alpha` of spectra, along the last axis.

    Parameters
    ----------
    eigenvalues : array, shape (..., R)
        Zero-padded or not, in any order. Values below rounding (R times the machine epsilon,
        of the largest) and negative ones count as 0.
    alpha : float
        Above 0; 1, 2 and ``math.inf`` included.

    Returns
    -------
    array, shape (...)
        In nats, 0 to log R. NaN where a spectrum is all zeros: it has no entropy.

    Raises
    ------
    ValueError
        If `alpha` is not above 0.
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0, not {alpha}")
    values = significant(np.asarray(eigenvalues, dtype=np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        p = values / values.sum(axis=-1, keepdims=True)
        if abs(alpha - 1) < NEAR_ONE:
            log_p = np.log(np.where(p > 0, p, 1.0))
            first = (p * log_p).sum(axis=-1)
            spread = (p * np.square(log_p)).sum(axis=-1) - first**2
            result = -first - (alpha - 1) / 2 * spread
        elif math.isinf(alpha):
            result = -np.log(p.max(axis=-1))
        else:
            # Powers of p / max p neither under- nor overflow, however large alpha is.
            top = p.max(axis=-1, keepdims=True)
            ratio = p / top
            powers = np.where(ratio > 0, np.power(ratio, alpha), ratio).sum(axis=-1)
            result = (alpha * np.log(top[..., 0]) + np.log(powers)) / (1 - alpha)
    # Rounding can put a one-point spectrum at -1e-16.
    return np.asarray(np.maximum(result, 0.0))


def entropy(Z: npt.ArrayLike, alpha: float = 1.0) -> float:
    """Matrix-based entropy S_α of the rows of `Z`.

    Parameters
    ----------
    Z : array, shape (T, D)
        One vector a row, any float type; computed in float64.
    alpha : float
        Above 0; 1, 2 and ``math.inf`` included.

    Returns
    -------
    float
        In nats, 0 to log min(T, D).

    Raises
    ------
    UndefinedMetricError
        If every row is zero.
    LayerwiseError
        If a value is NaN or infinite.
    """
    Z = check_matrix(Z)
    if alpha in BY_PRODUCTS:
        value = entropy_by_products(gram(Z), alpha)
    else:
        value = float(entropy_from_eigenvalues(gram_spectrum(Z), alpha))
    if math.isnan(value):
        raise UndefinedMetricError("The entropy of vectors that are all zero is not defined.")
    return value


def entropy_by_products(K: Array, alpha: float) -> float:
    """S_α of a symmetric matrix without eigenvalues, for an order of `BY_PRODUCTS`.

    ``log(tr(K^α) / tr(K)^α) / (1 - α)``: the trace of a power is a sum over entries of K and K².
    NaN if the trace is 0.
    """
    trace = float(np.trace(K))
    if trace <= 0:
        return math.nan
    K = K / trace
    square = K if alpha == 2 else K @ K
    of_power = float(np.vdot(K if alpha == 3 else square, square))
    return max(math.log(of_power) / (1 - alpha), 0.0)


def effective_ranks(eigenvalues: Array) -> Array:
    """Effective ranks of spectra of Gram matrices, along the last axis.

    Singular values are the roots of these eigenvalues. Those below 1e-7 of the largest are lost in
    rounding, which changes the sum of a few hundred by less than 1e-4.

    Parameters
    ----------
    eigenvalues : array, shape (..., R)
        Zero-padded or not.

    Returns
    -------
    array, shape (...)
        1 to R; NaN where all are zero.
    """
    return np.asarray(np.exp(entropy_from_eigenvalues(np.sqrt(significant(eigenvalues)))))


def normalise(
    value: Array | float, normalization: str, n: npt.NDArray[Any] | float, d: float
) -> Array:
    """Normalise entropies.

    Parameters
    ----------
    value : array or float
        Entropies in nats.
    normalization : str
        ``raw``; ``logN`` (÷ log n); ``logD`` (÷ log d); ``logNlogD`` (÷ log n log d);
        ``maxEntropy`` (÷ log min(n, d), which gives 0 to 1).
    n : array or float
        Rows of the matrix: tokens of a prompt, or prompts.
    d : float
        Its columns: the hidden width.

    Returns
    -------
    array
        NaN if the divisor is 0 (one row or one column), where the entropy is always 0.
    """
    # A prompt without selected tokens has 0 rows and, as with 1 row, no divisor.
    log_n, log_d = np.log(np.maximum(n, 1.0)), np.log(float(d))
    divisor = {
        "raw": np.float64(1.0),
        "logN": log_n,
        "logD": log_d,
        "logNlogD": log_n * log_d,
        "maxEntropy": np.minimum(log_n, log_d),
    }[normalization]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(divisor > 0, value / divisor, np.nan))
