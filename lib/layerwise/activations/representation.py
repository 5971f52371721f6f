"""From a layer's token states to one vector: which tokens count, how they are pooled.

A `Representation` names a way to represent a text or image at every layer: the tokens that count,
the pooling, and the states that are read (the residual stream, or the model's final norm of it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from layerwise.vocabulary import SINK_RATIO


class Representation(NamedTuple):
    """A way to take one vector from a layer of a model.

    Attributes
    ----------
    tokens : of `layerwise.vocabulary.TOKENS`, see `select_tokens`
    pooling : of `layerwise.vocabulary.POOLINGS`, see `pool`
    readout : of `layerwise.vocabulary.READOUTS`
    """

    tokens: str = "all"
    pooling: str = "mean"
    readout: str = "residual"

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True)
class Packed:
    """Token states of a batch, those that count at the front of each row.

    Attributes
    ----------
    states : Tensor, shape (B, T, D), float32
        Zero from each prompt's length on.
    lengths : Tensor, shape (B,)
    prefix : int
        Tokens in front of an image's patches (class, registers).
    streams : Tensor, shape (B, T, streams, D), optional
        All residual streams, where a model has several.
    """

    states: Tensor
    lengths: Tensor
    prefix: int = 0
    streams: Tensor | None = None

    @cached_property
    def mask(self) -> Tensor:
        """True where a token counts, shape (B, T)."""
        steps = torch.arange(self.states.shape[1], device=self.states.device)
        return steps[None, :] < self.lengths[:, None]

    @cached_property
    def norms(self) -> Tensor:
        """Norm of each state, shape (B, T)."""
        norms: Tensor = torch.linalg.vector_norm(self.states, dim=-1)
        return norms

    @cached_property
    def mean(self) -> Tensor:
        """Mean over the tokens that count, shape (B, D). Zero for a prompt without any."""
        return self.states.sum(dim=1) / self.lengths.clamp(min=1)[:, None]


def pack(states: Tensor, lengths: Tensor, *, prefix: int = 0, has_pads: bool = True) -> Packed:
    """Zero the pads of right-padded states of shape (B, T, D)."""
    packed = Packed(states.float(), lengths, prefix)
    if not has_pads:
        return packed
    # Not a product: a NaN in a pad, which no token sees, must not stay one.
    return replace(packed, states=packed.states.masked_fill(~packed.mask[..., None], 0))


def select_tokens(packed: Packed, tokens: str, ratio: float = SINK_RATIO) -> Packed:
    """Select the tokens that count.

    ``all``: every token of the prompt. ``drop_first``: all but the first, which takes on a huge
    norm in the middle layers of decoders. ``drop_sinks``: all but those whose norm is more than
    `ratio` times the median norm of the prompt at this layer. Of images: ``patches``: all but
    the class, register and start tokens in front; ``class``: the class token alone, which is the
    first. A prompt without tokens left has length 0.
    """
    states, lengths = packed.states, packed.lengths
    if tokens == "all":
        return packed
    if tokens == "class":
        return Packed(states[:, :1], lengths.clamp(max=1))
    if tokens == "drop_sinks":
        return _to_front(states, without_sinks(packed, ratio))
    n = 1 if tokens == "drop_first" else packed.prefix
    return Packed(states[:, n:], (lengths - n).clamp(min=0))


def without_sinks(packed: Packed, ratio: float = SINK_RATIO) -> Tensor:
    """Mask of the tokens that count and are no sink, shape (B, T)."""
    norms = packed.norms.masked_fill(~packed.mask, torch.nan)
    median = torch.nanmedian(norms, dim=1).values
    return packed.mask & (packed.norms <= ratio * median[:, None])


def inside(
    packed: Packed,
    tokens: str,
    rows: Tensor,
    starts: Tensor,
    stops: Tensor,
    longest: int,
    ratio: float = SINK_RATIO,
) -> Packed:
    """Select the tokens of spans, one span a row.

    Which tokens count is decided over the whole prompt: ``drop_first`` leaves out its first token.

    Parameters
    ----------
    rows, starts, stops : Tensor, shape (W,)
        The row of `packed` that a span is in, its first token, and the one after its last.
    longest : int
        The most tokens of a span, which the device is not asked for.
    """
    counts = without_sinks(packed, ratio) if tokens == "drop_sinks" else packed.mask.clone()
    if tokens == "drop_first":
        counts[:, 0] = False
    positions = starts[:, None] + torch.arange(longest, device=starts.device)
    within = positions < stops[:, None]
    positions = positions.clamp(max=packed.states.shape[1] - 1)
    keep = within & counts[rows[:, None], positions]
    return _to_front(packed.states[rows[:, None], positions], keep)


def after(packed: Packed, n: Tensor) -> Packed:
    """Leave out the first `n` tokens of each row; `n` has shape (B,)."""
    steps = torch.arange(packed.states.shape[1], device=n.device)
    return _to_front(packed.states, packed.mask & (steps >= n[:, None]))


def _to_front(states: Tensor, keep: Tensor) -> Packed:
    """Move the states where `keep`, shape (B, T), is true to the front of their rows, in order."""
    order = torch.argsort(keep.logical_not().to(torch.uint8), dim=1, stable=True)
    return pack(torch.gather(states, 1, order[..., None].expand_as(states)), keep.sum(dim=1))


def pool(packed: Packed, pooling: str, before: Tensor | None = None) -> Tensor:
    """Pool the states that count to one vector a text.

    Parameters
    ----------
    packed : Packed
    pooling : {'mean', 'weighted_mean', 'max', 'last_token', 'cls'}
        ``weighted_mean`` weights a token by its position, ``Σ i z_i / Σ i``: in a decoder later
        tokens have seen more of the text (Muennighoff 2022, arXiv 2202.08904). ``max`` is taken of
        each coordinate. ``cls`` is the first token that counts.
    before : Tensor, shape (B,), optional
        Number of tokens of a prompt that were left out in front of each text: the first token that
        counts has position ``before + 1``.

    Returns
    -------
    Tensor, shape (B, D)
        Zero for a text without selected tokens.
    """
    states, lengths = packed.states, packed.lengths
    if pooling == "mean" or states.shape[1] == 0:
        return packed.mean
    if pooling == "cls":
        # A view would keep the states of every token in memory.
        return states[:, 0].clone()
    if pooling == "last_token":
        rows = torch.arange(len(lengths), device=lengths.device)
        return states[rows, (lengths - 1).clamp(min=0)]
    if pooling == "max":
        inner = states.masked_fill(~packed.mask[..., None], -torch.inf)
        return inner.amax(dim=1).masked_fill(lengths[:, None] == 0, 0)
    weights = torch.arange(1, states.shape[1] + 1, device=states.device, dtype=states.dtype)[None]
    total = lengths * (lengths + 1) / 2
    if before is not None:
        weights, total = weights + before[:, None], total + before * lengths
    # Pads are zero.
    return (states * weights[..., None]).sum(dim=1) / total.clamp(min=1)[:, None]
