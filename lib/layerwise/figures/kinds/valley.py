"""The compression valley: what the first token does to it, over model sizes, over training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, theme
from layerwise.figures.labels import SCORE_AXIS, with_unit
from layerwise.figures.marks import depth_axis, entry, facets, line, place
from layerwise.figures.registry import Look, kind
from layerwise.figures.select import (
    POINT,
    Data,
    _with_dimensions,
    at_checkpoints,
    curves_of,
    matrix,
    mean_scores,
)
from layerwise.names import UNITS, size_of
from layerwise.stats import (
    ALPHA,
    FEWEST,
    Estimate,
    early_late_difference,
    holm,
    mean_ci,
    paired_difference,
    prominences,
    ratio_ci,
    simultaneous_ci,
    valley,
)

SHALLOW = 0.1  # of a curve's largest value: a shallower valley is no valley


def ends(found: Estimate, name: str = "") -> dict[str, Any]:
    """Value, interval and p of an estimate as columns."""
    names = ("value", "low", "high") if not name else (name, f"{name}_low", f"{name}_high")
    return dict(zip(names, found[:3], strict=True)) | {f"{name}_p" if name else "p": found.p}


def bootstrap_ci(
    statistic: Callable[..., float], *arrays: np.ndarray, n_resamples: int = 500, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a statistic of mean curves over prompts.

    Parameters
    ----------
    arrays : array, shape (n, L)
        Rows are the same prompts.
    """
    n = len(arrays[0])
    if n < FEWEST:
        return np.nan, np.nan
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), n_resamples) / n
    drawn = [statistic(*(w @ a for a in arrays)) for w in weights]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def shared(*wide: pd.DataFrame) -> list[np.ndarray]:
    """Matrices on the prompts that all have.

    Raises
    ------
    LayerwiseError
        If they share fewer than two prompts.
    """
    prompts = sorted(set.intersection(*(set(w.index) for w in wide)))
    if len(prompts) < 2:
        raise LayerwiseError(
            f"These models share {len(prompts)} prompts, and this study compares prompt by prompt; "
            "show models that were extracted on one corpus."
        )
    return [w.loc[prompts].to_numpy(dtype=float) for w in wide]


def attention_sink(data: Data) -> pd.DataFrame:
    """Metric by layer and token selection, and how much of its valley each selection removes.

    ``what`` is ``metric`` (a row per layer) or ``valley`` (a row per token selection): depth of
    the valley between the layers ``shoulder`` and ``lowest`` of all tokens; share of it that is
    ``gone``; and depth of the selection's own valley, ``own``, at ``own_lowest``.

    Raises
    ------
    LayerwiseError
        If there is no token selection to compare with all tokens.
    """
    table = data.prompts()
    selections = data.values(table, "tokens")
    if "all" not in selections or len(selections) < 2:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} compares all tokens with another selection; these "
            f"tables have {', '.join(selections)}: name all and others under extract.tokens."
        )
    rows = []
    for about, part in curves_of(table, ["model", "revision", "corpus", "metric"]):
        there = [s for s in selections if s in set(part["tokens"])]
        wide = [matrix(part[part["tokens"] == s]) for s in there]
        layers = wide[0].columns.to_numpy()
        arrays = dict(zip(there, shared(*wide), strict=True))
        whole, mean = valley(arrays["all"]), arrays["all"].mean(axis=0)
        shoulder = whole.left if mean[whole.left] <= mean[whole.right] else whole.right
        falls = {s: a[:, shoulder] - a[:, whole.layer] for s, a in arrays.items()}
        deep = whole.depth.low > 0 and whole.depth.estimate > SHALLOW * mean.max()
        for tokens, array in arrays.items():
            one = {**about, "tokens": tokens, "n": len(array)}
            found = mean_ci(array)._asdict()
            columns = {"value": found["estimate"], "low": found["low"], "high": found["high"]}
            at = {"layer": layers, "depth": layers / max(1, layers[-1])}
            rows.append(pd.DataFrame({**one, "what": "metric", **at, **columns}))
            own = valley(array)
            row = {**one, "what": "valley", "shoulder": layers[shoulder],
                   "lowest": layers[whole.layer], "own_lowest": layers[own.layer],
                   "is_valley": deep, **ends(own.depth, "own"),
                   **ends(whole.depth if tokens == "all" else mean_ci(falls[tokens]))}  # fmt: skip
            if deep and tokens != "all":
                row |= ends(ratio_ci(falls["all"] - falls[tokens], falls["all"]), "gone")
            rows.append(pd.DataFrame([row]))
    return pd.concat(rows, ignore_index=True)


