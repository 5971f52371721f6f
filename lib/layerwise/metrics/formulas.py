"""Formulas behind metrics: functions on arrays that are float64, finite and of the right shape.

Matrix-based entropy of a set of vectors: the Rényi entropy of its spectrum.

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

Spectra of sets of vectors.

Everything here is float64, whatever comes in: a Gram matrix in float32 loses the eigenvalues
below 1e-7 of the largest, and in the middle layers of decoders one direction alone can be
1e4 times the next.

Embeddings, though, are float32 numbers that a model computed in float32. Differences of two
embeddings below `ROUNDING`, and eigenvalues below what rounding alone can make, count as 0.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Array: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class UndefinedMetricError(LayerwiseError):
    """The metric has no value on these data; the message says why.

    The tables leave such a row out and log the reason; in a notebook the sentence is raised.
    """

    code = "undefined"


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """A numpy array from one, from nested lists, or from a torch tensor of any type."""
    # Tensors are known by what they can do: importing torch takes seconds.
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values)


def check_matrix(Z: npt.ArrayLike, names: tuple[str, ...] | None = None) -> Array:
    """`Z` as a float64 matrix of at least one row and column, all finite.

    Parameters
    ----------
    Z : array, shape (N, D)
    names : tuple of N str, optional
        What the rows are called in the error.

    Raises
    ------
    LayerwiseError
        If it is not a matrix, is empty, or a row has NaN or infinity: the message names the row.
    """
    matrix = as_numpy(Z).astype(np.float64, copy=False)
    if matrix.ndim != 2 or matrix.size == 0:
        raise LayerwiseError(
            f"A matrix with one vector a row is wanted, got an array of shape {matrix.shape}.",
            code="wrong_shape",
        )
    finite = np.atleast_1d(np.isfinite(matrix).all(axis=1))
    if not finite.all():
        row = int(np.argmin(finite))
        who = f"prompt {names[row]!r}" if names else f"row {row}"
        raise LayerwiseError(
            f"NaN or infinity in {who} ({int((~finite).sum())} of {len(finite)} rows have some); "
            "extract in float32, or leave the row out.",
            code="not_finite",
        )
    return matrix


EPSILON = float(np.finfo(np.float64).eps)
SINGLE = float(np.finfo(np.float32).eps)
# Relative difference of embeddings that are copies of each other: those of one prompt in two
# batches are up to 2e-7 apart in SmolLM2's layers.
ROUNDING = 4 * SINGLE

ROWS_AT_ONCE = 4096


def significant(eigenvalues: Array) -> Array:
    """Eigenvalues with those at the level of rounding, and the negative ones, set to 0.

    The level is R times the machine epsilon times the largest, R the length of the last axis, as
    for the numerical rank. Orders of entropy below 1 would otherwise count the noise.
    """
    top = eigenvalues.max(axis=-1, keepdims=True, initial=0.0)
    level = eigenvalues.shape[-1] * EPSILON * top
    return np.where(eigenvalues > level, eigenvalues, 0.0)


def gram(X: Array) -> Array:
    """Return the smaller of ``X Xᵀ`` and ``Xᵀ X``, which have the same non-zero eigenvalues."""
    return X @ X.T if len(X) <= X.shape[1] else X.T @ X


def gram_spectrum(Z: npt.ArrayLike) -> Array:
    """Eigenvalues of ``Z Zᵀ`` that can be above 0, descending.

    Parameters
    ----------
    Z : array, shape (N, D)

    Returns
    -------
    array, shape (min(N, D),), float64, not below 0
    """
    values: Array = np.asarray(np.linalg.eigvalsh(gram(check_matrix(Z))))
    return np.maximum(values[::-1], 0.0)


def embedding_spectrum(X: npt.ArrayLike, *, centre: bool = False) -> Array:
    """Eigenvalues of the Gram matrix of embeddings, descending, those of rounding 0.

    Rounding is float32's, relative to the embeddings as given.

    Parameters
    ----------
    X : array, shape (N, D)
    centre : bool
        True to subtract the mean first, which gives N times the covariance's eigenvalues.

    Returns
    -------
    array, shape (min(N, D),), float64, not below 0
    """
    X = check_matrix(X)
    K = cross_gram(X, X) if centre and len(X) > X.shape[1] else gram(centred(X) if centre else X)
    values = significant(np.maximum(np.linalg.eigvalsh(K)[::-1], 0.0))
    return np.where(values > SINGLE**2 * float(np.vdot(X, X)), values, 0.0)


def covariance_spectrum(X: npt.ArrayLike) -> Array:
    """Eigenvalues of N times the covariance of rows, see `embedding_spectrum`.

    Raises
    ------
    UndefinedMetricError
        If all rows are equal.
    """
    eigenvalues = embedding_spectrum(X, centre=True)
    if not eigenvalues.any():
        raise UndefinedMetricError("All embeddings are equal: their covariance is zero.")
    return eigenvalues


def double_centred(K: Array) -> Array:
    """The Gram matrix of rows less their mean, from that of the rows; few digits are lost where
    the mean is small."""
    K = K - K.mean(axis=0)
    return np.asarray(K - K.mean(axis=1, keepdims=True))


def cross_gram(X: Array, Y: Array) -> Array:
    """``XᵀY`` of centred rows, shape (D, E), without a copy of all of them."""
    means, total = (X.mean(axis=0), Y.mean(axis=0)), np.zeros((X.shape[1], Y.shape[1]))
    for start in range(0, len(X), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        some = centred(X[rows], means[0])
        total += some.T @ (some if Y is X else centred(Y[rows], means[1]))
    return total


def centred(X: Array, mean: Array | None = None) -> Array:
    """Rows less their mean, shape (N, D); zero where a row differs from it by rounding alone."""
    mean = X.mean(axis=0) if mean is None else mean
    rows = np.asarray(X - mean)
    scale = np.maximum(np.linalg.norm(X, axis=1), np.linalg.norm(mean))
    rows[np.linalg.norm(rows, axis=1) <= ROUNDING * scale] = 0.0
    return rows


def unit_centred(X: Array) -> Array:
    """Rows less their mean, scaled to unit length, as the released code has embeddings.

    Rows that are zero, or equal the mean but for rounding, are zero; the former do not count for
    the mean.

    Parameters
    ----------
    X : array, shape (N, D)

    Returns
    -------
    array, shape (N, D)
    """
    scaled = np.zeros_like(X)
    if (nonzero := X.any(axis=1)).any():
        rows = centred(X[nonzero])
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled[nonzero] = np.divide(rows, norms, out=rows, where=norms > 0)
    return scaled


def unit_rows(X: Array) -> Array:
    """Rows of unit length, without those that are zero, which have no direction."""
    norms = np.linalg.norm(X, axis=1)
    return np.asarray(X[norms > 0] / norms[norms > 0, None])


def unit_pair(A: npt.ArrayLike, B: npt.ArrayLike) -> tuple[Array, Array, Mask]:
    """Scale the rows of two views to unit length, without prompts with a zero vector.

    Returns
    -------
    A, B : array, shape (M, D)
    nonzero : bool array, shape (N,)

    Raises
    ------
    UndefinedMetricError
        If fewer than two prompts are left: nothing to tell a view from.
    LayerwiseError
        If the views differ in shape, or have NaN or infinity.
    """
    A, B = check_matrix(A), check_matrix(B)
    if A.shape != B.shape:
        raise LayerwiseError(
            f"Two views of the same prompts must have one shape, not {A.shape} and {B.shape}.",
            code="wrong_shape",
        )
    norm_a, norm_b = np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1)
    nonzero = (norm_a > 0) & (norm_b > 0)
    if nonzero.sum() < 2:
        raise UndefinedMetricError("It needs at least two prompts with two views each.")
    return A[nonzero] / norm_a[nonzero, None], B[nonzero] / norm_b[nonzero, None], nonzero


# So near to 1, log(Σ p^α) / (1 - α) is mostly rounding, and S_1 with its slope in α,
# minus half the variance of log p, is exact to the square of the distance.
NEAR_ONE = 1e-5


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
    value = float(entropy_from_eigenvalues(gram_spectrum(Z), alpha))
    if math.isnan(value):
        raise UndefinedMetricError("The entropy of vectors that are all zero is not defined.")
    return value


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
