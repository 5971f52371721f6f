"""From the token states of a batch at one layer to what is kept of them.

Pooled embeddings, the spectrum of the token Gram matrix, curvature and norms, under both protocols
and for every selection of tokens. One Gram matrix serves the spectra and the curvature of both
protocols, and without its first row and column those of ``drop_first``. Curvature and eigenvalues
come last, of several layers at once (`complete`).

Precision: states come in the model's dtype and are made float32 at once. Means over tokens are
float32; Gram matrices and eigenvalues are float64, since one huge token (a sink) would otherwise
drown the others' eigenvalues.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from layerwise.activations import curvature, eigen
from layerwise.activations.representation import Packed, choose
from layerwise.activations.store import prefix_sizes
from layerwise.vocabulary import SINK_RATIO


@dataclass(frozen=True)
class Needs:
    """Results to keep of the states of a batch at a layer.

    Attributes
    ----------
    protocols : of 'paper', 'reference'
    tokens : of `layerwise.vocabulary.TOKENS`
    prefixes : whether the spectra of each prompt's first t tokens are, see `prefix_sizes`
    sink_ratio : for the selection ``drop_sinks``
    norms : whether the norm of each token is
    pooled_only : whether nothing but the pooled embeddings is
    """

    protocols: Sequence[str] = ("paper", "reference")
    tokens: Sequence[str] = ("all", "drop_first")
    prefixes: bool = False
    sink_ratio: float = SINK_RATIO
    norms: bool = True
    pooled_only: bool = False

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """The selections of tokens that prefixes are taken of; the others need whole prompts."""
        return tuple(t for t in self.tokens if self.prefixes and t in ("all", "drop_first"))


@dataclass(frozen=True)
class Target:
    """Place of the eigenvalues of a stack of matrices.

    Attributes
    ----------
    array : Tensor, shape (B, at least R)
    counts : Tensor, shape (B,)
        Number of eigenvalues of each matrix that are not of pads.
    signed : bool
        True if eigenvalues may be negative.
    rows : bool Tensor, optional
        The rows of the array that the matrices belong to; all by default.
    """

    array: Tensor
    counts: Tensor
    signed: bool = False
    rows: Tensor | None = None

    def fill(self, values: Tensor) -> None:
        """Write the eigenvalues to their place."""
        eigen.record(self.counts)
        ordered = by_magnitude(values) if self.signed else descending(values)
        places = torch.arange(values.shape[1], device=values.device)
        rows = slice(None) if self.rows is None else self.rows
        # Rounding may have left something where pads stand.
        kept = ordered.masked_fill(places >= self.counts[:, None], 0)
        self.array[rows, : values.shape[1]] = kept


@dataclass(frozen=True)
class Pending:
    """Spectra that are still to be computed.

    Attributes
    ----------
    matrices : Tensor, shape (B, R, R)
    targets : one or two of Target
        Of the matrices, and of the matrices without their first row and column.
    """

    matrices: Tensor
    targets: Sequence[Target]


@dataclass(frozen=True)
class Turns:
    """Curvature that is still to be computed.

    Attributes
    ----------
    products : list of Tensor
        See `curvature.products`.
    lengths : Tensor, shape (B,)
    target : Tensor, shape (B,)
        Where the curvature goes.
    rounding : Tensor, optional
        That of `curvature.of_unit_rows`, whose products these are then.
    """

    products: list[Tensor]
    lengths: Tensor
    target: Tensor
    rounding: Tensor | None = None


class Reduced:
    """Results of a batch at a layer.

    Attributes
    ----------
    mean : Tensor, shape (B, D)
        Of all tokens: finite if no state of the prompt is NaN or infinite.
    arrays : dict of Tensor
        With P protocols and C selections of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (P, C, B); ``norm`` (B, T), float32, NaN for pads; and, once `complete` was called, in
        float64 ``curvature`` (P, C, B), ``spectrum`` (P, C, B, T) and ``prefix_spectrum``
        (C, B, S): the spectra of prefixes one after another.
    pending : list of Pending
    turns : list of Turns
    """

    def __init__(self, packed: Packed, needs: Needs) -> None:
        self.needs = needs
        self.mean = packed.mean
        self.chosen = {tokens: choose(packed, tokens, needs.sink_ratio) for tokens in needs.tokens}
        self.is_nested = {"all", "drop_first"} <= self.chosen.keys()
        self.pending: list[Pending] = []
        self.turns: list[Turns] = []
        self.grams: dict[str, Tensor] = {}
        batch, width, hidden = packed.states.shape
        shape = len(needs.protocols), len(needs.tokens), batch
        lengths = torch.stack([part.lengths for part in self.chosen.values()])
        self.arrays = {
            "n_tokens": lengths.expand(shape),
            "pooled": packed.states.new_empty(*shape, hidden),
        }
        if not needs.pooled_only:
            double = partial(packed.states.new_zeros, dtype=torch.float64)
            self.arrays["curvature"] = double(shape)
            self.arrays["spectrum"] = double((*shape, width))
        for p, protocol in enumerate(needs.protocols):
            for c, tokens in enumerate(needs.tokens):
                self._add(protocol, tokens, (p, c))
        if needs.norms and not needs.pooled_only:
            self.arrays["norm"] = packed.norms.masked_fill(~packed.mask, torch.nan)
        if needs.prefix_tokens and not needs.pooled_only:
            self._add_prefixes(packed)
        # The states of all layers together may not fit into memory.
        self.chosen.clear()
        self.grams.clear()

    @property
    def waiting_bytes(self) -> int:
        """Memory that the matrices hold until they are decomposed."""
        return sum(one.matrices.numel() * one.matrices.element_size() for one in self.pending)

    def _add(self, protocol: str, tokens: str, at: tuple[int, int]) -> None:
        """Add the results of a protocol and a selection of tokens."""
        part, arrays = self.chosen[tokens], self.arrays
        width, hidden = part.states.shape[1:]
        arrays["pooled"][at] = part.mean
        if self.needs.pooled_only:
            return
        if protocol == "reference":
            self._add_reference(part, tokens, at)
            return
        if width > hidden:
            products = curvature.products(part.states)
            # The same non-zero spectrum for less.
            matrices = eigen.gram(part.states.transpose(1, 2))
        else:
            matrices = self._gram(tokens)
            products = curvature.diagonals(matrices)
        self.turns.append(Turns(products, part.lengths, arrays["curvature"][at]))
        if self.is_nested and tokens == "drop_first" and width < hidden:
            return  # the matrix of ``all`` is of tokens, too, and has both spectra
        targets = [Target(arrays["spectrum"][at], part.lengths)]
        if self.is_nested and tokens == "all" and width <= hidden:
            inner = arrays["spectrum"][at[0], self.needs.tokens.index("drop_first")]
            targets.append(Target(inner, self.chosen["drop_first"].lengths))
        self.pending.append(Pending(matrices, targets))

    def _add_reference(self, part: Packed, tokens: str, at: tuple[int, int]) -> None:
        """Curvature and spectra of centred unit rows, as in the released code.

        Its matrix is that of features for prompts with more tokens than features. Entries below 0
        are set to 0, so that there may be negative eigenvalues.
        """
        target, hidden = self.arrays["spectrum"][at], part.states.shape[2]
        rows, scale, rounding = unit_gram(self._gram(tokens), part)
        # Copies, since the matrix is clamped in place.
        products = [one.clone() for one in curvature.diagonals(rows)]
        self.turns.append(Turns(products, part.lengths, self.arrays["curvature"][at], rounding))
        long = part.lengths > hidden
        if part.states.shape[1] > hidden and bool(long.any()):
            unit = (part.states[long] - part.mean[long, None]).double() * scale[long, :, None]
            matrices = eigen.gram(unit.transpose(1, 2)).clamp_(min=0)
            counts = part.lengths[long].clamp(max=hidden)
            self.pending.append(Pending(matrices, [Target(target, counts, True, long)]))
            rows, counts = rows[~long], part.lengths[~long]
            # Of the shorter prompts, which the width of the batch would make as large.
            rows = rows[:, :hidden, :hidden].clamp(min=0)
            self.pending.append(Pending(rows, [Target(target, counts, True, ~long)]))
            return
        self.pending.append(Pending(rows.clamp_(min=0), [Target(target, part.lengths, True)]))

    def _add_prefixes(self, packed: Packed) -> None:
        """Add the spectra of prefixes: of the corners of the prompts' Gram matrices."""
        tokens, lengths = self.needs.prefix_tokens, packed.lengths
        batch, width, _ = packed.states.shape
        sizes = prefix_sizes(width)
        shape = len(tokens), batch, sum(sizes)
        spectra = packed.states.new_zeros(shape, dtype=torch.float64)
        self.arrays["prefix_spectrum"] = spectra
        starts = itertools.accumulate(sizes, initial=0)
        for t, start in zip(sizes, starts, strict=False):
            targets = {}
            for choice, array in zip(tokens, spectra, strict=True):
                # Without the first token there is one fewer.
                n = t - (choice == "drop_first")
                # 0 where a prompt has fewer than t tokens.
                counts = torch.where(lengths >= t, n, 0)
                targets[choice] = Target(array[:, start : start + n], counts)
            first, *_ = ordered = sorted(tokens)  # ``all`` before ``drop_first``
            n = targets[first].array.shape[1]
            corner = self._gram(first)[:, :n, :n]
            self.pending.append(Pending(corner, [targets[choice] for choice in ordered]))

    def _gram(self, tokens: str) -> Tensor:
        """``Z Zᵀ`` of a selection of tokens."""
        if tokens not in self.grams:
            self.grams[tokens] = (
                self._gram("all")[:, 1:, 1:]
                if tokens == "drop_first" and "all" in self.chosen
                else eigen.gram(self.chosen[tokens].states)
            )
        return self.grams[tokens]


