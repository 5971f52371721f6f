"""Scores, metrics, entropies of every order, sublayers and probes by depth."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.curves import name_readouts
from layerwise.association.scores import with_representation
from layerwise.config.studies import DIMENSIONS, VARIANT, kind
from layerwise.errors import LayerwiseError
from layerwise.figures import panels, select
from layerwise.figures.panels import Look
from layerwise.figures.select import SCORE, Data, with_unit
from layerwise.metrics.formulas import entropy_from_eigenvalues
from layerwise.metrics.registry import at_chance, bounds_of
from layerwise.vocabulary import BLOCK, LABELS, SUBLAYERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curves(data: Data) -> pd.DataFrame:
    """Scores, metrics or both by layer; `best` is the best score or the metric's better end.

    No layer is best where the model's output is better than all or several layers are equal, or by
    a metric that selects another layer without the first token.
    """
    if data.study.declaration.needs_orders and data.study.alpha is None:
        alphas = data.tables["metrics"]["alpha"].dropna().unique()
        every = tuple(sorted(map(float, alphas)))
        data = replace(data, study=data.study.model_copy(update={"alpha": every}))
    table = data.curves()
    if data.study.declaration.needs_orders and (table["alpha"] == "").any():
        metric = table.loc[table["alpha"] == "", "metric"].iloc[0]
        raise LayerwiseError(
            f"A study of kind {data.study.kind} is about α, which {metric} lacks; name "
            "prompt_entropy under `metrics`.",
            code="unsupported",
        )
    best = select.best_rows(table, data.directions)
    metrics = data.tables.get("metrics")
    if metrics is not None and "drop_first" in set(metrics["tokens"]):
        all_tokens = data.study.model_copy(update={"tokens": None})
        bare = replace(data, study=all_tokens).metrics(metrics, table)
        bare = select.with_dimensions(bare[bare["tokens"] == "drop_first"])
        keys = ["y", "model", "revision", "corpus", "sublayer", *VARIANT, "layer"]
        other = bare[keys].astype(str).assign(other=select.best_rows(bare, data.directions))
        paired = table[keys].astype(str).merge(other.drop_duplicates(keys), how="left")
        sink = (table["tokens"] == "all") & paired["other"].eq(False).to_numpy()
        best &= ~sink | (table["y"] == SCORE)
    if data.study.published:  # the papers mark no layer as a metric's
        best &= table["y"] == SCORE
    return with_chance(table.assign(best=best))


def with_chance(table: pd.DataFrame) -> pd.DataFrame:
    """Curves with the chance level of raw metrics that have one.

    A metric that is near chance at every layer (`at_chance`) selects none.
    """
    raw = table["y"].ne(SCORE) & (table.get("normalization") == "raw")
    if not raw.any():
        return table
    table["variant"] = table["variant"].fillna("") if "variant" in table else ""
    about = ["metric", "n", "protocol", "variant"]
    table.loc[raw, "chance"] = [bounds_of(*key)[0] for key in table[raw][about].to_numpy()]
    table["at_chance"] = False
    curve = [name for name in (*DIMENSIONS, *LABELS) if name in table]
    for _, rows in table[raw & table["chance"].notna()].groupby(curve, dropna=False):
        name, *more = rows.iloc[0][about]
        table.loc[rows.index, "at_chance"] = at_chance(name, rows["value"], *more)
    return table.assign(best=table["best"] & ~table["at_chance"])


@kind(
    "curves",
    table=curves,
    about="scores, metrics or both by depth, with roles that the study chooses",
    title="Curves by depth",
    reads=("metrics",),
    roles={"column": ("y",), "colour": ("model",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    metrics=("prompt_entropy", "curvature", "infonce"),
    caption=(
        "Scores and metrics by depth. Metrics on {n_prompts} prompts of {corpora}. {bands}{leads} "
        "Filled: best layer, or best by the metric unless the first token decides it or it stays "
        "near chance. Open: model output, or last layer."
    ),
)
@kind(
    "score_by_depth",
    table=curves,
    about="mean task score by depth, models as colours, or a panel each if they are many",
    title="Mean task score by depth",
    reads=("scores",),
    roles={"colour": ("model",), "dashes": ("representation",)},
    roles_of_checkpoints={"column": ("model", "representation"), "colour": ("revision",)},
    roles_of_many_models={"column": ("model",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) by depth.{leads} "
        "Filled: best layer. Open: the model's output, its last layer after its last "
        "norm.{chance}"
    ),
)
@kind(
    "metrics_by_depth",
    table=curves,
    about="metrics by depth, models compared",
    title="Metrics by depth",
    reads=("metrics",),
    roles={"column": ("y",), "row": ("representation",), "colour": ("model",)},
    roles_of_checkpoints={
        "row": ("y",),
        "column": ("model", "representation"),
        "colour": ("revision",),
    },
    takes=("row", "column", "colour", "dashes"),
    metrics=("prompt_entropy", "curvature", "infonce"),
    caption=(
        "Metrics by depth on {n_prompts} prompts of {corpora}. {bands} Filled: best layer by the "
        "metric's direction, unless the first token decides it or it stays near chance. Open: "
        "last layer.{chance}"
    ),
)
@kind(
    "metrics_over_checkpoints",
    table=curves,
    about="metrics by depth, a line per checkpoint",
    title="Metrics by depth over training",
    reads=("metrics",),
    roles={"row": ("y",), "column": ("model", "representation"), "colour": ("revision",)},
    takes=("row", "column", "colour", "dashes"),
    revisions="all",
    metrics=("prompt_entropy", "curvature", "infonce"),
    needs_checkpoints=True,
    caption=(
        "Metrics by depth at each checkpoint, on {n_prompts} prompts of {corpora}. {bands} "
        "Filled: best layer by the metric's direction, unless the first token decides it or it "
        "stays near chance. Open: last layer.{chance}"
    ),
)
@kind(
    "model_overview",
    table=curves,
    about="score and all metrics of one model by depth",
    title="Score and metrics by depth",
    reads=("metrics", "scores"),
    roles={"column": ("y",), "dashes": ("representation",)},
    takes=("row", "column", "colour", "dashes"),
    metrics=None,
    caption=(
        "Mean main score over {n_tasks} tasks ({n_clusters} task clusters) and metrics on "
        "{n_prompts} prompts of {corpora}, by depth. {bands}{leads} Filled: best layer, or best "
        "by the metric unless the first token decides it. Open: model output, or last layer."
    ),
)
@kind(
    "alpha_robustness",
    table=curves,
    about="an entropy by depth at every order alpha",
    title="Metrics at every order α",
    reads=("metrics",),
    roles={"column": ("model", "representation"), "colour": ("alpha",)},
    needs_orders=True,
    caption=(
        "Metric by depth on {n_prompts} prompts of {corpora}, at every order α. {bands} Filled: "
        "best layer by the metric's direction, unless the first token decides it. Open: last "
        "layer."
    ),
)
def plot_curves(table: pd.DataFrame, look: Look) -> Figure:
    """Draw lines by depth; best layers filled, outputs or last layers open.

    Scores have a panel of their difference to the output, with its interval, see `with_leads`.
    """
    table, look = with_leads(table, look)
    shown = set(table["y"])
    only_score = shown <= {SCORE, LEAD}
    height = 2.4 if only_score else panels.HEIGHT
    grid = panels.facets(table, look, height=height, low=LEAD)
    for panel in grid.panels:
        for style, subset in grid.curves(panel):
            _curve(panel.ax, subset, style, small=grid.many)
    scored = SCORE in shown
    words = ("best layer", "model output") if scored else ("best by the metric", "last layer")
    if scored and not only_score:
        by_metric = bool(table.loc[table["y"] != SCORE, "best"].any())
        words = (
            "best layer" + ", or best by the metric" * by_metric,
            words[1] + ", or last layer",
        )
    handles = [panels.entry(words[0], **panels.best())] if table["best"].any() else []
    handles.append(panels.entry(words[1], **panels.output()))
    if scored and table["n_tasks"].max() > 1:
        ends = table["n_tasks"].dropna().astype(int).agg(["min", "max"])
        handles.append(
            panels.entry(f"{' to '.join(map(str, sorted({*ends})))} tasks", color="none")
        )
    if "chance" in table and table["chance"].notna().any():
        handles.append(panels.entry("chance", color=panels.GREY, linestyle="dotted"))
    if "at_chance" in table and table["at_chance"].any():
        handles.append(
            panels.entry("near chance, selects no layer", color=panels.GREY, alpha=FAINT)
        )
    tasks = {*table.loc[table["y"] == SCORE, "task"]}
    task = tasks.pop() if len(tasks) == 1 else ""
    return grid.legend(handles).label(panels.DEPTH, partial(_axis, task=task)).figure


def with_leads(table: pd.DataFrame, look: Look) -> tuple[pd.DataFrame, Look]:
    """A table with its scores' differences to the output as rows of `y`, and a look with `y`.

    Layers are compared by the interval of that difference, which is of all layers together. There
    is none of a single task, of too few task clusters, on the one axes of a caller, or where a
    study compares token selections.
    """
    scores = table[(table["y"] == SCORE) & (table.get("n_tasks") != 1)]
    compared = select.DIFFERENCE in set(table["y"])
    if look.ax or compared or scores["low"].isna().all():
        return table, look
    ends = ["value", "low", "high"]
    leads = scores[ends].sub(scores["output_score"], axis=0)
    leads = scores.assign(**leads, y=LEAD, metric=LEAD, best=False)
    if not any("y" in dimensions for dimensions in look.roles.values()):
        look = replace(look, roles={**look.roles, "row": (*look.roles.get("row", ()), "y")})
    others = table["y"] != SCORE
    return pd.concat([table[~others], leads, table[others]], ignore_index=True), look


LEAD = "Difference to the output"
# Differences of scores, drawn with their intervals, and the labels of their axes.
DIFFERENCES = {
    LEAD: f"{LEAD} (× 100)",
    select.DIFFERENCE: "Score less that of all tokens (× 100)",
}
FAINT = 0.4
"""Opacity of curves that tell nothing."""


def _curve(ax: Axes, subset: pd.DataFrame, style: dict[str, Any], *, small: bool) -> None:
    y, ink = subset["y"].iloc[0], style["color"]
    scale = 100 if y == SCORE or y in DIFFERENCES else 1
    if "at_chance" in subset and subset["at_chance"].any():
        style = {**style, "alpha": FAINT}
    ends = () if y == SCORE else ("low", "high")
    shade = 0.08 if small else 0.16
    panels.line(ax, subset, "depth", ends=ends, scale=scale, shade=shade, markersize=2.2, **style)
    if y in DIFFERENCES:
        panels.zero(ax)
        return
    last = subset.loc[subset["depth"] == 1, "value"]
    if y == SCORE:
        last = subset["output_score"].dropna().head(1)
    if "chance" in subset and subset["chance"].notna().any():
        level = scale * subset["chance"].max()
        ax.axhline(level, color=panels.GREY, linestyle="dotted", lw=0.8)
    ax.plot([1.0] * len(last), scale * last, **panels.output(ink, small=small))
    best = subset[subset["best"]]
    panels.points(ax, best["depth"], scale * best["value"], **panels.best(ink, small=small))


def _axis(subset: pd.DataFrame, task: str) -> str:
    """The label of a panel's axis; `task` is the one that all scores of the figure are of."""
    y = subset["y"].iloc[0]
    if y == SCORE and task:
        return f"{task} (× 100)"
    return DIFFERENCES.get(y) or panels.metric_axis(subset)


