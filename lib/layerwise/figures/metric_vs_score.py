"""Metric against mean task score, a point per layer: does the metric know which layer is good?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from layerwise.association import measures as known_measures
from layerwise.association.curves import (
    OWN_TEXTS,
    VARIANT,
    metric_curves,
    score_curves,
    usable,
)
from layerwise.association.measures import Measure, check_measure
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
EVERY = "all"  # in place of a measure: all of them, above each panel
WIDEST = 6  # panels side by side
LINES = 2  # above a panel, for each measure: with its interval and both p it is wider than a panel
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
    rows = _rows(models, choices, len(study.curves))
    measures = measures_of(study)
    n_lines = LINES * len(measures)
    figure, axes = style.grid(
        len(rows), max(map(len, rows)), panel_width=2.0, sharey="row",
        panel_height=1.8 + 0.13 * n_lines,
    )  # fmt: skip
    colours, norm = style.depth_colours()
    wrapped = len(rows) > len(models)
    for k, (row, line) in enumerate(zip(rows, axes, strict=True)):
        for axis in line[len(row) :]:
            axis.set_visible(False)
        for (model, tokens, i), axis in zip(row, line, strict=False):
            part = table[
                (table["model"] == model) & (table["tokens"] == tokens) & (table["curve"] == i)
            ].sort_values("depth")
            _panel(axis, part, study.curves[i], measures, colours, norm)
            if len(choices) > 1 and i == 0 and (wrapped or k == 0):
                marks.block_label(axis, TOKENS[tokens], n_lines)
        line[0].set_ylabel("Mean task score (× 100)")
        marks.row_label(line[0], row[0][0], style.colour_of(row[0][0], order))
    bar = figure.colorbar(
        ScalarMappable(norm, colours), ax=axes, location="right", aspect=30, pad=0.015,
        shrink=min(1.0, 2.0 / len(rows)), anchor=(0.0, 1.0), ticks=[0, 0.25, 0.5, 0.75, 1],
    )  # fmt: skip
    bar.ax.set_yticklabels(["0", "25", "50", "75", "100"])
    bar.set_label("Depth (% of layers)")
    marks.legend(figure, [_key(best=True), _key(best=False)])
    facts = _facts(table, study)
    title = _title(facts)
    corpora = listing(sorted(table["corpus"].unique()))
    style.header(
        figure, title,
        f"A point per layer, joined in order. Metrics on {corpora}, scores over "
        f"{facts['n_tasks']} tasks. "
        + ("[ ]: 95 % bootstrap over tasks. " if facts["intervals"] else "")
        + "p: circular shifts of the layers (permutations).",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study, corpora), facts)


def measures_of(study: StudySettings) -> tuple[Measure, ...]:
    """The measures that a study shows, the first of which its title speaks of.

    Raises
    ------
    LayerwiseError
        If there is no such measure.
    """
    return known_measures.MEASURES if study.measure == EVERY else (check_measure(study.measure),)


def _rows(
    models: Sequence[str], choices: Sequence[str], n_curves: int
) -> list[list[tuple[str, str, int]]]:
    """What each panel shows (model, tokens, metric), row by row.

    A model has one row as long as that fits a page, and else its metrics are wrapped, one choice
    of tokens after another.
    """
    if n_curves * len(choices) <= WIDEST:
        return [[(m, c, i) for c in choices for i in range(n_curves)] for m in models]
    columns = min(style.COLUMNS, n_curves)
    return [
        [(m, c, i) for i in range(start, min(start + columns, n_curves))]
        for m in models
        for c in choices
        for start in range(0, n_curves, columns)
    ]


def _points(metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    """One row a layer, model, tokens and metric: both coordinates and the panel's association."""
    picked = pick_metrics(metrics, study)
    kept = pick_scores(scores, study)
    measures = measures_of(study)
    settings = AssociationSettings(
        measures=measures, normalizations=None, baselines=False,
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
            tasks, layers = usable(block)
            if not tasks.any():
                continue
            depth = curves.layers / max(curves.last_layer, 1)
            frames.append(
                pd.DataFrame(
                    {
                        "model": curves.model,
                        "revision": curves.revision,
                        "tokens": curves.tokens,
                        **variant,
                        "layer": curves.layers[layers],
                        "depth": depth[layers],
                        "value": block[tasks][:, layers].mean(axis=0),
                        "score": curves.values[tasks][:, layers].mean(axis=0),
                        "n_tasks": int(tasks.sum()),
                    }
                )
            )
    if not frames:
        raise LayerwiseError(
            "The metrics and scores of this study have no model with the same revision and tokens "
            "in common; name others under `models` or `revisions`."
        )
    points = pd.concat(frames, ignore_index=True).merge(curve_of, on=VARIANT[1:])
    columns = ["association", "association_low", "association_high", "p_permutation", "p_shift"]
    for k, measure in enumerate(measures):
        one = found.loc[found["measure"] == measure, [*KEYS, *VARIANT, *columns]]
        if k:  # the first measure's columns have plain names
            one = one.rename(columns={c: f"{c}_{measure}" for c in columns})
        points = points.merge(one, on=[*KEYS, *VARIANT], how="left")
    return points


def _panel(
    axis: Any,
    part: pd.DataFrame,
    choice: MetricChoice,
    measures: Sequence[Measure],
    colours: Any,
    norm: Any,
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
    top = part.iloc[[int(part["score"].argmax())]]
    # The deepest point may be of another layer than the last.
    for best, ringed in ((False, part[part["depth"] == 1]), (True, top)):
        axis.plot(ringed["value"], 100 * ringed["score"], **_ring(best=best))
    axis.margins(0.08)
    first = part.iloc[0]
    lines = [_told(first, m, f"_{m}" if k else "") for k, m in enumerate(measures)]
    axis.set_title("\n".join(lines), fontweight="normal", fontsize=7.5, linespacing=1.15)


def _ring(*, best: bool) -> dict[str, Any]:
    """A ring around the best layer's point, a square one around the last one's."""
    return {
        "marker": "o" if best else "s", "markersize": 7.5 if best else 8.5, "color": "none",
        "markeredgecolor": style.INK, "markeredgewidth": 1.0, "linestyle": "none", "zorder": 4,
    }  # fmt: skip


def _key(*, best: bool) -> Line2D:
    return Line2D([], [], label="best layer" if best else "last layer", **_ring(best=best))


def _told(row: pd.Series[Any], measure: Measure, suffix: str) -> str:
    if pd.isna(row[f"association{suffix}"]):
        return f"{SYMBOLS[measure]}: not defined"
    value, low, high = (
        f"{row[f'association{end}{suffix}']:.2f}".replace("-", "−")
        for end in ("", "_low", "_high")
    )
    # A single task has none.
    interval = f" [{low}, {high}]" if pd.notna(row[f"association_low{suffix}"]) else ""
    shift, permutation = (p_value(row[f"{p}{suffix}"]) for p in ("p_shift", "p_permutation"))
    # Only the first of the two says that it is a p.
    return (
        f"{SYMBOLS[measure]} = {value}{interval}\n{shift} ({permutation[2:].removeprefix('= ')})"
    )


def _facts(table: pd.DataFrame, study: StudySettings) -> dict[str, Any]:
    panels = table.drop_duplicates([*KEYS, "curve"])
    known = panels[panels["association"].notna()]
    strongest = known.iloc[int(known["association"].abs().argmax())] if len(known) else None
    return {
        "measure": measures_of(study)[0],
        "n_panels": len(known),
        "beyond_shift": int((known["p_shift"] < LEVEL).sum()),
        "beyond_permutation": int((known["p_permutation"] < LEVEL).sum()),
        "smallest_shift_p": 1 / int(table.groupby([*KEYS, "curve"]).size().max()),
        "intervals": bool(known["association_low"].notna().any()),
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
    strongest = f"{label} in {best['model']}, {SYMBOLS[facts['measure']]} {best['value']:.2f}"
    strongest = strongest.replace(" -", " −")
    if facts["smallest_shift_p"] >= LEVEL:
        return (
            f"{facts['n_layers']} layers are too few for an association to stand out from "
            f"circular shifts; the strongest is {strongest}"
        )
    return (
        f"{n} of {of} associations stand out from circular shifts (p < .05); the strongest is "
        f"{strongest}"
    )


def _caption(facts: dict[str, Any], study: StudySettings, corpora: str) -> str:
    what = listing([metric_label(m.metric) for m in study.curves])
    what_measures = listing([MEASURES[m] for m in measures_of(study)])
    interval = (
        " with its 95 % bootstrap interval over tasks in square brackets"
        if facts["intervals"]
        else ""
    )
    return (
        f"{what} on {corpora} against the mean main score (× 100) over {facts['n_tasks']} tasks: "
        f"a point per layer ({facts['n_layers']} layers), coloured by depth and joined in order. "
        f"Above each panel {what_measures}{interval}, and the p-value from circular shifts of the "
        "layers, which keep the curves' smoothness, and in brackets the one from permutations, "
        "which do not. With n layers the former cannot fall below 1/n. "
        f"{counted(facts['beyond_permutation'], 'panel')} of {facts['n_panels']} pass p < .05 "
        f"under permutations, {facts['beyond_shift']} under shifts."
    )
