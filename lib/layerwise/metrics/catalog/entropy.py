"""Matrix-based entropy of a prompt's token states, and of the prompts' embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import (
    UndefinedMetricError,
    entropy,
    entropy_from_eigenvalues,
    gram,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, Overall, PerPrompt, metric


def prompt_entropy(Z: npt.ArrayLike, alpha: float = 1.0) -> float:
    """Matrix-based entropy ``S_α`` of one prompt's token states (Skean et al. 2025, equation 1).

    Parameters
    ----------
    Z : array, shape (T, D)
        One token a row. Computed in float64.
    alpha : float
        Order: above 0; 1, 2 and ``math.inf`` included.

    Returns
    -------
    float
        In nats, 0 (all tokens along one direction) to log min(T, D).

    Raises
    ------
    UndefinedMetricError
        If every state is zero.

    Examples
    --------
    >>> Z = [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    >>> round(prompt_entropy(Z), 4), round(prompt_entropy(Z, alpha=2), 4)
    (0.6365, 0.5878)
    """
    return entropy(Z, alpha)


@metric(
    label="Prompt entropy",
    unit="nats",
    direction=-1,
    range="0 to log min(T, D)",
    source="Skean et al. 2025, equation 1; Wei et al. 2024",
    inputs=("spectra",),
    orders=True,
    per_prompt=True,
    function=prompt_entropy,
    normalizations={"paper": NORMALIZATIONS, "reference": NORMALIZATIONS},
    note="The direction is the paper's, for decoders: they score best where entropy dips. Under "
    "``reference`` of the centred unit rows' inner products, those below 0 set to 0.",
)
def compute_of_prompts(layer: Layer) -> Iterator[PerPrompt]:
    """``S_α`` of each prompt's token states; the layer's value is the mean over prompts."""
    for alpha in layer.settings.alphas:
        yield PerPrompt(entropy_from_eigenvalues(layer.spectra, alpha), alpha)


def dataset_entropy(X: npt.ArrayLike, alpha: float = 1.0) -> float:
    """Matrix-based entropy ``S_α`` of pooled embeddings (Skean et al. 2025, equation 1).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N prompts. Computed in float64.
    alpha : float
        Order: above 0; 1, 2 and ``math.inf`` included.

    Returns
    -------
    float
        In nats, 0 to log min(N, D).

    Raises
    ------
    UndefinedMetricError
        If every embedding is zero.

    Examples
    --------
    >>> round(dataset_entropy(np.eye(8)), 6)  # eight orthogonal prompts: log 8
    2.079442
    """
    return entropy(X, alpha)


@metric(
    label="Dataset entropy",
    unit="nats",
    direction=1,
    range="0 to log min(N, D)",
    source="Skean et al. 2025, equation 1",
    inputs=("pooled",),
    orders=True,
    function=dataset_entropy,
    normalizations={"paper": NORMALIZATIONS, "reference": NORMALIZATIONS},
    min_prompts=2,
    note="Higher is better as for RankMe; the paper's own layer choice takes the lowest.",
)
def compute_of_embeddings(layer: Layer) -> Iterator[Overall]:
    """``S_α`` of the N x D matrix of pooled embeddings.

    Under ``reference`` the matrix is the Gram matrix, or the D x D one where N > D, with negative
    entries set to 0: two different things there, as in the released code.
    """
    X, reference = layer.pooled, layer.protocol == "reference"
    if not X.any():
        raise UndefinedMetricError("Every pooled embedding is zero.")
    values = layer.pooled_spectrum
    if reference:
        values = np.asarray(np.linalg.eigvalsh(np.maximum(gram(X), 0.0)))
    for alpha in layer.settings.alphas:
        yield Overall(float(entropy_from_eigenvalues(values, alpha)), len(X), alpha)