# The steps of a block along the residual stream, in the order in which it computes them.
STREAM = {"mixer_residual": "mixer", BLOCK: "MLP"}


def sublayers(data: Data) -> pd.DataFrame:
    """Mean of each sublayer by layer, and changes of the residual stream, paired by prompt.

    ``what`` is ``metric`` or ``change``: by mixer and by MLP (``step``), which sum to the change
    from layer to layer.
    """
    by = [*select.POINT, "corpus", "metric"]
    rows = []
    for key, subset in data.prompts().groupby(by, sort=False):
        about = dict(zip(by, key, strict=True))
        there = [s for s in SUBLAYERS if s in set(subset["sublayer"])]
        curves = select.shared(*(select.matrix(subset[subset["sublayer"] == s]) for s in there))
        values = dict(zip(there, curves, strict=True))
        for sublayer, wide in values.items():
            rows.append(select.mean_by_layer(wide, **about, what="metric", sublayer=sublayer))
        before = values[BLOCK].iloc[:, :-1]
        layers = values[BLOCK].columns[1:]
        for sublayer, step in STREAM.items():
            if sublayer not in there or (step == "MLP" and "mlp" not in there):
                continue
            now = values[sublayer][layers]
            change = stats.paired_difference(now, before)
            more = {"what": "change", "sublayer": sublayer, "step": step}
            rows.append(select.by_layer(change, layers, **about, **more))
            before = now
    return pd.concat(rows, ignore_index=True)


