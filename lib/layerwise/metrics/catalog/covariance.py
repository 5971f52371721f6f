"""Numbers of directions, from the eigenvalues of the embeddings' covariance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array
from layerwise.metrics.formulas.spectra import covariance_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def nesum(X: npt.ArrayLike) -> float:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of `X` (He & Ozay 2022).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Computed in float64; eigenvalues below the rounding of
        float32 embeddings count as 0.

    Returns
    -------
    float
        1 to min(N - 1, D).

    Raises
    ------
    UndefinedMetricError
        If all embeddings are equal.

    Examples
    --------
    >>> X = [[1, 0], [-1, 0], [0, 1], [0, -1]]
    >>> round(nesum(X), 6)  # two directions of equal variance
    2.0
    """
    return _by_largest(covariance_spectrum(X))


def _by_largest(values: Array) -> float:
    return float(values.sum() / values[0])


@metric(
    label="NESum",
    direction=1,
    range="1 to min(N - 1, D)",
    source="He & Ozay 2022, definition 4.1",
    inputs=("pooled",),
    function=nesum,
    min_prompts=2,
)
def compute_nesum(layer: Layer) -> Iterator[Overall]:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of the pooled embeddings."""
    yield Overall(_by_largest(layer.covariance_spectrum), len(layer.pooled))


def participation_ratio(X: npt.ArrayLike) -> float:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance of `X` (Gao et al. 2017).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Computed in float64; eigenvalues below the rounding of
        float32 embeddings count as 0.

    Returns
    -------
    float
        1 to min(N - 1, D).

    Raises
    ------
    UndefinedMetricError
        If all embeddings are equal.

    Examples
    --------
    >>> X = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> round(participation_ratio(X), 6)  # two directions of equal variance
    2.0
    """
    return _by_squares(covariance_spectrum(X))


def _by_squares(values: Array) -> float:
    return float(values.sum() ** 2 / np.square(values).sum())


@metric(
    label="Participation ratio",
    range="1 to min(N - 1, D)",
    source="Gao et al. 2017",
    inputs=("pooled",),
    function=participation_ratio,
    min_prompts=2,
    note="Also exp(S_2) of the centred embeddings.",
)
def compute_participation_ratio(layer: Layer) -> Iterator[Overall]:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance."""
    yield Overall(_by_squares(layer.covariance_spectrum), len(layer.pooled))
