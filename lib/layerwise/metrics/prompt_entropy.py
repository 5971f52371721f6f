"""Prompt entropy: how widely the tokens of one prompt spread at a layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerwise.metrics.entropy import entropy_from_eigenvalues, entropy_gradient
from layerwise.metrics.inputs import LayerInputs
from layerwise.metrics.registry import NORMALIZATIONS, Array, PerPrompt, metric


def reference_entropy(spectra: Array, alpha: float, n: Array | float) -> Array:
    """Entropies as the released code computes them from a clamped matrix's eigenvalues.

    The eigenvalues above 0 are made to sum to 1, though the negative ones that clamping brings
    are part of the trace. For alpha = 2 there is a shortcut, ``-log(Σ λ² / n²)``, right only
    where the trace is n; it can be negative.

    Parameters
    ----------
    spectra : array, shape (..., R)
        Signed eigenvalues, zero-padded.
    alpha : float
    n : array, shape (...)
        Rows of each matrix.

    Returns
    -------
    array, shape (...)
        In nats; NaN where the spectrum is all zeros.
    """
    if alpha != 2:
        return entropy_from_eigenvalues(spectra, alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.square(spectra).sum(axis=-1)
        return np.where(squares > 0, -np.log(squares / np.square(n)), np.nan)


def reference_gradient(spectrum: Array, alpha: float) -> Array:
    """Derivative of `reference_entropy` by each eigenvalue of one spectrum, shape (R,)."""
    if alpha == 2:
        return np.asarray(-2 * spectrum / np.square(spectrum).sum())
    return entropy_gradient(spectrum, alpha)


@metric(
    name="prompt_entropy",
    label="Prompt entropy",
    unit="nats",
    direction=-1,
    range="0 to log min(T, D)",
    source="Skean et al. 2025, equation 1; Wei et al. 2024",
    inputs=("spectra",),
    normalizations={"paper": NORMALIZATIONS, "reference": NORMALIZATIONS},
    note="The direction is the paper's reading of decoders: they score best where entropy dips.",
)
def compute(layer: LayerInputs) -> Iterator[PerPrompt]:
    """``S_α`` of each prompt's token states; the layer's value is the mean over prompts."""
    sizes = layer.n_tokens.astype(np.float64)
    for alpha in layer.settings.alphas:
        if layer.protocol == "reference":
            values = reference_entropy(layer.spectra, alpha, sizes)
        else:
            values = entropy_from_eigenvalues(layer.spectra, alpha)
        yield PerPrompt(values, sizes, alpha)
