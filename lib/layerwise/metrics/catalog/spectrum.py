"""Numbers of directions and their decay, from the spectrum of a set of vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
from pydantic import field_validator

from layerwise.metrics.formulas import (
    Array,
    UndefinedMetricError,
    check_matrix,
    covariance_spectrum,
    effective_ranks,
    embedding_spectrum,
    entropy_from_eigenvalues,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, PerPrompt, metric
from layerwise.section import Positive, Section

of_embeddings = partial(metric, inputs=("pooled",), min_prompts=2)


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


@of_embeddings(
    label="RankMe",
    direction=1,
    range="1 to min(N, D)",
    source="Garrido et al. 2023; Roy & Vetterli 2007",
    function=rankme,
    note="Without the 1e-7 that Garrido et al. add to each share.",
)
def compute_rankme(layer: Layer) -> Iterator[Overall]:
    """``exp(H(σ / Σσ))`` over the singular values of the N x D pooled embeddings."""
    yield Overall(_of_spectrum(layer.pooled_spectrum), len(layer.pooled))


def _log_determinant(eigenvalues: Array) -> float:
    positive = eigenvalues[eigenvalues > 0]
    if not positive.size:
        raise UndefinedMetricError("Vectors that are all zero have no LogDet entropy.")
    return float(np.log(positive / positive.sum()).sum() - math.log(2))


def logdet_entropy(Z: npt.ArrayLike) -> float:
    """``log det(K) - log 2``, K the Gram matrix of `Z` made to have trace 1.

    Skean et al. 2025, appendix B (after Zhouyin & Liu 2021). The paper does not say how K is
    scaled; with trace 1, as in equation 1, it is a lower bound of S_1, as the paper claims. A
    singular K has determinant 0: the product is over the eigenvalues above float32's rounding.

    Parameters
    ----------
    Z : array, shape (N, D)

    Returns
    -------
    float
        In nats, at most -log 2 - r log r for rank r, reached by equal eigenvalues.

    Raises
    ------
    UndefinedMetricError
        If `Z` is all zeros.

    Examples
    --------
    >>> round(logdet_entropy(np.eye(2)), 6)  # -3 log 2
    -2.079442
    """
    return _log_determinant(embedding_spectrum(Z))


@of_embeddings(
    label="LogDet entropy",
    unit="nats",
    range="at most -log 2 - r log r, r the rank",
    source="Skean et al. 2025, appendix B; Zhouyin & Liu 2021",
    function=logdet_entropy,
    note="Falls with the rank: compare at one N only.",
)
def compute_logdet(layer: Layer) -> Iterator[Overall]:
    """LogDet entropy of the pooled embeddings."""
    yield Overall(_log_determinant(layer.pooled_spectrum), len(layer.pooled))


def nesum(X: npt.ArrayLike) -> float:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of `X` (He & Ozay 2022).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Computed in float64; eigenvalues below the rounding of
        float32 embeddings count as 0.

    Returns
    -------
    float
        1 to min(N - 1, D).

    Raises
    ------
    UndefinedMetricError
        If all embeddings are equal.

    Examples
    --------
    >>> X = [[1, 0], [-1, 0], [0, 1], [0, -1]]
    >>> round(nesum(X), 6)  # two directions of equal variance
    2.0
    """
    return _by_largest(covariance_spectrum(X))


def _by_largest(values: Array) -> float:
    return float(values.sum() / values[0])


@of_embeddings(
    label="NESum",
    direction=1,
    range="1 to min(N - 1, D)",
    source="He & Ozay 2022, definition 4.1",
    function=nesum,
)
def compute_nesum(layer: Layer) -> Iterator[Overall]:
    """``Σ λ_i / λ_1`` over the eigenvalues of the covariance of the pooled embeddings."""
    yield Overall(_by_largest(layer.covariance_spectrum), len(layer.pooled))


