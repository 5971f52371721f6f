"""Anisotropy: mean cosine similarity of embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas.arrays import UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import row_blocks, unit_rows
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def anisotropy(X: npt.ArrayLike) -> float:
    """Mean cosine of the embeddings of two prompts (Ethayarajh 2019).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Zero vectors are left out.

    Returns
    -------
    float
        -1/(N - 1) to 1; 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero.

    Examples
    --------
    >>> round(anisotropy(np.eye(4)), 6), round(anisotropy(np.ones((4, 4))), 6)
    (0.0, 1.0)
    """
    X = check_matrix(X)
    n, total = 0, np.zeros(X.shape[1])
    for rows in row_blocks(len(X)):
        unit, _ = unit_rows(X[rows])
        n, total = n + len(unit), total + unit.sum(axis=0)
    if n < 2:
        raise UndefinedMetricError("The mean cosine needs two embeddings that are not zero.")
    # Linear in N, though there are N² pairs: ‖Σ x̂‖² is the sum of all cosines.
    return float((np.square(total).sum() - n) / (n * (n - 1)))


@metric(
    label="Mean cosine",
    direction=-1,
    range="-1/(N - 1) to 1",
    source="Ethayarajh 2019",
    inputs=("pooled",),
    function=anisotropy,
    min_prompts=2,
)
def compute(layer: Layer) -> Iterator[Overall]:
    """Mean cosine of the pooled embeddings of two prompts; zero vectors are left out."""
    yield Overall(anisotropy(layer.pooled), int(layer.pooled.any(axis=1).sum()))
