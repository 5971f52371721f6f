"""Linear CKA: how alike a layer's embeddings are to those of the first and the last layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import centred
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric

ROUNDING = 1e-12


def cross_terms(X: Array, Y: Array) -> Array:
    """Each row's part of ``‖XᵀY‖_F²``, shape (N,), by the smaller of N x N and D x D."""
    if len(X) <= max(X.shape[1], Y.shape[1]):
        return np.asarray(np.einsum("ij,ij->i", X @ X.T, Y @ Y.T))
    return np.asarray(np.einsum("nd,nd->n", X @ (X.T @ Y), Y))


def cka_terms(X: Array, Y: Array, xx: Array) -> tuple[float, Array]:
    """CKA of centred X and Y, and its derivative by each row's weight.

    Parameters
    ----------
    X, Y : array, shape (N, D), (N, E)
    xx : array, shape (N,)
        ``cross_terms(X, X)``.

    Returns
    -------
    value : float
    derivative : array, shape (N,)

    Raises
    ------
    UndefinedMetricError
        If all rows of X or of Y are equal.
    """
    xy, yy = cross_terms(X, Y), cross_terms(Y, Y)
    scale = np.sqrt(xx.sum() * yy.sum())
    if scale <= 0:
        raise UndefinedMetricError("CKA is not defined where all embeddings of a layer are equal.")
    value = float(xy.sum() / scale)
    # Each ‖·‖_F² is quadratic in the weights, hence twice each row's part.
    derivative = (2 * xy - value * (xx * np.sqrt(yy.sum() / xx.sum())
                                    + yy * np.sqrt(xx.sum() / yy.sum()))) / scale  # fmt: skip
    if value >= 1 - ROUNDING:  # of a layer with itself: no other prompts would give another value
        derivative = np.zeros_like(derivative)
    return min(value, 1.0), derivative


def cka(X: npt.ArrayLike, Y: npt.ArrayLike) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019).

    ``‖XᵀY‖_F² / (‖XᵀX‖_F ‖YᵀY‖_F)`` of the centred matrices: the biased estimator, which is
    above 0 for unrelated ones too, the more so the fewer rows there are.

    Parameters
    ----------
    X : array, shape (N, D)
    Y : array, shape (N, E)
        The same prompts, row by row. Computed in float64.

    Returns
    -------
    float
        0 to 1; 1 for matrices equal up to rotation, shift and scale.

    Raises
    ------
    UndefinedMetricError
        If all rows of X or of Y are equal.
    LayerwiseError
        If the numbers of rows differ, or a value is NaN or infinite.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> round(cka(X, 3 * X[:, ::-1] + 7), 6)
    1.0
    """
    X, Y = check_matrix(X), check_matrix(Y)
    if len(X) != len(Y):
        raise LayerwiseError(f"CKA compares the same prompts, not {len(X)} and {len(Y)}.")
    X = centred(X)
    return cka_terms(X, centred(Y), cross_terms(X, X))[0]


def _compared(layer: Layer, other: Array) -> Iterator[Overall]:
    spectrum = layer.covariance_spectrum
    xx = spectrum.pull(spectrum.values)
    value, derivative = cka_terms(centred(layer.pooled), centred(other), xx)
    yield Overall(value, uncertainty.from_weights(derivative), len(layer.pooled))


@metric(
    name="cka_first",
    label="CKA with the first layer",
    unit="",
    direction=None,
    range="0 to 1",
    source="Kornblith et al. 2019",
    inputs=("pooled", "ends"),
    function=cka,
    min_prompts=3,
)
def compute_first(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of layer 0."""
    yield from _compared(layer, layer.first)


@metric(
    name="cka_last",
    label="CKA with the last layer",
    unit="",
    direction=None,
    range="0 to 1",
    source="Kornblith et al. 2019",
    inputs=("pooled", "ends"),
    function=cka,
    min_prompts=3,
)
def compute_last(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of the last layer."""
    yield from _compared(layer, layer.last)
