"""Participation ratio: how many principal components carry the variance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics import uncertainty
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Overall, UndefinedMetricError, metric


@metric(
    name="participation_ratio",
    label="Participation ratio",
    unit="",
    direction=None,
    range="1 to min(N - 1, D)",
    source="Gao et al. 2017",
    inputs=("pooled",),
    min_prompts=2,
    note="Also exp(S_2) of the centred embeddings.",
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance."""
    spectrum = layer.covariance_spectrum
    total, squares = spectrum.values.sum(), np.square(spectrum.values).sum()
    if squares <= 0:
        raise UndefinedMetricError("All pooled embeddings are equal: their covariance is zero.")
    value = total**2 / squares
    gradient = 2 * value * (1 / total - spectrum.values / squares)
    stderr = uncertainty.from_weights(spectrum.pull(gradient))
    yield Overall(float(value), stderr, len(layer.pooled))
