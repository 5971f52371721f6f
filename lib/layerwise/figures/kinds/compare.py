"""Layers and models compared: similarity, and differences from a base model."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.kinds.valley import shared
from layerwise.figures.labels import TOKENS, axis_label
from layerwise.figures.marks import depth_axis, entry, facets, heat, line, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import Data, by_layer, curves_of, matrix, only, with_intervals
from layerwise.stats import ALPHA, holm, paired_difference

MEASURES = {"cka_debiased": "Debiased CKA", "rsa": "RSA (Spearman)"}
CKA = "cka_debiased"


def similarity(data: Data) -> pd.DataFrame:
    """Similarity of every layer with every layer, with 95% jackknife intervals."""
    table = data.rows(data.tables["similarities"], "tokens", "model")
    if data.study.models:
        table = only(table, "other_model", data.study.models)
    table = with_intervals(table)
    table = table.assign(
        representation=table["tokens"],
        low=table["low"].clip(-1, 1),
        high=table["high"].clip(-1, 1),
    )
    rank = {t: i for i, t in enumerate(TOKENS)}
    return table.sort_values("tokens", key=lambda t: t.map(rank), kind="stable", ignore_index=True)


@kind("layer_similarity", "Similarity between layers", similarity)
def plot_similarity(table: pd.DataFrame, look: Look) -> Figure:
    """Draw a heat map of CKA, and of RSA below it, for each pair of models and representation."""
    several = table.groupby("model")["revision"].nunique().max() > 1
    one, other = (
        table[f"{o}model"] + (" " + table[f"{o}revision"] if several else "")
        for o in ("", "other_")
    )
    t = table.assign(
        pair=one.where(one == other, one + " and " + other), row_of=one, column_of=other
    )
    t = place(
        t[t["measure"].isin(list(MEASURES))],
        Look({"column": ("pair", "representation")}, look.models),
    )
    t["row"] = pd.Categorical(t["measure"].map(MEASURES), list(MEASURES.values()))
    if t["column"].cat.categories.tolist() == [""]:
        t["column"] = pd.Categorical(t["pair"])
    grid = facets(t, Look({"row": ("measure",), "column": ("pair",)}, look.models), height=2.2)
    for panel in grid.panels:
        wide = panel.table.pivot(index="layer", columns="other_layer", values="value")
        image = heat(panel.ax, wide.clip(lower=0), vmin=0, vmax=1)
        places = np.unique(np.linspace(0, len(wide.columns) - 1, 5).round().astype(int))
        panel.ax.set_xticks(places + 0.5, [str(wide.columns[p]) for p in places], rotation=0)
        names = panel.table[["row_of", "column_of"]].iloc[0]
        same = names.iloc[0] == names.iloc[1]
        panel.ax.set_ylabel("Layer" if same else f"Layer of {names.iloc[0]}")
        panel.ax.set_xlabel("Layer" if same else f"Layer of {names.iloc[1]}")
    grid.bar(image, "Similarity")
    return grid.figure


def differences(data: Data) -> pd.DataFrame:
    """Difference of each model (or checkpoint) from the first, paired by prompt, by layer.

    Rows of the metric `CKA` are the debiased CKA of the same layer of both. p is adjusted (Holm)
    over all differences.

    Raises
    ------
    LayerwiseError
        If there is one model only, or one with another number of layers.
    """
    table = data.prompts()
    points = data.points(table)
    base = points[0]
    if len(points) < 2:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} compares models with the first; these tables have "
            f"{base[0]} at {base[1]} alone: name another under `models` or `revisions`.",
            code="too_few",
        )
    wide = {
        tuple(a.values()): matrix(p)
        for a, p in curves_of(
            table, ["y", "metric", "representation", "corpus", "model", "revision"]
        )
    }
    rows = []
    for (y, metric, rep, corpus, *point), own in wide.items():
        if tuple(point) == base:
            continue
        before = wide.get((y, metric, rep, corpus, *base))
        if before is None or list(before.columns) != list(own.columns):
            raise LayerwiseError(
                f"{point[0]} and {base[0]} differ in layers or token selections, and this study "
                "compares layer by layer; take models of one architecture, or layer_similarity.",
                code="mismatch",
            )
        first, second = shared(before, own)
        found = paired_difference(second, first)
        layers = own.columns.to_numpy()
        about = {"model": point[0], "revision": point[1], "base": base[0], "y": y}
        about |= {"base_revision": base[1], "metric": metric, "corpus": corpus}
        rows.append(by_layer(found, layers, **about, representation=rep, p=found.p))
    result = pd.concat(rows, ignore_index=True)
    result["p_adjusted"] = holm(result["p"])
    return pd.concat([result, _cka(data.tables["similarities"], base, result)], ignore_index=True)


def _cka(similarities: pd.DataFrame, base: tuple[str, str], like: pd.DataFrame) -> pd.DataFrame:
    """CKA of the same layer of the base and each model that is compared with it."""
    kept = with_intervals(similarities)
    kept = kept[
        (kept["measure"] == CKA)
        & (kept["layer"] == kept["other_layer"])
        & (kept["model"] == base[0])
        & (kept["revision"] == base[1])
    ]
    names = {"other_model": "model", "other_revision": "revision", "tokens": "representation"}
    named = kept.drop(columns=["model", "revision"]).rename(columns=names)
    there = like[["model", "revision", "representation"]].drop_duplicates()
    found = named.merge(there).assign(base=base[0], base_revision=base[1], y=CKA, metric=CKA)
    return found[[column for column in like if column in found]]


@kind("finetuning_effects", "Difference from the base model by depth", differences)
def plot_differences(table: pd.DataFrame, look: Look) -> Figure:
    """Draw each metric's difference by depth, and CKA with the base."""
    column = look.roles["column"]
    t = place(table, Look({"row": ("y",), "column": column}, look.models))
    t["row"] = pd.Categorical(t["y"], list(dict.fromkeys(table["y"])))
    grid = facets(t, Look({"row": ("y",), "column": column}, look.models), height=1.7)
    for panel in grid.panels:
        part = panel.table
        colour = theme.colour_of(str(part["model"].iloc[0]), look.models)
        line(panel.ax, part, "depth", colour=colour)
        differs = part[part["p_adjusted"] < ALPHA]
        marks.dots(panel.ax, differs["depth"], differs["value"], colour=colour)
        depth_axis(panel.ax)
        if panel.row == CKA:
            panel.ax.set_ylim(min(0, part["low"].min()), 1.05)
        else:
            marks.zero(panel.ax)
    grid.label(
        marks.DEPTH,
        lambda p: (
            "CKA with the base"
            if p["y"].iloc[0] == CKA
            else f"Δ {axis_label(p['metric'].iloc[0])}"
        ),
    )
    differs_from_0 = {"marker": "o", "markersize": 4, "linestyle": "none"}
    handles = [entry("differs from 0 (adjusted p < .05)", **differs_from_0)]
    return grid.legend(handles).figure
