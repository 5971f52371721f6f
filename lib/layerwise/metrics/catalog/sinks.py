"""Attention sinks: tokens whose norm is many times the others'."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric


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
    (share,) = _first_shares(np.linalg.norm(check_matrix(Z), axis=1)[None])
    if not np.isfinite(share):
        raise UndefinedMetricError("Of states that are all zero, none holds a share.")
    return float(share)


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
    (ratio,) = _ranked(np.linalg.norm(check_matrix(Z), axis=1)[None])[:, 0]
    if not np.isfinite(ratio):
        raise UndefinedMetricError("Beside a median norm of zero no norm has a multiple.")
    return float(ratio)


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
    (ratio,) = _ranked(np.linalg.norm(check_matrix(Z), axis=1)[None])[:, 1]
    if not np.isfinite(ratio):
        raise UndefinedMetricError(
            "A second largest norm needs two tokens and a median norm that is not zero."
        )
    return float(ratio)


def _first_shares(norms: Array) -> Array:
    squares = np.square(norms)
    with np.errstate(invalid="ignore"):
        return np.asarray(squares[:, 0] / np.nansum(squares, axis=1))


def _ranked(norms: Array) -> Array:
    """The two largest norms of each prompt, shape (N, 2), in multiples of its median; NaN where
    there is none. Beyond a prompt's tokens the norms are NaN."""
    found = np.full((len(norms), 2), np.nan)
    for row, own in zip(found, norms, strict=True):
        ordered = np.sort(own[np.isfinite(own)])
        # The lower of two in the middle, as the extraction has it.
        middle = ordered[(len(ordered) - 1) // 2] if len(ordered) else 0.0
        if middle > 0:
            largest = ordered[::-1][:2] / middle
            row[: len(largest)] = largest
    return found


@metric(
    label="First token’s share of the Gram matrix’s trace",
    range="0 to 1",
    source="the diagonal of the Gram matrix; sinks: Xiao et al. 2024, Sun et al. 2024",
    inputs=("norms",),
    per_prompt=True,
    function=first_token_share,
    protocols=("paper",),
    tokens=("all",),
)
def compute_share(layer: Layer) -> Iterator[PerPrompt]:
    """``|z_1|² / Σ|z_t|²`` of each prompt; the layer's value is the mean over prompts."""
    yield PerPrompt(_first_shares(layer.norms))


@metric(
    label="Largest norm ÷ median norm",
    range="1 and above",
    source="Sun et al. 2024 (massive activations)",
    inputs=("norms",),
    per_prompt=True,
    function=largest_norm,
    protocols=("paper",),
    tokens=("all",),
)
def compute_largest(layer: Layer) -> Iterator[PerPrompt]:
    """The largest norm of each prompt over its median norm."""
    yield PerPrompt(layer.once("ranked_norms", lambda: _ranked(layer.norms))[:, 0])


@metric(
    label="Second largest norm ÷ median norm",
    range="1 and above",
    source="Sun et al. 2024 (massive activations)",
    inputs=("norms",),
    per_prompt=True,
    function=second_norm,
    protocols=("paper",),
    tokens=("all",),
)
def compute_second(layer: Layer) -> Iterator[PerPrompt]:
    """The second largest norm of each prompt over its median norm."""
    yield PerPrompt(layer.once("ranked_norms", lambda: _ranked(layer.norms))[:, 1])
