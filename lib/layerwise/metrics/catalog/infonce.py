"""InfoNCE: can a view of a prompt be told from all others by its other view?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.spectra import unit_pair
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, PerPrompt, metric
from layerwise.section import Section

# Anchors compared at a time: a block of similarities stays in the cache.
BLOCK = 512
# Up to this size of s/τ the exponentials of all similarities fit one common scale, in float32 too.
COMMON_SCALE = 40.0


class Settings(Section):
    """Settings of InfoNCE, the loss and the bound."""

    temperature: float = Field(0.1, ge=1e-4, le=1e4, description="Temperature τ.")


@dataclass(frozen=True)
class Losses:
    """InfoNCE prompt by prompt.

    Attributes
    ----------
    own : array, shape (N,)
        Loss of each prompt, the mean over its two anchors, in nats; not below 0.
    shares : array, shape (2 N, G)
        Share of each group of prompts in the sum over others of each anchor, those of A first.
    groups : array, shape (N,)
        The group of each prompt.
    """

    own: Array
    shares: Array
    groups: npt.NDArray[np.intp]

    @property
    def stderr(self) -> float:
        """Standard error of the mean loss: a delete-a-group jackknife.

        The losses are not independent: a prompt that is near to many others raises all of theirs.
        What a group of prompts adds to the sums is known, so that no loss is computed again.
        Chance, which falls with the number of prompts, is taken off, as groups differ by one.
        """
        n, count = len(self.own), self.shares.shape[1]
        if count < 2 or n - np.bincount(self.groups).max() < 2:
            return math.nan
        with np.errstate(divide="ignore"):
            less = np.log1p(-self.shares)
        losses = self.own[:, None] + (less[:n] + less[n:]) / 2
        kept = self.groups[:, None] != np.arange(count)
        sizes = kept.sum(axis=0)
        means = np.where(kept, losses, 0.0).sum(axis=0) / sizes - np.log(2 * sizes - 1)
        return uncertainty.from_leave_one_out(means)


def infonce_losses(
    A: Array, B: Array, temperature: float, groups: int = 1, seed: int = 0
) -> Losses:
    """Losses ``-log(exp(s_pos/τ) / Σ_{others} exp(s/τ))``, s the inner product.

    Parameters
    ----------
    A, B : array, shape (N, D)
        Two views of the same prompts, row by row; of unit length for cosine similarity.
    temperature : float
        τ.
    groups, seed : int
        Random groups of the prompts, for the standard error.
    """
    n = len(A)
    group = uncertainty.groups_of(n, groups, seed)
    members = (np.tile(group, 2)[:, None] == np.arange(group.max() + 1)).astype(np.float32)
    Z = np.concatenate([A, B])
    positive = np.einsum("ij,ij->i", A, B) / temperature
    top = float(np.einsum("ij,ij->i", Z, Z).max()) / temperature
    if top <= COMMON_SCALE:
        log_sums, shares = _by_halves(Z, temperature, top, members)
    else:
        log_sums, shares = _by_rows(Z, temperature, members)
    own = (log_sums[:n] + log_sums[n:]) / 2 - positive
    return Losses(np.asarray(own), shares, group)


Members = npt.NDArray[np.float32]


def _by_halves(Z: Array, temperature: float, top: float, members: Members) -> tuple[Array, Array]:
    """Log of each anchor's sum and each group's share in it, by half of the matrix.

    Similarities are symmetric, so each block above the diagonal serves its rows and its columns.
    No similarity exceeds `top`, the largest squared norm, which keeps every exponential below 1.
    """
    size = len(Z)
    sums, parts = np.zeros(size), np.zeros((size, members.shape[1]))
    for i in range(0, size, BLOCK):
        for j in range(i, size, BLOCK):
            rows, columns = slice(i, i + BLOCK), slice(j, j + BLOCK)
            block = Z[rows] @ Z[columns].T
            block *= 1 / temperature
            block -= top
            np.exp(block, out=block)
            if i == j:
                np.fill_diagonal(block, 0.0)
            else:
                sums[columns] += block.sum(axis=0)
            sums[rows] += block.sum(axis=1)
            # The shares serve the standard error alone, for which float32 will do.
            exponentials = block.astype(np.float32)
            parts[rows] += exponentials @ members[columns]
            if i != j:
                parts[columns] += exponentials.T @ members[rows]
    return np.log(sums) + top, np.minimum(parts / sums[:, None], 1.0)


def _by_rows(Z: Array, temperature: float, members: Members) -> tuple[Array, Array]:
    """The same with a scale for each anchor: for a small τ, or for vectors of any length."""
    log_sums, parts = np.empty(len(Z)), np.empty((len(Z), members.shape[1]))
    for i in range(0, len(Z), BLOCK):
        block: Array = Z[i : i + BLOCK] @ Z.T
        block /= temperature
        block[np.arange(len(block)), np.arange(i, i + len(block))] = -np.inf
        top = block.max(axis=1, keepdims=True)
        block -= top
        np.exp(block, out=block)
        sums = block.sum(axis=1, keepdims=True)
        log_sums[i : i + BLOCK] = (np.log(sums) + top)[:, 0]
        block /= sums
        parts[i : i + BLOCK] = np.minimum(block @ members, 1.0)
    return log_sums, parts


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

    Examples
    --------
    >>> round(infonce(np.eye(8), np.eye(8)), 6)  # two views alike, other prompts orthogonal
    0.000635
    """
    A, B, _ = unit_pair(A, B)
    if len(A) < 2:
        raise UndefinedMetricError("InfoNCE needs at least two prompts with two views each.")
    return float(infonce_losses(A, B, temperature).own.mean())


def infonce_mi_bound(A: npt.ArrayLike, B: npt.ArrayLike, temperature: float = 0.1) -> float:
    """What one view tells of the other, at least: ``log(2N - 1)`` less the InfoNCE loss.

    A lower bound on their mutual information (Oord et al. 2018). The parameters and errors are
    those of `infonce`.

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
    places = np.flatnonzero(layer.kept_in_pair)[kept]
    shared = layer.settings
    losses = infonce_losses(A, B, temperature, shared.stderr_groups, shared.seed)
    values = np.full(len(layer.prompts), np.nan)
    values[places] = losses.own
    return PerPrompt(values, stderr=losses.stderr)


@metric(
    name="infonce",
    label="InfoNCE loss",
    unit="nats",
    direction=-1,
    range="0 to about log(2N - 1)",
    source="Oord et al. 2018; Skean et al. 2025",
    inputs=("pair",),
    function=infonce,
    settings=Settings,
    min_prompts=2,
    min_views=1,
)
def compute(layer: Layer, settings: Settings) -> Iterator[PerPrompt]:
    """The loss, a mean over prompts."""
    yield layer.once("infonce", lambda: pair_losses(layer, settings.temperature))


@metric(
    name="infonce_mi_bound",
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
    losses = layer.once("infonce", lambda: pair_losses(layer, settings.temperature))
    defined = losses.values[np.isfinite(losses.values)]
    n = len(defined)
    bound = math.log(2 * n - 1) - float(defined.mean())
    stderr = math.nan if losses.stderr is None else losses.stderr
    yield Overall(bound, stderr, n)
