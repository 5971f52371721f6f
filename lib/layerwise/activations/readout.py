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

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.activations import eigen
from layerwise.activations.representation import Packed

PROTOCOLS = ("paper", "reference")
# A difference below this share of what it is a difference of is float32's rounding in the pass: it
# has no direction, and another batch has another one. After SmolLM2's 30 layers such a share is up
# to 1e-5 where one token is repeated; between tokens of a text it is 0.4 or more.
ROUNDING = 1e-4
# Beyond this cosine, an error of float32 in it (1e-6) would show in the angle at 1e-5.
NEARLY_STRAIGHT = 0.99
# Numbers of steps that are in a core's cache while they are read: half a MiB.
CACHED = 2**17


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
    mask : Tensor, shape (B, T)
        True where a token counts.
    lengths : Tensor, shape (B,)
    """

    states: Tensor
    norms: Tensor
    zero: Tensor
    scale: Tensor
    mask: Tensor
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
    return Centred(states, norms, zero, scale, packed.mask, packed.lengths)


def _rounding(norms: Any, one: Any, other: Any) -> Any:
    """Whether differences of `norms` are nothing but rounding of the two vectors' norms."""
    library = _library(norms)
    least = ROUNDING * library.maximum(one, other)
    # Norms too small or too large for float32 are 0 or infinite, and say nothing.
    return (norms <= least) & (least > 0) & library.isfinite(least)


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
    """Rows whose successive angles are asked for, as arrays of `_arrays`.

    Attributes
    ----------
    norms : array, shape (B, K), float32
    dots : array, shape (B, max(K - 1, 0)), float32
        Inner products of successive rows.
    counts : array of bool, shape (B, max(K - 1, 0))
        Whether both rows are there and neither is zero but for rounding.
    vectors : function
        The rows at some places, float32: of the numbers of prompt and row.
    """

    norms: Any
    dots: Any
    counts: Any
    vectors: Callable[[Any, Any], Any]


def steps(packed: Packed) -> Turns:
    """The steps ``v_k = z_{k+1} - z_k``: curvature as the paper prints it.

    That is the mean over k of ``arccos(cos(v_{k+1}, v_k))`` (Hosseini & Fedorenko 2023). The
    angles of the prompts without their first token are the same without the first.
    """
    states, own, mask = _arrays(packed.states, packed.norms, packed.mask)
    norms, dots = _along(states)
    zero = _rounding(norms, own[:, 1:], own[:, :-1])
    return Turns(
        norms, dots, mask[:, 2:] & ~(zero[:, 1:] | zero[:, :-1]),
        lambda prompt, step: states[prompt, step + 1] - states[prompt, step],
    )  # fmt: skip


def unit_states(rows: Centred) -> Turns:
    """The states themselves: "curvature" as the released code has it.

    The mean over T - 1 angles; the cosine is clamped to [-1, 1], where the released code lets
    rounding turn it into NaN.
    """
    states, norms, zero, mask = _arrays(rows.states, rows.norms, rows.zero, rows.mask)
    counts = mask[:, 1:] & ~(zero[:, 1:] | zero[:, :-1])
    with np.errstate(all="ignore"):
        dots = _library(states).linalg.vecdot(states[:, 1:], states[:, :-1])
    return Turns(norms, dots, counts, lambda prompt, row: states[prompt, row])


def mean_angle(angles: Any, defined: Any) -> tuple[Tensor, Tensor]:
    """Mean of each row's defined angles, and how many there are.

    Returns
    -------
    curvature : Tensor, shape (B,), float64
        In radians, 0 to π; NaN where no angle exists (too few tokens, or every row zero).
    angles : Tensor, shape (B,), int64
        How many angles were averaged; a zero row has none.
    """
    count = defined.sum(axis=1)
    with np.errstate(invalid="ignore"):
        mean = angles.sum(axis=1) / count
    return torch.as_tensor(mean), torch.as_tensor(count)


def angles(many: Sequence[Turns]) -> list[tuple[Any, Any]]:
    """Angles between successive rows, and which of them are defined: (B, max(K - 1, 0)) both.

    Those that are not defined, a row being zero, are 0. All at once, since the arithmetic behind
    the inner products is on arrays so small that calls are what it costs.
    """
    if not many:
        return []
    library = _library(many[0].dots)
    ends = np.cumsum([0, *(turns.dots.shape[1] for turns in many)]).tolist()
    parts = [np.s_[:, start:stop] for start, stop in itertools.pairwise(ends)]
    wide = [library.asarray(turns.norms, dtype=library.float64) for turns in many]
    with np.errstate(all="ignore"):
        cosine = library.concatenate([n[:, 1:] * n[:, :-1] for n in wide], axis=1)
        cosine = library.concatenate([turns.dots for turns in many], axis=1) / cosine
        defined = library.concatenate([turns.counts for turns in many], axis=1)
        # Written so that NaN (a sum too small or too large for float32) is looked at again.
        again = defined & ~(abs(cosine) <= NEARLY_STRAIGHT)
        if again.any():
            for turns, part in zip(many, parts, strict=True):
                cosine[part][again[part]] = _cosines(turns.vectors, library.where(again[part]))
            defined = defined & ~library.isnan(cosine)
            cosine = cosine.clip(-1, 1)
        found = library.arccos(library.where(defined, cosine, 1.0))
    return [(found[part], defined[part]) for part in parts]


def _arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Tensors on a CPU as numpy's arrays, those on other devices as they are.

    What is computed of angles is many calls on few numbers, of which numpy's take a third of the
    time of torch's.
    """
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    return tuple(tensor.numpy() for tensor in tensors) if on_cpu else tensors


def _library(array: Any) -> Any:
    """The library of one of `_arrays`, numpy or torch: what is used here has one name in both."""
    return torch if isinstance(array, Tensor) else np


def _along(states: Any) -> tuple[Any, Any]:
    """Norms of the steps along (B, T, D), (B, T - 1), and inner products of successive ones."""
    if isinstance(states, Tensor):
        vectors = states[:, 1:] - states[:, :-1]
        dots = torch.linalg.vecdot(vectors[:, 1:], vectors[:, :-1])
        return torch.linalg.vector_norm(vectors, dim=-1), dots
    batch, length, width = states.shape
    # From one prompt to the next as well, which costs less than a loop over prompts.
    rows = states.reshape(-1, width)
    total = max(len(rows) - 1, 0)
    squares, dots = np.empty((2, batch * length), np.float32)
    size = min(max(1, CACHED // width), total)
    block = np.empty((size + 1, width), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, total, max(size, 1)):
            # One step more, for the last product of the block.
            stop = min(start + size + 1, total)
            vectors = np.subtract(
                rows[start + 1 : stop + 1], rows[start:stop], out=block[: stop - start]
            )
            np.vecdot(vectors, vectors, out=squares[start:stop])
            np.vecdot(vectors[1:], vectors[:-1], out=dots[start : stop - 1])
        norms = np.sqrt(squares, out=squares).reshape(batch, length)
    return norms[:, :-1], dots.reshape(batch, length)[:, :-2]


def _cosines(vectors: Callable[[Any, Any], Any], where: tuple[Any, Any]) -> Any:
    """Cosines of some of the successive rows, in float64."""
    prompt, row = where
    library = _library(prompt)
    a, b = (library.asarray(vectors(prompt, at), dtype=library.float64) for at in (row + 1, row))
    inner = library.linalg.vecdot
    return inner(a, b) / library.sqrt(inner(a, a)) / library.sqrt(inner(b, b))
