"""From the token states of a batch at one layer to what is kept of them.

Pooled embeddings, the spectrum of the token Gram matrix, curvature and norms, under both protocols
and for every selection of tokens. The costly parts are shared: one Gram matrix serves the spectra
of both protocols, and without its first row and column those of ``drop_first``; so do the angles
between steps. Eigenvalues come last, of several layers at once (`decompose`).

Precision: states come in the model's dtype and are made float32 at once. Means over tokens are
float32; Gram matrices and eigenvalues are float64, since one huge token (a sink) would otherwise
drown the others' eigenvalues.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from layerwise.activations import curvature, eigen
from layerwise.activations.representation import (
    SINK_RATIO,
    Packed,
    choose,
    mean,
    without_sinks,
)
from layerwise.activations.store import prefix_sizes

PROTOCOLS = ("paper", "reference")


@dataclass(frozen=True)
class Needs:
    """Results to keep of the states of a batch at a layer.

    Attributes
    ----------
    protocols : of `PROTOCOLS`
    tokens : of `layerwise.activations.representation.TOKENS`
    prefixes : whether the spectra of each prompt's first t tokens are, see `prefix_sizes`
    sink_ratio : for the selection ``drop_sinks``
    norms : whether the norm of each token is
    pooled_only : whether nothing but the pooled embeddings is
    """

    protocols: tuple[str, ...] = PROTOCOLS
    tokens: tuple[str, ...] = ("all", "drop_first")
    prefixes: bool = False
    sink_ratio: float = SINK_RATIO
    norms: bool = True
    pooled_only: bool = False

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """The selections of tokens that prefixes are taken of; the others need whole prompts."""
        return tuple(t for t in self.tokens if self.prefixes and t in ("all", "drop_first"))


class Reduced:
    """Results of a batch at a layer.

    Attributes
    ----------
    arrays : dict of Tensor
        With P protocols and C selections of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (P, C, B); ``curvature`` (P, C, B), float64; ``norm`` (B, T), float32; and,
        complete once `decompose` was called, ``spectrum`` (P, C, B, T) and ``prefix_spectrum``
        (C, B, S), float64: the spectra of prefixes one after another.
    matrices : list of Tensor
        What spectra are still to be computed of.
    """

    def __init__(self, packed: Packed, needs: Needs) -> None:
        self.needs, self.lengths = needs, packed.lengths
        self.arrays: dict[str, Tensor] = {}
        self.matrices: list[Tensor] = []
        # Functions that take the eigenvalues of each matrix. They stay to the end, because on a
        # GPU another stream reads their tensors.
        self.keep: list[Callable[[Tensor], None]] = []
        chosen = {tokens: choose(packed, tokens, needs.sink_ratio) for tokens in needs.tokens}
        lengths = torch.stack([part.lengths for part in chosen.values()])
        self.arrays["n_tokens"] = lengths.expand(len(needs.protocols), *lengths.shape)
        if needs.protocols:
            self._add_means_and_curvature(chosen)
        if needs.pooled_only:
            return
        if needs.norms:
            self.arrays["norm"] = packed.norms * packed.mask
        grams: dict[str, Tensor] = {}
        self._add_spectra(packed, chosen, grams)
        if needs.prefix_tokens:
            self._add_prefixes(packed, chosen, grams)

    @property
    def waiting_bytes(self) -> int:
        """Memory that the matrices hold until they are decomposed."""
        return sum(matrix.numel() * matrix.element_size() for matrix in self.matrices)

    def _add_means_and_curvature(self, chosen: Mapping[str, Packed]) -> None:
        """Add what the centred states are needed for."""
        needs = self.needs
        pooled: list[Tensor] = []
        paths: dict[tuple[str, str], curvature.Path] = {}
        means = {tokens: mean(part) for tokens, part in chosen.items()}
        every = list(itertools.product(needs.protocols, needs.tokens))
        for protocol, tokens in every:
            if protocol == "reference":
                rows = curvature.centred(chosen[tokens], means[tokens])
                pooled.append(rows.mean())
                if not needs.pooled_only:
                    paths[protocol, tokens] = curvature.unit_states(rows)
                continue
            pooled.append(means[tokens])
            known = tokens == "drop_first" and ("paper", "all") in paths
            if not (needs.pooled_only or known):
                paths[protocol, tokens] = curvature.steps(chosen[tokens])
        shape = (len(needs.protocols), len(needs.tokens), len(self.lengths))
        self.arrays["pooled"] = torch.stack(pooled).reshape(*shape, -1)
        if needs.pooled_only:
            return
        angles = dict(zip(paths, curvature.angles(list(paths.values())), strict=True))
        for key in set(every) - set(angles):
            # Without the first token, the steps are the others but for the first.
            angles[key] = tuple(part[:, 1:] for part in angles["paper", "all"])
        found = torch.stack([curvature.mean_angle(*angles[key]) for key in every])
        self.arrays["curvature"] = found.reshape(shape)

    def _add_spectra(
        self, packed: Packed, chosen: Mapping[str, Packed], grams: dict[str, Tensor]
    ) -> None:
        """Add the matrices whose eigenvalues are the spectra."""
        needs, (batch, width, hidden) = self.needs, packed.states.shape
        shape = (len(needs.protocols), len(needs.tokens), batch, width)
        spectra = packed.states.new_zeros(shape, dtype=torch.float64)
        self.arrays["spectrum"] = spectra
        twins = self._twins(packed) if "drop_sinks" in needs.tokens else None
        # drop_sinks comes last, because it copies some spectra of the others.
        order = sorted(enumerate(needs.tokens), key=lambda place: place[1] == "drop_sinks")
        for (p, protocol), (c, tokens) in itertools.product(enumerate(needs.protocols), order):
            part, own = chosen[tokens], None
            if tokens == "drop_sinks" and twins is not None:
                part, own = Packed(part.states[twins < 0], part.lengths[twins < 0]), twins
            if protocol == "paper" and part.states.shape[1] > hidden:
                # The same non-zero spectrum for less.
                matrix = eigen.hidden_gram(part.states)
            else:
                matrix = self._gram(part, tokens, grams)
                if protocol == "reference":
                    matrix = reference_gram(matrix, part)
                # All of one size, to decompose them together.
                missing = width - matrix.shape[-1]
                matrix = pad(matrix, (0, missing, 0, missing)) if missing else matrix
            self.matrices.append(matrix)
            self.keep.append(partial(self._keep_spectrum, spectra[p], c, protocol, own))

    def _keep_spectrum(
        self, spectra: Tensor, c: int, protocol: str, twins: Tensor | None, values: Tensor
    ) -> None:
        """Write eigenvalues to their place among a protocol's spectra, shape (C, B, T)."""
        ordered = descending(values) if protocol == "paper" else by_magnitude(values)
        target, n = spectra[c], values.shape[-1]
        if twins is None:
            target[:, :n] = ordered
        else:
            target[twins < 0, :n] = ordered
            for other in range(len(spectra)):
                target[twins == other] = spectra[other][twins == other]
        # Rounding may have left something where pads stand.
        lengths = self.arrays["n_tokens"][0, c]
        places = torch.arange(target.shape[-1], device=target.device)
        target.masked_fill_(places >= lengths[:, None], 0)

    def _add_prefixes(
        self, packed: Packed, chosen: Mapping[str, Packed], grams: dict[str, Tensor]
    ) -> None:
        """Add the matrices of prefixes: the corners of the prompts' Gram matrices."""
        tokens = self.needs.prefix_tokens
        batch, width, _ = packed.states.shape
        sizes = prefix_sizes(width)
        shape = len(tokens), batch, sum(sizes)
        spectra = packed.states.new_zeros(shape, dtype=torch.float64)
        self.arrays["prefix_spectrum"] = spectra
        starts = [0, *itertools.accumulate(sizes)]
        for target, choice in zip(spectra, tokens, strict=True):
            gram = self._gram(chosen[choice], choice, grams)
            for t, start in zip(sizes, starts, strict=False):
                # Without the first token there is one fewer.
                n = t - (choice == "drop_first")
                self.matrices.append(gram[:, :n, :n])
                self.keep.append(partial(self._keep_prefix, target[:, start : start + n], t))

    def _keep_prefix(self, target: Tensor, t: int, values: Tensor) -> None:
        """Write the spectra of the first t tokens to their place; 0 where a prompt has fewer."""
        whole = (self.lengths >= t)[:, None]
        target[:] = descending(values).masked_fill(~whole, 0)

    def _twins(self, packed: Packed) -> Tensor:
        """For each prompt another selection that leaves the same tokens as ``drop_sinks``.

        Mostly a prompt has no sink, or its first token is the one; then that spectrum serves.

        Returns
        -------
        Tensor, shape (B,)
            Its place among `needs.tokens`; -1 where there is none.
        """
        needs = self.needs
        keep = without_sinks(packed, needs.sink_ratio)
        found = torch.full_like(packed.lengths, -1)
        first = {"all": 0, "drop_first": 1, "patches": packed.prefix}
        for place, tokens in enumerate(needs.tokens):
            if tokens in first:
                inside = packed.mask.clone()
                inside[:, : first[tokens]] = False
                found[(found < 0) & (keep == inside).all(dim=1)] = place
        return found

    @staticmethod
    def _gram(part: Packed, tokens: str, grams: dict[str, Tensor]) -> Tensor:
        if tokens not in grams:
            grams[tokens] = (
                grams["all"][:, 1:, 1:]
                if tokens == "drop_first" and "all" in grams
                else eigen.token_gram(part.states)
            )
        return grams[tokens]


