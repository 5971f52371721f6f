"""From a layer's token states to what is kept of them.

Everything the metrics need of a prompt at a layer is made here, in the forward pass, from the
states of one batch at one layer: pooled embeddings, the spectrum of the token Gram matrix, and
curvature, under both protocols and for every choice of tokens.

Precision: states come in the model's dtype and are made float32 at once. Means over tokens are
float32; Gram matrices and eigenvalues are float64, since one huge token (a sink) would otherwise
drown the others' eigenvalues. Inner products behind angles are float32, good to 1e-5 in the
angle, but for nearly straight or reversed steps, where the arc cosine magnifies rounding: those
are computed again in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from layerwise.activations import eigen

PROTOCOLS = ("paper", "reference")
TOKENS = ("all", "drop_first", "drop_sinks", "patches", "class")
SINK_RATIO = 5.0
# A difference below this share of what it is a difference of is float32's rounding in the pass: it
# has no direction, and another batch has another one. After SmolLM2's 30 layers such a share is up
# to 1e-5 where one token is repeated; between tokens of a text it is 0.4 or more.
ROUNDING = 1e-4
# Beyond this cosine, an error of float32 in it (1e-6) would show in the angle at 1e-5.
NEARLY_STRAIGHT = 0.99


@dataclass(frozen=True)
class Packed:
    """The token states that count, moved to the front of each row.

    Attributes
    ----------
    states : Tensor, shape (B, T, D), float32
        Zero from each prompt's length on.
    lengths : Tensor, shape (B,)
    prefix : int
        Tokens in front of an image's patches (class, registers).
    """

    states: Tensor
    lengths: Tensor
    prefix: int = 0

    @cached_property
    def mask(self) -> Tensor:
        """True where a token counts, shape (B, T)."""
        steps = torch.arange(self.states.shape[1], device=self.states.device)
        return steps[None, :] < self.lengths[:, None]

    @cached_property
    def norms(self) -> Tensor:
        """Of the states, shape (B, T)."""
        norms: Tensor = torch.linalg.vector_norm(self.states, dim=-1)
        return norms


def pack(states: Tensor, lengths: Tensor, *, padded: bool = True, prefix: int = 0) -> Packed:
    """Zero the pads of right-padded states of shape (B, T, D).

    `padded` is False where the caller knows that there are none.
    """
    packed = Packed(states.float(), lengths, prefix)
    if not padded:
        return packed
    # Not a product: a NaN in a pad, which no token sees, must not stay one.
    return Packed(packed.states.masked_fill(~packed.mask[..., None], 0), lengths, prefix)


def choose(packed: Packed, tokens: str, ratio: float = SINK_RATIO) -> Packed:
    """Keep the tokens that count under a choice.

    ``all``: every token of the prompt. ``drop_first``: all but the first, which takes on a huge
    norm in the middle layers of decoders. ``drop_sinks``: all but those whose norm is more than
    `ratio` times the median norm of the prompt at this layer. Of images: ``patches``: all but
    the class, register and start tokens in front; ``class``: the class token alone, which is the
    first. A prompt of which nothing would remain (one token) has length 0.
    """
    states, lengths = packed.states, packed.lengths
    if tokens == "all":
        return packed
    if tokens == "drop_first":
        return Packed(states[:, 1:], (lengths - 1).clamp(min=0))
    if tokens == "patches":
        return Packed(states[:, packed.prefix :], (lengths - packed.prefix).clamp(min=0))
    if tokens == "class":
        return Packed(states[:, :1], lengths.clamp(max=1))
    keep = small(packed, ratio)
    order = torch.argsort(keep.logical_not().to(torch.uint8), dim=1, stable=True)
    front = torch.gather(states, 1, order[..., None].expand_as(states))
    kept = Packed(front, keep.sum(dim=1))
    return Packed(front * kept.mask[..., None], kept.lengths)


def small(packed: Packed, ratio: float = SINK_RATIO) -> Tensor:
    """True where a token counts and is no sink, shape (B, T)."""
    norms = packed.norms
    inside = packed.mask
    median = torch.nanmedian(norms.masked_fill(~inside, torch.nan), dim=1).values
    return inside & (norms <= ratio * median[:, None])


def counted(packed: Packed, tokens: str, ratio: float = SINK_RATIO) -> Tensor:
    """True where a text's token counts under a choice of `choose`, shape (B, T)."""
    inside = packed.mask
    if tokens == "drop_first":
        return inside & (torch.arange(inside.shape[1], device=inside.device) > 0)
    if tokens == "drop_sinks":
        return small(packed, ratio)
    return inside


