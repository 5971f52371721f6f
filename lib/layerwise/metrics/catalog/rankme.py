"""RankMe: the effective rank of the prompts' embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError
from layerwise.metrics.formulas.entropy import effective_ranks
from layerwise.metrics.formulas.spectra import embedding_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


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
def compute(layer: Layer) -> Iterator[Overall]:
    """``exp(H(σ / Σσ))`` over the singular values of the N x D pooled embeddings."""
    yield Overall(_of_spectrum(layer.pooled_spectrum), len(layer.pooled))