def decompose(many: Sequence[Reduced]) -> None:
    """Complete the spectra: of several layers at once, which is faster than one by one."""
    found = iter(eigen.eigenvalues([matrix for reduced in many for matrix in reduced.matrices]))
    for reduced in many:
        for keep in reduced.keep:
            keep(next(found))
        reduced.matrices = []


def descending(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues of ``Z Zᵀ``, shape (B, T), in order, not below 0 (rounding aside, a Gram matrix
    has none)."""
    return eigenvalues.clamp(min=0).sort(dim=-1, descending=True).values


def by_magnitude(eigenvalues: Tensor) -> Tensor:
    """Signed eigenvalues, shape (B, T), largest magnitude first.

    Zeros from padding then come last, and no value depends on padding.
    """
    order = eigenvalues.abs().argsort(dim=-1, descending=True)
    return torch.gather(eigenvalues, -1, order)


def reference_gram(gram: Tensor, packed: Packed) -> Tensor:
    """The ``reference`` protocol's Gram matrix, from ``Z Zᵀ``: shape (B, T, T), float64.

    Centring over tokens is double centring of the Gram matrix, unit rows are division by the
    roots of its diagonal; then negative entries are set to 0, as the released code does. The
    result may have negative eigenvalues.
    """
    mask = packed.mask.double()
    count = packed.lengths.clamp(min=1).double()[:, None]
    rows = gram.sum(dim=2) / count
    total = rows.sum(dim=1) / count[:, 0]
    # In place: memory that is new each time costs more than the arithmetic.
    centred = gram - rows[:, :, None]
    centred.sub_(rows[:, None, :]).add_(total[:, None, None])
    centred.mul_(mask[:, :, None]).mul_(mask[:, None, :])
    variance = torch.diagonal(centred, dim1=1, dim2=2)
    # As in `curvature.centred`: a row that equals the mean leaves rounding, not zero.
    squares = torch.diagonal(gram, dim1=1, dim2=2)
    floor = curvature.ROUNDING**2 * torch.maximum(squares, total[:, None])
    scale = torch.where(variance > floor, variance, torch.inf).rsqrt()
    return centred.mul_(scale[:, :, None]).mul_(scale[:, None, :]).clamp_(min=0)
