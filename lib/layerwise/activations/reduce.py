"""From the token states of a batch at one layer to what is kept of them.

Pooled embeddings, the spectrum of the token Gram matrix, curvature and norms, under both protocols
and for every selection of tokens. One Gram matrix serves the spectra and the curvature of both
protocols, and without its first row and column those of ``drop_first``. Curvature and eigenvalues
come last, of several layers at once (`complete`).

Precision: states and means over tokens are float32; Gram matrices, their diagonals and eigenvalues
are float64, since one huge token (a sink) would otherwise drown the others' eigenvalues.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerwise.activations import eigen
from layerwise.activations.representation import Packed, select_tokens
from layerwise.activations.store import ARRAYS, BASE, prefix_sizes
from layerwise.vocabulary import SINK_RATIO


@dataclass(frozen=True)
class Needs:
    """Results to keep of the states of a batch at a layer.

    Attributes
    ----------
    protocols : of 'paper', 'reference'
    tokens : of `layerwise.vocabulary.TOKENS`
    arrays : arrays to keep, of `layerwise.activations.store.ARRAYS`
    sink_ratio : for the selection ``drop_sinks``
    shared : keep those of the arrays that all protocols share, such as norms
    """

    protocols: Sequence[str] = ("paper", "reference")
    tokens: Sequence[str] = ("all", "drop_first")
    arrays: Sequence[str] = BASE
    sink_ratio: float = SINK_RATIO
    shared: bool = True

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """The selections of tokens that prefixes are taken of; the others need whole prompts."""
        if "prefix_spectrum" not in self.arrays or not self.shared:
            return ()
        return tuple(t for t in self.tokens if t in ("all", "drop_first"))


class PendingSpectra(NamedTuple):
    """Spectra that are still to be computed.

    Attributes
    ----------
    matrices : Tensor, shape (B, R, R)
    targets : one or two pairs of Tensor
        Of the matrices, and of the matrices without their first row and column: a view of one of
        `Reduced.arrays`, shape (B, at least R), and the number of eigenvalues of each matrix that
        are not of pads, shape (B,).
    signed : bool
        True if eigenvalues may be negative.
    """

    matrices: Tensor
    targets: list[tuple[Tensor, Tensor]]
    signed: bool = False


class PendingCurvature(NamedTuple):
    """Curvature that is still to be computed; see `layerwise.activations.eigen.curvature`.

    Attributes
    ----------
    target : Tensor, shape (B,)
        Where it goes.
    """

    target: Tensor
    products: list[Tensor]
    lengths: Tensor
    rounding: Tensor | None = None


class Reduced:
    """Results of a batch at a layer, of which `complete` computes spectra and curvature.

    Attributes
    ----------
    mean : Tensor, shape (B, D)
        Of all tokens: finite if no state of the prompt is NaN or infinite.
    arrays : dict of Tensor
        With P protocols and C selections of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (P, C, B); ``norm`` (B, T), float32, NaN for pads; ``dimension`` and ``dimension_share``
        (C, B, `Needs.dimensions`); and, after `complete`, ``curvature`` (P, C, B), float64, and in
        float32 ``spectrum`` (P, C, B, T) and ``prefix_spectrum`` (C, B, S), prefix by prefix.
        `extract` adds ``first_token_attention`` and ``states``.
    pending_spectra : list of PendingSpectra
    pending_curvature : list of PendingCurvature
    spectra_of_all : PendingSpectra, optional
        Those of the protocol ``paper`` over all tokens, which ``drop_first`` shares.
    """

    def __init__(self, packed: Packed, needs: Needs) -> None:
        self.needs, self.mean = needs, packed.mean
        self.pending_spectra: list[PendingSpectra] = []
        self.pending_curvature: list[PendingCurvature] = []
        self.spectra_of_all: PendingSpectra | None = None
        batch, width, hidden = packed.states.shape
        shape = len(needs.protocols), len(needs.tokens), batch
        selected = {t: select_tokens(packed, t, needs.sink_ratio) for t in needs.tokens}
        selections = list(selected.values())
        base = {
            "n_tokens": torch.stack([s.lengths for s in selections]).expand(shape),
            "pooled": torch.stack([s.mean for s in selections]).expand(*shape, hidden),
        }
        self.arrays = {name: values for name, values in base.items() if name in needs.arrays}
        for name in needs.arrays if needs.shared else ():
            spec, compute = ARRAYS[name], ARRAYS[name].compute
            if compute is not None:
                by_tokens = spec.dims[0] == "tokens"
                values = (
                    torch.stack(list(map(compute, selections))) if by_tokens else compute(packed)
                )
                if spec.dims[-1] == "rank":
                    mask = torch.stack([s.mask for s in selections]) if by_tokens else packed.mask
                    values = torch.where(mask, values, spec.empty)
                self.arrays[name] = values
        grams = Grams(selected)
        if "spectrum" in needs.arrays:
            zeros = packed.states.new_zeros
            self.arrays["curvature"] = zeros(shape, dtype=torch.float64)
            self.arrays["spectrum"] = zeros((*shape, width))
            for p, protocol in enumerate(needs.protocols):
                add = self._add_reference if protocol == "reference" else self._add_paper
                # In alphabetical order ``all`` comes first: ``drop_first`` shares its
                # decomposition.
                for tokens in sorted(needs.tokens):
                    add(grams, tokens, (p, needs.tokens.index(tokens)))
        if needs.prefix_tokens:
            self._add_prefixes(grams, packed)

    @property
    def waiting_bytes(self) -> int:
        """Memory that matrices and token states hold until the results are complete."""
        tensors = [spectra.matrices for spectra in self.pending_spectra]
        tensors += [self.arrays["states"]] if "states" in self.arrays else []
        return sum(tensor.nbytes for tensor in tensors)

    def _add_paper(self, grams: Grams, tokens: str, at: tuple[int, int]) -> None:
        """Add curvature and spectrum as the paper has them, of the states."""
        states, lengths = grams.selected[tokens].states, grams.selected[tokens].lengths
        target = self.arrays["spectrum"][at], lengths
        of_features = states.shape[1] > states.shape[2]
        if of_features:  # whose matrix has the same non-zero spectrum for less
            products, matrices = eigen.token_products(states), eigen.gram(states.transpose(1, 2))
        else:
            matrices = grams.of(tokens)
            products = eigen.diagonals(matrices)
        if tokens == "drop_first" and self.spectra_of_all is not None:
            # One decomposition serves both.
            self.spectra_of_all.targets.append(target)
        else:
            self.pending_spectra.append(PendingSpectra(matrices, [target]))
        if tokens == "all" and not of_features:
            self.spectra_of_all = self.pending_spectra[-1]
        curvature = self.arrays["curvature"][at]
        self.pending_curvature.append(PendingCurvature(curvature, products, lengths))

    def _add_reference(self, grams: Grams, tokens: str, at: tuple[int, int]) -> None:
        """Add curvature and spectrum of centred unit rows, as in the released code.

        Its matrix is that of features for prompts with more tokens than features. Entries below 0
        are set to 0, so that there may be negative eigenvalues.
        """
        selection = grams.selected[tokens]
        n_tokens, hidden = selection.states.shape[1:]
        rows, scale, rounding = unit_gram(grams.of(tokens), selection)
        # Copies, since the matrix is clamped in place.
        products = [diagonal.clone() for diagonal in eigen.diagonals(rows)]
        curvature = self.arrays["curvature"][at]
        pending = PendingCurvature(curvature, products, selection.lengths, rounding)
        self.pending_curvature.append(pending)
        matrices = rows.clamp_(min=0)
        if n_tokens > hidden:
            unit = (selection.states - selection.mean[:, None]).double() * scale[:, :, None]
            features = eigen.gram(unit.transpose(1, 2)).clamp_(min=0)
            # Of shorter prompts, all that is not zero is in this corner.
            corner = rows[:, :hidden, :hidden]
            matrices = torch.where(selection.lengths[:, None, None] > hidden, features, corner)
        target = self.arrays["spectrum"][at], selection.lengths.clamp(max=hidden)
        self.pending_spectra.append(PendingSpectra(matrices, [target], signed=True))

    def _add_prefixes(self, grams: Grams, packed: Packed) -> None:
        """Add the spectra of prefixes: of the corners of the prompts' Gram matrices."""
        choices, lengths = sorted(self.needs.prefix_tokens), packed.lengths
        batch, width, _ = packed.states.shape
        sizes = prefix_sizes(width)
        spectra = packed.states.new_zeros(len(choices), batch, sum(sizes))
        self.arrays["prefix_spectrum"] = spectra
        for t, start in zip(sizes, itertools.accumulate(sizes, initial=0), strict=False):
            targets = []
            for tokens in choices:  # ``all`` before ``drop_first``
                # Without the first token there is one fewer.
                n = t - (tokens == "drop_first")
                array = spectra[self.needs.prefix_tokens.index(tokens), :, start : start + n]
                # 0 where a prompt has fewer than t tokens.
                targets.append((array, torch.where(lengths >= t, n, 0)))
            n = targets[0][0].shape[1]
            self.pending_spectra.append(PendingSpectra(grams.of(choices[0])[:, :n, :n], targets))


