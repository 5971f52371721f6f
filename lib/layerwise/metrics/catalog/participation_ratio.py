"""Participation ratio: how many principal components carry the variance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import SampleSpectrum, centred
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def participation_ratio(X: npt.ArrayLike) -> float:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance of `X` (Gao et al. 2017).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Computed in float64.

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
    return _value_and_gradient(SampleSpectrum.of(centred(check_matrix(X))).values)[0]


def _value_and_gradient(values: Array) -> tuple[float, Array]:
    total, squares = values.sum(), np.square(values).sum()
    if squares <= 0:
        raise UndefinedMetricError("All pooled embeddings are equal: their covariance is zero.")
    value = total**2 / squares
    return float(value), 2 * value * (1 / total - values / squares)


@metric(
    name="participation_ratio",
    label="Participation ratio",
    unit="",
    direction=None,
    range="1 to min(N - 1, D)",
    source="Gao et al. 2017",
    inputs=("pooled",),
    function=participation_ratio,
    min_prompts=2,
    note="Also exp(S_2) of the centred embeddings.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance."""
    spectrum = layer.covariance_spectrum
    value, gradient = _value_and_gradient(spectrum.values)
    stderr = uncertainty.from_weights(spectrum.pull(gradient))
    yield Overall(value, stderr, len(layer.pooled))
