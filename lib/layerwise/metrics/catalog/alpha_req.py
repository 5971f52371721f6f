"""α-ReQ: decay of the covariance's eigenvalues."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import field_validator

from layerwise.metrics.formulas import Array, UndefinedMetricError
from layerwise.metrics.formulas.spectra import covariance_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric
from layerwise.section import Positive, Section

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


@metric(
    label="α-ReQ, eigenvalue decay",
    range="above 0; near 1 is best (Agrawal et al.)",
    source="Agrawal et al. 2022; Stringer et al. 2019",
    inputs=("pooled",),
    function=alpha_req,
    settings=Settings,
    min_prompts=2,
    note="Depends on the range of ranks and so on N: compare at one N only.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Exponent of the power law through the covariance's eigenvalues."""
    yield Overall(decay(layer.covariance_spectrum, settings.ranks), len(layer.pooled))
