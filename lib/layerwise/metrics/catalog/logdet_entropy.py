"""LogDet entropy: the volume that the prompts' embeddings span."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError
from layerwise.metrics.formulas.spectra import embedding_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def from_eigenvalues(eigenvalues: Array) -> float:
    """LogDet entropy of one spectrum, zeros left out.

    Raises
    ------
    UndefinedMetricError
        If all are zero.
    """
    positive = eigenvalues[eigenvalues > 0]
    if not positive.size:
        raise UndefinedMetricError("Vectors that are all zero have no LogDet entropy.")
    return float(np.log(positive / positive.sum()).sum() - math.log(2))


def logdet_entropy(Z: npt.ArrayLike) -> float:
    """``log det(K) - log 2``, K the Gram matrix of `Z` made to have trace 1.

    Skean et al. 2025, appendix B (after Zhouyin & Liu 2021). The paper does not say how K is
    scaled; with trace 1, as in equation 1, it is a lower bound of S_1, as the paper claims. A
    singular K has determinant 0: the product is over the eigenvalues above float32's rounding.

    Parameters
    ----------
    Z : array, shape (N, D)

    Returns
    -------
    float
        In nats, at most -log 2 - r log r for rank r, reached by equal eigenvalues.

    Raises
    ------
    UndefinedMetricError
        If `Z` is all zeros.

    Examples
    --------
    >>> round(logdet_entropy(np.eye(2)), 6)  # -3 log 2
    -2.079442
    """
    return from_eigenvalues(embedding_spectrum(Z))


@metric(
    label="LogDet entropy",
    unit="nats",
    range="at most -log 2 - r log r, r the rank",
    source="Skean et al. 2025, appendix B; Zhouyin & Liu 2021",
    inputs=("pooled",),
    function=logdet_entropy,
    min_prompts=2,
    note="Falls with the rank: compare at one N only.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """LogDet entropy of the pooled embeddings."""
    yield Overall(from_eigenvalues(layer.pooled_spectrum), len(layer.pooled))
