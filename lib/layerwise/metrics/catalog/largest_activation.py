"""The largest absolute activation of each token, and its kurtosis over a prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import stats

from layerwise.activations.store import array
from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric

if TYPE_CHECKING:
    from torch import Tensor

    from layerwise.activations.representation import Packed


@array(
    dims=("layer", "prompt", "rank"),
    dtype="f4",
    unit="activation",
    description="largest absolute value of each token's state; NaN beyond T",
)
def largest_activation(packed: Packed) -> Tensor:
    """``max_d |z_td|`` of each token, shape (B, T)."""
    return packed.states.abs().amax(dim=-1)


def activation_kurtosis(Z: npt.ArrayLike) -> float:
    """Excess kurtosis, over tokens, of the largest absolute activation of each.

    Parameters
    ----------
    Z : array, shape (T, D)

    Returns
    -------
    float
        -2 and above: near T for one massive token of T, 0 for a normal distribution.

    Raises
    ------
    UndefinedMetricError
        If all tokens have the same largest activation.

    Examples
    --------
    >>> activation_kurtosis([[-9, 0], [1, 0], [0, -1], [1, 1], [1, 0]])
    0.25
    """
    (value,) = _kurtosis(np.abs(check_matrix(Z)).max(axis=1)[None])
    if not np.isfinite(value):
        raise UndefinedMetricError("Equal largest activations have no kurtosis.")
    return round(float(value), 12)


def _kurtosis(largest: Array) -> Array:
    """Kurtosis of each row without its NaN, shape (N,); NaN where all values are equal."""
    spread = np.nanmax(largest, axis=1) > np.nanmin(largest, axis=1)
    values = stats.kurtosis(largest, axis=1, nan_policy="omit")
    return np.where(spread, np.ma.filled(values, np.nan), np.nan)


@metric(
    label="Kurtosis of the largest activations",
    range="-2 and above",
    source="Sun et al. 2024 (massive activations)",
    inputs=("largest_activation",),
    per_prompt=True,
    protocols=("paper",),
    tokens=("all",),
    function=activation_kurtosis,
)
def compute(layer: Layer) -> Iterator[PerPrompt]:
    """Kurtosis over the tokens of each prompt."""
    yield PerPrompt(_kurtosis(layer["largest_activation"]))
