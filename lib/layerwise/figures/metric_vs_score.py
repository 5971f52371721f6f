"""Metric against mean task score, a point per layer: does the metric know which layer is good?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.ticker import MaxNLocator

from layerwise.association.curves import OWN_TEXTS, VARIANT, metric_curves, score_curves
from layerwise.association.measures import check_measure
from layerwise.association.settings import AssociationSettings
from layerwise.association.table import associate
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_metrics, pick_scores
from layerwise.figures.labels import (
    MEASURES,
    SYMBOLS,
    TOKENS,
    axis_label,
    counted,
    listing,
    metric_label,
    p_value,
    span,
)
from layerwise.figures.settings import SHOWN, MetricChoice, StudySettings, in_order

LEVEL = 0.05
KEYS = ["model", "revision", "tokens"]


def draw(
    metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings, order: Sequence[str]
) -> Drawn:
    """Draw a row of panels per model, a column per metric, one block of columns per token choice.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per point (the metric's value, the mean score, depth) with the
        association of its panel, reckoned from just the tasks drawn.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model with the same revision and tokens in common.
    """
    study = study.with_default(*SHOWN)
    table = _points(metrics, scores, study)
    models = in_order(list(table["model"].unique()), study.models or order)
    choices = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    columns = [(c, i) for c in choices for i in range(len(study.curves))]
    figure, axes = style.grid(
        len(models), len(columns), panel_height=1.9, panel_width=2.0, sharey="row"
    )
    colours, norm = style.depth_colours()
    for model, row in zip(models, axes, strict=True):
        for (tokens, i), axis in zip(columns, row, strict=True):
            part = table[
                (table["model"] == model) & (table["tokens"] == tokens) & (table["curve"] == i)
            ].sort_values("depth")
            _panel(axis, part, study.curves[i], study.measure, colours, norm)
        row[0].set_ylabel("Mean task score (× 100)")
        marks.row_label(row[0], model, style.colour_of(model, order))
    if len(choices) > 1:
        for k, choice in enumerate(choices):
            marks.block_label(axes[0, k * len(study.curves)], TOKENS[choice])
    bar = figure.colorbar(
        ScalarMappable(norm, colours), ax=axes, location="right", aspect=30, pad=0.015,
        shrink=min(1.0, 2.0 / len(models)), anchor=(0.0, 1.0), ticks=[0, 0.25, 0.5, 0.75, 1],
    )  # fmt: skip
    bar.ax.set_yticklabels(["0", "25", "50", "75", "100"])
    bar.set_label("Depth (% of layers)")
    facts = _facts(table, study)
    title = _title(facts)
    corpora = listing(sorted(table["corpus"].unique()))
    style.header(
        figure, title,
        f"A point per layer, joined in order. Metrics on {corpora}, scores over "
        f"{facts['n_tasks']} tasks. p: circular shifts of the layers (permutations).",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study, corpora), facts)


def _points(metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """One row a layer, model, tokens and metric: both coordinates and the panel's association."""
    picked = pick_metrics(metrics, study)
    kept = pick_scores(scores, study)
    settings = AssociationSettings(
        measures=(check_measure(study.measure),), normalizations=None, baselines=False,
        pooled=False, resamples=study.resamples, own_texts=study.own_texts, seed=study.seed,
    )  # fmt: skip
    # All tasks as one type: the panels are about their mean, and types would cost as much each.
    found = associate(picked, kept.assign(task_type="all"), settings)
    found = found[found["task_type"] == "all"].rename(
        columns={"value": "association", "low": "association_low", "high": "association_high"}
    )
    curve_of = picked[[*VARIANT[1:], "curve"]].drop_duplicates()
    corpora = [OWN_TEXTS] if study.own_texts else list(picked["corpus"].unique())
    frames = []
    for curves in score_curves(kept):
        variants, values = metric_curves(picked, curves, own_texts=study.own_texts)
        for index in np.flatnonzero(variants["corpus"].isin(corpora)):
            variant, block = variants.iloc[int(index)], values[index]
            tasks = np.isfinite(block).any(axis=1)
            frames.append(
                pd.DataFrame(
                    {
                        "model": curves.model,
                        "revision": curves.revision,
                        "tokens": curves.tokens,
                        **variant,
                        "layer": curves.layers,
                        "depth": curves.layers / max(curves.last_layer, 1),
                        "value": block[tasks].mean(axis=0),
                        "score": curves.values[tasks].mean(axis=0),
                        "n_tasks": int(tasks.sum()),
                    }
                ).dropna(subset=["value"])
            )
    if not frames:
        raise LayerwiseError(
            "The metrics and scores of this study have no model with the same revision and tokens "
            "in common; name others under `models` or `revisions`."
        )
    points = pd.concat(frames, ignore_index=True).merge(curve_of, on=VARIANT[1:])
    columns = ["association", "association_low", "association_high", "p_permutation", "p_shift"]
    return points.merge(found[[*KEYS, *VARIANT, *columns]], on=[*KEYS, *VARIANT], how="left")


def _panel(
    axis: Any, part: pd.DataFrame, choice: MetricChoice, measure: str, colours: Any, norm: Any
) -> None:
    axis.set_xlabel(axis_label(choice.metric, choice.alpha, choice.normalization))
    axis.xaxis.set_major_locator(MaxNLocator(4))
    if part.empty:
        axis.set_title("no value", fontweight="normal", fontsize=8)
        return
    axis.plot(part["value"], 100 * part["score"], color=style.FAINT, linewidth=0.8, zorder=2)
    axis.scatter(
        part["value"], 100 * part["score"], c=part["depth"], cmap=colours, norm=norm, s=20,
        edgecolors="white", linewidths=0.4, zorder=3,
    )  # fmt: skip
    axis.margins(0.08)
    first = part.iloc[0]
    if pd.isna(first["association"]):
        text = f"{SYMBOLS[measure]}: not defined"
    else:
        text = (
            f"{SYMBOLS[measure]} = {first['association']:.2f}, {p_value(first['p_shift'])} "
            f"({p_value(first['p_permutation']).removeprefix('p ').removeprefix('= ')})"
        )
    axis.set_title(text, fontweight="normal", fontsize=7.5)


def _facts(table: pd.DataFrame, study: StudySettings) -> dict[str, Any]:
    panels = table.drop_duplicates([*KEYS, "curve"])
    known = panels[panels["association"].notna()]
    strongest = known.iloc[int(known["association"].abs().argmax())] if len(known) else None
    return {
        "measure": study.measure,
        "n_panels": len(known),
        "beyond_shift": int((known["p_shift"] < LEVEL).sum()),
        "beyond_permutation": int((known["p_permutation"] < LEVEL).sum()),
        "smallest_shift_p": 1 / int(table.groupby([*KEYS, "curve"]).size().max()),
        "n_tasks": span(table["n_tasks"].tolist()),
        "n_layers": span(table.groupby([*KEYS, "curve"]).size().tolist()),
        "strongest": None
        if strongest is None
        else {
            "model": strongest["model"],
            "tokens": strongest["tokens"],
            "metric": strongest["metric"],
            "value": float(strongest["association"]),
            "p_shift": float(strongest["p_shift"]),
        },
    }


def _title(facts: dict[str, Any]) -> str:
    if facts["strongest"] is None:
        return "No metric varies over layers"
    n, of = facts["beyond_shift"], facts["n_panels"]
    best = facts["strongest"]
    label = metric_label(best["metric"])
    return (
        f"{n} of {of} associations stand out from circular shifts (p < .05); the strongest is "
        f"{label} in {best['model']}, {SYMBOLS[facts['measure']]} {best['value']:.2f}"
    )


def _caption(facts: dict[str, Any], study: StudySettings, corpora: str) -> str:
    what = listing([metric_label(m.metric) for m in study.curves])
    return (
        f"{what} on {corpora} against the mean main score (× 100) over {facts['n_tasks']} tasks: "
        f"a point per layer ({facts['n_layers']} layers), coloured by depth and joined in order. "
        f"Above each panel {MEASURES[study.measure]} with the p-value from circular shifts of the "
        "layers, which keep the curves' smoothness, and in brackets the one from permutations, "
        "which do not. With n layers the former cannot fall below 1/n. "
        f"{counted(facts['beyond_permutation'], 'panel')} of {facts['n_panels']} pass p < .05 "
        f"under permutations, {facts['beyond_shift']} under shifts."
    )
