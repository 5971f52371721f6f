"""Self-Cluster: clustering of embeddings, relative to vectors spread evenly over the sphere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import gram, row_blocks, unit_rows
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def self_cluster(X: npt.ArrayLike) -> float:
    """``(D‖X̂X̂ᵀ‖_F² - N(D + N - 1)) / ((D - 1)(N - 1)N)`` (Tsitsulin et al. 2023).

    X̂ are the embeddings made to unit length; zero vectors are left out.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts, D ≥ 2. Computed in float64.

    Returns
    -------
    float
        About 0 for vectors spread evenly over the sphere, 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero, or D is 1.

    Examples
    --------
    >>> round(self_cluster(np.ones((4, 3))), 6)
    1.0
    """
    X = check_matrix(X)
    n, d = int(X.any(axis=1).sum()), X.shape[1]
    if min(n, d) < 2:
        raise UndefinedMetricError("Self-Cluster needs two non-zero embeddings of two dimensions.")
    if n <= d:
        K = gram(unit_rows(X)[0])
    else:
        unit = (unit_rows(X[rows])[0] for rows in row_blocks(len(X)))
        K = sum((some.T @ some for some in unit), np.zeros((d, d)))
    squares, expected = np.vdot(K, K), n + n * (n - 1) / d
    return float((squares - expected) / (n * n - expected))


@metric(
    label="Self-Cluster",
    range="about 0 (even) to 1 (collapsed)",
    source="Tsitsulin et al. 2023",
    inputs=("pooled",),
    function=self_cluster,
    min_prompts=2,
)
def compute(layer: Layer) -> Iterator[Overall]:
    """Self-Cluster of the pooled embeddings."""
    yield Overall(self_cluster(layer.pooled), int(layer.pooled.any(axis=1).sum()))
