"""Sink rate: share of attention heads whose attention rests on the first token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.metrics.formulas import (
    Array,
    UndefinedMetricError,
    as_numpy,
    check_matrix,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric
from layerwise.section import Section


class Settings(Section):
    """Settings of the sink rate."""

    threshold: float = Field(0.3, gt=0, lt=1)
    """Mean attention to the first token above which a head counts."""


def sink_rate(A: npt.ArrayLike, threshold: float = 0.3) -> float:
    """Share of heads whose mean attention to the first token is above the threshold.

    Parameters
    ----------
    A : array, shape (H, T, T)
        Attention of each head at a layer: rows are queries, columns are keys.
    threshold : float

    Returns
    -------
    float
        0 to 1.

    Raises
    ------
    UndefinedMetricError
        If there are fewer than two tokens: the first attends to itself alone.

    Examples
    --------
    >>> sink_rate([[[1, 0], [0.9, 0.1]], [[1, 0], [0.5, 0.5]]], threshold=0.9)
    0.5
    """
    first = check_matrix(as_numpy(A)[:, :, 0])
    if first.shape[1] < 2:
        raise UndefinedMetricError("The sink rate needs two tokens.")
    return float(_rates(first.mean(axis=1)[None], threshold)[0])


def _rates(attention: Array, threshold: float) -> Array:
    """Share of heads above the threshold, shape (N,); NaN without attention."""
    known = np.isfinite(attention).sum(axis=1)
    rates = np.full(len(attention), np.nan)
    np.divide((attention > threshold).sum(axis=1), known, out=rates, where=known > 0)
    return rates


@metric(
    label="Sink rate",
    range="0 to 1",
    source="Gu et al. 2025; Queipo-de-Llano et al. 2025",
    inputs=("attention",),
    per_prompt=True,
    function=sink_rate,
    protocols=("paper",),
    tokens=("all",),
    settings=Settings,
    note="Needs extract.attention. Blocks without attention have none.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[PerPrompt]:
    """Share of heads, for each prompt; none at the embedding output."""
    if layer.attention is not None and np.isfinite(layer.attention).any():
        yield PerPrompt(_rates(layer.attention, settings.threshold))