@kind(
    "sublayers",
    table=sublayers,
    about="a metric at each sublayer, and the change that mixer and MLP make in each block",
    title="A metric inside blocks by depth",
    reads=("prompts",),
    roles={"column": ("model", "representation"), "colour": ("sublayer",)},
    roles_of_checkpoints={
        "column": ("model", "revision", "representation"),
        "colour": ("sublayer",),
    },
    caption=(
        "Metric inside blocks by depth, mean over {n_prompts} prompts of {corpora}. Below, the "
        "change of the residual stream that mixer and MLP make in each block. Bands: 95% CI over "
        "prompts, paired."
    ),
)
def plot_sublayers(table: pd.DataFrame, look: Look) -> Figure:
    """Draw the residual stream, the sublayers beside it, and what they add to it, by depth."""
    names = [s for s in SUBLAYERS if s in set(table["sublayer"])]
    in_block = (table["what"] == "change") | ~table["sublayer"].isin(list(STREAM))
    t = table.assign(part=table["what"].where(in_block, "stream"))
    t = t.sort_values("part", key=lambda subset: subset.map([*PARTS].index), kind="stable")
    grid = panels.facets(t, look.only(row=("part",), column=look.roles["column"]))
    for panel in grid.panels:
        styles = {**INSIDE, **ADDED} if panel.row == "change" else INSIDE
        for sublayer, curve in panel.table.groupby("sublayer", sort=False):
            panels.line(panel.ax, curve, "depth", **styles[str(sublayer)])
        if panel.row == "change":
            panels.zero(panel.ax)
    metric = str(table["metric"].iloc[0])
    grid.label(panels.DEPTH, {subset: with_unit(words, metric) for subset, words in PARTS.items()})
    return grid.legend([panels.entry(SUBLAYERS[s], **INSIDE[s]) for s in names]).figure


