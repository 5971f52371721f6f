"""Test if there are enough prompts to select a layer by a metric."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import stats
from layerwise.association.curves import NO_ALPHA, of_blocks

Floats = npt.NDArray[np.float64]

NEAR = 0.1
"""Distance in depth within which two layers count as the same selection."""
STABLE = 0.8
"""Share of resampled curves that must select nearly the same layer."""
N_RESAMPLES = 1000
KEYS = ["corpus", "metric", "protocol", "alpha"]


def why_unreliable(good: Floats, resampled: Floats, n: float) -> str:
    """Why there are too few prompts to select a layer by a metric; empty if there are enough.

    Parameters
    ----------
    good : array, shape (L,)
        The metric, higher being better; minus infinity where it has no value.
    resampled : array, shape (B, L)
        The same on other samples of prompts; none if that is unknown.
    n : float
        Number of prompts, NaN if unknown.
    """
    if n < stats.FEW:
        return f"{n:.0f} prompts; selecting a layer takes {stats.FEW}"
    if not len(resampled):
        return ""
    selected = np.where(np.isfinite(resampled), resampled, -np.inf).argmax(axis=1)
    near = float((np.abs(selected - good.argmax()) <= NEAR * (len(good) - 1)).mean())
    return "" if near >= STABLE else f"{1 - near:.0%} of resamples select another layer"


def resampled_curves(
    variants: pd.DataFrame,
    values: Floats,
    stderr: Floats,
    prompts: pd.DataFrame | None,
    layers: npt.NDArray[np.int64],
    seed: int = 0,
) -> list[Floats]:
    """Curves of each metric as other samples of prompts would give them, shape (B, L) each.

    Bootstrap samples of the prompts where their values are known; noise that layers share then
    cancels. Otherwise draws from the standard errors, independent between layers, which overstates
    the noise. None of them for a metric without either.

    Parameters
    ----------
    variants : DataFrame
        One row per metric, with the columns of `layerwise.association.curves.VARIANT`.
    values, stderr : array, shape (k, L)
    prompts : DataFrame, optional
        Tidy table of prompts of this model, revision and token selection.
    """
    rng = np.random.default_rng(seed)
    wide: dict[tuple[object, ...], Floats] = {}
    if prompts is not None and len(prompts):
        for key, part in of_blocks(prompts).fillna({"alpha": NO_ALPHA}).groupby(KEYS):
            curves = part.pivot(index="prompt_id", columns="layer", values="value")
            wide[key] = curves.reindex(columns=layers).dropna().to_numpy(dtype=np.float64)
    found: list[Floats] = []
    for row, variant in enumerate(variants.fillna({"alpha": NO_ALPHA}).to_dict("records")):
        own = wide.get(tuple(variant[key] for key in KEYS))
        if own is not None and len(own) and variant["normalization"] == "raw":
            n = len(own)
            found.append(rng.multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES) @ own / n)
        elif np.isfinite(stderr[row]).any():
            noise = rng.normal(size=(N_RESAMPLES, len(layers)))
            found.append(values[row] + noise * np.nan_to_num(stderr[row]))
        else:
            found.append(np.empty((0, len(layers))))
    return found
