"""Linear CKA: similarity of a layer's embeddings to those of the first and the last layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import centred, cross_gram
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


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
        raise LayerwiseError(
            f"CKA compares the same prompts, not {len(X)} and {len(Y)}.", code="wrong_shape"
        )
    if len(X) <= max(X.shape[1], Y.shape[1]):
        X, Y = centred(X), centred(Y)
        return _alignment(K := X @ X.T, L := Y @ Y.T, float(np.vdot(K, L)))
    cross = float(np.square(cross_gram(X, Y)).sum())
    return _alignment(cross_gram(X, X), cross_gram(Y, Y), cross)


def _alignment(K: Array, L: Array, cross: float) -> float:
    scale = float(np.linalg.norm(K) * np.linalg.norm(L))
    if scale <= 0:
        raise UndefinedMetricError("CKA is not defined where all embeddings of a layer are equal.")
    return min(cross / scale, 1.0)


def _with_end(layer: Layer, which: str) -> Overall:
    """CKA with the first or the last layer."""
    n = int(layer.has_tokens.sum())
    if not layer.by_pairs:
        return Overall(cka(layer.pooled, getattr(layer, which)), n)
    K, L = layer.centred_gram(), layer.centred_gram(which)
    return Overall(_alignment(K, L, float(np.vdot(K, L))), n)


@metric(
    name="cka_first",
    label="CKA with the first layer",
    range="0 to 1",
    source="Kornblith et al. 2019",
    inputs=("pooled", "ends"),
    function=cka,
    min_prompts=3,
)
def compute_first(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of layer 0."""
    yield _with_end(layer, "first")


@metric(
    name="cka_last",
    label="CKA with the last layer",
    range="0 to 1",
    source="Kornblith et al. 2019",
    inputs=("pooled", "ends"),
    function=cka,
    min_prompts=3,
)
def compute_last(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of the last layer."""
    yield _with_end(layer, "last")