def inside(packed: Packed, counts: Tensor, rows: Tensor, starts: Tensor, stops: Tensor) -> Packed:
    """The tokens of spans that count, a row each.

    Parameters
    ----------
    counts : Tensor of bool, shape (B, T)
        Of `counted`.
    rows, starts, stops : Tensor, shape (W,)
        The row of `packed` that a span is of, its first token, and the one behind its last.
    """
    longest = max(1, int((stops - starts).max()))
    places = starts[:, None] + torch.arange(longest, device=starts.device)
    own = places < stops[:, None]
    places = places.clamp(max=packed.states.shape[1] - 1)
    keep = own & counts[rows[:, None], places]
    order = torch.argsort(keep.logical_not().to(torch.uint8), dim=1, stable=True)
    return pack(packed.states[rows[:, None], places.gather(1, order)], keep.sum(dim=1))


def after(packed: Packed, n: Tensor) -> Packed:
    """Leave out the first tokens of each row, `n` of shape (B,), or all where there are fewer."""
    left = (packed.lengths - n).clamp(min=0)
    longest = packed.states.shape[1]
    places = torch.arange(longest, device=n.device)[None, :] + n[:, None]
    places = places.clamp(max=longest - 1)[..., None]
    return pack(torch.gather(packed.states, 1, places.expand_as(packed.states)), left)


def pooled(packed: Packed) -> Tensor:
    """Mean over the tokens that count, shape (B, D). Zero for a prompt without any."""
    return packed.states.sum(dim=1) / packed.lengths.clamp(min=1)[:, None]


@dataclass(frozen=True)
class Centred:
    """The states of the ``reference`` protocol: ``scale[..., None] * states``.

    Attributes
    ----------
    states : Tensor, shape (B, T, D), float32
        Centred over the prompt's tokens.
    norms : Tensor, shape (B, T)
        Of the rows.
    zero : Tensor, shape (B, T)
        True for a row that equals the mean, but for rounding.
    scale : Tensor, shape (B, T)
        1 / norm; 0 for such a row, and for pads.
    lengths : Tensor, shape (B,)
    """

    states: Tensor
    norms: Tensor
    zero: Tensor
    scale: Tensor
    lengths: Tensor


def centred(packed: Packed, mean: Tensor) -> Centred:
    """The ``reference`` protocol's states: centred over the prompt's tokens, rows of unit norm.

    A row that equals the mean stays zero.
    """
    states = packed.states - mean[:, None]
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1)
    middle: Tensor = torch.linalg.vector_norm(mean, dim=-1, keepdim=True)
    zero = _rounding(norms, packed.norms, middle)
    scale = torch.where(packed.mask & ~zero & (norms > 0), 1 / norms, 0)
    return Centred(states, norms, zero, scale, packed.lengths)


