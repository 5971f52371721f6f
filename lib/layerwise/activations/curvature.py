"""Curvature of a prompt's path through the states: mean angle between successive vectors.

The vectors are the steps ``v_k = z_{k+1} - z_k`` (Hosseini & Fedorenko 2023): of the states, or,
in the released code, of the centred states of unit length. Their angles follow from inner products
of tokens that are at most two apart. In float64 these are as exact as the float32 states that they
are of.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# A relative difference of states below this is float32 rounding and has no direction. After the 30
# layers of SmolLM2, rounding is up to 1e-5 for a repeated token; tokens of a text differ by 0.4 or
# more.
ROUNDING = 1e-4


def products(states: Tensor) -> list[Tensor]:
    """Inner products of tokens 0, 1 and 2 apart, in float64.

    Parameters
    ----------
    states : Tensor, shape (B, T, D)

    Returns
    -------
    list of Tensor, shapes (B, T), (B, T - 1), (B, T - 2)
        The first three diagonals of the token Gram matrix.
    """
    wide = states.double()
    length = wide.shape[1]
    return [torch.linalg.vecdot(wide[:, k:], wide[:, : max(0, length - k)]) for k in range(3)]


def diagonals(gram: Tensor) -> list[Tensor]:
    """The same inner products as views of the Gram matrix, shape (B, T, T)."""
    return [torch.diagonal(gram, k, 1, 2) for k in range(3)]


def of_steps(products: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """Curvature as the paper prints it, from `products`.

    Returns
    -------
    Tensor, shape (B,), float64
        Radians; NaN for a prompt without two successive steps that have a direction.
    """
    squares = products[0]
    rounding = ROUNDING**2 * torch.maximum(squares[:, :-1], squares[:, 1:])
    cosine, defined = _turns(products, rounding, lengths)
    angles = cosine.clamp(-1, 1).arccos().masked_fill(~defined, 0)
    return angles.sum(dim=1) / defined.sum(dim=1)


def of_unit_rows(products: Sequence[Tensor], lengths: Tensor, rounding: Tensor) -> Tensor:
    """Curvature as the released code has it: of centred unit rows, of the *absolute* cosine.

    Parameters
    ----------
    products : sequence of Tensor
        As of `products`, but of centred states of unit norm; 0 for those without a direction.
    lengths : Tensor, shape (B,)
    rounding : Tensor, shape (B, T)
        Squared differences of each row below this are rounding.

    Returns
    -------
    Tensor, shape (B,), float64
        Radians, 0 to π/2. Next to a zero step the angle is 0, and so is the curvature of one or
        two tokens; NaN for a prompt without tokens.
    """
    rounding = torch.maximum(rounding[:, :-1], rounding[:, 1:])
    cosine, defined = _turns(products, rounding, lengths)
    angles = cosine.abs().clamp(max=1).arccos().masked_fill(~defined, 0)
    mean = angles.sum(dim=1) / (lengths - 2).clamp(min=1)
    return mean.masked_fill(lengths == 0, torch.nan)


def _turns(products: Sequence[Tensor], rounding: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of each pair of successive steps, and whether it is defined, both (B, T - 2)."""
    squares, beside, apart = products
    steps = squares[:, :-1] + squares[:, 1:] - 2 * beside
    moves = steps > rounding
    dots = beside[:, 1:] + beside[:, :-1] - squares[:, 1:-1] - apart
    places = torch.arange(dots.shape[1], device=dots.device)
    exists = places < lengths[:, None] - 2
    cosine = dots / (steps[:, 1:] * steps[:, :-1]).sqrt()
    return cosine, exists & moves[:, 1:] & moves[:, :-1]