def participation_ratio(X: npt.ArrayLike) -> float:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance of `X` (Gao et al. 2017).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Computed in float64; eigenvalues below the rounding of
        float32 embeddings count as 0.

    Returns
    -------
    float
        1 to min(N - 1, D).

    Raises
    ------
    UndefinedMetricError
        If all embeddings are equal.

    Examples
    --------
    >>> X = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> round(participation_ratio(X), 6)  # two directions of equal variance
    2.0
    """
    return _by_squares(covariance_spectrum(X))


def _by_squares(values: Array) -> float:
    return float(values.sum() ** 2 / np.square(values).sum())


@of_embeddings(
    label="Participation ratio",
    range="1 to min(N - 1, D)",
    source="Gao et al. 2017",
    function=participation_ratio,
    note="Also exp(S_2) of the centred embeddings.",
)
def compute_participation_ratio(layer: Layer) -> Iterator[Overall]:
    """``(Σ λ_i)² / Σ λ_i²`` over the eigenvalues of the covariance."""
    yield Overall(_by_squares(layer.covariance_spectrum), len(layer.pooled))


FEWEST_RANKS = 5


class Settings(Section):
    """Settings of α-ReQ."""

    ranks: tuple[Positive, Positive] = (11, 500)
    """First and last rank of the eigenvalues to which the line is fitted."""

    @field_validator("ranks")
    @classmethod
    def _enough(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        if ranks[1] - ranks[0] + 1 < FEWEST_RANKS:
            raise ValueError(
                f"accepted are the first and the last of {FEWEST_RANKS} ranks or more"
            )
        return ranks


def decay(eigenvalues: Array, ranks: tuple[int, int] = (11, 500)) -> float:
    """Exponent α of ``λ_i ∝ i^-α``, a line through log λ against log i.

    Least squares over the given ranks with eigenvalues above 0. The weight 1 / i makes each octave
    of ranks count alike (Stringer et al. 2019, ranks 11 to 500; Agrawal et al. 2022).

    Parameters
    ----------
    eigenvalues : array, shape (R,)
        Of the covariance, descending, 0 where insignificant.
    ranks : (int, int)
        First and last rank, counted from 1, both included.

    Returns
    -------
    float
        0 for a flat spectrum; Agrawal et al. find values near 1 best.

    Raises
    ------
    UndefinedMetricError
        If fewer than 5 of these ranks have an eigenvalue above 0.
    """
    n_positive = int((eigenvalues > 0).sum())
    first, last = ranks[0], min(ranks[1], n_positive)
    if last - first + 1 < FEWEST_RANKS:
        raise UndefinedMetricError(
            f"α-ReQ needs {FEWEST_RANKS} eigenvalues above 0 at ranks {ranks[0]} to {ranks[1]}; "
            f"{n_positive} eigenvalues are above 0. Take more prompts or other ranks "
            "(metrics.settings.alpha_req.ranks)."
        )
    rank = np.arange(first, last + 1)
    weight = 1 / rank
    x = np.log(rank) - np.average(np.log(rank), weights=weight)
    slope = weight * x / (weight * x * x).sum()
    return float(-slope @ np.log(eigenvalues[first - 1 : last]))


def alpha_req(X: npt.ArrayLike, ranks: tuple[int, int] = (11, 500)) -> float:
    """Exponent of the power law through the eigenvalues of the covariance of `X`.

    See `decay`. Agrawal et al. 2022; Stringer et al. 2019.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64; eigenvalues below the rounding of
        float32 embeddings count as 0.
    ranks : (int, int)
        First and last rank of the fit, counted from 1.

    Returns
    -------
    float
        0 for a flat spectrum; Agrawal et al. find values near 1 best. Depends on N.

    Raises
    ------
    UndefinedMetricError
        If fewer than 5 of these ranks have an eigenvalue above 0.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(200, 40)) * np.arange(1, 41) ** -0.5
    >>> round(alpha_req(X, ranks=(1, 40)), 1)
    1.0
    """
    return decay(covariance_spectrum(X), ranks)


@of_embeddings(
    label="α-ReQ, eigenvalue decay",
    range="above 0; near 1 is best (Agrawal et al.)",
    source="Agrawal et al. 2022; Stringer et al. 2019",
    function=alpha_req,
    settings=Settings,
    note="Depends on the range of ranks and so on N: compare at one N only.",
)
def compute_decay(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Exponent of the power law through the covariance's eigenvalues."""
    yield Overall(decay(layer.covariance_spectrum, settings.ranks), len(layer.pooled))
