"""Which quantities are kept of a layer, and all of them from one batch's states at that layer.

The costly parts are shared: one Gram matrix serves the spectra of both protocols, and without
its first row and column those of ``drop_first``; so do the angles between steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from layerwise.activations import readout
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


def reduce(packed: Packed, needs: Needs) -> dict[str, Tensor]:
    """Reduce the token states of a batch at one layer.

    Returns
    -------
    dict of Tensor
        With P protocols and C choices of tokens: ``pooled`` (P, C, B, D), float32; ``n_tokens``
        (C, B); if needed ``spectrum`` (P, C, B, T), ``curvature`` and ``curvature_angles``
        (P, C, B), float64 and int64.
    """
    kept: dict[str, list[Tensor]] = {}
    grams: dict[str, Tensor] = {}
    angles: dict[str, tuple[Tensor, Tensor]] = {}
    width = packed.states.shape[1]
    for tokens in needs.tokens:
        chosen = readout.choose(packed, tokens)
        kept.setdefault("n_tokens", []).append(chosen.lengths)
        mean = readout.pooled(chosen)
        for protocol in needs.protocols:
            paper = protocol == "paper"
            states = chosen if paper else readout.normalised(chosen, mean)
            kept.setdefault("pooled", []).append(mean if paper else readout.pooled(states))
            if needs.curvature:
                value, count = (
                    readout.mean_angle(*_step_angles(chosen, tokens, angles))
                    if paper
                    else readout.state_curvature(states)
                )
                kept.setdefault("curvature", []).append(value)
                kept.setdefault("curvature_angles", []).append(count)
            if needs.spectra:
                spectrum = _spectrum(chosen, tokens, paper, grams)
                missing = width - spectrum.shape[-1]
                kept.setdefault("spectrum", []).append(
                    torch.nn.functional.pad(spectrum, (0, missing))
                )
    choices, protocols = len(needs.tokens), len(needs.protocols)
    reduced = {"n_tokens": torch.stack(kept.pop("n_tokens"))}
    for name, values in kept.items():
        stacked = torch.stack(values)
        shape = (choices, protocols, *stacked.shape[1:])
        reduced[name] = stacked.reshape(shape).transpose(0, 1)
    return reduced


def _spectrum(chosen: Packed, tokens: str, paper: bool, grams: dict[str, Tensor]) -> Tensor:
    length, hidden = chosen.states.shape[1:]
    if paper and length > hidden:
        return readout.paper_spectrum(readout.hidden_gram(chosen))
    matrix = _gram(chosen, tokens, grams)
    if paper:
        return readout.paper_spectrum(matrix)
    return readout.signed_spectrum(readout.reference_gram(matrix, chosen))


def _gram(chosen: Packed, tokens: str, grams: dict[str, Tensor]) -> Tensor:
    if tokens not in grams:
        grams[tokens] = (
            grams["all"][:, 1:, 1:]
            if tokens == "drop_first" and "all" in grams
            else readout.gram(chosen)
        )
    return grams[tokens]


def _step_angles(
    chosen: Packed, tokens: str, angles: dict[str, tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    if tokens == "drop_first" and "all" in angles:
        values, defined = angles["all"]
        return values[:, 1:], defined[:, 1:]
    angles[tokens] = readout.step_angles(chosen)
    return angles[tokens]
