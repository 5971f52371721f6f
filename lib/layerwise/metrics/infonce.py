"""InfoNCE: can a view of a prompt be told from all others by its other view?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.metrics import uncertainty
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Array, Overall, PerPrompt, UndefinedMetricError, metric
from layerwise.metrics.spectra import check_matrix

# Anchors compared at a time: bounds memory at BLOCK² float64, and keeps a block in the cache.
BLOCK = 512


def infonce_losses(A: Array, B: Array, temperature: float) -> Array:
    """Loss of each prompt, the mean over its two anchors.

    ``-log(exp(s_pos/τ) / Σ_{others} exp(s/τ))``, s the inner product, over the 2N - 1 others.

    Parameters
    ----------
    A, B : array, shape (N, D)
        Two views of the same prompts, row by row; of unit length for cosine similarity.
    temperature : float
        τ.

    Returns
    -------
    array, shape (N,)
        In nats, not below 0.
    """
    n = len(A)
    Z = np.concatenate([A, B])
    positive = np.einsum("ij,ij->i", A, B) / temperature
    # No similarity exceeds the largest squared norm: subtracting that keeps exp below 1. A
    # shift too large for float64's range below 1 would empty a sum; then each row gets its own.
    top = float(np.einsum("ij,ij->i", Z, Z).max()) / temperature
    if top > 300:
        return _losses_row_by_row(Z, positive, temperature)
    sums = np.zeros(2 * n)
    starts = range(0, 2 * n, BLOCK)
    for i in starts:
        rows = slice(i, i + BLOCK)
        for j in starts:
            # The matrix is symmetric: each block of its upper half serves twice.
            if j < i:
                continue
            columns = slice(j, j + BLOCK)
            block = Z[rows] @ Z[columns].T
            block *= 1 / temperature
            block -= top
            np.exp(block, out=block)
            if i == j:
                np.fill_diagonal(block, 0.0)
                sums[rows] += block.sum(axis=1)
            else:
                sums[rows] += block.sum(axis=1)
                sums[columns] += block.sum(axis=0)
    log_sums = np.log(sums) + top
    return np.asarray((log_sums[:n] + log_sums[n:]) / 2 - positive)


def _losses_row_by_row(Z: Array, positive: Array, temperature: float) -> Array:
    log_sums = np.empty(len(Z))
    for i in range(0, len(Z), BLOCK):
        block = Z[i : i + BLOCK] @ Z.T / temperature
        block[np.arange(len(block)), np.arange(i, i + len(block))] = -np.inf
        top = block.max(axis=1, keepdims=True)
        log_sums[i : i + BLOCK] = np.log(np.exp(block - top).sum(axis=1)) + top[:, 0]
    n = len(positive)
    return np.asarray((log_sums[:n] + log_sums[n:]) / 2 - positive)


def unit_pair(A: npt.ArrayLike, B: npt.ArrayLike) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Two views with rows of unit length, without the prompts of which one view is zero.

    Returns
    -------
    A, B : array, shape (M, D)
    kept : bool array, shape (N,)

    Raises
    ------
    LayerwiseError
        If the views differ in shape, or have NaN or infinity.
    """
    A, B = check_matrix(A), check_matrix(B)
    if A.shape != B.shape:
        raise LayerwiseError(
            f"Two views of the same prompts must have one shape, not {A.shape} and {B.shape}."
        )
    norm_a, norm_b = np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1)
    kept = (norm_a > 0) & (norm_b > 0)
    return A[kept] / norm_a[kept, None], B[kept] / norm_b[kept, None], kept


def infonce(A: npt.ArrayLike, B: npt.ArrayLike, temperature: float = 0.1) -> float:
    """InfoNCE loss of two views, with cosine similarity (Oord et al. 2018; Chen et al. 2020).

    Parameters
    ----------
    A, B : array, shape (N, D)
        Pooled embeddings of two views of N prompts, row by row. Prompts of which one is zero are
        left out: it has no cosine. Computed in float64.
    temperature : float
        τ; 0.1 in the paper.

    Returns
    -------
    float
        In nats: 0 is perfect, log(2N - 1) is chance, at which all similarities are equal.

    Raises
    ------
    UndefinedMetricError
        For fewer than two prompts: nothing to tell a view from.
    """
    A, B, _ = unit_pair(A, B)
    if len(A) < 2:
        raise UndefinedMetricError("InfoNCE needs at least two prompts with two views each.")
    return float(infonce_losses(A, B, temperature).mean())


def pair_losses(layer: LayerInputs) -> PerPrompt:
    """Loss of each prompt of a layer, NaN where a view of it is zero or no token of it counts.

    ``paper``: cosine similarity. ``reference``: the plain inner product of the pooled (not again
    normalised) embeddings, as in the released code, whence its values just below chance.
    """
    A, B = layer.pair
    if layer.protocol == "reference":
        kept = np.ones(len(A), dtype=bool)
    else:
        A, B, kept = unit_pair(A, B)
    if len(A) < 2:
        raise UndefinedMetricError("InfoNCE needs at least two prompts with two views each.")
    places = np.flatnonzero(layer.kept_in_pair)[kept]
    values = np.full(len(layer.names), np.nan)
    values[places] = infonce_losses(A, B, layer.settings.infonce_temperature)
    return PerPrompt(values)


@metric(
    name="infonce",
    label="InfoNCE loss",
    unit="nats",
    direction=-1,
    range="0 to about log(2N - 1)",
    source="Oord et al. 2018; Skean et al. 2025",
    inputs=("pair",),
    min_prompts=2,
    min_views=1,
)
def compute(layer: LayerInputs) -> Iterator[PerPrompt]:
    """The loss, a mean over prompts."""
    yield layer.once("infonce", lambda: pair_losses(layer))


@metric(
    name="infonce_mi_bound",
    label="Mutual information, InfoNCE bound",
    unit="nats",
    direction=1,
    range="about 0 to log(2N - 1)",
    source="Oord et al. 2018",
    inputs=("pair",),
    min_prompts=2,
    min_views=1,
    note="A lower bound on what one view tells of the other; it cannot exceed log(2N - 1).",
)
def compute_bound(layer: LayerInputs) -> Iterator[Overall]:
    """``log(2N - 1)`` less the loss."""
    losses = layer.once("infonce", lambda: pair_losses(layer)).values
    defined = losses[np.isfinite(losses)]
    n = len(defined)
    yield Overall(
        math.log(2 * n - 1) - float(defined.mean()),
        uncertainty.of_mean(defined),
        n,
        n_left_out=len(losses) - n,
    )