PARTS = {
    "stream": "Residual stream",
    "metric": "Inside the block",
    "change": "Added to the stream",
}
ADDED = {"mixer_residual": {"color": panels.PALETTE[1]}, BLOCK: {"color": panels.PALETTE[0]}}
INSIDE: dict[str, dict[str, Any]] = {
    "input_norm": {"color": panels.PALETTE[1], "linestyle": "dotted"},
    "mixer": {"color": panels.PALETTE[1]},
    "mixer_residual": {"color": panels.GREY, "linestyle": "dashed"},
    "mlp_norm": {"color": panels.PALETTE[0], "linestyle": "dotted"},
    "mlp": {"color": panels.PALETTE[0]},
    BLOCK: {"color": panels.INK},
}


# Columns of the scores of probes, as the table of this figure names them.
PROBE_COLUMNS = {
    "main_score": "linear",
    "score_low": "low",
    "score_high": "high",
    "baseline": "chance",
    "n_runs": "n_test",
}
NOT_OF_PROBES = ["subset", "split", "why", "chance", "text_source"]
PROBE_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "chance": ("most frequent class", {"color": panels.GREY, "linestyle": "dotted"}),
    "control": ("control", {"color": panels.GREY, "linestyle": "dashed"}),
    "selectivity": ("selectivity: probe less control", {"color": panels.PALETTE[1]}),
    "linear": ("linear probe", {"color": panels.PALETTE[0]}),
}
PROBED = {"Regression": "R² (× 100)"}


def probes_by_depth(data: Data) -> pd.DataFrame:
    """Linear probes by layer with their control; `p_adjusted` is of no difference between them.

    The test is one-sided, with the control's error taken to be as large as the probe's, and Holm's
    correction over the layers of a curve.
    """
    from scipy.stats import norm

    study, table = data.study, data.tables["scores"]
    # A study may name tasks without probes as well.
    is_probe = table["control"].notna() if "control" in table else False
    table = table[is_probe & table["task"].isin(study.tasks or table["task"])]
    if table.empty:
        raise LayerwiseError(
            "No score is of a probe; score a task of your own labels.", code="missing"
        )
    table = table.drop(columns=NOT_OF_PROBES, errors="ignore").rename(columns=PROBE_COLUMNS)
    table = name_readouts(select.at_checkpoints(table, data.checkpoints(table)))
    table = data.rows(table, "tokens", "task_type")
    table = with_representation(data.of_pooling(table))
    width = (table["high"] - table["low"]) / (2 * norm.isf(0.025))
    table["p"] = norm.sf(table["selectivity"] / (np.sqrt(2) * width))
    curve = table.groupby(["model", "representation", "task"])["p"]
    table = table.assign(p_adjusted=curve.transform(lambda p: stats.holm(p.to_numpy())), y="probe")
    return data.sort(table)


