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
    spectrum, X = layer.pooled_spectrum, layer.pooled
    if not spectrum.values.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    value = float(from_eigenvalues(spectrum.values))
    yield Overall(value, _stderr(layer, value), len(X))


def _stderr(layer: LayerInputs, value: float) -> float:
    """By the derivative where N is well above D; else by leaving out some prompts.

    With fewer prompts than dimensions each adds a singular value of its own, a jump that no
    derivative sees: it would give half of the error.
    """
    X, spectrum = layer.pooled, layer.pooled_spectrum
    n, d = X.shape
    if n > 2 * d:
        sigma = np.sqrt(spectrum.values)
        inverse = np.divide(0.5, sigma, out=np.zeros_like(sigma), where=sigma > 0)
        gradient = entropy_gradient(sigma, 1.0) * inverse
        return uncertainty.from_weights(value * spectrum.pull(gradient))
    product = X @ X.T if n <= d else X.T @ X

    def without(i: int) -> float:
        if n <= d:
            rest = np.delete(np.delete(product, i, axis=0), i, axis=1)
        else:
            rest = product - np.outer(X[i], X[i])
        return float(from_eigenvalues(np.asarray(np.linalg.eigvalsh(rest))))

    settings = layer.settings
    return uncertainty.from_some_left_out(without, n, settings.stderr_groups, settings.seed)
