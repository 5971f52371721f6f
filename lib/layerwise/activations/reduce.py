"""Which quantities are kept of a layer, and all of them from one batch's states at that layer.

The costly parts are shared: one Gram matrix serves the spectra of both protocols, and without
its first row and column those of ``drop_first``; so do the angles between steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerwise.activations import eigen, readout
from layerwise.activations.places import prefix_sizes
from layerwise.activations.readout import PROTOCOLS
from layerwise.activations.representation import SINK_RATIO, Packed, choose, mean, without_sinks


@dataclass(frozen=True)
class Needs:
    """What is kept of the states of a batch at a layer.

    Attributes
    ----------
    protocols : of `layerwise.activations.readout.PROTOCOLS`
    tokens : choices of which tokens count, of `layerwise.activations.representation.TOKENS`
    spectra, curvature : whether each prompt's spectrum and curvature are, by each protocol
    prefixes : whether the spectra of its first t tokens are, see `grid`
    sink_ratio : for the choice ``drop_sinks``
    norms : whether the norms of its tokens are
    """

    protocols: tuple[str, ...] = PROTOCOLS
    tokens: tuple[str, ...] = ("all", "drop_first")
    spectra: bool = True
    curvature: bool = True
    prefixes: bool = False
    sink_ratio: float = SINK_RATIO
    norms: bool = True

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """The choices of tokens of which prefixes are taken; the others are of whole prompts."""
        there = ("all", "drop_first") if self.prefixes else ()
        return tuple(t for t in self.tokens if t in there)


@dataclass
class Reduced:
    """What is kept of a batch at a layer.

    Attributes
    ----------
    arrays : dict of Tensor
        With P protocols and C choices of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (C, B); if needed ``curvature`` and ``curvature_angles`` (P, C, B), float64 and int64,
        ``norm`` (B, T), float32, and, once `decompose` was called, ``spectrum`` (P, C, B, T) and
        ``prefix_spectrum`` (C, B, S), float64: the spectra of prefixes one after another.
    matrices : list of Tensor
        What the spectra will be of, for each protocol and choice of tokens.
    prefixes : dict of Tensor
        What those of prefixes will be of, by choice of tokens and number of them.
    lengths : Tensor
        Tokens of each prompt, shape (B,).
    twins : dict of Tensor
        By place of a choice of tokens, the place of another that leaves the same tokens of a
        prompt, or -1, shape (B,): that one's spectrum serves, and only the others have a matrix.
    """

    arrays: dict[str, Tensor]
    matrices: list[Tensor]
    protocols: tuple[str, ...]
    prefixes: dict[tuple[str, int], Tensor]
    lengths: Tensor
    twins: dict[int, Tensor]

    @property
    def waiting_bytes(self) -> int:
        """Memory that the matrices hold until they are decomposed."""
        return sum(
            matrix.numel() * matrix.element_size()
            for matrix in (*self.matrices, *self.prefixes.values())
        )


def reduce(packed: Packed, needs: Needs) -> Reduced:
    """Reduce the token states of a batch at one layer, but for the eigenvalues."""
    kept: dict[str, list[Tensor]] = {}
    grams: dict[str, Tensor] = {}
    turns: dict[tuple[str, str], readout.Turns] = {}
    matrices: list[Tensor] = []
    width = packed.states.shape[1]
    choices = {tokens: choose(packed, tokens, needs.sink_ratio) for tokens in needs.tokens}
    means = {tokens: mean(chosen) for tokens, chosen in choices.items()}
    twins = {"drop_sinks": _twins(packed, needs)} if "drop_sinks" in needs.tokens else {}
    for protocol in needs.protocols:
        paper = protocol == "paper"
        for tokens, chosen in choices.items():
            rows = None if paper else readout.centred(chosen, means[tokens])
            vector = means[tokens] if rows is None else readout.pooled_unit(rows)
            kept.setdefault("pooled", []).append(vector)
            if needs.curvature and rows is not None:
                turns[protocol, tokens] = readout.unit_states(rows)
            elif needs.curvature and not (tokens == "drop_first" and ("paper", "all") in turns):
                turns[protocol, tokens] = readout.steps(chosen)
            if needs.spectra:
                of_its_own = chosen
                if tokens in twins:
                    alone = twins[tokens] < 0
                    of_its_own = Packed(chosen.states[alone], chosen.lengths[alone])
                matrices.append(_matrix(of_its_own, tokens, paper, width, grams))
    if turns:
        found = dict(zip(turns, readout.angles(list(turns.values())), strict=True))
        for key in itertools.product(needs.protocols, needs.tokens):
            if key not in found:
                angles, defined = found["paper", "all"]
                found[key] = angles[:, 1:], defined[:, 1:]
            value, count = readout.mean_angle(*found[key])
            kept.setdefault("curvature", []).append(value)
            kept.setdefault("curvature_angles", []).append(count)
    shape = (len(needs.protocols), len(needs.tokens))
    arrays = {
        name: torch.stack(values).reshape(*shape, *values[0].shape)
        for name, values in kept.items()
    }
    arrays["n_tokens"] = torch.stack([chosen.lengths for chosen in choices.values()])
    if needs.norms:
        arrays["norm"] = packed.norms * packed.mask
    prefixes = {
        (tokens, t): gram[:, :size, :size]
        for tokens in needs.prefix_tokens
        for gram in [_gram(choices[tokens], tokens, grams)]
        for t in prefix_sizes(width)
        for size in [t - (tokens == "drop_first")]
    }
    own = {needs.tokens.index(name): places for name, places in twins.items()}
    return Reduced(arrays, matrices, needs.protocols, prefixes, packed.lengths, own)


def _twins(packed: Packed, needs: Needs) -> Tensor:
    """The place of the choice of tokens that leaves the same ones as without sinks, or -1.

    Mostly a prompt has no sink, or its first token is the one.
    """
    keep = without_sinks(packed, needs.sink_ratio)
    found = torch.full_like(packed.lengths, -1)
    first = {"all": 0, "drop_first": 1, "patches": packed.prefix}
    for place, tokens in enumerate(needs.tokens):
        if tokens in first:
            inside = packed.mask.clone()
            inside[:, : first[tokens]] = False
            found[(found < 0) & (keep == inside).all(dim=1)] = place
    return found


def decompose(many: Sequence[Reduced]) -> None:
    """Add the spectra: of several layers at once, which is faster than one after the other."""
    found = iter(eigen.eigenvalues([m for r in many for m in (*r.matrices, *r.prefixes.values())]))
    for reduced in many:
        own = [next(found) for _ in reduced.matrices]
        _add_prefixes(reduced, found)
        if not own:
            continue
        choices, batch = reduced.arrays["n_tokens"].shape
        width = max(matrix.shape[-1] for matrix in reduced.matrices)
        spectra = []
        for protocol in reduced.protocols:
            order = readout.descending if protocol == "paper" else readout.by_magnitude
            each = []
            for _ in range(choices):
                values = order(own.pop(0))
                # A hidden width below the number of tokens leaves fewer that can be above 0.
                each.append(torch.nn.functional.pad(values, (0, width - values.shape[-1])))
            spectra += _with_twins(each, reduced.twins)
        shape = (len(reduced.protocols), choices, batch, width)
        sizes = reduced.arrays["n_tokens"]
        pads = torch.arange(width, device=sizes.device) >= sizes[..., None]
        # Rounding may have left something where pads stand.
        reduced.arrays["spectrum"] = torch.stack(spectra).reshape(shape).masked_fill(pads, 0)
        reduced.matrices = []


def _with_twins(spectra: list[Tensor], twins: dict[int, Tensor]) -> list[Tensor]:
    """Spectra of all prompts, those of twins in the places of those that were not computed."""
    found = list(spectra)
    for place, of in twins.items():
        whole = spectra[0].new_zeros(len(of), spectra[0].shape[-1])
        whole[of < 0] = spectra[place]
        for other, values in enumerate(spectra):
            if other != place:
                whole[of == other] = values[of == other]
        found[place] = whole
    return found


def _add_prefixes(reduced: Reduced, found: Iterator[Tensor]) -> None:
    """Add the spectra of prefixes: t eigenvalues of each number t of tokens."""
    spectra: dict[str, list[Tensor]] = {}
    for tokens, t in reduced.prefixes:
        values = readout.descending(next(found))
        # Without the first token there is one fewer; of a shorter prompt none.
        values = torch.nn.functional.pad(values, (0, t - values.shape[-1]))
        whole = (reduced.lengths >= t)[:, None]
        spectra.setdefault(tokens, []).append(values.masked_fill(~whole, 0))
    if spectra:
        each = [torch.cat(values, dim=-1) for values in spectra.values()]
        reduced.arrays["prefix_spectrum"] = torch.stack(each)
    reduced.prefixes = {}


def _matrix(
    chosen: Packed, tokens: str, paper: bool, width: int, grams: dict[str, Tensor]
) -> Tensor:
    """What the spectrum is of."""
    length, hidden = chosen.states.shape[1:]
    if paper and length > hidden:
        return eigen.hidden_gram(chosen.states)
    matrix = _gram(chosen, tokens, grams)
    if not paper:
        matrix = readout.reference_gram(matrix, chosen)
    # All of one size, so that they can be decomposed together.
    missing = width - length
    return torch.nn.functional.pad(matrix, (0, missing, 0, missing)) if missing else matrix


def _gram(chosen: Packed, tokens: str, grams: dict[str, Tensor]) -> Tensor:
    if tokens not in grams:
        grams[tokens] = (
            grams["all"][:, 1:, 1:]
            if tokens == "drop_first" and "all" in grams
            else readout.gram(chosen)
        )
    return grams[tokens]
