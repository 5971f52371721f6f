"""Spectra of sets of vectors.

Everything here is float64, whatever comes in: a Gram matrix in float32 loses the eigenvalues
below 1e-7 of the largest, and in the middle layers of decoders one direction alone can be
1e4 times the next.

Embeddings, though, are float32 numbers that a model computed in float32. Differences of two
embeddings below `ROUNDING`, and eigenvalues below what rounding alone can make, count as 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import Array, Mask, UndefinedMetricError, check_matrix

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
    return spectrum_of(K, float(np.vdot(X, X)))


def spectrum_of(K: Array, energy: float) -> Array:
    """Eigenvalues of a Gram matrix of embeddings, see `embedding_spectrum`.

    Parameters
    ----------
    K : array, shape (R, R)
    energy : float
        Sum of the squares of the embeddings, before any mean was subtracted.
    """
    values = significant(np.maximum(np.linalg.eigvalsh(K)[::-1], 0.0))
    return np.where(values > SINGLE**2 * energy, values, 0.0)


def covariance_spectrum(X: npt.ArrayLike) -> Array:
    """Eigenvalues of N times the covariance of rows, see `embedding_spectrum`.

    Raises
    ------
    UndefinedMetricError
        If all rows are equal.
    """
    return not_all_zero(embedding_spectrum(X, centre=True))


def not_all_zero(eigenvalues: Array) -> Array:
    """Eigenvalues of a covariance that is not zero.

    Raises
    ------
    UndefinedMetricError
        If all are zero.
    """
    if not eigenvalues.any():
        raise UndefinedMetricError("All embeddings are equal: their covariance is zero.")
    return eigenvalues


def double_centred(K: Array) -> Array:
    """The Gram matrix of rows less their mean, from that of the rows; few digits are lost where
    the mean is small."""
    K = K - K.mean(axis=0)
    return np.asarray(K - K.mean(axis=1, keepdims=True))


def row_blocks(n: int) -> Iterator[slice]:
    """Successive rows of a matrix, so many that copies of them need little memory."""
    for start in range(0, n, ROWS_AT_ONCE):
        yield slice(start, start + ROWS_AT_ONCE)


def cross_gram(X: Array, Y: Array) -> Array:
    """``XᵀY`` of centred rows, shape (D, E), without a copy of all of them."""
    means, total = (X.mean(axis=0), Y.mean(axis=0)), np.zeros((X.shape[1], Y.shape[1]))
    for rows in row_blocks(len(X)):
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


def unit_rows(X: Array) -> tuple[Array, Mask]:
    """Rows of unit length, and which rows have one: a zero vector has no direction.

    Returns
    -------
    rows : array, shape (M, D)
        Of the M rows that are not zero.
    nonzero : bool array, shape (N,)
    """
    norms = np.linalg.norm(X, axis=1)
    nonzero = norms > 0
    return X[nonzero] / norms[nonzero, None], nonzero


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
