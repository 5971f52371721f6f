"""NESum: sum of the covariance's eigenvalues, divided by the largest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array
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
    return _of_spectrum(covariance_spectrum(X))


def _of_spectrum(values: Array) -> float:
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
def compute(layer: Layer) -> Iterator[Overall]:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of the pooled embeddings."""
    yield Overall(_of_spectrum(layer.covariance_spectrum), len(layer.pooled))
