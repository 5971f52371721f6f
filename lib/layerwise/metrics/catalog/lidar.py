"""LiDAR: number of directions that separate prompts, relative to their augmented views."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, Mask, UndefinedMetricError, as_numpy
from layerwise.metrics.formulas.entropy import entropy_from_eigenvalues, reference_entropy
from layerwise.metrics.formulas.spectra import centred, significant
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, Overall, metric
from layerwise.section import Section

Views = npt.NDArray[np.floating]

# Contrasts multiplied at once: longer products run nearer to the machine's rate.
AT_ONCE = 4


class Settings(Section):
    """Settings of LiDAR."""

    delta: float = Field(1e-4, gt=0, le=1e6)
    """δ, added to the diagonal of the within-class scatter, in squared units of activation."""


def contrasts(views: Views, total: Array, at_once: int = AT_ONCE) -> Iterator[Array]:
    """V - 1 orthonormal contrasts between the views of each prompt, in place of V residuals.

    ``h_j = (x_1 + … + x_j - j x_{j+1}) / √(j (j + 1))`` (Helmert): the sum of ``h_j h_jᵀ`` is that
    of ``(x_v - μ)(x_v - μ)ᵀ`` exactly, with one product less, and none of them is redundant.

    Parameters
    ----------
    views : array, shape (V, N, D)
    total : array, shape (N, D)
        Filled with the sum over views as they pass; what it held before does not matter.
    at_once : int
        How many contrasts to stack.

    Yields
    ------
    array, shape (k N, D), float64, k ≤ at_once
        Valid until the next.
    """
    v, n, d = views.shape
    stack = np.empty((min(at_once, v - 1) * n, d))
    total[...] = views[0]
    filled = 0
    for j in range(1, v):
        contrast = stack[filled : filled + n]
        contrast[...] = views[j]
        contrast *= -j
        contrast += total
        contrast /= math.sqrt(j * (j + 1))
        total += views[j]
        filled += n
        if filled == len(stack) or j == v - 1:
            yield stack[:filled]
            filled = 0


def whiten(views: Views, delta: float) -> Array:
    """Class means in coordinates in which the within-class scatter is the identity.

    ``Σ_w^{-1/2} (μ_n - μ) / √N``. Its squared singular values are the eigenvalues of
    ``Σ_w^{-1/2} Σ_b Σ_w^{-1/2}``. Any square root of
    ``Σ_w = Σ_n Σ_v (x_nv - μ_n)(x_nv - μ_n)ᵀ / (N V) + δ I`` gives the same ones, so the Cholesky
    factor serves. Where there are fewer contrasts than dimensions (N (V - 1) < D), Σ_w is δ
    outside their span: QR decompositions then take the place of the D x D matrix, and as no
    scatter is squared, nothing is lost between δ and the largest eigenvalue.

    Parameters
    ----------
    views : array, shape (V, N, D)
        Any float type; computed in float64.
    delta : float

    Returns
    -------
    array, shape (D', N)
    """
    v, n, d = views.shape
    return (
        _whiten_by_qr(views, delta) if n * (v - 1) < d else _by_scatter(*scatter(views), v, delta)
    )


def scatter(views: Views) -> tuple[Array, Array]:
    """Sum over views, shape (N, D), and ``Σ_n Σ_v (x_nv - μ_n)(x_nv - μ_n)ᵀ``, shape (D, D)."""
    _, n, d = views.shape
    total, within = np.empty((n, d)), np.zeros((d, d))
    for contrast in contrasts(views, total):
        within += contrast.T @ contrast
    return total, within


def _by_scatter(total: Array, within: Array, views: int, delta: float) -> Array:
    # Scipy takes as long to import as all metrics together, and only this one needs it.
    from scipy import linalg

    matrix = within / (len(total) * views)
    matrix[np.diag_indices(len(matrix))] += delta
    factor = np.linalg.cholesky(matrix)
    classes = _between(total / views)
    found = linalg.solve_triangular(factor, classes, lower=True, check_finite=False)
    return np.asarray(found)


def _between(means: Array) -> Array:
    """Class means less their mean over the root of N, one a column, shape (D, N)."""
    return np.asarray(centred(means).T / math.sqrt(len(means)))


def _whiten_by_qr(views: Views, delta: float) -> Array:
    """Whiten where the contrasts H span less than all dimensions.

    With ``[Hᵀ/√(N V) | B] = Q [R S; 0 U]``, Σ_w is ``R Rᵀ + δ I`` in the part of the basis Q that
    the contrasts reach and δ elsewhere. Its factor T is that of a QR of Rᵀ on top of √δ I, and
    the classes B become ``T⁻ᵀ S`` and ``U / √δ``: Q is never needed.
    """
    from scipy import linalg

    v, n, d = views.shape
    total = np.empty((n, d))
    (stack,) = contrasts(views, total, at_once=v - 1)
    rank = len(stack)
    joined = np.concatenate([stack.T / math.sqrt(n * v), _between(total / v)], axis=1)
    triangle = np.asarray(np.linalg.qr(joined, mode="r"))
    within, inside, outside = (
        triangle[:rank, :rank],
        triangle[:rank, rank:],
        triangle[rank:, rank:],
    )
    ridge = math.sqrt(delta) * np.eye(rank)
    factor = np.linalg.qr(np.concatenate([within.T, ridge]), mode="r")
    solved = linalg.solve_triangular(factor, inside, trans="T", check_finite=False)
    return np.concatenate([solved, outside / math.sqrt(delta)])


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

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> prompts = np.eye(6, 20)  # six prompts, each its own direction
    >>> round(lidar(prompts + 0.001 * rng.normal(size=(16, 6, 20))), 1)
    5.0
    """
    array = as_numpy(views)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.ndim != 3 or 0 in array.shape:
        raise LayerwiseError(
            f"Views of shape (V, N, D) are wanted, got {array.shape}.", code="wrong_shape"
        )
    _check(array)
    finite = np.isfinite(array).all(axis=(0, 2))
    if not finite.all():
        row = int(np.argmin(finite))
        raise LayerwiseError(
            f"NaN or infinity in a view of row {row}; leave the row out.", code="not_finite"
        )
    values = eigenvalues(whiten(array, delta))
    _check_spread(values)
    return float(np.exp(entropy_from_eigenvalues(values)))


def eigenvalues(classes: Array) -> Array:
    """Eigenvalues of ``C Cᵀ``, from the smaller of it and ``Cᵀ C``; insignificant ones 0."""
    gram = classes @ classes.T if len(classes) <= classes.shape[1] else classes.T @ classes
    return significant(np.asarray(np.linalg.eigvalsh(gram)))


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
    function=lidar,
    settings=Settings,
    normalizations={"reference": NORMALIZATIONS},
    min_prompts=2,
    min_views=2,
    note="Under ``reference`` the entropy itself, in nats, of any order.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Effective number of discriminant directions, over all augmented views.

    The standard error is a delete-a-group jackknife: the derivative by a prompt's weight takes a
    prompt that counts twice for one direction, where another prompt brings another, and came out
    up to four times too large. Without a group the scatter within classes is that of all less the
    group's. There is none where the contrasts that are left span less than all dimensions: LiDAR
    is set by δ then.
    """
    views = layer.views
    _check(views)
    v, n, hidden = views.shape
    shared, delta = layer.settings, settings.delta
    paper = layer.protocol == "paper"

    def read(values: Array) -> Array:
        if paper:
            return np.exp([entropy_from_eigenvalues(values)])
        return np.array([reference_entropy(values, a, float(hidden)) for a in shared.alphas])

    group = max(1, n // uncertainty.GROUPS)
    known = layer.errors and (n - group) * (v - 1) >= hidden
    total, within = scatter(views) if known else (np.empty(0), np.empty(0))
    classes = _by_scatter(total, within, v, delta) if known else whiten(views, delta)
    spectrum = eigenvalues(classes)
    _check_spread(spectrum)
    found = read(spectrum)

    def without(kept: Mask) -> Array:
        _, apart = scatter(views[:, ~kept])
        return read(eigenvalues(_by_scatter(total[kept], within - apart, v, delta)))

    errors: Array = np.full(len(found), math.nan)
    if known:
        errors = uncertainty.delete_a_group(without, n, uncertainty.GROUPS, shared.seed)
    if paper:
        yield Overall(float(found[0]), n, stderr=float(errors[0]))
        return
    for alpha, value, error in zip(shared.alphas, found, errors, strict=True):
        yield Overall(float(value), n, size=n, alpha=alpha, stderr=float(error))