@kind("attention_sink", "Compression valley by token selection", attention_sink)
def plot_sink(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the metric by depth, or the valley's depth by checkpoint, for each token selection."""
    sweep = table.groupby("model")["revision"].nunique().max() > 1
    t = place(
        table[(table["what"] == "valley") == sweep],
        Look({"column": ("model",), "dashes": ("tokens",)}, look.models),
    )
    strokes = marks.dashes(t)
    grid = facets(t, Look({"column": ("model",)}, look.models), height=2.4)
    for panel in grid.panels:
        colour = theme.colour_of(str(panel.table["model"].iloc[0]), look.models)
        names = list(panel.table["revision"].unique())
        for dash, part in panel.table.groupby("dashes"):
            part = part.assign(place=part["revision"].map(names.index))
            line(
                panel.ax,
                part,
                "place" if sweep else "depth",
                colour=colour,
                linestyle=strokes[dash],
            )
        if sweep:
            marks.zero(panel.ax)
            marks.checkpoint_axis(panel.ax, names)
            continue
        depth_axis(panel.ax)
        own = table[(table["what"] == "valley") & (table["model"] == panel.table["model"].iloc[0])]
        if own["is_valley"].any():
            for layer in own[["shoulder", "lowest"]].iloc[0]:
                panel.ax.axvline(
                    layer / panel.table["layer"].max(), color=theme.GREY, linewidth=0.7
                )
    metric = str(t["metric"].iloc[0])
    if sweep:
        grid.label(
            marks.step_label(list(t["revision"].unique())),
            with_unit("Depth of the valley", metric),
        )
    else:
        grid.label(marks.DEPTH, marks.axis_label(metric), share=False)
    handles = [entry(n, linestyle=s) for n, s in strokes.items()]
    if not sweep:
        handles.append(
            entry("valley with all tokens, and its shoulder", color=theme.GREY, linewidth=0.7)
        )
    return grid.legend(handles).figure


def size_scaling(data: Data) -> pd.DataFrame:
    """Depth and place of the valley by number of parameters; over data sets if published.

    ``what`` is ``metric`` (a row per layer) or ``valley``: depth with interval and p, ``place``
    from 0 (first layer) to 1, and the ``change`` in depth from the next smaller size, paired by
    prompt.
    """
    if data.study.published:
        table = _of_data_sets(data)
    else:
        table = data.prompts()
    sizes = {m: _size(m, data.study) for m in table["model"].unique()}
    rows, before = [], {}
    table = table.assign(parameters=table["model"].map(sizes)).sort_values(
        "parameters", kind="stable"
    )
    for about, part in curves_of(table, ["y", "metric", "representation", "model", "parameters"]):
        wide = matrix(part)
        array, layers = wide.to_numpy(dtype=float), wide.columns.to_numpy()
        one = {**about, "parameters": float(about["parameters"]), "n": len(array)}
        found = mean_ci(array)
        at = {"layer": layers, "depth": layers / max(1, layers[-1])}
        rows.append(pd.DataFrame({**one, "what": "metric", **at, "value": found.estimate,
                                  "low": found.low, "high": found.high}))  # fmt: skip
        dip = valley(array)
        last = len(layers) - 1
        low, high = bootstrap_ci(lambda curve: float(np.argmax(prominences(curve))) / last, array)
        row = {**one, "what": "valley", **ends(dip.depth), "layer": layers[dip.layer],
               "place": dip.layer / last, "place_low": low, "place_high": high}  # fmt: skip
        depths = pd.Series(dip.depths, wide.index)
        smaller = before.get((about["y"], about["representation"]))
        if smaller is not None:
            both = depths.index.intersection(smaller[1].index)
            change = paired_difference(depths[both], smaller[1][both])
            row |= {"smaller": smaller[0], **ends(change, "change")}
        before[about["y"], about["representation"]] = about["model"], depths
        rows.append(pd.DataFrame([row]))
    found = pd.concat(rows, ignore_index=True)
    for column in ("p", "change_p"):
        if column in found:
            found[f"{column}_adjusted" if column != "p" else "p_adjusted"] = holm(found[column])
    return found


def _of_data_sets(data: Data) -> pd.DataFrame:
    """Published metrics, with data sets in the place of prompts."""
    metrics = data.tables["metrics"]
    picked = at_checkpoints(data.pick_metrics(metrics), data.checkpoints([metrics]))
    table = data.pick_variants(picked)
    table = _with_dimensions(
        table.assign(prompt_id=table["corpus"], corpus="", representation=table["tokens"])
    )
    data.require_roles(table)
    return data.sort(table)


def _size(model: str, study: Study) -> float:
    found = (study.sizes or {}).get(model) or size_of(model)
    if found is None:
        raise LayerwiseError(
            f"The name {model!r} does not contain a number of parameters, as pythia-410m does; "
            "give it under `sizes`."
        )
    return float(found)


def _short(size: float) -> str:
    unit = next((u for u, one in reversed(UNITS.items()) if size >= one), "")
    return f"{size / UNITS.get(unit, 1):.3g}{unit.upper()}"


@kind("size_scaling", "Compression valley by model size", size_scaling)
def plot_sizes(table: pd.DataFrame, look: Look) -> Figure:
    """Draw all sizes by depth; below, depth and place of the valley against size."""
    columns = Look({"column": ("y", "representation")}, look.models)
    parts = [table[table["what"] == "metric"].assign(shown="metric")]
    parts += [table[table["what"] == "valley"].assign(shown=r) for r in ("depth", "place")]
    t = place(pd.concat(parts, ignore_index=True), columns)
    t["row"] = pd.Categorical(t["shown"], ["metric", "depth", "place"])
    grid = facets(t, columns, height=1.75)
    names = list(table.sort_values("parameters")["model"].unique())
    scale = mpl.colormaps[theme.SEQUENTIAL](np.linspace(0, 0.9, len(names)))
    colours = dict(zip(names, scale, strict=True))
    sizes = table.drop_duplicates("model").set_index("model")["parameters"].sort_values()
    for panel in grid.panels:
        for model, part in panel.table.groupby("model", sort=False):
            colour = colours[model]
            if panel.row == "metric":
                line(panel.ax, part, "depth", colour=colour)
                continue
            which = (
                ("value", "low", "high")
                if panel.row == "depth"
                else ("place", "place_low", "place_high")
            )
            scaled = part[list(which)] * (100 if panel.row == "place" else 1)
            marks.dots(panel.ax, part["parameters"], *scaled.T.to_numpy(), colour=colour, vertical=True,
                       filled=part["p_adjusted"] < ALPHA)  # fmt: skip
        if panel.row == "metric":
            depth_axis(panel.ax)
            panel.ax.set_xlabel(marks.DEPTH)
            continue
        panel.ax.set_xscale("log")
        panel.ax.xaxis.set_minor_locator(NullLocator())
        panel.ax.set_xticks(
            sizes, [_short(s) for s in sizes], rotation=90 if len(sizes) > 4 else 0
        )
        panel.ax.margins(x=0.12)
        if panel.row == "place":
            panel.ax.set_ylim(-5, 105)
        else:
            marks.zero(panel.ax)
    metric = str(t["metric"].iloc[0])
    words = {
        "metric": marks.axis_label(metric),
        "depth": with_unit("Depth of the valley", metric),
        "place": "Place of the valley (% of layers)",
    }
    grid.label("Parameters", lambda p: words[p["row"].iloc[0]], share=False)
    handles = [entry(n, color=colours[n]) for n in names]
    handles.append(entry("deeper than 0 (adjusted p < .05)", marker="o", linestyle="none"))
    return grid.legend(handles).figure


def training_dynamics(data: Data) -> pd.DataFrame:
    """Change of each layer between checkpoints, and valley, sink and scores at each.

    ``what`` is ``change`` (of a layer from the checkpoint before, paired by prompt), ``late less
    early`` (change from the first to the last checkpoint, last third of the layers less the
    first), ``valley``, ``valley change`` (from the checkpoint before, paired), ``sink`` (largest
    increase over layers without the first token), ``best layer`` and ``last layer`` (scores).
    p is adjusted (Holm) over all rows of one kind of a model and representation.
    """
    table = data.prompts()
    points = data.points(table)
    chosen = at_checkpoints(
        data.pick_scores(), table.groupby("model")["revision"].unique().to_dict()
    )
    if chosen["pooling"].nunique() > 1:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} shows one pooling; name one under `pooling`."
        )
    scores = mean_scores(chosen)
    wide = {
        (a["model"], a["representation"], a["revision"]): matrix(part)
        for a, part in curves_of(table, POINT)
    }
    rows: list[pd.DataFrame] = []
    for model, rep in dict.fromkeys(key[:2] for key in wide):
        about = {"model": model, "representation": rep, "corpus": table["corpus"].iloc[0],
                 "metric": table["metric"].iloc[0]}  # fmt: skip
        names = [r for m, r in points if m == model and (model, rep, r) in wide]
        cubes = shared(*(wide[model, rep, r] for r in names))
        layers = wide[model, rep, names[0]].columns.to_numpy()

        def add(what: str, found: Any, **more: Any) -> None:
            values = ends(found) if isinstance(found, Estimate) else found
            frame = {**about, "what": what, "n": len(cubes[0]), **values, **more}
            one = pd.DataFrame(frame if np.ndim(values["value"]) else [frame])
            rows.append(one)

        add("late less early", early_late_difference(cubes[-1] - cubes[0]), revision=names[-1])
        valleys = [valley(c) for c in cubes] if len(layers) > 2 else []
        for k, name in enumerate(names):
            if k:
                add(
                    "change",
                    paired_difference(cubes[k], cubes[k - 1]),
                    revision=name,
                    layer=layers,
                )
            if valleys:
                add("valley", valleys[k].depth, revision=name, layer=layers[valleys[k].layer])
            if valleys and k:
                change = paired_difference(valleys[k].depths, valleys[k - 1].depths)
                add("valley change", change, revision=name)
            bare = wide.get((model, "drop_first", name)) if rep == "all" else None
            if bare is not None:
                found = simultaneous_ci(np.subtract(*shared(bare, wide[model, rep, name])))
                at = int(np.argmax(found.estimate))
                one = Estimate(*(np.asarray(v)[at] for v in found[:5]), found.n)
                add("sink", one, revision=name, layer=layers[at])
            tokens = table.loc[table["representation"] == rep, "tokens"].iloc[0]
            mine = scores[
                (scores["model"] == model)
                & (scores["tokens"] == tokens)
                & (scores["revision"] == name)
            ]
            mine = mine.dropna(subset=["value"])
            for what, column in (
                (("best layer", "value"), ("last layer", "layer")) if len(mine) else ()
            ):
                row = mine.loc[mine[column].idxmax()]
                add(what, dict(row[["value", "low", "high"]]), revision=name, layer=row["layer"],
                    n_tasks=row["n_tasks"], n_clusters=row["n_clusters"], n=np.nan)  # fmt: skip
    found = pd.concat(rows, ignore_index=True)
    groups = found.groupby(["what", "model", "representation"])["p"]
    return found.assign(p_adjusted=groups.transform(lambda p: holm(p.to_numpy(dtype=float))))


