"""Metric against mean task score, a point per layer: does the metric know which layer is good?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from layerwise.association.curves import (
    VARIANT,
    metric_curves,
    require_columns,
    score_curves,
    usable,
)
from layerwise.association.table import COLUMNS
from layerwise.config.association import OWN_TEXTS
from layerwise.config.kinds import roles_of
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import evidence, marks, panels, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import left_out_said, output_said
from layerwise.figures.frames import (
    Rows,
    at_checkpoints,
    checkpoints,
    pick_metrics,
    pick_scores,
    pick_variants,
    told_apart,
)
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    MEASURES,
    SYMBOLS,
    listing,
    metric_label,
    span,
    value_label,
)
from layerwise.figures.panels import Panel

EVERY = "all"  # in place of a measure: all of them, above each panel
WIDEST = 6  # panels side by side
KEYS = ["model", "revision", "tokens", "pooling"]
RING: dict[str, Any] = {
    "marker": "o", "markersize": 7.5, "color": "none", "markeredgecolor": style.INK,
    "markeredgewidth": 1.0, "linestyle": "none", "zorder": 4,
}  # fmt: skip
LINE: dict[str, Any] = {
    "color": style.GREY,
    "linewidth": 0.8,
    "linestyle": (0, (4, 2)),
    "zorder": 1,
}


def draw(given: Given) -> Drawn:
    """Draw a row of panels per model, a column per choice of tokens and metric.

    The associations are those of just these scores.

    Returns
    -------
    Drawn
        Its table has a row per point (the metric's value, the mean score, depth) with the
        association of its panel.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model with the same revision and tokens in common, or the
        associations are not over the tasks drawn.
    """
    study, order, associations = given.study, given.order, given.tables["associations"]
    rows = _points(given)
    measures = measures_of(study, associations)
    table = _with_associations(rows.table, associations, study, measures)
    roles = rows.roles
    if study.row is None and study.column is None and len(rows.keys("column")) > WIDEST:
        down = tuple(d for d in roles["column"] if d != "y")
        roles = {"row": (*roles["row"], *down), "column": ("y",)}
    rows = replace(rows, table=table, roles=roles)
    n_lines = len(measures) + 1
    grid = panels.grid(
        rows, widest=WIDEST if len(rows.keys("column")) <= WIDEST else style.COLUMNS,
        together=True, panel_width=2.0, panel_height=1.8 + 0.13 * n_lines, sharey="row",
    )  # fmt: skip
    colours, norm = style.depth_colours()
    headed: set[tuple[str, ...]] = set()
    for panel in grid.panels:
        _panel(panel, rows, measures, colours, norm)
        above = tuple(panel.values[d] for d in grid.columns if d != "y" and table[d].nunique() > 1)
        if panel.top and above and above not in headed:
            headed.add(above)
            dimensions = [d for d in grid.columns if d != "y" and table[d].nunique() > 1]
            marks.block_label(panel.axis, ", ".join(map(value_label, dimensions, above)), n_lines)
        if panel.left:
            panel.axis.set_ylabel(panels.SCORE_AXIS)
            beside = [d for d in grid.rows if d == "model" or table[d].nunique() > 1]
            beside = [d for d in beside if d != "revision" or _several(table)]
            colour = style.colour_of(str(panel.table["model"].iloc[0]), order.models)
            marks.row_label(
                panel.axis, ", ".join(value_label(d, panel.values[d]) for d in beside),
                colour if "model" in beside else style.INK,
            )  # fmt: skip
    bar = grid.figure.colorbar(
        ScalarMappable(norm, colours), ax=grid.axes, location="right", aspect=30, pad=0.015,
        shrink=min(1.0, 2.0 / grid.height), anchor=(0.0, 1.0), ticks=[0, 0.25, 0.5, 0.75, 1],
    )  # fmt: skip
    bar.ax.set_yticklabels(["0", "25", "50", "75", "100"])
    bar.set_label("Depth (% of layers)")
    marks.legend(
        grid.figure,
        [Line2D([], [], label="best layer", **RING),
         Line2D([], [], label="score of the model's output", **LINE)],
    )  # fmt: skip
    group = group_of(study, associations)
    facts = _facts(table, associations, measures, group)
    title = evidence.title(facts["match"], facts["beyond_chance"], measures[0])
    corpora = listing([c for c in rows.values("corpus") if c])
    style.header(
        grid.figure, title,
        f"A point per layer, joined in order. Metrics on {corpora}, scores over "
        f"{facts['n_tasks']} tasks. "
        "In brackets what 95 % of unrelated smooth curves stay below; no p, since the layers of "
        "one model are one curve.",
    )  # fmt: skip
    caption = _caption(facts, rows, measures, corpora)
    return Drawn(grid.figure, table, title, caption, facts)


def _several(table: pd.DataFrame) -> bool:
    return bool(table.groupby("model")["revision"].nunique().max() > 1)


def measures_of(study: Study, associations: pd.DataFrame) -> tuple[str, ...]:
    """The measures that a study shows, the first of which its title speaks of.

    Raises
    ------
    LayerwiseError
        If the associations do not have it.
    """
    require_columns(associations, COLUMNS, "associations")
    there = [m for m in MEASURES if m in set(associations["measure"])]
    if study.measure == EVERY:
        return tuple(there)
    wanted = study.measure or there[0]
    if wanted not in there:
        raise LayerwiseError(
            f"This study asks for the measure {wanted!r}, and its associations have "
            f"{', '.join(there)}; add it to association.measures."
        )
    return (wanted,)


def _points(given: Given) -> Rows:
    """One row a layer, model, tokens and metric: both coordinates."""
    study, order, own_texts = given.study, given.order, given.own_texts
    metrics, scores = given.tables["metrics"], given.tables["scores"]
    shown = checkpoints([metrics, scores], study, order)
    kept = at_checkpoints(pick_scores(scores, study), shown)
    picked = at_checkpoints(pick_metrics(metrics, study), shown)
    own = OWN_TEXTS in (study.corpora or ())
    if own:
        picked = picked[picked["corpus"].isin(list(own_texts))]
        if picked.empty:
            raise LayerwiseError(
                f"This study asks for {OWN_TEXTS!r}, and none of its corpora is a task's own "
                "texts; say which task each is under association.own_texts."
            )
    choices, picked = pick_variants(picked, study)
    curve_of = picked[[*VARIANT[1:], "y"]].drop_duplicates()
    corpora = [OWN_TEXTS] if own else list(picked["corpus"].unique())
    frames = []
    for curves in score_curves(kept):
        variants, values = metric_curves(picked, curves, own_texts=own_texts if own else None)
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
                        "pooling": curves.pooling,
                        **variant,
                        "layer": curves.layers[layers],
                        "depth": depth[layers],
                        "value": block[tasks][:, layers].mean(axis=0),
                        "score": curves.values[tasks][:, layers].mean(axis=0),
                        "output_score": curves.output[tasks].mean(),
                        "output_from": curves.output_from,
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
    points = points.assign(quantity=points["metric"])
    roles = roles_of(study, several=any(len(r) > 1 for r in shown.values()))
    missing = [m for m in shown if m not in set(points["model"])]
    left_out = (f"{listing(missing)}, without metrics and scores of the same tokens",)
    return told_apart(points, study, order, choices, roles, left_out if missing else ())


def _with_associations(
    points: pd.DataFrame, associations: pd.DataFrame, study: Study, measures: Sequence[str]
) -> pd.DataFrame:
    """The points with the association of their panel beside each."""
    group = group_of(study, associations)
    found = associations[associations["task_type"] == group].rename(
        columns={c: f"association_{c}" for c in ("low", "high", "sign", "chance")}
        | {"value": "association"}
    )
    found = found.assign(alpha=found["alpha"].astype(object).where(found["alpha"].notna(), ""))
    columns = ["association", *(f"association_{c}" for c in ("low", "high", "sign", "chance"))]
    keys = [*KEYS, *VARIANT]
    for k, measure in enumerate(measures):
        one = found.loc[found["measure"] == measure, [*keys, *columns, "n_tasks"]]
        one = one.rename(columns={"n_tasks": "over_tasks"})
        if k:  # the first measure's columns have plain names
            one = one.rename(columns={c: f"{c}_{measure}" for c in columns})
        points = points.merge(one, on=keys, how="left")
        over = points.pop("over_tasks")
        other = over.notna() & (over != points["n_tasks"])
        if other.any():
            row = points[other].iloc[0]
            raise LayerwiseError(
                f"The associations of {row['metric']} in {row['model']} are over "
                f"{int(over[other].iloc[0])} tasks, and this study draws {row['n_tasks']}; "
                "associate the scores of the study's own tasks."
            )
    return points


def group_of(study: Study, associations: pd.DataFrame) -> str:
    """The task type that a study's associations are of."""
    group = study.task_types[0] if study.task_types and len(study.task_types) == 1 else "all"
    return group if group in set(associations["task_type"]) else "all"


def _panel(panel: Panel, rows: Rows, measures: Sequence[str], colours: Any, norm: Any) -> None:
    axis, part = panel.axis, panel.table.sort_values("depth")
    axis.set_xlabel(panels.label_of(panel, rows, width=99))
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
    axis.plot(top["value"], 100 * top["score"], **RING)
    axis.margins(0.08)
    first = part.iloc[0]
    if pd.notna(first["output_score"]):
        axis.axhline(100 * first["output_score"], **LINE)
    lines = [_told(first, m, f"_{m}" if k else "") for k, m in enumerate(measures)]
    axis.set_title("\n".join(lines), fontweight="normal", fontsize=7.5, linespacing=1.15)


def _told(row: pd.Series[Any], measure: str, suffix: str) -> str:
    if pd.isna(row[f"association{suffix}"]):
        return f"{SYMBOLS[measure]}: not defined"
    value, low, high, chance = (
        f"{row[f'association{end}{suffix}']:.2f}".replace("-", "−")
        for end in ("", "_low", "_high", "_chance")
    )
    text = f"{SYMBOLS[measure]} {value}"
    if measure in ("dcor", "bcdcor"):  # which have no sign of their own
        text += {1: " ↑", -1: " ↓"}.get(int(row[f"association_sign{suffix}"]), "")
    if measure == "slope":  # a single text source has no interval
        return text + (f" [{low}, {high}]" if pd.notna(row[f"association_low{suffix}"]) else "")
    return f"{text} ({chance})"


def _facts(
    table: pd.DataFrame, associations: pd.DataFrame, measures: Sequence[str], group: str
) -> dict[str, Any]:
    panels = table.drop_duplicates([*KEYS, "y"])
    known = panels[panels["association"].notna()]
    sizes = known.assign(value=known["association"], chance=known["association_chance"])
    return {
        "measure": measures[0],
        "n_panels": len(known),
        "match": evidence.matched(associations, known, group),
        "beyond_chance": evidence.beyond_chance(sizes),
        "n_tasks": span(table["n_tasks"].tolist()),
        "n_layers": span(table.groupby([*KEYS, "y"]).size().tolist()),
    }


def _caption(facts: dict[str, Any], rows: Rows, measures: Sequence[str], corpora: str) -> str:
    what = listing([metric_label(m.metric) for m in rows.metrics])
    what_measures = listing([MEASURES[m] for m in measures])
    signless = set(measures) & {"dcor", "bcdcor"}
    return (
        f"{what} on {corpora} against the mean main score (× 100) over {facts['n_tasks']} tasks: "
        f"a point per layer ({facts['n_layers']} layers), coloured by depth and joined in order. "
        f"Above each panel {what_measures}, and in brackets the level that 95 % of pairs of "
        "unrelated curves as smooth as a random walk stay below with so many layers"
        + (
            " (of a slope, in square brackets, its 95 % interval over tasks)"
            * ("slope" in measures)
        )
        + (
            "; an arrow is the sign of Spearman's rho, since a distance correlation has none"
            if signless
            else ""
        )
        + f". {evidence.explained(facts['match'])} The dashed line is the score of the model's "
        f"output. {output_said(rows)}{left_out_said(rows)}"
    )
