"""InfoNCE: loss of identifying a prompt's other view among all views."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.metrics.formulas import Array, unit_pair
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import OnParts, Overall, PerPrompt, metric
from layerwise.section import Section

# Anchors compared at a time: a block of similarities stays in the cache.
BLOCK = 512

# Similarities are N x N.
MAX_PROMPTS = {"paper": 10_000, "reference": 10_000}


VARIANTS = {"paper": "two_way", "reference": "one_way"}


def chance(n: float, variant: str) -> float:
    """The loss at which all similarities of n prompts' views are equal."""
    return math.log(n if variant == "one_way" else 2 * n - 1)


class Settings(Section):
    """Settings of InfoNCE, the loss and the bound."""

    temperature: float = Field(0.1, ge=1e-4, le=1e4)
    """Temperature τ."""


def infonce_losses(A: Array, B: Array, temperature: float, members: Array | None = None) -> Array:
    """Losses ``-log(exp(s_pos/τ) / Σ_{others} exp(s/τ))``, s the inner product.

    Parameters
    ----------
    A, B : array, shape (N, D)
        Two views of the same prompts, row by row; of at most unit length, for cosine similarity.
    temperature : float
        τ.
    members : array, shape (N, K), optional
        1 for the prompts of each of K sets, else 0; one set of all by default.

    Returns
    -------
    array, shape (N, K)
        Mean over each prompt's two anchors, the others being those of a set, in nats; not below 0
        for prompts of the set.
    """
    n, Z = len(A), np.concatenate([A, B])
    members = np.ones((n, 1)) if members is None else members
    log_sums = _log_sums(Z, Z, temperature, np.tile(members, (2, 1)), itself=False)
    positive = np.einsum("ij,ij->i", A, B) / temperature
    return np.asarray((log_sums[:n] + log_sums[n:]) / 2 - positive[:, None])


def one_way_losses(A: Array, B: Array, temperature: float, members: Array | None = None) -> Array:
    """Losses ``-log(exp(s_nn/τ) / Σ_m exp(s_nm/τ))``: each row of A against all rows of B.

    The parameters and the result are those of `infonce_losses`.
    """
    members = np.ones((len(A), 1)) if members is None else members
    log_sums = _log_sums(A, B, temperature, members, itself=True)
    return np.asarray(log_sums - (np.einsum("ij,ij->i", A, B) / temperature)[:, None])


def _log_sums(Z: Array, others: Array, temperature: float, members: Array, itself: bool) -> Array:
    """``log Σ_j exp(z_i z_j / τ)`` of each row of Z over the members of each set, shape (N, K).

    With `itself` False the others are the rows of Z, without the row itself.
    """
    # Scipy takes as long to import as all metrics together.
    from scipy.special import logsumexp

    # Inner products are at most 1: where no exponential underflows, those of a block serve all
    # sets. With a smaller τ each anchor and set needs a scale of its own.
    shared = temperature >= 1 / 300
    sums = np.zeros((len(Z), members.shape[1]))
    for start in range(0, len(Z), BLOCK):
        stop = min(start + BLOCK, len(Z))
        block: Array = Z[start:stop] @ others.T
        block /= temperature
        if not itself:
            np.fill_diagonal(block[:, start:], -np.inf)
        if not shared:
            sets = members.T.astype(bool)
            sums[start:stop] = np.transpose([logsumexp(block[:, s], axis=1) for s in sets])
            continue
        block -= 1 / temperature
        np.exp(block, out=block)
        sums[start:stop] = block @ members
    return np.log(sums) + 1 / temperature if shared else sums


def infonce(A: npt.ArrayLike, B: npt.ArrayLike, temperature: float = 0.1) -> float:
    """InfoNCE loss of two views, with cosine similarity (Oord et al. 2018; Chen et al. 2020).

    Parameters
    ----------
    A, B : array, shape (N, D)
        Pooled embeddings of two views of N prompts, row by row. Prompts with a zero vector are
        left out, because it has no cosine. Computed in float64.
    temperature : float
        τ. The paper names none; 0.1 is its code's.

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


def pair_losses(layer: Layer, temperature: float) -> tuple[Array, OnParts]:
    """Loss of each prompt of a layer, and the mean loss on each part of the prompts.

    NaN where a view of a prompt is zero or no token of it counts.

    ``paper``: two-way. ``reference``: one-way, as in the released code. The values of the
    parts come from the same similarities.
    """
    A, B, kept = unit_pair(*layer.pair)
    places = np.flatnonzero(layer.kept_in_pair)[kept]
    parts = layer.parts.among(places)
    members = np.vstack([np.ones(len(A)), parts]).T
    losses_of = one_way_losses if layer.protocol == "reference" else infonce_losses
    losses = losses_of(A, B, temperature, members)
    values = np.full(len(layer.prompts), np.nan)
    values[places] = losses[:, 0]
    n = parts.sum(axis=1)
    return values, OnParts((losses[:, 1:] * parts.T).sum(axis=0) / n, n)


of_two_views = partial(
    metric,
    unit="nats",
    inputs=("pair",),
    settings=Settings,
    section="infonce",
    min_prompts=2,
    max_prompts=MAX_PROMPTS,
    min_views=1,
    variants=VARIANTS,
)


@of_two_views(
    label="InfoNCE loss",
    direction=-1,
    range="0 to about log(2N - 1), one-way to about log N",
    source="Oord et al. 2018; Skean et al. 2025",
    per_prompt=True,
    bounds=lambda n, variant: (chance(n, variant), 0.0),
    function=infonce,
    note="Under ``reference`` one-way, each first view against all second ones: chance is log N.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[PerPrompt]:
    """The loss, a mean over prompts; of more than 10,000 prompts a random sample is taken."""
    values, parts = layer.once("infonce", lambda: pair_losses(layer, settings.temperature))
    # A prompt near many others raises all of their losses, so they are not independent.
    yield PerPrompt(values, parts=parts)


@of_two_views(
    label="Mutual information, InfoNCE bound",
    direction=1,
    range="about 0 to log(2N - 1)",
    source="Oord et al. 2018",
    bounds=lambda n, variant: (0.0, 1.0 if variant == "one_way" else chance(n, variant)),
    function=infonce_mi_bound,
    note="A lower bound on what one view tells of the other; it cannot exceed log(2N - 1). Under "
    "``reference`` a share: 1 less the loss over log N.",
)
def compute_bound(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """``log(2N - 1)`` less the loss; under ``reference`` 1 less the loss over log N."""
    losses, parts = layer.once("infonce", lambda: pair_losses(layer, settings.temperature))

    def bound(loss: Any, n: Any) -> Any:
        return 1 - loss / np.log(n) if layer.protocol == "reference" else np.log(2 * n - 1) - loss

    n = int(np.isfinite(losses).sum())
    value = float(bound(np.nanmean(losses), n))
    yield Overall(value, n, parts=parts._replace(values=bound(*parts)))
