"""How the states of a text's tokens become one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from layerwise.activations.readout import Packed, pooled


def last_token(packed: Packed) -> Tensor:
    """The state of the last token that counts, shape (B, D)."""
    rows = torch.arange(len(packed.lengths), device=packed.lengths.device)
    return packed.states[rows, (packed.lengths - 1).clamp(min=0)]


def cls(packed: Packed) -> Tensor:
    """The state of the first token that counts, shape (B, D)."""
    return packed.states[:, 0]


def weighted_mean(packed: Packed, before: Tensor | None = None) -> Tensor:
    """Mean with weights that grow with the position: ``Σ i z_i / Σ i``, shape (B, D).

    The first token that counts has position 1, or ``before + 1`` behind a prompt of so many. In a
    decoder later tokens have seen more of the text (Muennighoff 2022, arXiv 2202.08904).
    """
    states, lengths = packed.states, packed.lengths
    positions = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=states.dtype)
    total = lengths * (lengths + 1) / 2
    weights = positions[None, :]
    if before is not None:
        weights, total = weights + before[:, None], total + before * lengths
    # Pads are zero.
    return (states * weights[..., None]).sum(dim=1) / total.clamp(min=1)[:, None]


def maximum(packed: Packed) -> Tensor:
    """The largest value of each coordinate over the tokens that count, shape (B, D)."""
    inside = packed.states.masked_fill(~packed.mask[..., None], -torch.inf)
    return inside.amax(dim=1).masked_fill(packed.lengths[:, None] == 0, 0)


_WAYS: dict[str, Callable[[Packed], Tensor]] = {
    "mean": pooled,
    "weighted_mean": weighted_mean,
    "max": maximum,
    "last_token": last_token,
    "cls": cls,
}
POOLINGS = tuple(_WAYS)


def pool(packed: Packed, pooling: str, before: Tensor | None = None) -> Tensor:
    """One vector a text, shape (B, D); zero for a text of which no token counts.

    Parameters
    ----------
    packed : Packed
        The states of the tokens that count.
    pooling : {'mean', 'weighted_mean', 'max', 'last_token', 'cls'}
    before : Tensor, shape (B,), optional
        How many tokens of a prompt were left out in front of each text's.
    """
    if packed.states.shape[1] == 0:
        return pooled(packed)
    if before is not None and pooling == "weighted_mean":
        return weighted_mean(packed, before)
    return _WAYS[pooling](packed)
