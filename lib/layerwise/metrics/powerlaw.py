"""Entropies of power-law spectra: Figure 7 of Skean et al. (2025), as a table.

Eigenvalues ``λ_i = i^-β``, i = 1 … n: flat at β = 0, where every order gives log n, and the more
concentrated the larger β. Larger orders weigh the larger eigenvalues more and so fall faster (the
printed caption says the opposite).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerwise.metrics.formulas.entropy import entropy_from_eigenvalues

ALPHAS = (0.5, 1.0, 1.5, 2.0, 4.0, math.inf)


def power_law_curves(
    betas: Sequence[float] = tuple(np.linspace(0, 3, 61)),
    alphas: Sequence[float] = ALPHAS,
    n: int = 1000,
) -> pd.DataFrame:
    """Matrix-based entropy of power-law spectra, for exponents β and orders α.

    Parameters
    ----------
    betas : sequence of float
        Exponents, 0 or above.
    alphas : sequence of float
        Orders, above 0, infinity included.
    n : int
        Number of eigenvalues, 2 or more.

    Returns
    -------
    DataFrame
        One row per pair: ``beta``; ``alpha``; ``n``; ``entropy`` in nats, 0 to log n;
        ``share``, entropy over log n, 0 to 1.
    """
    ranks = np.arange(1, n + 1, dtype=np.float64)
    spectra = ranks[None, :] ** -np.asarray(betas, dtype=np.float64)[:, None]
    pieces = [
        pd.DataFrame(
            {
                "beta": np.asarray(betas, dtype=np.float64),
                "alpha": float(alpha),
                "n": n,
                "entropy": entropy_from_eigenvalues(spectra, alpha),
            }
        )
        for alpha in alphas
    ]
    frame = pd.concat(pieces, ignore_index=True)
    frame["share"] = frame["entropy"] / math.log(n)
    return frame
