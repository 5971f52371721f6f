"""NESum: the covariance's eigenvalues in units of the largest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics import uncertainty
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Overall, UndefinedMetricError, metric


@metric(
    name="nesum",
    label="NESum",
    unit="",
    direction=1,
    range="1 to min(N - 1, D)",
    source="He & Ozay 2022, definition 4.1",
    inputs=("pooled",),
    min_prompts=2,
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of the pooled embeddings."""
    spectrum = layer.covariance_spectrum
    top, total = spectrum.values[0], spectrum.values.sum()
    if top <= 0:
        raise UndefinedMetricError("All pooled embeddings are equal: their covariance is zero.")
    gradient = np.where(spectrum.values > 0, 1 / top, 0.0)
    gradient[0] -= total / top**2
    stderr = uncertainty.from_weights(spectrum.pull(gradient))
    yield Overall(float(total / top), stderr, len(layer.pooled))
