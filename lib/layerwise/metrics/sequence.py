"""Quantities along the sequence: of the first t tokens of a prompt, and of its t-th token.

They have one dimension more than metrics, so they are a separate table: a row for each layer and
position on the grid of `layerwise.activations.store.grid`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.activations.store import Activations, grid
from layerwise.metrics import errors
from layerwise.metrics.formulas import Array
from layerwise.metrics.formulas.entropy import entropy_from_eigenvalues, normalise
from layerwise.metrics.registry import PLACE, QUANTITIES
from layerwise.metrics.table import tidy

if TYPE_CHECKING:
    from layerwise.config.settings import MetricsSettings


COLUMNS = PLACE | {
    "normalization": "str",
    "position": "int64",
    "value": "float64",
    "stderr": "float64",
    "quartile_1": "float64",
    "median": "float64",
    "quartile_3": "float64",
    "n": "int64",
    "n_left_out": "int64",
}


def compute(activations: Activations, settings: MetricsSettings) -> pd.DataFrame:
    """The quantities of all layers of a file, if it has their inputs.

    Row t leaves out and counts prompts of fewer than t tokens.

    Parameters
    ----------
    activations : Activations
    settings : MetricsSettings
        Its `alphas` and `normalizations`.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`: mean over prompts with its standard error, and quartiles.
    """
    rows: list[dict[str, Any]] = []
    for layer in activations.layers:
        about = {
            "model": activations.model,
            "revision": activations.revision,
            "corpus": activations.corpus,
            **activations.labels,
            "sublayer": activations.sublayer,
            "layer": layer,
            "protocol": "paper",
            "depth": layer / max(1, activations.n_layers - 1),
        }
        quantities = [(t, _entropies(activations, settings, t, layer)) for t in activations.tokens]
        if "all" in activations.tokens:
            quantities.append(("all", _norms(activations, layer)))
        for tokens, series in quantities:
            about["tokens"] = tokens
            for position, values in series:
                n_left_out = len(activations.prompts) - len(values)
                row = {**about, **position, **_summary(values), "n_left_out": n_left_out}
                rows.append(row)
    return tidy(pd.DataFrame(rows), COLUMNS)


def _norms(activations: Activations, layer: int) -> Iterator[tuple[dict[str, Any], Array]]:
    """Norms of the t-th token, on the grid of t."""
    norms = activations.norms(layer).astype(np.float64)
    for t in grid(norms.shape[1]):
        values = norms[~np.isnan(norms[:, t - 1]), t - 1]
        yield {"metric": "token_norm", "normalization": "raw", "position": t}, values


def _entropies(
    activations: Activations, settings: MetricsSettings, tokens: str, layer: int
) -> Iterator[tuple[dict[str, Any], Array]]:
    """Entropies of the first t tokens, by order and normalisation."""
    has_prefixes = "prefix_spectrum" in activations.arrays
    spectra_of = activations.prefixes(tokens, layer) if has_prefixes else {}
    for t, spectra in spectra_of.items():
        spectra = spectra[spectra[:, 0] > 0]
        size = t - (tokens == "drop_first")
        for alpha in settings.alphas if len(spectra) else ():
            values = entropy_from_eigenvalues(spectra, alpha)
            where = {"metric": "prefix_entropy", "alpha": alpha, "position": t}
            for name in QUANTITIES["prefix_entropy"].normalizations:
                # log 1 is 0 and cannot divide.
                if name == "raw" or (name in settings.normalizations and size > 1):
                    normalised = normalise(values, name, n=size, d=activations.hidden)
                    yield {**where, "normalization": name}, normalised


def _summary(values: Array) -> dict[str, Any]:
    quartiles = np.quantile(values, [0.25, 0.5, 0.75])
    return {
        "value": values.mean(),
        "stderr": errors.of_mean(values),
        **dict(zip(("quartile_1", "median", "quartile_3"), quartiles, strict=True)),
        "n": len(values),
    }
