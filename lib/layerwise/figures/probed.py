"""Probes of one's own labels by depth: what they read off a layer, what they fit of anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from layerwise.association.curves import require_columns
from layerwise.association.order import in_order
from layerwise.config.kinds import roles_of
from layerwise.config.studies import several
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import at_checkpoints, checkpoints, one_stream
from layerwise.figures.given import Given
from layerwise.figures.labels import listing, reading, reading_label, span
from layerwise.statistics.corrections import holm
from layerwise.vocabulary import ONE

LEVEL = 0.05
Z = 1.959964
COLUMNS = (
    "model", "revision", "task", "task_type", "layer", "depth", "tokens", "pooling", "readout",
    "layers", "linear", "low", "high", "control", "selectivity", "chance", "n_test",
)  # fmt: skip
LINEAR, SELECTIVITY = style.PALETTE[0], style.PALETTE[1]
CURVE = ["model", "reading", "task"]
TYPES = {
    "Regression": "R² (× 100)", "Classification": "Accuracy (%)", "Preference": "Accuracy (%)",
    "Tagging": "Accuracy (%)",
}  # fmt: skip


def draw(given: Given) -> Drawn:
    """Draw the linear probe, its control and its selectivity by depth: a row of panels a model and
    reading, a column a task.

    Parameters
    ----------
    given : Given
        Its table ``probes`` is from `layerwise.tasks.labelled`.

    Returns
    -------
    Drawn
        Its table is the part that is drawn, with ``p_holm``: of a difference of 0 between the
        probe and its control, corrected over the layers of the curve.

    Raises
    ------
    LayerwiseError
        If the table holds none of what the study asks for.
    """
    table = _tested(_picked(given))
    models = in_order(table["model"].unique(), given.study.models or given.order.models)
    there = set(zip(table["model"], table["reading"], strict=True))
    rows = sorted(there, key=lambda row: (models.index(row[0]), row[1]))
    tasks = list(table["task"].unique())
    parts: dict[Any, pd.DataFrame] = dict(iter(table.groupby(CURVE)))
    figure, axes = style.grid(len(rows), len(tasks), panel_height=2.1)
    for r, (model, how) in enumerate(rows):
        for c, task in enumerate(tasks):
            axis = axes[r, c]
            part = parts.get((model, how, task))
            axis.set_visible(part is not None)
            if part is not None:
                _panel(axis, part)
                below = [(*row, task) for row in rows[r + 1 :]]
                style.depth_axis(axis, label=not set(below) & set(parts))
            if r == 0:
                marks.panel_title(axis, task, [])
            if c == 0:
                more = [] if len(rows) == len(models) else [reading_label(how)]
                colour = style.colour_of(model, given.order.models)
                marks.row_label(axis, ", ".join([model, *more]), colour)
    marks.legend(figure, _handles(table))
    facts = _facts(table)
    title = _title(facts["curves"])
    style.header(
        figure, title,
        f"{span(table['n_test'].tolist())} test rows. Band: 95 % interval of the probe, a layer "
        "at a time. Filled points: above the control beyond noise, corrected over layers (Holm).",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(table, facts["curves"]), facts)


def _picked(given: Given) -> pd.DataFrame:
    study, probes = given.study, given.tables["probes"]
    require_columns(probes, COLUMNS, "probes")
    if probes.empty:
        raise LayerwiseError(
            "There is no probe to draw: tasks of pairs are compared without training; name own "
            "tasks of another kind under `tasks`."
        )
    shown = checkpoints([probes], study, given.order)
    roles_of(study, several=any(len(r) > 1 for r in shown.values()))
    table = at_checkpoints(probes, shown)
    table = table[table["layers"] == ONE]
    wanted: dict[str, Sequence[str] | None] = {
        "task": study.tasks, "task_type": study.task_types, "tokens": study.tokens,
        "pooling": None if study.pooling == "mean" else several(study.pooling),
    }  # fmt: skip
    for column, names in wanted.items():
        if names is None:
            continue
        there = sorted(table[column].unique())
        # The config's other tasks are no own tasks; their names are no mistake.
        if not set(names) & set(there):
            raise LayerwiseError(
                f"This study asks for the {column.replace('_', ' ')} {names[0]!r}, which its "
                f"tables don't have; they have {', '.join(there)}."
            )
        table = table[table[column].isin(list(names))]
    table = one_stream(table)
    table["reading"] = [
        reading(t, p) for t, p in zip(table["tokens"], table["pooling"], strict=True)
    ]
    order = ["model", "reading", "task", "readout", "layer"]
    return table.sort_values(order, kind="stable").reset_index(drop=True)


def _tested(table: pd.DataFrame) -> pd.DataFrame:
    """The table with p of each layer's selectivity, corrected over the layers of its curve.

    The control's own noise is taken to be as large as the probe's: it is tested on the same rows.
    """
    from scipy.stats import norm

    error = np.sqrt(2) * (table["high"] - table["low"]).to_numpy() / (2 * Z)
    selectivity = table["selectivity"].to_numpy()
    z = np.divide(selectivity, error, out=np.zeros_like(error), where=error > 0)
    table["p"] = norm.sf(np.where((error <= 0) & (selectivity > 0), np.inf, z))
    corrected = [pd.Series(holm(p.tolist()), p.index) for _, p in table.groupby(CURVE)["p"]]
    return table.assign(p_holm=pd.concat(corrected))


def _panel(axis: Axes, part: pd.DataFrame) -> None:
    several_readouts = part["readout"].nunique() > 1
    output = part[part["readout"] == "output"] if several_readouts else part.iloc[:0]
    curve = part.drop(output.index).sort_values("depth")
    depth = curve["depth"]
    axis.plot(depth, 100 * curve["chance"], color=style.GREY, linestyle="dotted", linewidth=1)
    axis.plot(depth, 100 * curve["control"], color=style.GREY, linestyle="dashed", linewidth=1.3)
    axis.plot(depth, 100 * curve["selectivity"], color=SELECTIVITY, linewidth=1.3)
    axis.fill_between(depth, 100 * curve["low"], 100 * curve["high"], color=LINEAR, alpha=0.15,
                      linewidth=0)  # fmt: skip
    axis.plot(depth, 100 * curve["linear"], color=LINEAR, linewidth=1.5)
    beyond = curve[curve["p_holm"] < LEVEL]
    axis.plot(beyond["depth"], 100 * beyond["linear"], color=LINEAR, marker="o", markersize=3.2,
              linestyle="none")  # fmt: skip
    if len(output):
        axis.plot(output["depth"], 100 * output["linear"], **marks.last_mark(LINEAR))
    axis.set_ylabel(TYPES.get(str(part["task_type"].iloc[0]), "Score"))


def _handles(table: pd.DataFrame) -> list[Line2D]:
    handles = [
        Line2D([], [], color=LINEAR, linewidth=1.5, label="linear probe"),
        Line2D([], [], color=LINEAR, marker="o", markersize=3.2, linestyle="none",
               label="above its control beyond noise"),
        Line2D([], [], color=style.GREY, linestyle="dashed", label="control: random labels"),
        Line2D([], [], color=SELECTIVITY, label="selectivity: probe less control"),
    ]  # fmt: skip
    if table["chance"].notna().any():
        handles.append(
            Line2D([], [], color=style.GREY, linestyle="dotted", label="most frequent class")
        )
    if (table["readout"] == "output").any():
        handles.append(Line2D([], [], label="the model's output", **marks.last_mark(LINEAR)))
    return handles


def _facts(table: pd.DataFrame) -> dict[str, Any]:
    found = []
    several_readouts = table.groupby(["model", "task"])["readout"].transform("nunique") > 1
    stream = table[~((table["readout"] == "output") & several_readouts)]
    stream = stream.assign(p_all=holm(stream["p"]))
    for keys, part in stream.groupby(CURVE, sort=False):
        best = part.iloc[int(part["linear"].to_numpy().argmax())]
        selective = part.iloc[int(part["selectivity"].to_numpy().argmax())]
        found.append(
            {
                **dict(zip(CURVE, map(str, keys), strict=True)),
                "n_layers": len(part),
                "above": int((part["p_holm"] < LEVEL).sum()),
                "above_of_all": int((part["p_all"] < LEVEL).sum()),
                "best_layer": int(best["layer"]),
                "linear": float(best["linear"]),
                "low": float(best["low"]),
                "high": float(best["high"]),
                "control": float(best["control"]),
                "most_selective_layer": int(selective["layer"]),
                "selectivity": float(selective["selectivity"]),
            }
        )
    return {"curves": found}


def _title(curves: Sequence[dict[str, Any]]) -> str:
    n, above = (sum(c[key] for c in curves) for key in ("n_layers", "above_of_all"))
    if not above:
        return "At no layer does a probe do better than its control beyond noise"
    whose = "layers" if len(curves) == 1 else "layers of all curves together"
    return f"Probes do better than their controls at {above} of {n} {whose}, beyond noise"


def _caption(table: pd.DataFrame, curves: Sequence[dict[str, Any]]) -> str:
    told = [
        f"{c['model']}, {c['task']}, {reading_label(c['reading'])}: best at layer "
        f"{c['best_layer']} with {100 * c['linear']:.1f} (interval {100 * c['low']:.1f} to "
        f"{100 * c['high']:.1f}; control {100 * c['control']:.1f}), most selective at layer "
        f"{c['most_selective_layer']} ({100 * c['selectivity']:+.1f})"
        for c in curves[:12]
    ]
    of_words = (
        "Of tags the control gives every word type a random tag (Hewitt & Liang 2019), which a "
        "probe can learn by heart; of other tasks the training labels are shuffled."
        if (table["task_type"] == "Tagging").any()
        else "The control is trained on shuffled labels."
    )
    scored = listing(list(dict.fromkeys(TYPES.get(t, t) for t in table["task_type"].unique())))
    return (
        f"{scored} of linear probes on one's own labels, by depth in per cent of layers, on rows "
        f"that they were not trained on ({span(table['n_test'].tolist())}; of a text, a group "
        "or a sentence all rows are on one side). Bands: 95 % intervals over groups of test rows, "
        f"for the training rows as they are. {of_words} Filled points: p < .05 of no difference "
        "from the control, one-sided, whose noise is taken to be as large as the probe's, after "
        "Holm's correction over the layers of the curve; the title counts those that pass it over "
        "all curves together. A curve's own best layer is the best of "
        f"many, so expect less of it on new rows. {'. '.join(told)}."
    )
