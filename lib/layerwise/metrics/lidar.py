"""LiDAR: how many directions tell prompts apart, in units of what augmentation does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from layerwise.errors import LayerwiseError
from layerwise.metrics import uncertainty
from layerwise.metrics.entropy import entropy_from_eigenvalues, entropy_gradient
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.prompt_entropy import reference_entropy, reference_gradient
from layerwise.metrics.registry import (
    NORMALIZATIONS,
    Array,
    Overall,
    UndefinedMetricError,
    metric,
)
from layerwise.metrics.spectra import significant

Views = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Whitened:
    """Classes in coordinates in which the within-class scatter is the identity.

    Attributes
    ----------
    classes : array, shape (D', N)
        ``Σ_w^{-1/2} (μ_n - μ) / √N``. Its squared singular values are the eigenvalues of
        ``Σ_w^{-1/2} Σ_b Σ_w^{-1/2}``.
    scatter_along : callable
        From directions W, shape (D', R), and weights, shape (R,), to ``Σ_i weights_i w_iᵀ S_n
        w_i`` for each prompt, S_n its part of the whitened within-class scatter, shape (N,).
    """

    classes: Array
    scatter_along: Callable[[Array, Array], Array]


def whiten(views: Views, delta: float) -> Whitened:
    """Whiten class means by the within-class scatter.

    Any square root of ``Σ_w = Σ_n Σ_v (x_nv - μ_n)(x_nv - μ_n)ᵀ / (N V) + δ I`` gives the same
    eigenvalues, so the Cholesky factor serves. Where the residuals span fewer dimensions than
    there are (N (V - 1) < D), Σ_w is δ outside their span: their thin SVD then replaces the
    D x D matrix, and nothing is lost between δ and the largest eigenvalue.

    Parameters
    ----------
    views : array, shape (V, N, D)
        Any float type; computed in float64.
    delta : float
    """
    v, n, d = views.shape
    means = np.asarray(np.mean(views, axis=0, dtype=np.float64))
    between = (means - means.mean(axis=0)).T / math.sqrt(n)
    if n * (v - 1) < d:
        return _whiten_by_svd(views, means, between, delta)
    within = np.zeros((d, d))
    for view in views:
        residual = view - means
        within += residual.T @ residual
    within /= n * v
    within[np.diag_indices(d)] += delta
    factor = np.linalg.cholesky(within)

    def scatter_along(directions: Array, weights: Array) -> Array:
        axes = linalg.solve_triangular(factor, directions, lower=True, trans="T")
        form = (axes * weights) @ axes.T
        total: Array = np.zeros(n)
        for view in views:
            residual = view - means
            total += np.einsum("nd,nd->n", residual @ form, residual)
        return np.asarray(total / (n * v))

    classes = linalg.solve_triangular(factor, between, lower=True, check_finite=False)
    return Whitened(np.asarray(classes), scatter_along)


def _whiten_by_svd(views: Views, means: Array, between: Array, delta: float) -> Whitened:
    v, n, d = views.shape
    residuals = (np.asarray(views, dtype=np.float64) - means).reshape(n * v, d)
    left, sigma, basis = map(
        np.asarray, np.linalg.svd(residuals / math.sqrt(n * v), full_matrices=False)
    )
    span = n * (v - 1)
    left, sigma, basis = left[:, :span], sigma[:span], basis[:span]
    inside = basis @ between
    outside = between - basis.T @ inside
    scale = np.sqrt(sigma**2 + delta)
    scores = left * (sigma / scale)

    def scatter_along(directions: Array, weights: Array) -> Array:
        along = np.square(scores @ directions[:span]) @ weights
        return np.asarray(along.reshape(v, n).sum(axis=0))

    classes = np.concatenate([inside / scale[:, None], outside / math.sqrt(delta)])
    return Whitened(classes, scatter_along)


def discriminants(classes: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues and eigenvectors of ``C Cᵀ`` from the smaller of it and ``Cᵀ C``.

    Parameters
    ----------
    classes : array C, shape (D', N)

    Returns
    -------
    values : array, shape (R,), R = min(D', N)
        Descending, insignificant ones 0.
    directions : array, shape (D', R)
        Eigenvectors; 0 where the eigenvalue is.
    energy : array, shape (N, R)
        ``(w_iᵀ c_n)²``.
    """
    rows, columns = classes.shape
    if rows <= columns:
        values, vectors = np.linalg.eigh(classes @ classes.T)
        values, directions = significant(values[::-1]), vectors[:, ::-1]
        return values, directions, np.square(classes.T @ directions)
    values, vectors = np.linalg.eigh(classes.T @ classes)
    values, vectors = significant(values[::-1]), vectors[:, ::-1]
    inverse = np.divide(1.0, np.sqrt(values), out=np.zeros_like(values), where=values > 0)
    return values, classes @ (vectors * inverse), np.square(vectors) * values


def lidar(views: npt.ArrayLike, delta: float = 1e-4) -> float:
    """LiDAR of augmented views, each prompt a class (Thilak et al. 2024).

    ``Σ_b`` is the scatter of class means and ``Σ_w`` that within classes plus δ on the diagonal,
    both averages; the eigenvalues of ``Σ_w^{-1/2} Σ_b Σ_w^{-1/2}`` are made to sum to 1; LiDAR is
    the exponential of their entropy.

    Parameters
    ----------
    views : array, shape (V, N, D)
        V ≥ 2 views of N ≥ 2 prompts. Computed in float64, since Σ_w spans from δ to the square of
        the largest activation.
    delta : float
        δ, in squared units of activation.

    Returns
    -------
    float
        1 to min(N - 1, D).

    Raises
    ------
    UndefinedMetricError
        For fewer than two views or prompts, or if all class means are equal.
    LayerwiseError
        If a value is NaN or infinite.
    """
    array = np.asarray(views, dtype=np.float64)
    if array.ndim != 3 or 0 in array.shape:
        raise LayerwiseError(f"Views of shape (V, N, D) are wanted, got {array.shape}.")
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).all(axis=(0, 2))))
        raise LayerwiseError(f"NaN or infinity in a view of row {row}; leave the row out.")
    _check(array)
    classes = whiten(array, delta).classes
    gram = classes @ classes.T if len(classes) <= classes.shape[1] else classes.T @ classes
    values = significant(np.asarray(np.linalg.eigvalsh(gram)))
    _check_spread(values)
    return float(np.exp(entropy_from_eigenvalues(values)))


