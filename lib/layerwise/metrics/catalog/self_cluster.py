"""Self-Cluster: how far embeddings clump, against vectors spread evenly over the sphere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import unit_rows
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


def row_sums(rows: Array) -> Array:
    """Sum of squared cosines of each row with all rows, itself included, shape (N,)."""
    if len(rows) <= rows.shape[1]:
        gram = rows @ rows.T
        return np.asarray(np.einsum("ij,ij->i", gram, gram))
    return np.asarray(np.einsum("nd,nd->n", rows @ (rows.T @ rows), rows))


def rescale(squares: Array | float, n: int, d: int) -> Array:
    """From ``‖X̂X̂ᵀ‖_F²`` to 0 for the sphere's expectation and 1 for collapse."""
    expected = n + n * (n - 1) / d
    return np.asarray((squares - expected) / (n * n - expected))


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
    rows, sums = _rows_and_sums(X)
    return float(rescale(float(sums.sum()), *rows.shape))


def _rows_and_sums(X: npt.ArrayLike) -> tuple[Array, Array]:
    rows, _ = unit_rows(check_matrix(X))
    if min(rows.shape) < 2:
        raise UndefinedMetricError("Self-Cluster needs two non-zero embeddings of two dimensions.")
    return rows, row_sums(rows)


@metric(
    name="self_cluster",
    label="Self-Cluster",
    unit="",
    direction=None,
    range="about 0 (even) to 1 (collapsed)",
    source="Tsitsulin et al. 2023",
    inputs=("pooled",),
    function=self_cluster,
    min_prompts=2,
)
def compute(layer: Layer) -> Iterator[Overall]:
    """Self-Cluster of the pooled embeddings, with a jackknife."""
    rows, sums = _rows_and_sums(layer.pooled)
    n, d = rows.shape
    total = float(sums.sum())
    stderr = np.nan
    if n > 2:
        stderr = uncertainty.from_leave_one_out(rescale(total - 2 * sums + 1, n - 1, d))
    yield Overall(float(rescale(total, n, d)), stderr, n)
