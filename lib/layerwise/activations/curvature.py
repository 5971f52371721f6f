"""Curvature of a prompt's path through the states: mean angle between successive vectors.

The paper's vectors are the steps ``v_k = z_{k+1} - z_k`` (Hosseini & Fedorenko 2023); the released
code takes the states themselves. Inner products are float32, which is good to 1e-5 in the angle
but for nearly straight or reversed steps, where the arc cosine magnifies rounding: those are
computed again in float64.

On a CPU the arithmetic is numpy's: there are many calls on few numbers, and numpy's take a third
of the time of torch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerwise.activations.representation import Packed

# A relative difference of states below this is float32 rounding and has no direction. After the 30
# layers of SmolLM2, rounding is up to 1e-5 for a repeated token; tokens of a text differ by 0.4 or
# more.
ROUNDING = 1e-4
# Beyond this cosine, an error of float32 in it (1e-6) would show in the angle at 1e-5.
NEARLY_STRAIGHT = 0.99
# Numbers of steps that fit a core's cache while they are read: half a MiB.
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
    packed : Packed
        The states before centring.
    """

    states: Tensor
    norms: Tensor
    zero: Tensor
    scale: Tensor
    packed: Packed

    def mean(self) -> Tensor:
        """Mean over the tokens that count of rows of unit norm, shape (B, D)."""
        total = torch.bmm(self.scale[:, None], self.states)[:, 0]
        return total / self.packed.lengths.clamp(min=1)[:, None]


def centred(packed: Packed, mean: Tensor) -> Centred:
    """Centre states over the prompt's tokens; rows that equal the mean count as zero."""
    states = packed.states - mean[:, None]
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1)
    middle: Tensor = torch.linalg.vector_norm(mean, dim=-1, keepdim=True)
    zero = _is_rounding(norms, packed.norms, middle)
    scale = torch.where(packed.mask & ~zero & (norms > 0), 1 / norms, 0)
    return Centred(states, norms, zero, scale, packed)


@dataclass(frozen=True)
class Path:
    """Vectors of each prompt whose successive angles are wanted, as arrays of `_arrays`.

    Attributes
    ----------
    norms : array, shape (B, K), float32
    dots : array, shape (B, max(K - 1, 0)), float32
        Inner products of successive vectors.
    defined : array of bool, shape (B, max(K - 1, 0))
        True where both vectors exist and neither is zero but for rounding.
    at : function
        The vectors of some prompts (numbers) at some places (numbers), float32.
    """

    norms: Any
    dots: Any
    defined: Any
    at: Callable[[Any, Any], Any]


def steps(packed: Packed) -> Path:
    """The steps from token to token: curvature as the paper prints it."""
    states, own, mask = _arrays(packed.states, packed.norms, packed.mask)
    norms, dots = _along(states)
    zero = _is_rounding(norms, own[:, 1:], own[:, :-1])
    defined = mask[:, 2:] & ~(zero[:, 1:] | zero[:, :-1])
    return Path(norms, dots, defined, lambda prompt, k: states[prompt, k + 1] - states[prompt, k])


def unit_states(rows: Centred) -> Path:
    """The states themselves: "curvature" as the released code has it, over T - 1 angles.

    The cosine is clamped to [-1, 1], where the released code lets rounding turn it into NaN.
    """
    states, norms, zero, mask = _arrays(rows.states, rows.norms, rows.zero, rows.packed.mask)
    defined = mask[:, 1:] & ~(zero[:, 1:] | zero[:, :-1])
    with np.errstate(all="ignore"):
        dots = _library(states).linalg.vecdot(states[:, 1:], states[:, :-1])
    return Path(norms, dots, defined, lambda prompt, k: states[prompt, k])


def angles(paths: Sequence[Path]) -> list[tuple[Any, Any]]:
    """Angles between successive vectors of each path.

    All paths at once: on arrays so small, calls are what the arithmetic costs.

    Returns
    -------
    list of (angles, defined), both of shape (B, max(K - 1, 0))
        Radians; 0 where not defined.
    """
    if not paths:
        return []
    library = _library(paths[0].dots)
    ends = np.cumsum([0, *(path.dots.shape[1] for path in paths)]).tolist()
    parts = [np.s_[:, start:stop] for start, stop in itertools.pairwise(ends)]
    wide = [library.asarray(path.norms, dtype=library.float64) for path in paths]
    with np.errstate(all="ignore"):
        cosine = library.concatenate([n[:, 1:] * n[:, :-1] for n in wide], axis=1)
        cosine = library.concatenate([path.dots for path in paths], axis=1) / cosine
        defined = library.concatenate([path.defined for path in paths], axis=1)
        # Written so that NaN (a sum too small or too large for float32) is computed again.
        again = defined & ~(abs(cosine) <= NEARLY_STRAIGHT)
        if again.any():
            for path, part in zip(paths, parts, strict=True):
                cosine[part][again[part]] = _cosines(path, library.where(again[part]))
            defined = defined & ~library.isnan(cosine)
            cosine = cosine.clip(-1, 1)
        found = library.arccos(library.where(defined, cosine, 1.0))
    return [(found[part], defined[part]) for part in parts]


def mean_angle(angles: Any, defined: Any) -> Tensor:
    """Mean of each row's defined angles, shape (B,), float64; NaN where there is none."""
    with np.errstate(invalid="ignore"):
        return torch.as_tensor(angles.sum(axis=1) / defined.sum(axis=1))


def _is_rounding(norms: Any, one: Any, other: Any) -> Any:
    """True where differences of these norms are nothing but rounding of two vectors' norms."""
    library = _library(norms)
    least = ROUNDING * library.maximum(one, other)
    # Norms too small or too large for float32 are 0 or infinite, and say nothing.
    return (norms <= least) & (least > 0) & library.isfinite(least)


def _arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Tensors on a CPU as numpy arrays, others unchanged."""
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    return tuple(tensor.numpy() for tensor in tensors) if on_cpu else tensors


def _library(array: Any) -> Any:
    """numpy or torch: the functions used here have one name in both."""
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


def _cosines(path: Path, where: tuple[Any, Any]) -> Any:
    """Cosines of some of the successive vectors, in float64."""
    prompt, k = where
    library = _library(prompt)
    a, b = (library.asarray(path.at(prompt, at), dtype=library.float64) for at in (k + 1, k))
    inner = library.linalg.vecdot
    return inner(a, b) / library.sqrt(inner(a, a)) / library.sqrt(inner(b, b))
