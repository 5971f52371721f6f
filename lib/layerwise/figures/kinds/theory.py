"""Entropies of every order: of power-law spectra, and of real layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.config.kinds import Kind
from layerwise.errors import LayerwiseError
from layerwise.figures import marks
from layerwise.figures.labels import axis_label
from layerwise.figures.marks import depth_axis, entry, facets, line
from layerwise.figures.registry import Look, draws
from layerwise.figures.select import POINT, Data, by_layer, matrices
from layerwise.metrics.formulas.entropy import entropy_from_eigenvalues
from layerwise.stats import mean_ci


def power_law_curves(
    betas: Sequence[float] = tuple(np.linspace(0, 3, 61)),
    alphas: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 4.0, math.inf),
    n: int = 1000,
) -> pd.DataFrame:
    """Matrix-based entropy of power-law spectra, for exponents β and orders α (Skean et al. 2025,
    Figure 7).

    Eigenvalues ``λ_i = i^-β``, i = 1 … n: flat at β = 0, where every order gives log n, and the
    more concentrated the larger β. Larger orders weigh the larger eigenvalues more and so fall
    faster (the printed caption says the opposite).

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
    spectra = ranks ** -np.asarray(betas, dtype=np.float64)[:, None]
    curves = [
        pd.DataFrame(
            {
                "beta": betas,
                "alpha": alpha,
                "n": n,
                "entropy": entropy_from_eigenvalues(spectra, alpha),
            }
        )
        for alpha in alphas
    ]
    return pd.concat(curves, ignore_index=True).assign(
        share=lambda table: table["entropy"] / math.log(n)
    )


def power_law(_data: Data) -> pd.DataFrame:
    """Entropy of power-law spectra by exponent and order."""
    return power_law_curves().assign(metric="entropy")


POWER_LAW = Kind(
    name="power_law",
    about="entropy of power-law spectra; needs no data",
    title="Entropy of power-law spectra",
    metrics=(),
    caption=(
        "Matrix-based entropy of spectra that fall as a power of their rank, for several orders "
        "α. At β = 0 the spectrum is flat. Computed from the definition, without data."
    ),
)


@draws(POWER_LAW, power_law)
def plot_power_law(table: pd.DataFrame, look: Look) -> Figure:
    """Draw entropy against the exponent of the spectrum, a line per order."""
    t = table.assign(alpha=table["alpha"].astype(str))
    grid = facets(t, look.only(colour=("alpha",)), height=3.2, width=4.8)
    ax = grid.panels[0].ax
    for style, part in grid.curves(grid.panels[0]):
        line(ax, part, "beta", "entropy", **style | {"marker": ""})
    ax.set_xlabel(r"Exponent β of the spectrum, $λ_i ∝ i^{-β}$", parse_math=True)
    ax.set_ylabel("Matrix-based entropy (nats)")
    ax.set_ylim(bottom=0)
    return grid.legend(marker="").figure


def alpha_robustness(data: Data) -> pd.DataFrame:
    """Curves of a metric at every order, and the layer that each order selects.

    ``what`` is ``theory`` (power-law spectra) or ``metric`` (a row per layer): `best` is the layer
    at the metric's better end.

    Raises
    ------
    LayerwiseError
        If the metric has no alpha.
    """
    prompts = data.tables["prompts"]
    metric = (data.study.curves or ())[0].metric
    alphas = prompts.loc[prompts["metric"] == metric, "alpha"].dropna()
    if alphas.empty:
        raise LayerwiseError(
            f"{metric} has no alpha, and a study of kind {data.study.kind} is about alpha; name "
            "an entropy under `metrics`, such as prompt_entropy.",
            code="unsupported",
        )
    if data.study.alpha is None:
        every = tuple(sorted(float(a) for a in alphas.unique()))
        data = replace(data, study=data.study.model_copy(update={"alpha": every}))
    table = data.prompts()
    theory = power_law_curves(alphas=sorted(table["alpha"].astype(float).unique()))
    rows = [theory.assign(what="theory", metric=metric, value=theory["share"]).drop(columns="n")]
    better = data.directions.get(metric)
    by = [*POINT, "corpus", "metric", "tokens", "alpha"]
    for key, wide in matrices(table, by).items():
        about = dict(zip(by, key, strict=True))
        rows.append(by_layer(mean_ci(wide), wide.columns, **about, what="metric"))
        if better is not None:
            rows[-1]["best"] = wide.columns == (better * wide.mean()).idxmax()
    result = pd.concat(rows, ignore_index=True)
    return result.assign(alpha=result["alpha"].astype(float))


ALPHA_ROBUSTNESS = Kind(
    name="alpha_robustness",
    about="an entropy by depth at every order alpha, with power-law spectra",
    title="A metric at every order α",
    reads=("prompts",),
    roles={"column": ("model", "representation"), "colour": ("alpha",)},
    orders=True,
    caption=(
        "Entropy of power-law spectra, and metric by depth on {n_prompts} prompts of {corpora}, "
        "at every order α. Bands: 95% CI over prompts. Filled: best layer by the metric's "
        "direction."
    ),
)


@draws(ALPHA_ROBUSTNESS, alpha_robustness)
def plot_alphas(table: pd.DataFrame, look: Look) -> Figure:
    """Draw power-law spectra, then the metric by depth for each model, a line per order."""
    t = table.assign(alpha=table["alpha"].astype(str))
    t["model"] = t["model"].fillna("power-law spectra")
    grid = facets(t, look.only(column=look.roles["column"], colour=("alpha",)), height=2.2)
    for panel in grid.panels:
        ax, theory = panel.ax, (panel.table["what"] == "theory").all()
        for style, part in grid.curves(panel):
            x = "beta" if theory else "depth"
            line(ax, part, x, shade=0.1, **style | {"marker": ""})
            best = part[part["best"].eq(True)] if "best" in part else part[:0]
            if len(best):  # an unclipped line without points would claim the page's corner
                ax.plot(best["depth"], best["value"], **marks.best(style["color"]))
        if theory:
            ax.set(xlabel="Exponent β of the spectrum", ylabel="Entropy / log n")
        else:
            depth_axis(ax)
            ax.set(xlabel=marks.DEPTH, ylabel=axis_label(str(panel.table["metric"].iloc[0])))
    return grid.legend([entry("selected layer", **marks.best())], marker="").figure
