"""RankMe: the effective rank of the prompts' embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics import uncertainty
from layerwise.metrics.effective_rank import from_eigenvalues
from layerwise.metrics.entropy import entropy_gradient
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Overall, UndefinedMetricError, metric


@metric(
    name="rankme",
    label="RankMe",
    unit="",
    direction=1,
    range="1 to min(N, D)",
    source="Garrido et al. 2023; Roy & Vetterli 2007",
    inputs=("pooled",),
    min_prompts=2,
    note="Without the 1e-7 that Garrido et al. add to each share.",
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """``exp(H(σ / Σσ))`` over the singular values of the N x D pooled embeddings."""
    spectrum = layer.pooled_spectrum
    if not spectrum.values.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    value = float(from_eigenvalues(spectrum.values))
    sigma = np.sqrt(spectrum.values)
    inverse = np.divide(0.5, sigma, out=np.zeros_like(sigma), where=sigma > 0)
    derivative = value * spectrum.pull(entropy_gradient(sigma, 1.0) * inverse)
    yield Overall(value, uncertainty.from_weights(derivative), len(layer.pooled))
