"""Participation ratio: number of principal components that carry the variance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array
from layerwise.metrics.formulas.spectra import covariance_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


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
    return _of_spectrum(covariance_spectrum(X))


def _of_spectrum(values: Array) -> float:
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
def compute(layer: Layer) -> Iterator[Overall]:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance."""
    yield Overall(_of_spectrum(layer.covariance_spectrum), len(layer.pooled))
