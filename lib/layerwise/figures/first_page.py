"""The first page of the report: which layer of each model is best, by how much, how surely."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from layerwise.association.curves import STAND_IN
from layerwise.association.order import Order, in_order
from layerwise.figures.drawn import plain
from layerwise.figures.labels import TOKENS, listing, reading, reading_label
from layerwise.figures.style import NO_BREAK

HEAD = (
    "Model", "Reading", "Best layer", "Score", "Lead (95 %)", "New task", "Sure",
    "Likely",
)  # fmt: skip


def first_page(best: pd.DataFrame, order: Order) -> str:
    """Write the table of best layers with what its columns mean, as reStructuredText.

    Parameters
    ----------
    best : DataFrame
        From `layerwise.association.best.best_layers`; the rows over all tasks are shown.
    order : Order
        Models in the order to show them, others follow; and each model's checkpoints, of which
        the last is spoken of.
    """
    rows = best[best["task_type"] == "all"]
    names = [reading(t, p) for t, p in zip(rows["tokens"], rows["pooling"], strict=True)]
    rows = rows.assign(reading=names).drop_duplicates(["model", "revision", "reading"])
    cells = [list(HEAD)]
    sentences = []
    for model in in_order(rows["model"].unique(), order.models):
        mine = rows[rows["model"] == model]
        for choice in in_order(mine["reading"].unique(), list(TOKENS)):
            part = mine[mine["reading"] == choice].set_index("revision", drop=False)
            shown = order.checkpoints(model, part.index)
            cells += [_cells(record) for record in part.loc[shown].to_dict("records")]
        last = order.last(model, mine["revision"].unique())
        sentences.append(_sentence(mine[mine["revision"] == last]))
    n_tasks = sorted({int(n) for n in rows["n_tasks"]})
    tasks = listing([str(n) for n in n_tasks])
    table = [".. list-table::", "   :header-rows: 1", ""]
    for line in cells:
        table += [f"   {'* -' if i == 0 else '  -'} {c}" for i, c in enumerate(line)]
    notes = (
        f"Scores are mean main scores (× 100) over {tasks} tasks; layer 0 is the embedding "
        "output. *Reading*: how token states became one vector, by their mean unless it says "
        "otherwise. *Lead*: the best layer's score less that of the model's own output, "
        "which is its last layer after its last norm and itself one of the candidates, with a "
        "95 % bootstrap interval over tasks. *New task*: the same on a task that had no say in "
        "choosing the layer, which takes off the luck of the best of many. *Sure*: share of "
        "bootstrap samples of the tasks in which the same layer is best; *likely*: the "
        "layers that are best in 95 % of them."
    )
    stand_in = rows.loc[rows["output_from"] == STAND_IN, "model"].unique()
    if len(stand_in):
        notes += f" Of {listing(sorted(stand_in))} no output was scored; the last layer stands in."
    return "\n".join([*(f"- {s}" for s in sentences), "", *table, "", notes, ""])


def _cells(row: Mapping[Hashable, Any]) -> list[str]:
    several = int(str(row["n_tasks"])) > 1
    return [
        plain(str(row["model"])) + _revision(row),
        plain(reading_label(str(row["reading"]))),
        "output" if row["best_is_output"] else f"{row['best_layer']} of {row['last_layer']}",
        _points(row["best_score"]),
        _lead(row, several=several),
        _points(row["gain_new_task"]) if several and pd.notna(row["gain_new_task"]) else "–",
        f"{100 * float(str(row['certainty'])):.0f} %" if several else "–",
        f"{row['likely_from']}–{row['likely_to']}" if several else "–",
    ]


def _lead(row: Mapping[Hashable, Any], *, several: bool) -> str:
    if row["best_is_output"]:
        return "–"
    if pd.isna(row["output_score"]):
        return "the output has no score"
    if several:
        return f"{_points(row['gain'])} ({_span(row['gain_low'], row['gain_high'])})"
    return _points(row["gain"])


def _revision(row: Mapping[Hashable, object]) -> str:
    return "" if row["revision"] == "main" else f" ({plain(str(row['revision']))})"


def _sentence(rows: pd.DataFrame) -> str:
    top = rows.loc[[rows["best_score"].idxmax()]].to_dict("records")[0]
    where = f"layer {top['best_layer']} of {top['last_layer']}"
    if top["best_is_output"]:
        where, by = "its own output", "which no layer inside beats"
    elif pd.isna(top["output_score"]):
        by = "but its output has no score"
    else:
        by = f"{_points(top['gain'])} points above its own output"
    sure = f", best in {100 * top['certainty']:.0f} % of resamples" if top["n_tasks"] > 1 else ""
    return (
        f"**{plain(str(top['model']))}**{_revision(top)}: {where} "
        f"({plain(reading_label(str(top['reading'])))}), {100 * top['best_score']:.1f}, "
        f"{by}{sure}."
    )


def _span(low: object, high: object) -> str:
    """An interval that breaks in one place at most: whole, it is too wide for the page."""
    return f"{_points(low)}{NO_BREAK}to {_points(high)}"


def _points(value: object) -> str:
    return f"{100 * float(str(value)):.1f}".replace("-", "−")
