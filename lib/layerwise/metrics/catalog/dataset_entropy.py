"""Dataset entropy: how widely the prompts' embeddings spread at a layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.entropy import (
    entropy,
    entropy_from_eigenvalues,
    entropy_gradient,
    reference_entropy,
    reference_gradient,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, Overall, metric


def dataset_entropy(X: npt.ArrayLike, alpha: float = 1.0) -> float:
    """Matrix-based entropy ``S_α`` of pooled embeddings (Skean et al. 2025, equation 1).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64.
    alpha : float
        Order: above 0; 1, 2 and ``math.inf`` included.

    Returns
    -------
    float
        In nats, 0 to log min(N, D).

    Raises
    ------
    UndefinedMetricError
        If every embedding is zero.

    Examples
    --------
    >>> round(dataset_entropy(np.eye(8)), 6)  # eight orthogonal prompts: log 8
    2.079442
    """
    return entropy(X, alpha)


@metric(
    name="dataset_entropy",
    label="Dataset entropy",
    unit="nats",
    direction=1,
    range="0 to log min(N, D)",
    source="Skean et al. 2025, equation 1",
    inputs=("pooled",),
    function=dataset_entropy,
    normalizations={"paper": NORMALIZATIONS, "reference": NORMALIZATIONS},
    min_prompts=2,
    note="Higher is better as for RankMe; the paper's own layer choice (appendix E) takes the "
    "lowest.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """``S_α`` of the N x D matrix of pooled embeddings.

    Under ``reference`` the matrix is the Gram matrix, or the D x D one where N > D, with negative
    entries set to 0: two different things there, as in the released code.
    """
    n = len(layer.pooled)
    if not layer.pooled.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    if layer.protocol == "reference":
        yield from _clamped(layer.pooled, layer.settings.alphas)
        return
    spectrum = layer.pooled_spectrum
    for alpha in layer.settings.alphas:
        value = float(entropy_from_eigenvalues(spectrum.values, alpha))
        derivative = spectrum.pull(entropy_gradient(spectrum.values, alpha))
        yield Overall(value, uncertainty.from_weights(derivative), n, size=n, alpha=alpha)


def _clamped(X: Array, alphas: tuple[float, ...]) -> Iterator[Overall]:
    n, d = X.shape
    by_samples = n <= d
    product = X @ X.T if by_samples else X.T @ X
    values, vectors = np.linalg.eigh(np.maximum(product, 0.0))
    for alpha in alphas:
        value = float(reference_entropy(values, alpha, float(min(n, d))))
        gradient = reference_gradient(values, alpha)
        if by_samples:
            # Weighting row n scales row and column n of K: dλ_i = λ_i v_in².
            derivative = np.square(vectors) @ (gradient * values)
        else:
            inner = (vectors * gradient) @ vectors.T
            inner[product <= 0] = 0.0
            derivative = np.einsum("nd,nd->n", X @ inner, X)
        yield Overall(value, uncertainty.from_weights(derivative), n, size=n, alpha=alpha)
