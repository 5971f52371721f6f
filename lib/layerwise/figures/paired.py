"""Two scores of the same items set against each other at every layer, with what noise allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from layerwise.association.curves import require_columns
from layerwise.association.order import Order, in_order
from layerwise.config.kinds import roles_of
from layerwise.config.studies import Study, several
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import at_checkpoints, checkpoints, one_stream
from layerwise.figures.given import Given
from layerwise.figures.labels import LENS, POOLINGS, TOKENS, listing, p_value, reading_label, span
from layerwise.statistics.corrections import holm

LEVEL = 0.05
COLUMNS = (
    "model", "revision", "task", "task_type", "subset", "layer", "depth", "tokens", "pooling",
    "readout", "against", "score", "other", "difference", "low", "high", "p", "p_holm", "n",
)  # fmt: skip
AGAINST = {"mean": "the pooled cosine", "output": "the model's output"}
IDF = "_idf"
CURVE = ["model", "task", "subset", "tokens", "pooling"]


def draw(given: Given) -> Drawn:
    """Draw each reading's difference by depth: a row of panels a model, a column a task and choice
    of tokens.

    Parameters
    ----------
    given : Given
        Its table ``paired`` is from `layerwise.tasks.token_scores`.

    Returns
    -------
    Drawn
        Its table is the part that is drawn.

    Raises
    ------
    LayerwiseError
        If the table holds none of what the study asks for.
    """
    study, order, paired = given.study, given.order, given.tables["paired"]
    require_columns(paired, COLUMNS, "paired scores")
    table = _picked(paired, study, order)
    models = in_order(table["model"].unique(), study.models or order.models)
    columns = list(table[["task", "subset", "tokens"]].drop_duplicates().itertuples(index=False))
    # In the order, and so the colours, of the scores' own figure.
    wanted = POOLINGS if study.pooling == "mean" else several(study.pooling)
    readings = in_order(table["pooling"].unique(), list(wanted))
    figure, axes = style.grid(len(models), len(columns), sharey="row", panel_height=2.1)
    for r, model in enumerate(models):
        for c, column in enumerate(columns):
            part = table[table["model"] == model]
            for name, value in zip(("task", "subset", "tokens"), column, strict=True):
                part = part[part[name] == value]
            axis = axes[r, c]
            _panel(axis, part, readings)
            style.depth_axis(axis, label=r == len(models) - 1)
            if r == 0:
                _name(axis, column, table)
            if c == 0:
                axis.set_ylabel("Difference (× 100)")
                marks.row_label(axis, model, style.colour_of(model, order.models))
    marks.legend(figure, _handles(table, readings))
    facts = _facts(table, models, readings)
    against = listing([AGAINST.get(a, a) for a in table["against"].unique()])
    title = _title(facts, against)
    style.header(
        figure, title,
        f"Score minus that of {against} on the same {span(table['n'].tolist())} items. "
        "Bands: 95 % intervals, a layer at a time; filled points: beyond noise, corrected over "
        "layers (Holm).",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(table, facts, against), facts)


def _picked(paired: pd.DataFrame, study: Study, order: Order) -> pd.DataFrame:
    shown = checkpoints([paired], study, order)
    roles_of(study, several=any(len(r) > 1 for r in shown.values()))
    table = at_checkpoints(paired, shown)
    wanted: dict[str, Sequence[str] | None] = {
        "task": study.tasks, "task_type": study.task_types, "tokens": study.tokens,
        "pooling": None if study.pooling == "mean" else several(study.pooling),
    }  # fmt: skip
    for column, names in wanted.items():
        missing = sorted(set(names or ()) - set(table[column]))
        if missing:
            raise LayerwiseError(
                f"This study asks for the {column.replace('_', ' ')} {missing[0]!r}, which its "
                f"tables don't have; they have {', '.join(sorted(table[column].unique()))}."
            )
        if names is not None:
            table = table[table[column].isin(list(names))]
    order_of_rows = ["task", "tokens", "pooling", "layer"]
    return one_stream(table).sort_values(order_of_rows, kind="stable").reset_index(drop=True)


def _look(reading: str, readings: Sequence[str]) -> tuple[str, Any]:
    """Colour and line style: what differs by idf alone has one colour."""
    bare = list(dict.fromkeys(r.removesuffix(IDF) for r in readings))
    colour = style.PALETTE[bare.index(reading.removesuffix(IDF)) % len(style.PALETTE)]
    return colour, "dashed" if reading.endswith(IDF) else "solid"


def _panel(axis: Axes, part: pd.DataFrame, readings: Sequence[str]) -> None:
    axis.axhline(0, color=style.GREY, linewidth=0.8, zorder=1)
    several_readouts = part["readout"].nunique() > 1
    for reading in readings:
        mine = part[part["pooling"] == reading].sort_values("depth")
        colour, line = _look(reading, readings)
        output = mine[mine["readout"] == "output"] if several_readouts else mine.iloc[:0]
        curve = mine.drop(output.index)
        axis.fill_between(curve["depth"], 100 * curve["low"], 100 * curve["high"], color=colour,
                          alpha=0.1, linewidth=0)  # fmt: skip
        axis.plot(curve["depth"], 100 * curve["difference"], color=colour, linestyle=line,
                  linewidth=1.3)  # fmt: skip
        beyond = curve[curve["p_holm"] < LEVEL]
        axis.plot(beyond["depth"], 100 * beyond["difference"], color=colour, marker="o",
                  markersize=3.2, linestyle="none")  # fmt: skip
        if len(output):  # an empty unclipped line lies at the figure's corner: no room is left
            axis.plot(output["depth"], 100 * output["difference"], **marks.last_mark(colour))
            inside = output[output["p_holm"] < LEVEL]
            if len(inside):
                axis.plot(inside["depth"], 100 * inside["difference"], color=colour, marker="o",
                          markersize=2.4, linestyle="none", zorder=6)  # fmt: skip


def _name(axis: Axes, column: Any, table: pd.DataFrame) -> None:
    more = [TOKENS[column.tokens]] if table["tokens"].nunique() > 1 else []
    marks.panel_title(axis, _task(column.task, column.subset), more)


def _task(name: str, subset: str) -> str:
    return name if subset == "default" else f"{name} ({subset})"


def _handles(table: pd.DataFrame, readings: Sequence[str]) -> list[Line2D]:
    handles = []
    for reading in readings:
        colour, line = _look(reading, readings)
        label = reading_label(reading)
        handles.append(Line2D([], [], color=colour, linestyle=line, label=label))
    handles.append(
        Line2D([], [], color=style.INK, marker="o", markersize=3.2, linestyle="none",
               label="beyond noise (Holm, p < .05)")
    )  # fmt: skip
    both = table.groupby(["model", "task"])["readout"].nunique().max() > 1
    if both and (table["readout"] == "output").any():
        handles.append(
            Line2D([], [], label="last layer after the model's norm", **marks.last_mark(style.INK))
        )
    return handles


def _facts(table: pd.DataFrame, models: Sequence[str], readings: Sequence[str]) -> dict[str, Any]:
    found = []
    several_readouts = table.groupby(["model", "task"])["readout"].transform("nunique") > 1
    stream = table[~((table["readout"] == "output") & several_readouts)]
    stream = stream.assign(p_all=holm(stream["p"]))
    for keys, part in stream.groupby(CURVE, sort=False):
        beyond = part[part["p_holm"] < LEVEL]
        told = part.loc[part["p_all"] < LEVEL, "difference"]
        best = part.iloc[int(part["score"].to_numpy().argmax())]
        found.append(
            {
                **dict(zip(CURVE, map(str, keys), strict=True)),
                "n_layers": len(part),
                "above": int((beyond["difference"] > 0).sum()),
                "below": int((beyond["difference"] < 0).sum()),
                "above_of_all": int((told > 0).sum()),
                "below_of_all": int((told < 0).sum()),
                "best_layer": int(best["layer"]),
                "best_score": float(best["score"]),
                "difference": float(best["difference"]),
                "p_holm": float(best["p_holm"]),
            }
        )
    return {"curves": found, "models": list(models), "readings": list(readings)}


def _title(facts: dict[str, Any], against: str) -> str:
    curves = facts["curves"]
    n = sum(c["n_layers"] for c in curves)
    above, below = (sum(c[f"{side}_of_all"] for c in curves) for side in ("above", "below"))
    if not above + below:
        return f"No layer differs from {against} beyond noise"
    what = "layers" if len(curves) == 1 else "layers of all curves together"
    parts = [f"above {against} at {above}"] if above else []
    parts += [f"below {'it' if parts else against} at {below}"] if below else []
    return f"Of {n} {what}, scores are beyond noise {listing(parts)}"


def _caption(table: pd.DataFrame, facts: dict[str, Any], against: str) -> str:
    told = [
        f"{c['model']}, {_task(c['task'], c['subset'])}, {TOKENS[c['tokens']]}, "
        f"{reading_label(c['pooling'])}: above at {c['above']} and below at "
        f"{c['below']} of {c['n_layers']} layers; at its own best, layer {c['best_layer']} with "
        f"{100 * c['best_score']:.1f}, by {100 * c['difference']:+.1f} ({p_value(c['p_holm'])})"
        for c in facts["curves"][:12]
    ]
    types = set(table["task_type"])
    how = []
    if "STS" in types:
        how.append(
            "Scores are Spearman's correlation with human judgement; intervals and p come from "
            "each pair's influence on the difference of the two correlations; pairs that share a "
            "text are not taken for independent."
        )
    if "MultipleChoice" in types:
        how.append(
            "Scores are accuracies; intervals are those of paired proportions (Bonett & Price), p "
            f"McNemar's. {LENS}"
        )
    return (
        f"Score (× 100) minus that of {against}, by depth in per cent of the layers, on the same "
        f"items ({span(table['n'].tolist())}). Bands: 95 % intervals of each layer by itself. "
        "Filled points: p < .05 after Holm's correction over the layers of the curve; the title "
        "counts those that pass it over all curves together. A curve's "
        f"own best layer is the best of many, so its lead there is too high. {' '.join(how)} "
        f"{'. '.join(told)}."
    )
