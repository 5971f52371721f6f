"""Effective rank of a set of vectors: how many directions they use, as a real number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.entropy import entropy_from_eigenvalues
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Array, PerPrompt, UndefinedMetricError, metric
from layerwise.metrics.spectra import check_matrix, significant


def from_eigenvalues(eigenvalues: Array) -> Array:
    """Effective ranks of spectra of Gram matrices, along the last axis.

    Singular values are the roots of these eigenvalues, so that one smaller than 1e-7 of the
    largest is lost in rounding; in a sum of up to a few hundred it does not show at 1e-4.

    Parameters
    ----------
    eigenvalues : array, shape (..., R)
        Zero-padded or not.

    Returns
    -------
    array, shape (...)
        1 to R; NaN where all are zero.
    """
    return np.asarray(np.exp(entropy_from_eigenvalues(np.sqrt(significant(eigenvalues)))))


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
    """
    sigma: Array = np.asarray(np.linalg.svd(check_matrix(Z), compute_uv=False))
    if not sigma.any():
        raise UndefinedMetricError("Vectors that are all zero have no effective rank.")
    return float(np.exp(entropy_from_eigenvalues(sigma)))


@metric(
    name="effective_rank",
    label="Effective rank of a prompt",
    unit="",
    direction=-1,
    range="1 to min(T, D)",
    source="Roy & Vetterli 2007",
    inputs=("spectra",),
    protocols=("paper",),
    note="The mean over prompts; of the pooled embeddings it is RankMe. The released code has "
    "none, and its clamped spectra have no singular values.",
)
def compute(layer: LayerInputs) -> Iterator[PerPrompt]:
    """Effective rank of each prompt's token states."""
    yield PerPrompt(from_eigenvalues(layer.spectra), layer.n_tokens.astype(np.float64))
