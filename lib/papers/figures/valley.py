"""The compression valley: what the first token does to it, over model sizes, over training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.scores import mean_scores
from layerwise.config.studies import Study, kind
from layerwise.errors import LayerwiseError
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import SCORE_AXIS, Data, axis_label, value_label, with_unit
from layerwise.names import UNITS, size_of
from layerwise.vocabulary import RESIDUAL
from papers import shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHALLOW = 0.1  # of a curve's largest value: a shallower valley is no valley


def place_ci(curves: np.ndarray, n_resamples: int = 500) -> tuple[float, float]:
    """Percentile interval of the index of the deepest valley over prompts, shape (n, L)."""
    n = len(curves)
    if n < stats.FEWEST:
        return np.nan, np.nan
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), n_resamples) / n
    places = [np.argmax(shapes.prominences(curve)) for curve in weights @ curves]
    low, high = np.quantile(places, [0.025, 0.975])
    return float(low), float(high)


def attention_sink(data: Data) -> pd.DataFrame:
    """Metric by layer and token selection, and how much of its valley each selection removes.

    ``what`` is ``metric`` (a row per layer) or ``valley`` (a row per token selection): depth of
    the valley between the layers ``shoulder`` and ``lowest`` of all tokens, and the share of it
    that is ``gone``.

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
            f"tables have {', '.join(selections)}: name all and others under extract.tokens.",
            code="too_few",
        )
    rows: list[pd.DataFrame] = []
    by = ["model", "corpus", "metric"]
    for key, subset in table.groupby(by, sort=False):
        values = select.matrices(subset, ["revision", "tokens"])
        values = dict(zip(values, select.shared(*values.values()), strict=True))
        valleys = []
        for (revision, tokens), of_tokens in values.items():
            about = dict(zip(by, key, strict=True)) | {"revision": revision, "tokens": tokens}
            rows.append(select.mean_by_layer(of_tokens, **about, what="metric"))
            valleys.append(about | _valley(values[revision, "all"], of_tokens))
        rows.append(pd.DataFrame(valleys))
    return pd.concat(rows, ignore_index=True)


def _valley(of_all: pd.DataFrame, of_tokens: pd.DataFrame) -> dict[str, Any]:
    """The valley of all tokens, and how deep it is with a token selection; by prompt and layer."""
    valley, mean = shapes.valley(of_all), of_all.mean()
    shoulder = mean.iloc[[valley.left, valley.right]].idxmin()
    lowest = of_all.columns[valley.layer]
    is_valley = valley.depth.low > 0 and valley.depth.estimate > SHALLOW * mean.max()
    row = {"what": "valley", "n": len(of_all), "is_valley": is_valley}
    row |= {"shoulder": shoulder, "lowest": lowest}
    if of_tokens is of_all:
        return row | select.ends(stats.mean_ci(valley.depths))
    fall_of_all, fall = (values[shoulder] - values[lowest] for values in (of_all, of_tokens))
    row |= select.ends(stats.mean_ci(fall))
    if is_valley:
        row |= select.ends(stats.ratio_ci(fall_of_all - fall, fall_of_all), "gone")
    return row