def complete(many: Sequence[Reduced]) -> None:
    """Complete spectra and curvature, of several layers at once: faster than one by one."""
    pending = [one for reduced in many for one in reduced.pending]
    spectra = eigen.eigenvalues(
        [one.matrices for one in pending], [len(one.targets) > 1 for one in pending]
    )
    for one, found in zip(pending, spectra, strict=True):
        for target, values in zip(one.targets, found, strict=True):
            target.fill(values)
    alike: dict[Any, list[Turns]] = {}
    for turns in (own for reduced in many for own in reduced.turns):
        squares = turns.products[0]
        kind = squares.shape[1], squares.device, turns.rounding is None
        alike.setdefault(kind, []).append(turns)
    for group in alike.values():
        _bend(group)
    for reduced in many:
        reduced.pending, reduced.turns = [], []


def _bend(group: Sequence[Turns]) -> None:
    """Write the curvature of turns of one width and one formula to its place."""
    roundings = [turns.rounding for turns in group if turns.rounding is not None]
    for turns in group:
        for tensor in (turns.lengths, *turns.products):
            eigen.record(tensor)
    for rounding in roundings:
        eigen.record(rounding)
    products = [torch.cat(parts) for parts in zip(*(t.products for t in group), strict=True)]
    lengths = torch.cat([turns.lengths for turns in group])
    values = (
        curvature.of_unit_rows(products, lengths, torch.cat(roundings))
        if roundings
        else curvature.of_steps(products, lengths)
    )
    for turns, own in zip(group, values.split([len(t.lengths) for t in group]), strict=True):  # type: ignore[no-untyped-call]
        turns.target.copy_(own)


