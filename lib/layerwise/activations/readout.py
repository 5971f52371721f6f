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

from dataclasses import dataclass

import torch
from torch import Tensor

from layerwise.activations import eigen

PROTOCOLS = ("paper", "reference")
TOKENS = ("all", "drop_first", "drop_sinks")
SINK_RATIO = 5.0
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
    """

    states: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True where a token counts, shape (B, T)."""
        steps = torch.arange(self.states.shape[1], device=self.states.device)
        return steps[None, :] < self.lengths[:, None]


def pack(states: Tensor, lengths: Tensor, *, padded: bool = True) -> Packed:
    """Zero the pads of right-padded states of shape (B, T, D).

    `padded` is False where the caller knows that there are none.
    """
    packed = Packed(states.float(), lengths)
    if not padded:
        return packed
    # Not a product: a NaN in a pad, which no token sees, must not stay one.
    return Packed(packed.states.masked_fill(~packed.mask[..., None], 0), lengths)


def choose(packed: Packed, tokens: str) -> Packed:
    """Keep the tokens that count under a choice.

    ``all``: every token of the prompt. ``drop_first``: all but the first, which takes on a huge
    norm in the middle layers of decoders. ``drop_sinks``: all but those whose norm is more than
    `SINK_RATIO` times the median norm of the prompt at this layer. A prompt of which nothing
    would remain (one token) has length 0.
    """
    states, lengths = packed.states, packed.lengths
    if tokens == "all":
        return packed
    if tokens == "drop_first":
        return Packed(states[:, 1:], (lengths - 1).clamp(min=0))
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1)
    inside = packed.mask
    median = torch.nanmedian(norms.masked_fill(~inside, torch.nan), dim=1).values
    keep = inside & (norms <= SINK_RATIO * median[:, None])
    order = torch.argsort(keep.logical_not().to(torch.uint8), dim=1, stable=True)
    front = torch.gather(states, 1, order[..., None].expand_as(states))
    kept = Packed(front, keep.sum(dim=1))
    return Packed(front * kept.mask[..., None], kept.lengths)


def pooled(packed: Packed) -> Tensor:
    """Mean over the tokens that count, shape (B, D). Zero for a prompt without any."""
    return packed.states.sum(dim=1) / packed.lengths.clamp(min=1)[:, None]


def normalised(packed: Packed, mean: Tensor) -> Packed:
    """The ``reference`` protocol's states: centred over the prompt's tokens, rows of unit norm.

    A row that equals the mean stays zero.
    """
    centred = packed.states - mean[:, None]
    norms: Tensor = torch.linalg.vector_norm(centred, dim=-1)
    scale = torch.where(packed.mask & (norms > 0), 1 / norms, 0)
    return Packed(centred.mul_(scale[..., None]), packed.lengths)


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
    centred = gram_matrix - rows[:, :, None] - rows[:, None, :] + total[:, None, None]
    centred = centred * mask[:, :, None] * mask[:, None, :]
    variance = torch.diagonal(centred, dim1=1, dim2=2)
    # A row that equals the mean leaves rounding noise on the diagonal, not zero.
    floor = 1e-13 * torch.diagonal(gram_matrix, dim1=1, dim2=2).amax(dim=1, keepdim=True)
    scale = torch.where(variance > floor, variance, torch.inf).rsqrt()
    return (centred * scale[:, :, None] * scale[:, None, :]).clamp(min=0)


def by_magnitude(eigenvalues: Tensor) -> Tensor:
    """Signed eigenvalues, shape (B, T), largest magnitude first.

    In that order the zeros that pads bring come last, so that no value depends on padding.
    """
    order = eigenvalues.abs().argsort(dim=-1, descending=True)
    return torch.gather(eigenvalues, -1, order)


def step_curvature(packed: Packed) -> tuple[Tensor, Tensor]:
    """Curvature as the paper prints it (Hosseini & Fedorenko 2023).

    The mean over k of ``arccos(cos(v_{k+1}, v_k))`` with ``v_k = z_{k+1} - z_k``.

    Returns
    -------
    curvature : Tensor, shape (B,), float64
        In radians, 0 to π; NaN where no angle exists (T < 3, or every state repeated).
    angles : Tensor, shape (B,), int64
        How many angles were averaged; a zero difference has none.
    """
    return mean_angle(*step_angles(packed))


def step_angles(packed: Packed) -> tuple[Tensor, Tensor]:
    """The angles behind `step_curvature`, of all steps, and which of them are defined.

    Shape (B, max(T - 2, 0)) both. Those of the prompts without their first token are the same
    without the first.
    """
    states = packed.states
    if states.shape[1] < 3:
        return _no_angle(states)
    steps = states[:, 1:] - states[:, :-1]
    return _angles(steps, packed.lengths - 2)


def state_curvature(packed: Packed) -> tuple[Tensor, Tensor]:
    """Curvature as the released code has it: angles between successive normalised *states*.

    Takes the states of `normalised`. The mean over T - 1 angles; the cosine is clamped to
    [-1, 1], where the released code lets rounding turn it into NaN.
    """
    if packed.states.shape[1] < 2:
        return mean_angle(*_no_angle(packed.states))
    return mean_angle(*_angles(packed.states, packed.lengths - 1))


def mean_angle(angles: Tensor, defined: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each row's defined angles (NaN if there is none), and how many there are."""
    count = defined.sum(dim=1)
    return angles.sum(dim=1) / count.double().masked_fill(count == 0, torch.nan), count


def _angles(vectors: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Angles between successive rows of (B, K, D), of which the first `pairs` pairs count.

    Those that are not defined, a row being zero, are 0.
    """
    squares, dots = _products(vectors)
    position = torch.arange(dots.shape[1], device=dots.device)
    counts = position[None, :] < pairs[:, None]
    cosine = dots.double() / squares[:, 1:].double().sqrt() / squares[:, :-1].double().sqrt()
    # Written so that NaN (a sum too small or too large for float32) is looked at again.
    again = counts & ~(cosine.abs() <= NEARLY_STRAIGHT)
    if bool(again.any()):
        row, step = again.nonzero(as_tuple=True)
        a, b = vectors[row, step + 1].double(), vectors[row, step].double()
        norms = torch.linalg.vector_norm(a, dim=-1), torch.linalg.vector_norm(b, dim=-1)
        cosine[row, step] = torch.linalg.vecdot(a, b) / norms[0] / norms[1]
    defined = counts & ~cosine.isnan()
    cosine = cosine.masked_fill(~defined, 1).clamp(-1, 1)
    return torch.arccos(cosine), defined


def _products(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms of the rows of (B, K, D), and inner products of successive ones."""
    return torch.linalg.vecdot(vectors, vectors), torch.linalg.vecdot(
        vectors[:, 1:], vectors[:, :-1]
    )


def _no_angle(states: Tensor) -> tuple[Tensor, Tensor]:
    nothing = torch.zeros(states.shape[0], 0, dtype=torch.float64, device=states.device)
    return nothing, nothing.bool()
