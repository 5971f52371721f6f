"""Entropies of every order: of power-law spectra, and of real layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.errors import LayerwiseError
from layerwise.figures import marks
from layerwise.figures.labels import axis_label, value_label
from layerwise.figures.marks import depth_axis, entry, facets, line, palette, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import POINT, Data, by_layer, curves_of, matrix, parts_of
from layerwise.metrics.powerlaw import power_law_curves
from layerwise.stats import best_set, mean_ci


def power_law(_data: Data) -> pd.DataFrame:
    """Entropy of power-law spectra by exponent and order."""
    return power_law_curves().assign(metric="entropy")


@kind("power_law", "Entropy of power-law spectra", power_law)
def plot_power_law(table: pd.DataFrame, look: Look) -> Figure:
    """Draw entropy against the exponent of the spectrum, a line per order."""
    t = place(table.assign(alpha=table["alpha"].astype(str)), Look({"colour": ("alpha",)}, ()))
    grid = facets(t, look, height=3.2, width=4.8)
    colours = palette(t, Look({"colour": ("alpha",)}, ()))
    ax = grid.panels[0].ax
    for name, part in parts_of(t, "colour"):
        line(ax, part, "beta", "entropy", colour=colours.colours[name])
    ax.set_xlabel(r"Exponent β of the spectrum, $λ_i ∝ i^{-β}$", parse_math=True)
    ax.set_ylabel("Matrix-based entropy (nats)")
    ax.set_ylim(bottom=0)
    return grid.legend([entry(n, color=c) for n, c in colours.colours.items()]).figure


def alpha_robustness(data: Data) -> pd.DataFrame:
    """Curves of a metric at every order, and what depends on the order.

    ``what`` is ``theory`` (power-law spectra), ``metric`` (a row per layer) or ``alpha`` (a row
    per order): the selected layer, and the layers that may be it with 95% confidence.

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
    table = data.prompts().assign(alpha=lambda t: t["alpha"].astype(float))
    theory = power_law_curves(alphas=sorted(table["alpha"].unique()))
    rows = [theory.assign(what="theory", metric=metric, value=theory["share"]).drop(columns="n")]
    keys = [*POINT, "corpus", "metric", "tokens"]
    for about, part in curves_of(table, keys):
        wide = {float(a): matrix(p) for a, p in parts_of(part, "alpha")}
        for alpha, own in wide.items():
            array, layers = own.to_numpy(dtype=float), own.columns.to_numpy()
            one = {**about, "alpha": alpha}
            rows.append(by_layer(mean_ci(array), layers, **one, what="metric"))
            row = {**one, "what": "alpha", "n": len(array)}
            rows.append(pd.DataFrame([row | _selected(own, data.directions.get(metric))]))
    return pd.concat(rows, ignore_index=True)


def _selected(own: pd.DataFrame, end: int | None) -> dict[str, Any]:
    """The layer selected at the metric's better end."""
    if end is None:
        return {}
    mean, layers = own.mean().to_numpy(), own.columns.to_numpy()
    at = int(np.argmax(end * mean))
    likely = layers[best_set(end * own.to_numpy(dtype=float))]
    found = {"selected": int(layers[at]), "depth": layers[at] / max(1, layers[-1])}
    return {**found, "value": mean[at], "may_be_selected": " ".join(map(str, likely))}


@kind("alpha_robustness", "A metric at every order α", alpha_robustness)
def plot_alphas(table: pd.DataFrame, look: Look) -> Figure:
    """Draw power-law spectra, then the metric by depth for each model, a line per order."""
    column = [c for c in look.roles["column"] if table[c].nunique() > 1 or c == "model"]
    rows = table[column].fillna("").to_dict("records")
    words = [" · ".join(value_label(str(c), str(v)) for c, v in r.items() if v) for r in rows]
    t = place(table.assign(alpha=table["alpha"].astype(str)), Look({"colour": ("alpha",)}, ()))
    names = np.where(t["what"] == "theory", "power-law spectra", words)
    t["column"] = pd.Categorical(names, list(dict.fromkeys(names)))
    grid = facets(t, look, height=2.2)
    colours = palette(t, Look({"colour": ("alpha",)}, ())).colours
    for panel in grid.panels:
        theory = (panel.table["what"] == "theory").all()
        for name, part in parts_of(panel.table[panel.table["what"] != "alpha"], "colour"):
            line(panel.ax, part, "beta" if theory else "depth", colour=colours[name], shade=0.1)
        for name, part in parts_of(panel.table[panel.table["what"] == "alpha"], "colour"):
            if "selected" in part and part["selected"].notna().any():
                panel.ax.plot(part["depth"], part["value"], **marks.best(colours[name]))
        if theory:
            panel.ax.set_xlabel("Exponent β of the spectrum")
            panel.ax.set_ylabel("Entropy / log n")
        else:
            depth_axis(panel.ax)
            panel.ax.set_xlabel(marks.DEPTH)
            panel.ax.set_ylabel(axis_label(str(panel.table["metric"].iloc[0])))
    handles = [entry(n, color=c) for n, c in colours.items()]
    return grid.legend([*handles, entry("selected layer", **marks.best())]).figure
