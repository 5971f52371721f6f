"""Matrix-based entropy of power-law spectra for several orders alpha: no model, no data."""

from __future__ import annotations

import numpy as np

from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.given import Given
from layerwise.metrics.powerlaw import power_law_curves


def draw(_given: Given | None = None) -> Drawn:
    """Draw the entropy against the exponent of the spectrum, a line per alpha.

    Returns
    -------
    Drawn
        Its table is that of `layerwise.metrics.powerlaw.power_law_curves`.
    """
    table = power_law_curves()
    alphas = sorted(table["alpha"].unique())
    figure, axes = style.grid(1, 1, panel_height=3.2, panel_width=4.8)
    axis = axes[0, 0]
    colours, _ = style.depth_colours()
    ends = []
    for k, alpha in enumerate(alphas):
        part = table[table["alpha"] == alpha].sort_values("beta")
        colour = colours(k / max(1, len(alphas) - 1))
        axis.plot(part["beta"], part["entropy"], color=colour)
        ends.append((float(part["entropy"].iloc[-1]), _name(alpha), colour))
    axis.set_xlabel(r"Exponent β of the spectrum, $λ_i ∝ i^{-β}$", parse_math=True)
    axis.set_ylabel("Matrix-based entropy (nats)")
    axis.set_xlim(table["beta"].min(), table["beta"].max())
    axis.set_ylim(bottom=0)
    marks.end_labels(axis, float(table["beta"].max()), ends)
    n = int(table["n"].iloc[0])
    at_one = table.iloc[(table["beta"] - 1).abs().to_numpy().argsort()[: len(alphas)]]
    fall = at_one.set_index("alpha")["share"]
    title = (
        f"The larger alpha, the sooner entropy falls: at β = 1 it is {100 * fall.max():.0f} % of "
        f"log n for α = {fall.idxmax():g} and {100 * fall.min():.0f} % for "
        f"{_name(float(str(fall.idxmin())))}"
    )
    style.header(figure, title, f"Spectra of {n:,} eigenvalues; β = 0 is flat, entropy log n.")
    caption = (
        f"Matrix-based entropy of spectra of {n:,} eigenvalues that fall as a power of their "
        "rank, against the exponent β, for several orders α. At β = 0 the spectrum is flat and "
        "every order gives log n. Larger orders look at the larger eigenvalues alone. No data "
        "are behind this figure: it is the definition, computed."
    )
    facts = {"n": n, "share_at_beta_1": {_name(float(str(a))): float(s) for a, s in fall.items()}}
    return Drawn(figure, table, title, caption, facts)


def _name(alpha: float) -> str:
    return "α = ∞" if np.isinf(alpha) else f"α = {alpha:g}"
