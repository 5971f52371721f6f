"""Anisotropy: how far all embeddings point one way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import unit_rows
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric


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
    return _of_rows(X)[0]


def _of_rows(X: npt.ArrayLike) -> tuple[float, Array]:
    rows, _ = unit_rows(check_matrix(X))
    if len(rows) < 2:
        raise UndefinedMetricError("The mean cosine needs two embeddings that are not zero.")
    return mean_cosine(rows)


@metric(
    name="anisotropy",
    label="Mean cosine",
    unit="",
    direction=-1,
    range="-1/(N - 1) to 1",
    source="Ethayarajh 2019",
    inputs=("pooled",),
    function=anisotropy,
    min_prompts=2,
)
def compute(layer: Layer) -> Iterator[Overall]:
    """Mean cosine of the pooled embeddings of two prompts; zero vectors are left out."""
    value, without = _of_rows(layer.pooled)
    yield Overall(value, uncertainty.from_leave_one_out(without), len(without))
