"""Effective rank: number of directions that vectors fill, as a real number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.entropy import effective_ranks, entropy_from_eigenvalues
from layerwise.metrics.formulas.spectra import embedding_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, PerPrompt, metric


def effective_rank(Z: npt.ArrayLike) -> float:
    """``exp(H(σ / Σσ))`` over the singular values σ of `Z` (Roy & Vetterli 2007).

    Parameters
    ----------
    Z : array, shape (N, D)

    Returns
    -------
    float
        From exp(S_1(Z)) to rank(Z).

    Raises
    ------
    UndefinedMetricError
        If `Z` is all zeros.

    Examples
    --------
    >>> round(effective_rank(np.eye(5)), 6)
    5.0
    """
    sigma: Array = np.asarray(np.linalg.svd(check_matrix(Z), compute_uv=False))
    if not sigma.any():
        raise UndefinedMetricError("Vectors that are all zero have no effective rank.")
    return float(np.exp(entropy_from_eigenvalues(sigma)))


@metric(
    label="Effective rank of a prompt",
    direction=-1,
    range="1 to min(T, D)",
    source="Roy & Vetterli 2007",
    inputs=("spectra",),
    per_prompt=True,
    function=effective_rank,
    protocols=("paper",),
    note="The mean over prompts; of the pooled embeddings it is RankMe. The released code has "
    "none, and its clamped spectra have no singular values.",
)
def compute_of_prompts(layer: Layer) -> Iterator[PerPrompt]:
    """Effective rank of each prompt's token states."""
    yield PerPrompt(effective_ranks(layer.spectra))


def rankme(X: npt.ArrayLike) -> float:
    """``exp(H(σ / Σσ))`` over the singular values σ of pooled embeddings (Garrido et al. 2023).

    Without the 1e-7 that they add to each share.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64.

    Returns
    -------
    float
        1 to min(N, D).

    Raises
    ------
    UndefinedMetricError
        If every embedding is zero.

    Examples
    --------
    >>> round(rankme([[1, 0], [0, 1]]), 6)  # two orthogonal prompts
    2.0
    """
    return _of_spectrum(embedding_spectrum(X))


def _of_spectrum(values: Array) -> float:
    if not values.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    return float(effective_ranks(values))


@metric(
    label="RankMe",
    direction=1,
    range="1 to min(N, D)",
    source="Garrido et al. 2023; Roy & Vetterli 2007",
    inputs=("pooled",),
    function=rankme,
    min_prompts=2,
    note="Without the 1e-7 that Garrido et al. add to each share.",
)
def compute_rankme(layer: Layer) -> Iterator[Overall]:
    """``exp(H(σ / Σσ))`` over the singular values of the N x D pooled embeddings."""
    yield Overall(_of_spectrum(layer.pooled_spectrum), len(layer.pooled))
