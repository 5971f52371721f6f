"""Anisotropy: how far all embeddings point one way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics import uncertainty
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import Array, Overall, UndefinedMetricError, metric
from layerwise.metrics.spectra import unit_rows


def mean_cosine(rows: Array) -> tuple[float, Array]:
    """Mean cosine over pairs of different rows, and the same without each row.

    ``(‖Σ x̂‖² - N) / (N (N - 1))``: linear in N, where the pairs are N².

    Parameters
    ----------
    rows : array, shape (N, D), N ≥ 2
        Of unit length.

    Returns
    -------
    value : float
        -1/(N - 1) to 1.
    without : array, shape (N,)
        The value with one row left out each; NaN where N = 2.
    """
    n = len(rows)
    total = rows.sum(axis=0)
    squared = float(total @ total)
    rest = squared - 2 * (rows @ total) + 1
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (rest - (n - 1)) / np.float64((n - 1) * (n - 2))
    return (squared - n) / (n * (n - 1)), without


@metric(
    name="anisotropy",
    label="Mean cosine",
    unit="",
    direction=-1,
    range="-1/(N - 1) to 1",
    source="Ethayarajh 2019",
    inputs=("pooled",),
    min_prompts=2,
)
def compute(layer: LayerInputs) -> Iterator[Overall]:
    """Mean cosine of the pooled embeddings of two prompts; zero vectors are left out."""
    rows, _ = unit_rows(layer.pooled)
    n = len(rows)
    if n < 2:
        raise UndefinedMetricError("The mean cosine needs two embeddings that are not zero.")
    value, without = mean_cosine(rows)
    yield Overall(value, uncertainty.from_leave_one_out(without), n)
