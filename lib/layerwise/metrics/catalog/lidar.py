"""LiDAR: number of directions that separate prompts, relative to their augmented views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import (
    Array,
    Mask,
    UndefinedMetricError,
    as_numpy,
    centred,
    check_matrix,
    entropy_from_eigenvalues,
    gram,
    significant,
)
from layerwise.metrics.layer import FEWEST, Layer
from layerwise.metrics.registry import NORMALIZATIONS, OnParts, Overall, metric
from layerwise.section import Section

Views = npt.NDArray[np.floating]

# Rows of residuals that are multiplied at once, to save memory.
AT_ONCE = 4096
# Most memory for the sums of blocks of prompts; of wider states the parts are computed again.
SUMS_BYTES = 2**29


class Settings(Section):
    """Settings of LiDAR."""

    delta: float = Field(1e-4, gt=0, le=1e6)
    """δ, added to the diagonal of the within-class scatter, in squared units of activation."""


def whiten(views: Views, delta: float) -> Array:
    """Class means in coordinates in which the within-class scatter is the identity.

    ``Σ_w^{-1/2} (μ_n - μ) / √N``. Its squared singular values are the eigenvalues of
    ``Σ_w^{-1/2} Σ_b Σ_w^{-1/2}``. Any square root of
    ``Σ_w = Σ_n Σ_v (x_nv - μ_n)(x_nv - μ_n)ᵀ / (N V) + δ I`` gives the same ones.

    V - 1 orthonormal contrasts between the views of a prompt (Helmert) have the scatter of the V
    residuals, and none of them is redundant. Here there are fewer contrasts H than dimensions, and
    Σ_w is δ outside their span. With ``[Hᵀ/√(N V) | B] = Q [R S; 0 U]``, it is ``R Rᵀ + δ I`` in
    the part of the basis Q that they reach. Its factor T is that of a QR of Rᵀ on top of √δ I, and
    the classes B become ``T⁻ᵀ S`` and ``U / √δ``: Q is never needed. No scatter is squared, so
    nothing is lost between δ and the largest eigenvalue.

    Parameters
    ----------
    views : array, shape (V, N, D)
        ``N (V - 1) < D``. Any float type; computed in float64.
    delta : float

    Returns
    -------
    array, shape (D', N)
    """
    # Scipy takes as long to import as all metrics together, and only this one needs it.
    from scipy import linalg

    v, n, d = views.shape
    rank = n * (v - 1)
    helmert = linalg.helmert(v) / math.sqrt(n * v)
    classes = centred(views.mean(axis=0, dtype=np.float64)).T / math.sqrt(n)
    contrasts = (helmert @ views.reshape(v, -1)).reshape(-1, d)
    triangle = np.asarray(np.linalg.qr(np.hstack([contrasts.T, classes]), mode="r"))
    ridge = math.sqrt(delta) * np.eye(rank)
    factor = np.asarray(np.linalg.qr(np.vstack([triangle[:rank, :rank].T, ridge]), mode="r"))
    inside = linalg.solve_triangular(factor, triangle[:rank, rank:], trans="T")
    return np.vstack([inside, triangle[rank:, rank:] / math.sqrt(delta)])


class Scatter:
    """Scatter of the views of prompts around their means, as sums over blocks of prompts.

    Parameters
    ----------
    groups : callable
        Without arguments, to all views, some at a time: arrays of shape (K, N, D).
    blocks : int array, shape (N,), optional
        Block of each prompt; one block by default.
    """

    def __init__(
        self, groups: Callable[[], Iterable[Views]], blocks: npt.NDArray[np.intp] | None = None
    ) -> None:
        self.n_views = 0
        self.means: Array = np.zeros(1)
        for group in groups():
            self.n_views += len(group)
            self.means = self.means + group.sum(axis=0, dtype=np.float64)
        self.means /= self.n_views
        n, d = self.means.shape
        self.blocks = np.zeros(n, dtype=np.intp) if blocks is None else blocks
        self.sums: Array = np.zeros((int(self.blocks.max()) + 1, d, d))
        for group in groups():
            step = max(1, AT_ONCE // len(group))
            for block, total in enumerate(self.sums):
                rows = np.flatnonzero(self.blocks == block)
                for start in range(0, len(rows), step):
                    some = rows[start : start + step]
                    rest = (group[:, some] - self.means[some]).reshape(-1, d)
                    total += rest.T @ rest
        self.total: Array = self.sums.sum(axis=0)

    def spectrum(self, delta: float, held: Mask | None = None) -> Array:
        """Eigenvalues of LiDAR of the blocks that are held, all by default."""
        from scipy import linalg

        held = np.ones(len(self.sums), dtype=bool) if held is None else held[: len(self.sums)]
        means = self.means[held[self.blocks]]
        n, d = means.shape
        within = self.total.copy()
        for block in np.flatnonzero(~held):
            within -= self.sums[block]
        within /= n * self.n_views
        within[np.diag_indices(d)] += delta
        # Symmetric, so that its transpose is the copy in Fortran's order that LAPACK wants.
        try:
            factor = linalg.cholesky(within.T, lower=True, overwrite_a=True, check_finite=False)
        except linalg.LinAlgError:
            raise UndefinedMetricError(
                "LiDAR's δ is lost in the rounding of a far larger scatter within prompts; raise "
                "metrics.settings.lidar.delta."
            ) from None

        classes = centred(means).T / math.sqrt(n)
        return _spectrum(
            gram(linalg.solve_triangular(factor, classes, lower=True, check_finite=False))
        )


def eigenvalues(views: Views, delta: float) -> Array:
    """Eigenvalues of ``Σ_w^{-1/2} Σ_b Σ_w^{-1/2}`` that can be above 0, insignificant ones 0."""
    v, n, d = views.shape
    if v < 2 or n < 2:
        raise UndefinedMetricError(
            f"LiDAR needs two prompts with two augmented views each, here are {n} with {v}."
        )
    if n * (v - 1) < d:
        return _spectrum(gram(whiten(views, delta)))
    return Scatter(lambda: [views]).spectrum(delta)


def _spectrum(K: Array) -> Array:
    values = significant(np.asarray(np.linalg.eigvalsh(K)))
    if not values.any():
        raise UndefinedMetricError("LiDAR is not defined where all prompts have one mean.")
    return values


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
        For fewer than two views or prompts, if all class means are equal, or if δ is lost in the
        rounding of the within-class scatter.
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
    for view in array:
        check_matrix(view)
    return float(np.exp(entropy_from_eigenvalues(eigenvalues(array, delta))))


@metric(
    label="LiDAR",
    direction=1,
    range="1 to min(N - 1, D)",
    source="Thilak et al. 2024",
    inputs=("views",),
    orders=True,
    function=lidar,
    settings=Settings,
    normalizations={"reference": NORMALIZATIONS},
    min_prompts=2,
    min_views=2,
    note="Under ``reference`` the entropy itself, in nats, of any order.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Effective number of discriminant directions, over all augmented views."""
    spectra, counts = _on_all_and_parts(layer, settings.delta)
    is_rank = layer.protocol == "paper"
    for alpha in (1.0,) if is_rank else layer.settings.alphas:
        values = np.array([float(entropy_from_eigenvalues(s, alpha)) for s in spectra])
        if is_rank:
            values = np.exp(values)
        parts = OnParts(values[1:], counts[1:]) if len(values) > 1 else None
        value, n = float(values[0]), int(counts[0])
        yield Overall(value, n, None if is_rank else alpha, parts=parts)


def _on_all_and_parts(layer: Layer, delta: float) -> tuple[list[Array], npt.NDArray[np.intp]]:
    """The eigenvalues and the number of prompts, of all and, if they are cheap, of each part."""
    n, d = int(layer.kept_in_views.sum()), layer.hidden
    if n < 2 or n * (layer.n_views - 1) < d:
        return [eigenvalues(layer.views, delta)], np.array([n])
    parts = layer.parts
    if n < FEWEST or parts.held.shape[1] * d * d * 8 > SUMS_BYTES:
        return [Scatter(layer.groups_of_views).spectrum(delta)], np.array([n])
    scatter = Scatter(layer.groups_of_views, parts.blocks[layer.kept_in_views])
    counts = [parts.held[:, scatter.blocks].sum(axis=1)] if len(parts.held) else []
    spectra = [scatter.spectrum(delta, held) for held in (None, *parts.held)]
    return spectra, np.concatenate([[n], *counts])
