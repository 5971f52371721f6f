"""InfoNCE: loss of identifying a prompt's other view among all views."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.spectra import unit_pair
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, PerPrompt, metric
from layerwise.section import Section

# Anchors compared at a time: a block of similarities stays in the cache.
BLOCK = 512


class Settings(Section):
    """Settings of InfoNCE, the loss and the bound."""

    temperature: float = Field(0.1, ge=1e-4, le=1e4)
    """Temperature τ."""


def infonce_losses(A: Array, B: Array, temperature: float) -> Array:
    """Losses ``-log(exp(s_pos/τ) / Σ_{others} exp(s/τ))``, s the inner product.

    Parameters
    ----------
    A, B : array, shape (N, D)
        Two views of the same prompts, row by row; of unit length for cosine similarity.
    temperature : float
        τ.

    Returns
    -------
    array, shape (N,)
        Mean over each prompt's two anchors, in nats; not below 0.
    """
    n, Z = len(A), np.concatenate([A, B])
    log_sums = np.empty(2 * n)
    for start in range(0, 2 * n, BLOCK):
        rows = slice(start, start + BLOCK)
        block: Array = Z[rows] @ Z.T
        block /= temperature
        np.fill_diagonal(block[:, start:], -np.inf)
        # A scale for each anchor: with a small τ, or long vectors, one for all would underflow.
        top = block.max(axis=1)
        block -= top[:, None]
        log_sums[rows] = np.log(np.exp(block, out=block).sum(axis=1)) + top
    positive = np.einsum("ij,ij->i", A, B) / temperature
    return np.asarray((log_sums[:n] + log_sums[n:]) / 2 - positive)


def infonce(A: npt.ArrayLike, B: npt.ArrayLike, temperature: float = 0.1) -> float:
    """InfoNCE loss of two views, with cosine similarity (Oord et al. 2018; Chen et al. 2020).

    Parameters
    ----------
    A, B : array, shape (N, D)
        Pooled embeddings of two views of N prompts, row by row. Prompts with a zero vector are
        left out, because it has no cosine. Computed in float64.
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

    Examples
    --------
    >>> round(infonce(np.eye(8), np.eye(8)), 6)  # two views alike, other prompts orthogonal
    0.000635
    """
    A, B, _ = unit_pair(A, B)
    if len(A) < 2:
        raise UndefinedMetricError("InfoNCE needs at least two prompts with two views each.")
    return float(infonce_losses(A, B, temperature).mean())


def infonce_mi_bound(A: npt.ArrayLike, B: npt.ArrayLike, temperature: float = 0.1) -> float:
    """Lower bound on the mutual information of two views: ``log(2N - 1)`` minus InfoNCE.

    Oord et al. 2018. The parameters and errors are those of `infonce`.

    Returns
    -------
    float
        In nats: 0 at chance (a little below is possible), at most log(2N - 1).

    Examples
    --------
    >>> round(infonce_mi_bound(np.eye(8), np.eye(8)), 4)  # of log 15 = 2.7081
    2.7074
    """
    loss = infonce(A, B, temperature)
    return math.log(2 * len(unit_pair(A, B)[0]) - 1) - loss


def pair_losses(layer: Layer, temperature: float) -> PerPrompt:
    """Loss of each prompt of a layer, NaN where a view of it is zero or no token of it counts.

    ``paper``: cosine similarity. ``reference``: the plain inner product of the pooled (not again
    normalised) embeddings, as in the released code; its values therefore lie just below chance.
    """
    A, B = layer.pair
    if layer.protocol == "reference":
        kept = np.ones(len(A), dtype=bool)
    else:
        A, B, kept = unit_pair(A, B)
    if len(A) < 2:
        raise UndefinedMetricError("InfoNCE needs at least two prompts with two views each.")
    values = np.full(len(layer.prompts), np.nan)
    values[np.flatnonzero(layer.kept_in_pair)[kept]] = infonce_losses(A, B, temperature)
    # A prompt near many others raises all of their losses.
    return PerPrompt(values, independent=False)


@metric(
    label="InfoNCE loss",
    unit="nats",
    direction=-1,
    range="0 to about log(2N - 1)",
    source="Oord et al. 2018; Skean et al. 2025",
    inputs=("pair",),
    per_prompt=True,
    function=infonce,
    settings=Settings,
    min_prompts=2,
    min_views=1,
)
def compute(layer: Layer, settings: Settings) -> Iterator[PerPrompt]:
    """The loss, a mean over prompts."""
    yield layer.once("infonce", lambda: pair_losses(layer, settings.temperature))


@metric(
    label="Mutual information, InfoNCE bound",
    unit="nats",
    direction=1,
    range="about 0 to log(2N - 1)",
    source="Oord et al. 2018",
    inputs=("pair",),
    function=infonce_mi_bound,
    settings=Settings,
    section="infonce",
    min_prompts=2,
    min_views=1,
    note="A lower bound on what one view tells of the other; it cannot exceed log(2N - 1).",
)
def compute_bound(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """``log(2N - 1)`` less the loss."""
    losses = layer.once("infonce", lambda: pair_losses(layer, settings.temperature)).values
    n = int(np.isfinite(losses).sum())
    yield Overall(math.log(2 * n - 1) - float(np.nanmean(losses)), n)
