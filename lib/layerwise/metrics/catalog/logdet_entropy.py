"""LogDet entropy: the volume that the prompts' embeddings span."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.spectra import SampleSpectrum, gram_spectrum, significant
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def from_eigenvalues(eigenvalues: Array) -> float:
    """LogDet entropy of one spectrum, zeros left out.

    Raises
    ------
    UndefinedMetricError
        If all are zero.
    """
    positive = significant(eigenvalues)
    positive = positive[positive > 0]
    if not positive.size:
        raise UndefinedMetricError("Vectors that are all zero have no LogDet entropy.")
    return float(np.log(positive / positive.sum()).sum() - math.log(2))


def logdet_entropy(Z: npt.ArrayLike) -> float:
    """``log det(K) - log 2``, K the Gram matrix of `Z` made to have trace 1.

    Skean et al. 2025, appendix B (after Zhouyin & Liu 2021). Print does not say how K is scaled;
    with trace 1, as in equation 1, it is the lower bound of S_1 that it is said to be. A singular
    K has determinant 0: the product is over the eigenvalues above rounding.

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
    return from_eigenvalues(gram_spectrum(Z))


@metric(
    name="logdet_entropy",
    label="LogDet entropy",
    unit="nats",
    direction=None,
    range="at most -log 2 - r log r, r the rank",
    source="Skean et al. 2025, appendix B; Zhouyin & Liu 2021",
    inputs=("pooled",),
    function=logdet_entropy,
    min_prompts=2,
    note="Falls with the rank: compare at one N only.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """LogDet entropy of the pooled embeddings."""
    spectrum = layer.pooled_spectrum
    value = from_eigenvalues(spectrum.values)
    without = without_each(spectrum)
    finite = bool(np.isfinite(without).all())
    stderr = uncertainty.from_leave_one_out(without) if finite else math.nan
    yield Overall(value, stderr, len(layer.pooled))


def without_each(spectrum: SampleSpectrum) -> Array:
    """LogDet entropy (but for log 2) with one row left out each, shape (N,).

    Closed forms, of one decomposition: for independent rows (rank N),
    ``det(K without n) = det(K) (K⁻¹)_nn``; for rank D < N, ``det(C - x xᵀ) = det(C) (1 - h_n)``
    with the leverage h_n. Not finite where that leaves a smaller rank, or nothing.
    """
    values = spectrum.values[spectrum.values > 0]
    energy = spectrum.energy[:, : len(values)]
    n = len(energy)
    rest = values.sum() - energy.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(values) == n:
            rank, factor = n - 1, (energy / values**2).sum(axis=1)
        else:
            rank, factor = len(values), 1 - (energy / values).sum(axis=1)
        return np.asarray(np.log(values).sum() + np.log(factor) - rank * np.log(rest))
