"""Effective rank of a set of vectors: number of directions they fill, as a real number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.entropy import effective_ranks, entropy_from_eigenvalues
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric


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
def compute(layer: Layer) -> Iterator[PerPrompt]:
    """Effective rank of each prompt's token states."""
    yield PerPrompt(effective_ranks(layer.spectra))
