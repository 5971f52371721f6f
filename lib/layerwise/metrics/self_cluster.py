"""Self-Cluster: how far embeddings clump, against vectors spread evenly over the sphere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics import uncertainty
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Array, Overall, UndefinedMetricError, metric
from layerwise.metrics.spectra import unit_rows


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


@metric(
    name="self_cluster",
    label="Self-Cluster",
    unit="",
    direction=None,
    range="about 0 (even) to 1 (collapsed)",
    source="Tsitsulin et al. 2023",
    inputs=("pooled",),
    min_prompts=2,
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """``(d‖X̂X̂ᵀ‖_F² - n(d + n - 1)) / ((d - 1)(n - 1)n)``, X̂ the unit-length embeddings."""
    rows, _ = unit_rows(layer.pooled)
    n, d = rows.shape
    if n < 2 or d < 2:
        raise UndefinedMetricError("Self-Cluster needs two non-zero embeddings of two dimensions.")
    sums = row_sums(rows)
    total = float(sums.sum())
    stderr = np.nan
    if n > 2:
        stderr = uncertainty.from_leave_one_out(rescale(total - 2 * sums + 1, n - 1, d))
    yield Overall(float(rescale(total, n, d)), stderr, n)
