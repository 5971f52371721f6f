"""Massive activations: huge tokens, huge dimensions, and heads that attend to the first token.

The norms of a prompt's tokens are NaN beyond its last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.activations.store import LARGEST, array
from layerwise.metrics.formulas import Array, UndefinedMetricError, as_numpy, check_matrix
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric
from layerwise.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from layerwise.activations.representation import Packed

of_all_tokens = partial(metric, per_prompt=True, protocols=("paper",), tokens=("all",))
of_norms = partial(of_all_tokens, inputs=("norms",), range="1 and above")
MASSIVE = "Sun et al. 2024 (massive activations)"


def first_token_share(Z: npt.ArrayLike) -> float:
    """Share of the token Gram matrix's trace that the first token holds: ``|z_1|² / Σ|z_t|²``.

    Near 1, the first token's direction is the spectrum's one large eigenvalue, and the prompt's
    entropy near 0 whatever the other tokens are.

    Parameters
    ----------
    Z : array, shape (T, D)

    Returns
    -------
    float
        0 to 1; 1 / T where all tokens have one norm.

    Raises
    ------
    UndefinedMetricError
        If every state is zero.

    Examples
    --------
    >>> first_token_share([[3, 0], [0, 1], [1, 0], [0, 1], [2, 0]])
    0.5625
    """
    return _only(_first_shares(_norms(Z)), "Of states that are all zero, none holds a share.")


def largest_norm(Z: npt.ArrayLike) -> float:
    """Norm of the largest token as a multiple of the prompt's median norm.

    A token is a sink where its multiple is above ``extract.sink_ratio``.

    Parameters
    ----------
    Z : array, shape (T, D)

    Returns
    -------
    float
        1 and above.

    Raises
    ------
    UndefinedMetricError
        If the median norm is zero.

    Examples
    --------
    >>> largest_norm([[8, 0], [0, 1], [0, 2]])
    4.0
    """
    why = "Beside a median norm of zero no norm has a multiple."
    return _only(_multiples(_norms(Z))[:, 0], why)


def second_norm(Z: npt.ArrayLike) -> float:
    """Norm of the second largest token as a multiple of the prompt's median norm.

    Every ratio between this and `largest_norm` tells the same one token from the others: the wider
    apart they are, the less ``extract.sink_ratio`` matters.

    Parameters
    ----------
    Z : array, shape (T, D)
        T ≥ 2.

    Returns
    -------
    float
        1 and above, or just below 1 for two tokens.

    Raises
    ------
    UndefinedMetricError
        If there are fewer than two tokens, or the median norm is zero.

    Examples
    --------
    >>> second_norm([[8, 0], [0, 1], [0, 4], [2, 0], [0, 2]])
    2.0
    """
    why = "A second largest norm needs two tokens and a median norm that is not zero."
    return _only(_multiples(_norms(Z))[:, 1], why)


def _only(values: Array, why: str) -> float:
    """The value of one prompt; `why` if it has none."""
    (value,) = values
    if not np.isfinite(value):
        raise UndefinedMetricError(why)
    return float(value)


def _norms(Z: npt.ArrayLike) -> Array:
    return np.asarray(np.linalg.norm(check_matrix(Z), axis=1)[None])


def _first_shares(norms: Array) -> Array:
    squares = np.square(norms)
    with np.errstate(invalid="ignore"):
        return np.asarray(squares[:, 0] / np.nansum(squares, axis=1))


def _multiples(norms: Array) -> Array:
    """The two largest norms of each prompt in multiples of its median, shape (N, 2).

    NaN where there is none.
    """
    ordered = np.sort(norms, axis=1)  # NaN last
    last = np.isfinite(norms).sum(axis=1, keepdims=True) - 1
    # The lower of two in the middle, as the extraction has it.
    middle = np.take_along_axis(ordered, np.maximum(last, 0) // 2, axis=1)
    largest = np.take_along_axis(ordered, np.maximum(last - [0, 1], 0), axis=1)
    is_defined = (last >= [0, 1]) & (middle > 0)
    return np.where(is_defined, largest, np.nan) / np.where(is_defined, middle, 1.0)


@of_norms(
    label="First token’s share of the Gram matrix’s trace",
    range="0 to 1",
    source="the diagonal of the Gram matrix; sinks: Xiao et al. 2024, Sun et al. 2024",
    function=first_token_share,
)
def compute_share(layer: Layer) -> Iterator[PerPrompt]:
    """``|z_1|² / Σ|z_t|²`` of each prompt; the layer's value is the mean over prompts."""
    yield PerPrompt(_first_shares(layer.norms))