@kind("training_dynamics", "Layers, valley, sink and scores over training", training_dynamics)
def plot_training(table: pd.DataFrame, look: Look) -> Figure:
    """Draw significant changes as a heat map; below, valley and sink; below, scores."""
    columns = Look({"column": ("model", "representation")}, look.models)
    rows = {
        "change": "change",
        "valley": "valley",
        "sink": "valley",
        "best layer": "score",
        "last layer": "score",
    }
    t = place(table[table["what"].isin(list(rows))], columns)
    t["row"] = pd.Categorical(t["what"].map(rows), ["change", "valley", "score"])
    t["row"] = t["row"].cat.remove_unused_categories()
    grid = facets(t, columns)
    limit = float(t.loc[t["what"] == "change", "value"].abs().max()) or 1.0
    dashes = {"valley": "solid", "sink": "dashed", "best layer": "solid", "last layer": "dotted"}
    for panel in grid.panels:
        part = panel.table
        model, rep = part[["model", "representation"]].iloc[0]
        names = list(
            table.loc[(table["model"] == model) & (table["what"] == "valley"), "revision"].unique()
        )
        if panel.row == "change":
            names = [n for n in names if n in set(part["revision"])]
            shown = part.assign(value=part["value"].where(part["p_adjusted"] < ALPHA, 0.0))
            image = marks.heat(
                panel.ax, shown.pivot(index="layer", columns="revision", values="value")[names],
                vmin=-limit, vmax=limit, cmap=theme.DIVERGING, xticks=names,
            )  # fmt: skip
            continue
        for what, one in part.groupby("what", sort=False):
            one = one.assign(place=one["revision"].map(names.index))
            line(panel.ax, one, "place", colour=theme.colour_of(model, look.models), linestyle=dashes[what],
                 scale=100 if panel.row == "score" else 1, marker="o", markersize=2.5)  # fmt: skip
        if panel.row == "valley":
            marks.zero(panel.ax)
        marks.checkpoint_axis(panel.ax, names)
    metric = str(t["metric"].iloc[0])
    words = {
        "change": "Layer",
        "valley": with_unit("Valley and sink", metric),
        "score": SCORE_AXIS,
    }
    grid.label(
        marks.step_label(list(t["revision"].unique())),
        lambda p: words[p["row"].iloc[0]],
        share=("valley", "score"),
    )
    grid.bar(image, with_unit("Change from the checkpoint before", metric), grid.row("change"))
    handles = [entry(w, linestyle=s) for w, s in dashes.items() if w in set(t["what"])]
    return grid.legend(handles).figure
