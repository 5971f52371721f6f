"""Cosines of pairs of embeddings: their mean, and how far they cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import row_blocks, unit_rows
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def anisotropy(X: npt.ArrayLike) -> float:
    """Mean cosine of the embeddings of two prompts (Ethayarajh 2019).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Zero vectors are left out.

    Returns
    -------
    float
        -1/(N - 1) to 1; 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero.

    Examples
    --------
    >>> round(anisotropy(np.eye(4)), 6), round(anisotropy(np.ones((4, 4))), 6)
    (0.0, 1.0)
    """
    X = check_matrix(X)
    n, total = 0, np.zeros(X.shape[1])
    for rows in row_blocks(len(X)):
        unit, _ = unit_rows(X[rows])
        n, total = n + len(unit), total + unit.sum(axis=0)
    if n < 2:
        raise UndefinedMetricError("The mean cosine needs two embeddings that are not zero.")
    # Linear in N, though there are N² pairs: ‖Σ x̂‖² is the sum of all cosines.
    return float((np.square(total).sum() - n) / (n * (n - 1)))


@metric(
    label="Mean cosine",
    direction=-1,
    range="-1/(N - 1) to 1",
    source="Ethayarajh 2019",
    inputs=("pooled",),
    function=anisotropy,
    min_prompts=2,
)
def compute_anisotropy(layer: Layer) -> Iterator[Overall]:
    """Mean cosine of the pooled embeddings of two prompts; zero vectors are left out."""
    yield Overall(anisotropy(layer.pooled), int(layer.pooled.any(axis=1).sum()))


def self_cluster(X: npt.ArrayLike) -> float:
    """``(D‖X̂X̂ᵀ‖_F² - N(D + N - 1)) / ((D - 1)(N - 1)N)`` (Tsitsulin et al. 2023).

    X̂ are the embeddings made to unit length; zero vectors are left out.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts, D ≥ 2. Computed in float64.

    Returns
    -------
    float
        About 0 for vectors spread evenly over the sphere, 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero, or D is 1.

    Examples
    --------
    >>> round(self_cluster(np.ones((4, 3))), 6)
    1.0
    """
    X = check_matrix(X)
    n, d = int(X.any(axis=1).sum()), X.shape[1]
    if len(X) <= d:
        return _of_squares(float(squared_cosines(X).sum()), n, d)
    unit = (unit_rows(X[rows])[0] for rows in row_blocks(len(X)))
    K = sum((some.T @ some for some in unit), np.zeros((d, d)))
    return _of_squares(float(np.vdot(K, K)), n, d)


def squared_cosines(X: Array) -> Array:
    """Squared cosines of all pairs of rows, 0 of zero vectors; shape (N, N)."""
    unit, kept = unit_rows(X)
    found = np.zeros((len(X), len(X)))
    found[np.ix_(kept, kept)] = np.square(unit @ unit.T)
    return found


def _of_squares(total: float, n: int, d: int) -> float:
    """From the sum of the squared cosines of all pairs of n vectors that are not zero."""
    if min(n, d) < 2:
        raise UndefinedMetricError("Self-Cluster needs two non-zero embeddings of two dimensions.")
    expected = n + n * (n - 1) / d
    return (total - expected) / (n * n - expected)


@metric(
    label="Self-Cluster",
    range="about 0 (even) to 1 (collapsed)",
    source="Tsitsulin et al. 2023",
    inputs=("pooled",),
    function=self_cluster,
    min_prompts=2,
)
def compute_self_cluster(layer: Layer) -> Iterator[Overall]:
    """Self-Cluster of the pooled embeddings."""
    n = int(layer.pooled.any(axis=1).sum())
    if layer.by_pairs:
        squares = layer.of_pairs("squared_cosines", lambda whole: squared_cosines(whole.pooled))
        value = _of_squares(float(squares.sum()), n, layer.hidden)
    else:
        value = self_cluster(layer.pooled)
    yield Overall(value, n)