def descending(eigenvalues: Tensor) -> Tensor:
    """Ascending eigenvalues of ``Z Zᵀ``, shape (B, T), the other way round and not below 0
    (rounding aside, a Gram matrix has none)."""
    return eigenvalues.clamp(min=0).flip(-1)


def by_magnitude(eigenvalues: Tensor) -> Tensor:
    """Signed eigenvalues, shape (B, T), largest magnitude first.

    Zeros from padding then come last, and no value depends on padding.
    """
    order = eigenvalues.abs().argsort(dim=-1, descending=True)
    return torch.gather(eigenvalues, -1, order)


def unit_gram(gram: Tensor, packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products of centred states of unit norm, from ``Z Zᵀ``.

    Centring over tokens is double centring of the Gram matrix, unit rows are division by the
    roots of its diagonal. Rows that equal the mean, but for rounding, count as zero.

    Returns
    -------
    rows : Tensor, shape (B, T, T), float64
    scale : Tensor, shape (B, T)
        One over the norm of each centred state; 0 for rows that count as zero, and pads.
    rounding : Tensor, shape (B, T)
        Squared differences of the unit rows below this are rounding.
    """
    count = packed.lengths.clamp(min=1).double()[:, None]
    rows = gram.sum(dim=2) / count
    total = rows.sum(dim=1, keepdim=True) / count
    # In place: memory that is new each time costs more than the arithmetic.
    centred = gram - rows[:, :, None]
    centred.sub_(rows[:, None, :]).add_(total[:, None])
    variance = torch.diagonal(centred, dim1=1, dim2=2)
    floor = curvature.ROUNDING**2 * torch.maximum(torch.diagonal(gram, dim1=1, dim2=2), total)
    # The root of infinity makes rows without a direction, and pads, zero.
    scale = torch.where(packed.mask & (variance > floor), variance, torch.inf).rsqrt()
    rounding = floor * scale.square()
    return centred.mul_(scale[:, :, None]).mul_(scale[:, None, :]), scale, rounding