@of_norms(label="Largest norm ÷ median norm", source=MASSIVE, function=largest_norm)
def compute_largest(layer: Layer) -> Iterator[PerPrompt]:
    """The largest norm of each prompt over its median norm."""
    yield PerPrompt(_multiples(layer.norms)[:, 0])


@of_norms(label="Second largest norm ÷ median norm", source=MASSIVE, function=second_norm)
def compute_second(layer: Layer) -> Iterator[PerPrompt]:
    """The second largest norm of each prompt over its median norm."""
    yield PerPrompt(_multiples(layer.norms)[:, 1])


def largest_dimension(Z: npt.ArrayLike) -> float:
    """Share of the mean square over tokens that the largest dimension holds.

    Near 1, one coordinate that is huge in all tokens decides the spectrum, and the prompt's
    entropy is near 0 with and without the first token.

    Parameters
    ----------
    Z : array, shape (T, D)

    Returns
    -------
    float
        1 / D, where all dimensions have one mean square, to 1.

    Raises
    ------
    UndefinedMetricError
        If every state is zero.

    Examples
    --------
    >>> largest_dimension([[3, 1, 0], [3, 0, 1], [0, 1, 1]])
    0.8181818181818182
    """
    squares = np.square(check_matrix(Z)).sum(axis=0)
    if not squares.any():
        raise UndefinedMetricError("Of states that are all zero, no dimension holds a share.")
    return float(squares.max() / squares.sum())


of_dimensions = partial(array, dims=("tokens", "layer", "prompt", "top"))


def _largest(packed: Packed) -> tuple[Tensor, Tensor]:
    """Shares of the mean square of each prompt's largest dimensions, and which they are."""
    squares = packed.states.square().sum(dim=1)
    largest = squares.topk(min(LARGEST, squares.shape[1]))
    return largest.values / squares.sum(dim=-1, keepdim=True), largest.indices.int()


@of_dimensions(
    dtype="i4",
    unit="",
    description="dimension with the largest mean square over the tokens that count",
    empty=-1,
)
def dimension(packed: Packed) -> Tensor:
    """Each prompt's largest dimensions, shape (B, 4)."""
    return _largest(packed)[1]


@of_dimensions(
    dtype="f4",
    unit="",
    description="its share of the mean square over all dimensions; NaN without tokens",
)
def dimension_share(packed: Packed) -> Tensor:
    """Their shares of the mean square, shape (B, 4)."""
    return _largest(packed)[0]


@metric(
    label="Largest dimension’s share of the mean square",
    range="1/D to 1",
    source=MASSIVE,
    inputs=("dimension_share",),
    per_prompt=True,
    function=largest_dimension,
    protocols=("paper",),
)
def compute_dimension(layer: Layer) -> Iterator[PerPrompt]:
    """``max_d Σ_t z_td² / Σ_td z_td²`` of each prompt."""
    yield PerPrompt(layer["dimension_share"][:, 0])


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
    n_heads = np.isfinite(attention).sum(axis=1)
    rates = np.full(len(attention), np.nan)
    np.divide((attention > threshold).sum(axis=1), n_heads, out=rates, where=n_heads > 0)
    return rates


@of_all_tokens(
    label="Sink rate",
    range="0 to 1",
    source="Gu et al. 2025; Queipo-de-Llano et al. 2025",
    inputs=("first_token_attention",),
    function=sink_rate,
    settings=Settings,
    note="Blocks without attention have none; computed where it is named, with eager attention.",
)
def compute_rate(layer: Layer, settings: Settings) -> Iterator[PerPrompt]:
    """Share of heads, for each prompt; none at the embedding output."""
    attention = layer["first_token_attention"]
    if np.isfinite(attention).any():
        yield PerPrompt(_rates(attention, settings.threshold))
