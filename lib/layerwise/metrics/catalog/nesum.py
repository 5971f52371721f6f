"""NESum: the covariance's eigenvalues in units of the largest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import SampleSpectrum, centred
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def nesum(X: npt.ArrayLike) -> float:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of `X` (He & Ozay 2022).

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
    >>> round(nesum(X), 6)  # two directions of equal variance
    2.0
    """
    return _value_and_gradient(SampleSpectrum.of(centred(check_matrix(X))).values)[0]


def _value_and_gradient(values: Array) -> tuple[float, Array]:
    top, total = values[0], values.sum()
    if top <= 0:
        raise UndefinedMetricError("All pooled embeddings are equal: their covariance is zero.")
    gradient = np.where(values > 0, 1 / top, 0.0)
    gradient[0] -= total / top**2
    return float(total / top), gradient


@metric(
    name="nesum",
    label="NESum",
    unit="",
    direction=1,
    range="1 to min(N - 1, D)",
    source="He & Ozay 2022, definition 4.1",
    inputs=("pooled",),
    function=nesum,
    min_prompts=2,
)
def compute(layer: Layer) -> Iterator[Overall]:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of the pooled embeddings."""
    spectrum = layer.covariance_spectrum
    value, gradient = _value_and_gradient(spectrum.values)
    stderr = uncertainty.from_weights(spectrum.pull(gradient))
    yield Overall(value, stderr, len(layer.pooled))