@kind(
    "probes_by_depth",
    table=probes_by_depth,
    about="linear probes of your own labels by depth, with their control and selectivity",
    title="Linear probes by depth",
    reads=("scores",),
    roles={"row": ("model", "representation"), "column": ("task",)},
    only_probes=True,
    caption=(
        "Linear probes by depth on test rows that they were not trained on. Band: 95% CI over "
        "groups of test rows. Control: the same probe on random labels (of tags: a random tag for "
        "each word type, Hewitt and Liang 2019). Filled: above the control, p < .05 one-sided "
        "after Holm's correction over layers."
    ),
)
def plot_probes_by_depth(table: pd.DataFrame, look: Look) -> Figure:
    """Draw probe, control and selectivity by depth."""
    grid = panels.facets(table, look, height=2.1)
    for panel in grid.panels:
        rows = panel.table
        for column, (_, style) in PROBE_LINES.items():
            ends = ("low", "high") if column == "linear" else ()
            panels.line(panel.ax, rows, "depth", column, ends, scale=100, **style)
        above = rows[rows["p_adjusted"] < stats.ALPHA]
        panels.dots(panel.ax, above["depth"], 100 * above["linear"], color=panels.PALETTE[0])
    grid.label(
        panels.DEPTH, lambda t: PROBED.get(t["task_type"].iloc[0], "Accuracy (%)"), share=False
    )
    filled = panels.dot(color=panels.PALETTE[0], markersize=4)
    handles = [panels.entry(name, **style) for name, style in PROBE_LINES.values()]
    handles.append(panels.entry("above its control (adjusted p < .05)", **filled))
    return grid.legend(handles).figure


EXPONENTS, N_EIGENVALUES = np.linspace(0, 3, 61), 1000
ORDERS = (0.5, 1.0, 1.5, 2.0, 4.0, math.inf)


def power_law(_data: Data) -> pd.DataFrame:
    """Matrix-based entropy of power-law spectra by exponent β and order α (Skean et al. 2025,
    Figure 7).

    Eigenvalues ``λ_i = i^-β``, i = 1 … n: flat at β = 0, where every order gives log n, and the
    more concentrated the larger β. Larger orders weigh the larger eigenvalues more and so fall
    faster (the printed caption says the opposite). ``entropy`` is in nats, ``share`` over log n.
    """
    ranks = np.arange(1, N_EIGENVALUES + 1, dtype=np.float64)
    spectra = ranks ** -EXPONENTS[:, None]
    table = pd.DataFrame(itertools.product(ORDERS, EXPONENTS), columns=["alpha", "beta"])
    entropies = [entropy_from_eigenvalues(spectra, alpha) for alpha in ORDERS]
    table = table[["beta", "alpha"]].assign(n=N_EIGENVALUES, entropy=np.concatenate(entropies))
    return table.assign(share=table["entropy"] / math.log(N_EIGENVALUES), metric="entropy")


@kind(
    "power_law",
    table=power_law,
    about="entropy of power-law spectra; needs no data",
    title="Entropy of power-law spectra",
    metrics=(),
    caption=(
        "Matrix-based entropy of spectra that fall as a power of their rank, for several orders "
        "α. At β = 0 the spectrum is flat. Computed from the definition, without data."
    ),
)
def plot_power_law(table: pd.DataFrame, look: Look) -> Figure:
    """Draw entropy against the exponent of the spectrum, a line per order."""
    table = table.assign(alpha=table["alpha"].astype(str))
    grid = panels.facets(table, look.only(colour=("alpha",)), height=2.4)
    for panel in grid.panels:
        for style, curve in grid.curves(panel):
            panels.line(panel.ax, curve, "beta", "share", **style | {"marker": ""})
    return grid.label("Exponent β of the spectrum", "Entropy / log n").legend(marker="").figure