@kind(
    "attention_sink",
    table=attention_sink,
    about="a metric by depth with and without sink tokens, and their share of its valley",
    title="Compression valley by token selection",
    reads=("prompts",),
    roles={"column": ("model",), "dashes": ("tokens",)},
    caption=(
        "Metric on {n_prompts} prompts of {corpora} for each token selection. A valley's depth is "
        "the difference of its lowest layer from the lower of the highest layers before and after "
        "it. The table has the share of the valley that goes without some tokens. Bands: 95% CI "
        "over prompts."
    ),
)
def plot_attention_sink(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the metric by depth for each token selection, with the valley of all tokens."""
    curves, valleys = (table[table["what"] == what] for what in ("metric", "valley"))
    grid = panels.facets(curves, look.only(column=("model",), dashes=("tokens",)), height=2.4)
    for panel in grid.panels:
        for style, curve in grid.curves(panel):
            panels.line(panel.ax, curve, "depth", **style)
        deep = valleys[valleys["is_valley"] & (valleys["model"] == panel.column)]
        for layer in deep[["shoulder", "lowest"]].head(1).to_numpy().ravel():
            depth = layer / panel.table["layer"].max()
            panel.ax.axvline(depth, color=panels.GREY, linewidth=0.7)
    shoulder = {"color": panels.GREY, "linewidth": 0.7}
    handles = [panels.entry("valley with all tokens, and its shoulder", **shoulder)]
    label = axis_label(str(table["metric"].iloc[0]))
    return grid.label(panels.DEPTH, label, share=False).legend(handles).figure


def valley_and_peak(data: Data) -> pd.DataFrame:
    """Scores and a metric by layer of a model and of the same without what makes its valley.

    A model whose name is another's, a dash and more (``gemma-without-massive``) is that model with
    something removed. ``what`` is ``score`` or ``metric``; ``removed`` says what is taken from the
    residual stream, ``final norm`` what is added; ``extreme`` marks each curve's best score and
    lowest metric. Scores have no intervals here: they are compared layer by layer in
    ``score_differences``.
    """
    metrics = data.prompts()
    curves = select.matrices(metrics, ["model", "tokens"])
    rows = [
        select.mean_by_layer(wide, model=model, tokens=tokens, pooling="", what="metric")
        for (model, tokens), wide in curves.items()
    ]
    scores = mean_scores(data.scores(metrics)).assign(what="score")
    drawn = ["model", "tokens", "pooling", "what", "layer", "depth", "value", "n_tasks"]
    table = pd.concat([scores[[*drawn, "n_clusters"]], *rows], ignore_index=True)
    names = sorted(set(table["model"]), key=len)
    whole = {m: next(n for n in names if m == n or m.startswith(f"{n}-")) for m in names}
    table["removed"] = [
        ", ".join(
            [
                *filter(None, [model.removeprefix(whole[model]).replace("-", " ").strip()]),
                *([value_label("tokens", tokens)] if tokens != "all" else []),
                *(["final norm"] if pooling and not pooling.endswith(RESIDUAL) else []),
            ]
        )
        or "as it is"
        for model, tokens, pooling in table[["model", "tokens", "pooling"]].to_numpy()
    ]
    table["model"] = table["model"].map(whole)
    signed = table["value"].where(table["what"] == "score", -table["value"])
    by_curve = signed.groupby([table["what"], table["model"], table["removed"]])
    table["extreme"] = by_curve.transform("idxmax") == table.index
    metric = metrics["metric"].iloc[0]
    return table.assign(metric=metric, corpus=metrics["corpus"].iloc[0])


@kind(
    "valley_and_peak",
    table=valley_and_peak,
    about="scores and a metric by depth while its valley is removed: does the best layer move?",
    title="Valley and best layer, with its causes removed",
    reads=("prompts", "scores"),
    roles={"column": ("model",), "colour": ("tokens", "pooling")},
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) and metric on "
        "{n_prompts} prompts of {corpora}: of the residual stream as it is, without what makes "
        "its valley, and after the final norm. Dots: best score, lowest metric. Band: 95% CI over "
        "prompts."
    ),
)
def plot_valley_and_peak(table: pd.DataFrame, look: Look) -> Figure:
    """Draw scores above the metric, a column a model and a colour for what is removed."""
    look = look.only(row=("what",), column=("model",), colour=("removed",))
    grid = panels.facets(table.sort_values(["what", "removed"], ascending=[False, True]), look)
    for panel in grid.panels:
        scale = 100 if panel.row == "score" else 1
        for style, curve in grid.curves(panel):
            panels.line(panel.ax, curve, "depth", scale=scale, **style | {"marker": ""})
            extreme = curve[curve["extreme"]]
            dot = panels.best(style["color"], small=True)
            panels.points(panel.ax, extreme["depth"], scale * extreme["value"], **dot)
        panels.depth_axis(panel.ax)
    labels = {"score": SCORE_AXIS, "metric": axis_label(str(table["metric"].iloc[0]))}
    grid.label(panels.DEPTH, labels, share=False)
    return grid.legend(
        [panels.entry("best score, lowest metric", **panels.best())], marker=""
    ).figure


def size_scaling(data: Data) -> pd.DataFrame:
    """Depth and place of the valley by number of parameters; over data sets if published.

    ``what`` is ``metric`` (a row per layer) or ``valley``: depth with interval and p, ``place``
    from 0 (first layer) to 1, and the ``change`` in depth from the next smaller size, paired by
    prompt.
    """
    table = _of_data_sets(data) if data.study.published else data.prompts()
    sizes = {m: _size(m, data.study) for m in table["model"].unique()}
    table["parameters"] = table["model"].map(sizes)
    table = table.sort_values("parameters", kind="stable")
    rows: list[pd.DataFrame] = []
    before: dict[tuple[str, ...], tuple[str, pd.Series[float]]] = {}
    by = ["y", "metric", "representation", "model"]
    for key, wide in select.matrices(table, by).items():
        *curve, model = key
        one = dict(zip(by, key, strict=True)) | {"parameters": sizes[model]}
        rows.append(select.mean_by_layer(wide, **one, what="metric"))
        dip, last = shapes.valley(wide), len(wide.columns) - 1
        low, high = place_ci(wide.to_numpy())
        row = {**one, "what": "valley", "n": len(wide), **select.ends(dip.depth)}
        row |= {"layer": wide.columns[dip.layer], "place": dip.layer / last}
        row |= {"place_low": low / last, "place_high": high / last}
        depths = pd.Series(dip.depths, wide.index)
        if tuple(curve) in before:
            smaller, others = before[tuple(curve)]
            both = depths.index.intersection(others.index)
            change = stats.paired_difference(depths[both], others[both])
            row |= {"smaller": smaller, **select.ends(change, "change")}
        before[tuple(curve)] = model, depths
        rows.append(pd.DataFrame([row]))
    result = pd.concat(rows, ignore_index=True)
    adjusted = {f"{p}_adjusted": stats.holm(result[p]) for p in ("p", "change_p") if p in result}
    return result.assign(**adjusted)


def _of_data_sets(data: Data) -> pd.DataFrame:
    """Published metrics, with the data sets of all models in the place of prompts.

    A state after the final norm is no shoulder of a valley of states without it.
    """
    metrics = data.tables["metrics"]
    if "normed" in metrics:
        metrics = metrics[~metrics["normed"]]
        data.omit(["the last layer"], "it has the final norm, the others have not")
    table = data.metrics(metrics, data.checkpoints(metrics))
    n_models = table.groupby("corpus")["model"].transform("nunique")
    table = table[n_models == table["model"].nunique()]
    return data.tidy(table.assign(prompt_id=table["corpus"], corpus=""))


def _size(model: str, study: Study) -> float:
    size = (study.sizes or {}).get(model) or size_of(model)
    if size is None:
        raise LayerwiseError(
            f"The name {model!r} does not contain a number of parameters, as pythia-410m does; "
            "give it under `sizes`.",
            code="missing",
        )
    return float(size)


def _short(size: float) -> str:
    unit = next((u for u, one in reversed(UNITS.items()) if size >= one), "")
    return f"{size / UNITS.get(unit, 1):.3g}{unit.upper()}"


@kind(
    "size_scaling",
    table=size_scaling,
    about="depth and place of the compression valley by number of parameters",
    title="Compression valley by model size",
    reads=("prompts",),
    published=("metrics",),
    roles={"row": ("y",), "column": ("representation",), "colour": ("model",)},
    caption=(
        "Metric by depth for each model size, mean over {n_prompts} prompts of {corpora} (of "
        "published tables: over data sets in place of prompts); then depth of the valley (95% CI "
        "over prompts, cross-fitted) and its place (95% bootstrap CI). Filled: deeper than 0, p < "
        ".05 adjusted (Holm). Each size is one training run."
    ),
)
def plot_size_scaling(table: pd.DataFrame, look: Look) -> Figure:
    """Draw all sizes by depth; below, depth and place of the valley against size."""
    valleys = table[table["what"] == "valley"].assign(what="depth")
    places = valleys.assign(what="place")
    for end in ("", "_low", "_high"):
        places[end.strip("_") or "value"] = 100 * places[f"place{end}"]
    t = pd.concat([table[table["what"] == "metric"], valleys, places], ignore_index=True)
    look = look.only(
        ordered=True, row=("what",), column=("y", "representation"), colour=("model",)
    )
    grid = panels.facets(t.sort_values("parameters", kind="stable"), look, height=1.75)
    sizes = sorted(table["parameters"].unique())
    for panel in grid.panels:
        ax = panel.ax
        for style, subset in grid.curves(panel):
            if panel.row == "metric":
                panels.line(ax, subset, "depth", **style | {"marker": ""})
                continue
            filled = subset["p_adjusted"] < stats.ALPHA
            ends = subset["value"], subset["low"], subset["high"]
            panels.dots(ax, subset["parameters"], *ends, filled, vertical=True, **style)
        if panel.row == "metric":
            panels.depth_axis(ax)
            ax.set_xlabel(panels.DEPTH)
            continue
        ax.set_xscale("log")
        ax.minorticks_off()
        ax.set_xticks(sizes, map(_short, sizes), rotation=90 if len(sizes) > 4 else 0)
        ax.margins(x=0.12)
        if panel.row == "place":
            ax.set_ylim(-5, 105)
        else:
            panels.zero(ax)
    metric = str(t["metric"].iloc[0])
    depth, place = with_unit("Depth of the valley", metric), "Place of the valley (% of layers)"
    labels = {"metric": axis_label(metric), "depth": depth, "place": place}
    grid.label("Parameters", labels, share=False)
    return grid.legend(
        [panels.entry("deeper than 0 (adjusted p < .05)", **panels.dot())], marker=""
    ).figure


SCORED = ["revision", "layer", "value", "n_tasks", "n_clusters"]


def training_dynamics(data: Data) -> pd.DataFrame:
    """Change of each layer between checkpoints, and valley, sink and scores at each.

    ``what`` is ``change`` (of a layer from the checkpoint before, paired by prompt), ``valley``,
    ``sink`` (largest increase over layers without the first token), ``best layer`` and ``last
    layer`` (scores; `scores_over_checkpoints` has the interval of the best layer's lead).
    p is adjusted (Holm) over all rows of one kind of a model and representation.
    """
    table = data.prompts()
    scores = data.scores(table)
    if scores["pooling"].nunique() > 1:
        raise LayerwiseError(
            f"A study of kind {data.study.kind} shows one pooling; name one under `pooling`.",
            code="ambiguous",
        )
    curves = select.matrices(table, ["model", "representation", "revision"])
    scores, frames = mean_scores(scores).dropna(subset=["value"]), []
    for model, representation in dict.fromkeys(key[:2] for key in curves):
        names = [r for m, r in data.checkpoints(table).itertuples(index=False) if m == model]
        without_first = [r for r in names if (model, "drop_first", r) in curves]
        course = _over_checkpoints(
            {r: curves[model, representation, r] for r in names},
            {r: curves[model, "drop_first", r] for r in without_first if representation == "all"},
        )
        scored = scores[(scores["model"] == model) & (scores["tokens"] == representation)]
        scored = scored.sort_values("revision", key=lambda r: r.map(names.index), kind="stable")
        by_revision = scored.groupby("revision", sort=False)
        best, last = (
            scored.loc[by_revision[column].idxmax(), SCORED].assign(what=what)
            for what, column in (("best layer", "value"), ("last layer", "layer"))
        )
        rows = pd.concat([course, best, last], ignore_index=True)
        frames.append(rows.assign(model=model, representation=representation))
    result = pd.concat(frames, ignore_index=True)
    result = result.assign(corpus=table["corpus"].iloc[0], metric=table["metric"].iloc[0])
    by_kind = result.groupby(["what", "model", "representation"])
    return result.assign(p_adjusted=by_kind["p"].transform(stats.holm))


def _over_checkpoints(
    curves: Mapping[str, pd.DataFrame], without_first: Mapping[str, pd.DataFrame]
) -> pd.DataFrame:
    """Changes, valleys and sinks of one model and representation over its checkpoints.

    Parameters
    ----------
    curves, without_first : mapping of checkpoint to DataFrame
        Values by prompt and layer, and those without the first token where a sink is wanted.
    """
    values = dict(zip(curves, select.shared(*curves.values()), strict=True))
    changes, rows = [], []
    for before, name in itertools.pairwise(values):
        change = stats.paired_difference(values[name], values[before])
        layers = values[name].columns
        changes.append(select.by_layer(change, layers, what="change", revision=name, p=change.p))
    for name, of_prompts in values.items():
        layers, about = of_prompts.columns, {"revision": name, "n": len(of_prompts)}
        if len(layers) > 2:
            valley = shapes.valley(of_prompts)
            row = {"what": "valley", **about, "layer": layers[valley.layer]}
            rows.append(row | select.ends(valley.depth))
        if name in without_first:
            bare, whole = select.shared(without_first[name], curves[name])
            sink = stats.simultaneous_ci(bare - whole)
            at = int(np.argmax(sink.estimate))
            largest = {column: np.asarray(ends)[at] for column, ends in select.ends(sink).items()}
            rows.append({"what": "sink", **about, "layer": layers[at], **largest})
    return pd.concat([*changes, pd.DataFrame(rows)], ignore_index=True)


@kind(
    "training_dynamics",
    table=training_dynamics,
    about="change of each layer between checkpoints, with valley, sink and scores",
    title="Layers, valley, sink and scores over training",
    reads=("prompts", "scores"),
    roles={"column": ("model", "representation"), "x_axis": ("revision",)},
    revisions="all",
    single=("pooling",),
    needs_checkpoints=True,
    caption=(
        "Change of the metric of each layer from the checkpoint before, on {n_prompts} prompts of "
        "{corpora}, paired by prompt; coloured where p < .05, adjusted (Holm). Then depth of the "
        "valley, and the largest increase over layers without the first token (sink). Then mean "
        "main score over {n_tasks} tasks ({n_clusters} task clusters). Bands: 95% CI over "
        "prompts."
    ),
)
def plot_training_dynamics(table: pd.DataFrame, look: Look) -> Figure:
    """Draw significant changes as a heat map; below, valley and sink; below, scores."""
    rows = {"sink": "valley", "best layer": "score", "last layer": "score"}
    t = table.assign(part=table["what"].replace(rows), what=table["what"].replace("change", ""))
    columns = ("model", "representation")
    grid = panels.facets(t, look.only(row=("part",), column=columns, colour=("what",)))
    limit = float(t.loc[t["part"] == "change", "value"].abs().max()) or 1.0
    for panel in grid.panels:
        # There is no change to the first checkpoint; its column stays empty.
        others = grid.table[grid.table["row"] != "change"]
        names = list(others.loc[others["column"] == panel.column, "revision"].unique())
        if panel.row == "change":
            significant = panel.table["p_adjusted"] < stats.ALPHA
            changes = panel.table.assign(value=panel.table["value"].where(significant, 0.0))
            wide = select.by_checkpoint(changes).reindex(columns=names)
            image = panels.heat(panel.ax, wide, vmin=-limit, vmax=limit, cmap=panels.DIVERGING)
            panels.checkpoint_axis(panel.ax, names, offset=0.5)
            continue
        for style, curve in grid.curves(panel):
            scale = 100 if panel.row == "score" else 1
            panels.course(panel.ax, curve, names, scale=scale, markersize=2.5, **style)
        if panel.row == "valley":
            panels.zero(panel.ax)
        panels.checkpoint_axis(panel.ax, names)
    metric = str(t["metric"].iloc[0])
    shown = [what for what in ("valley", "sink") if what in set(table["what"])]
    valleys = with_unit(" and ".join(shown).capitalize(), metric)
    labels = {"change": "Layer", "valley": valleys, "score": SCORE_AXIS}
    grid.label(panels.step_label(t["revision"]), labels)
    grid.bar(image, with_unit("Change from the checkpoint before", metric), grid.row("change"))
    return grid.legend().figure