class Grams:
    """Gram matrices ``Z Zᵀ`` of selections of tokens, each computed once."""

    def __init__(self, selected: dict[str, Packed]) -> None:
        self.selected = selected
        self._grams: dict[str, Tensor] = {}

    def of(self, tokens: str) -> Tensor:
        """The matrix of a selection, shape (B, T, T); that of ``all`` holds ``drop_first``'s."""
        if tokens == "drop_first" and "all" in self.selected:
            return self.of("all")[:, 1:, 1:]
        if tokens not in self._grams:
            self._grams[tokens] = eigen.gram(self.selected[tokens].states)
        return self._grams[tokens]


def complete(layers: Sequence[Reduced]) -> None:
    """Complete spectra and curvature, of several layers at once: faster than one by one."""
    alike: dict[Any, list[PendingSpectra]] = {}
    for spectra in itertools.chain.from_iterable(layer.pending_spectra for layer in layers):
        eigen.record(spectra.matrices)
        shape, device = spectra.matrices.shape, spectra.matrices.device
        alike.setdefault((shape[1], device, len(spectra.targets)), []).append(spectra)
    for (_, _, n_targets), group in alike.items():
        matrices = torch.cat([spectra.matrices for spectra in group])
        all_values = eigen.eigenvalues(matrices, without_first=n_targets > 1)
        for number, values in enumerate(all_values):
            sizes = [len(spectra.matrices) for spectra in group]
            for spectra, of_batch in zip(group, torch.split(values, sizes), strict=True):
                array, counts = spectra.targets[number]
                eigen.record(counts)
                ordered = by_magnitude(of_batch) if spectra.signed else descending(of_batch)
                ranks = torch.arange(ordered.shape[1], device=ordered.device)
                # Rounding may have left something where pads stand.
                array[:, : len(ranks)] = ordered.masked_fill(ranks >= counts[:, None], 0)
    for layer in layers:
        for target, products, lengths, rounding in layer.pending_curvature:
            for tensor in (*products, lengths, *([] if rounding is None else [rounding])):
                eigen.record(tensor)
            target.copy_(eigen.curvature(products, lengths, rounding))
        layer.pending_spectra, layer.pending_curvature = [], []


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
    floor = eigen.ROUNDING**2 * torch.maximum(torch.diagonal(gram, dim1=1, dim2=2), total)
    # The root of infinity makes rows without a direction, and pads, zero.
    scale = torch.where(packed.mask & (variance > floor), variance, torch.inf).rsqrt()
    rounding = floor * scale.square()
    return centred.mul_(scale[:, :, None]).mul_(scale[:, None, :]), scale, rounding
