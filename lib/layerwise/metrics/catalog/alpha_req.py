"""α-ReQ: how fast the covariance's eigenvalues decay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, Mask, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import SampleSpectrum, centred
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric
from layerwise.section import Positive, Section

FEWEST_RANKS = 5


class Settings(Section):
    """Settings of α-ReQ."""

    ranks: tuple[Positive, Positive] = Field(
        (11, 500),
        description="First and last rank of the eigenvalues to which the line is fitted.",
    )

    @field_validator("ranks")
    @classmethod
    def _ascending(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        if not ranks[0] < ranks[1]:
            raise ValueError("accepted are two ranks, the first below the last")
        return ranks


def decay(eigenvalues: Array, ranks: tuple[int, int] = (11, 500)) -> tuple[float, Array]:
    """Exponent α of ``λ_i ∝ i^-α``, a line through log λ against log i.

    Least squares with weight 1 / i, so that each octave of ranks counts alike, over the given
    ranks as far as the eigenvalues are above 0 (Stringer et al. 2019, whose range is 11 to 500;
    Agrawal et al. 2022).

    Parameters
    ----------
    eigenvalues : array, shape (R,)
        Of the covariance, descending, 0 where insignificant.
    ranks : (int, int)
        First and last rank, counted from 1, both included.

    Returns
    -------
    alpha : float
        Around 1 is said to be best; 0 is a flat spectrum.
    gradient : array, shape (R,)
        Derivative of α by each eigenvalue.

    Raises
    ------
    UndefinedMetricError
        If fewer than 5 of these ranks have an eigenvalue above 0.
    """
    first, last = ranks[0], min(ranks[1], int((eigenvalues > 0).sum()))
    if last - first + 1 < FEWEST_RANKS:
        raise UndefinedMetricError(
            f"α-ReQ fits ranks {ranks[0]} to {ranks[1]}, and only {max(last, 0)} eigenvalues are "
            "above 0: more prompts, or a lower first rank (metrics.alpha_req.ranks), are needed."
        )
    rank = np.arange(first, last + 1)
    weight = 1 / rank
    x = np.log(rank) - np.average(np.log(rank), weights=weight)
    slope = weight * x / (weight * x * x).sum()
    used = eigenvalues[first - 1 : last]
    gradient = np.zeros_like(eigenvalues)
    gradient[first - 1 : last] = -slope / used
    return float(-slope @ np.log(used)), gradient


def alpha_req(X: npt.ArrayLike, ranks: tuple[int, int] = (11, 500)) -> float:
    """Exponent of the power law through the eigenvalues of the covariance of `X`.

    See `decay`. Agrawal et al. 2022; Stringer et al. 2019.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64.
    ranks : (int, int)
        First and last rank of the fit, counted from 1.

    Returns
    -------
    float
        Above 0; 0 is a flat spectrum, near 1 is said to be best. Depends on N.

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
    return decay(SampleSpectrum.of(centred(check_matrix(X))).values, ranks)[0]


@metric(
    name="alpha_req",
    label="α-ReQ, eigenvalue decay",
    unit="",
    direction=None,
    range="above 0; near 1 is said to be best",
    source="Agrawal et al. 2022; Stringer et al. 2019",
    inputs=("pooled",),
    function=alpha_req,
    settings=Settings,
    min_prompts=2,
    note="Depends on the range of ranks and so on N: compare at one N only.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Exponent of the power law through the covariance's eigenvalues."""
    spectrum = layer.covariance_spectrum
    value, gradient = decay(spectrum.values, settings.ranks)
    pooled, shared = layer.pooled, layer.settings

    def without(kept: Mask) -> float:
        return decay(SampleSpectrum.of(centred(pooled[kept])).values, settings.ranks)[0]

    stderr = float("nan")
    # Fewer prompts may have too few ranks.
    with contextlib.suppress(UndefinedMetricError):
        # Both are too large rather than too small: eigenvalues keep their distance, which neither
        # prompts left out nor prompts weighed otherwise know (Efron & Stein 1981 for the former).
        stderr = min(
            uncertainty.delete_a_group(without, len(pooled), shared.stderr_groups, shared.seed),
            uncertainty.from_weights(spectrum.pull(gradient)),
        )
    yield Overall(value, stderr, len(pooled))
