"""Which quantities are kept of a layer, and all of them from one batch's states at that layer.

The costly parts are shared: one Gram matrix serves the spectra of both protocols, and without
its first row and column those of ``drop_first``; so do the angles between steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerwise.activations import eigen, readout
from layerwise.activations.readout import PROTOCOLS, Packed


@dataclass(frozen=True)
class Needs:
    """What is kept of the states of a batch at a layer.

    Attributes
    ----------
    protocols : of `layerwise.activations.readout.PROTOCOLS`
    tokens : choices of which tokens count, of `layerwise.activations.readout.TOKENS`
    spectra, curvature : whether each prompt's spectrum and curvature are
    """

    protocols: tuple[str, ...] = PROTOCOLS
    tokens: tuple[str, ...] = ("all", "drop_first")
    spectra: bool = True
    curvature: bool = True


@dataclass
class Reduced:
    """What is kept of a batch at a layer.

    Attributes
    ----------
    arrays : dict of Tensor
        With P protocols and C choices of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (C, B); if needed ``curvature`` and ``curvature_angles`` (P, C, B), float64 and int64, and,
        once `decompose` was called, ``spectrum`` (P, C, B, T), float64.
    matrices : list of Tensor
        What the spectra will be of, for each protocol and choice of tokens.
    """

    arrays: dict[str, Tensor]
    matrices: list[Tensor]
    protocols: tuple[str, ...]

    @property
    def waiting_bytes(self) -> int:
        """Memory that the matrices hold until they are decomposed."""
        return sum(matrix.numel() * matrix.element_size() for matrix in self.matrices)


def reduce(packed: Packed, needs: Needs) -> Reduced:
    """Reduce the token states of a batch at one layer, but for the eigenvalues."""
    kept: dict[str, list[Tensor]] = {}
    grams: dict[str, Tensor] = {}
    turns: dict[tuple[str, str], readout.Turns] = {}
    matrices: list[Tensor] = []
    width = packed.states.shape[1]
    choices = {tokens: readout.choose(packed, tokens) for tokens in needs.tokens}
    means = {tokens: readout.pooled(chosen) for tokens, chosen in choices.items()}
    for protocol in needs.protocols:
        paper = protocol == "paper"
        for tokens, chosen in choices.items():
            rows = None if paper else readout.centred(chosen, means[tokens])
            mean = means[tokens] if rows is None else readout.pooled_unit(rows)
            kept.setdefault("pooled", []).append(mean)
            if needs.curvature and rows is not None:
                turns[protocol, tokens] = readout.unit_states(rows)
            elif needs.curvature and not (tokens == "drop_first" and ("paper", "all") in turns):
                turns[protocol, tokens] = readout.steps(chosen)
            if needs.spectra:
                matrices.append(_matrix(chosen, tokens, paper, width, grams))
    if needs.curvature:
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
    return Reduced(arrays, matrices, needs.protocols)


def decompose(many: Sequence[Reduced]) -> None:
    """Add the spectra: of several layers at once, which is faster than one after the other."""
    found = iter(eigen.eigenvalues([matrix for reduced in many for matrix in reduced.matrices]))
    for reduced in many:
        if not reduced.matrices:
            continue
        choices, batch = reduced.arrays["n_tokens"].shape
        width = max(matrix.shape[-1] for matrix in reduced.matrices)
        spectra = []
        for protocol in reduced.protocols:
            order = readout.descending if protocol == "paper" else readout.by_magnitude
            for _ in range(choices):
                values = order(next(found))
                # A hidden width below the number of tokens leaves fewer that can be above 0.
                spectra.append(torch.nn.functional.pad(values, (0, width - values.shape[-1])))
        shape = (len(reduced.protocols), choices, batch, width)
        sizes = reduced.arrays["n_tokens"]
        pads = torch.arange(width, device=sizes.device) >= sizes[..., None]
        # Rounding may have left something where pads stand.
        reduced.arrays["spectrum"] = torch.stack(spectra).reshape(shape).masked_fill(pads, 0)
        reduced.matrices = []


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