def _check(views: Views) -> None:
    v, n, _ = views.shape
    if v < 2 or n < 2:
        raise UndefinedMetricError(
            f"LiDAR needs two prompts with two augmented views each, here are {n} with {v}."
        )


def _check_spread(values: Array) -> None:
    if not values.any():
        raise UndefinedMetricError("LiDAR is not defined where all prompts have one mean.")


@metric(
    name="lidar",
    label="LiDAR",
    unit="",
    direction=1,
    range="1 to min(N - 1, D)",
    source="Thilak et al. 2024",
    inputs=("views",),
    normalizations={"reference": NORMALIZATIONS},
    min_prompts=2,
    min_views=2,
    note="Under ``reference`` the entropy itself, in nats, of any order.",
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """Effective number of discriminant directions, over all augmented views."""
    views, delta = layer.views, layer.settings.lidar_delta
    _check(views)
    n, hidden = views.shape[1:]
    whitened = whiten(views, delta)
    values, directions, energy = discriminants(whitened.classes)
    _check_spread(values)

    def stderr(gradient: Array) -> float:
        # dλ_i = u_iᵀ (dΣ_b - λ_i dΣ_w) u_i with u_i the generalised eigenvectors.
        within = whitened.scatter_along(directions, gradient * values)
        return uncertainty.from_weights(energy @ gradient - within)

    if layer.protocol == "paper":
        value = float(np.exp(entropy_from_eigenvalues(values)))
        yield Overall(value, stderr(value * entropy_gradient(values, 1.0)), n)
        return
    for alpha in layer.settings.alphas:
        value = float(reference_entropy(values, alpha, float(hidden)))
        error = stderr(reference_gradient(values, alpha))
        yield Overall(value, error, n, size=n, alpha=alpha)