def _rounding(norms: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Whether differences of `norms` are nothing but rounding of the two vectors' norms."""
    least = ROUNDING * torch.maximum(one, other)
    # Norms too small or too large for float32 are 0 or infinite, and say nothing.
    return (norms <= least) & (least > 0) & least.isfinite()


def pooled_unit(rows: Centred) -> Tensor:
    """Mean over the tokens that count of rows of unit norm, shape (B, D)."""
    total = torch.bmm(rows.scale[:, None], rows.states)[:, 0]
    return total / rows.lengths.clamp(min=1)[:, None]


def gram(packed: Packed) -> Tensor:
    """Token Gram matrices ``Z Zᵀ``, shape (B, T, T), float64, zero where a pad takes part."""
    return eigen.token_gram(packed.states)


def descending(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues of ``Z Zᵀ``, shape (B, T), in order, not below 0 (rounding aside, a Gram matrix
    has none)."""
    return eigenvalues.clamp(min=0).sort(dim=-1, descending=True).values


def reference_gram(gram_matrix: Tensor, packed: Packed) -> Tensor:
    """The ``reference`` protocol's Gram matrix, from ``Z Zᵀ``: shape (B, T, T), float64.

    Centring over tokens is double centring of the Gram matrix, unit rows are division by the
    roots of its diagonal; then negative entries are set to 0, as the released code does. The
    result may have negative eigenvalues.
    """
    mask = packed.mask.double()
    count = packed.lengths.clamp(min=1).double()[:, None]
    rows = gram_matrix.sum(dim=2) / count
    total = rows.sum(dim=1) / count[:, 0]
    # In place: memory that is new each time costs more than the arithmetic.
    centred = gram_matrix - rows[:, :, None]
    centred.sub_(rows[:, None, :]).add_(total[:, None, None])
    centred.mul_(mask[:, :, None]).mul_(mask[:, None, :])
    variance = torch.diagonal(centred, dim1=1, dim2=2)
    # As `centred` has it: a row that equals the mean leaves rounding, not zero.
    squares = torch.diagonal(gram_matrix, dim1=1, dim2=2)
    floor = ROUNDING**2 * torch.maximum(squares, total[:, None])
    scale = torch.where(variance > floor, variance, torch.inf).rsqrt()
    return centred.mul_(scale[:, :, None]).mul_(scale[:, None, :]).clamp_(min=0)


def by_magnitude(eigenvalues: Tensor) -> Tensor:
    """Signed eigenvalues, shape (B, T), largest magnitude first.

    In that order the zeros that pads bring come last, so that no value depends on padding.
    """
    order = eigenvalues.abs().argsort(dim=-1, descending=True)
    return torch.gather(eigenvalues, -1, order)


@dataclass(frozen=True)
class Turns:
    """Rows whose successive angles are asked for.

    Attributes
    ----------
    vectors : Tensor, shape (B, K, D)
    norms : Tensor, shape (B, K)
    zero : Tensor, shape (B, K)
        True for a row that is zero but for rounding, and has no direction.
    pairs : Tensor, shape (B,)
        How many pairs of each prompt count, from the first.
    """

    vectors: Tensor
    norms: Tensor
    zero: Tensor
    pairs: Tensor


def steps(packed: Packed) -> Turns:
    """The steps ``v_k = z_{k+1} - z_k``: curvature as the paper prints it.

    That is the mean over k of ``arccos(cos(v_{k+1}, v_k))`` (Hosseini & Fedorenko 2023). The
    angles of the prompts without their first token are the same without the first.
    """
    vectors = packed.states[:, 1:] - packed.states[:, :-1]
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    zero = _rounding(norms, packed.norms[:, 1:], packed.norms[:, :-1])
    return Turns(vectors, norms, zero, packed.lengths - 2)


def unit_states(rows: Centred) -> Turns:
    """The states themselves: "curvature" as the released code has it.

    The mean over T - 1 angles; the cosine is clamped to [-1, 1], where the released code lets
    rounding turn it into NaN.
    """
    return Turns(rows.states, rows.norms, rows.zero, rows.lengths - 1)


def mean_angle(angles: Tensor, defined: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each row's defined angles, and how many there are.

    Returns
    -------
    curvature : Tensor, shape (B,), float64
        In radians, 0 to π; NaN where no angle exists (too few tokens, or every row zero).
    angles : Tensor, shape (B,), int64
        How many angles were averaged; a zero row has none.
    """
    count = defined.sum(dim=1)
    return angles.sum(dim=1) / count.double().masked_fill(count == 0, torch.nan), count


def angles(many: Sequence[Turns]) -> list[tuple[Tensor, Tensor]]:
    """Angles between successive rows, and which of them are defined: (B, max(K - 1, 0)) both.

    Those that are not defined, a row being zero, are 0. All at once, since the arithmetic behind
    the inner products is on arrays so small that calls are what it costs.
    """
    dots = [_dots(t.vectors[:, 1:], t.vectors[:, :-1]) for t in many]
    norms = [t.norms.double() for t in many]
    products = torch.cat([n[:, 1:] * n[:, :-1] for n in norms], dim=1)
    cosine = torch.cat(dots, dim=1) / products
    widths = [dot.shape[1] for dot in dots]
    steps = torch.arange(max(widths, default=0), device=cosine.device)
    counts = torch.cat(
        [
            (steps[None, :n] < t.pairs[:, None]) & ~(t.zero[:, 1:] | t.zero[:, :-1])
            for t, n in zip(many, widths, strict=True)
        ],
        dim=1,
    )
    # Written so that NaN (a sum too small or too large for float32) is looked at again.
    again = counts & ~(cosine.abs() <= NEARLY_STRAIGHT)
    if bool(again.any()):
        parts = zip(many, _apart(cosine, widths), _apart(again, widths), strict=True)
        for turns, part, where in parts:
            part[where] = _cosines(turns.vectors, where)
    defined = counts & ~cosine.isnan()
    found = torch.arccos(cosine.masked_fill(~defined, 1).clamp(-1, 1))
    return list(zip(_apart(found, widths), _apart(defined, widths), strict=True))


def _apart(joined: Tensor, widths: list[int]) -> Sequence[Tensor]:
    """Views of what was joined along the second dimension."""
    # Not torch.split, whose Python takes longer than the arithmetic here.
    views: Sequence[Tensor] = joined.split_with_sizes(widths, dim=1)
    return views


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, shape (B, K) from two of (B, K, D)."""
    if a.device.type != "cpu":
        products: Tensor = torch.linalg.vecdot(a, b)
        return products
    # On a CPU torch writes all products of components down before it adds them.
    return torch.from_numpy(np.vecdot(a.numpy(), b.numpy()))


def _cosines(vectors: Tensor, where: Tensor) -> Tensor:
    """Cosines of some of the successive rows of (B, K, D), in float64."""
    row, step = where.nonzero(as_tuple=True)
    a, b = vectors[row, step + 1].double(), vectors[row, step].double()
    lengths = torch.linalg.vector_norm(a, dim=-1), torch.linalg.vector_norm(b, dim=-1)
    cosines: Tensor = torch.linalg.vecdot(a, b) / lengths[0] / lengths[1]
    return cosines
