"""The first page of the report: which layer of each model is best, by how much, how surely."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from layerwise.association.best import MARGIN
from layerwise.association.curves import STAND_IN
from layerwise.association.order import Order, in_order
from layerwise.figures.drawn import plain
from layerwise.figures.labels import TOKENS, listing, reading, reading_label
from layerwise.figures.style import NO_BREAK
from layerwise.statistics.headlines import Count, told_apart

HEAD = (
    "Model", "Reading", "Best layer", "Score", "Lead on a new task (95 %)", "May be best",
    "As good as the output",
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
    final = order.only_last(rows)
    headlines = [plain(h) + "." for h in _headlines(final)]
    tasks, texts = (
        listing([str(n) for n in sorted({int(n) for n in rows[c]})])
        for c in ("n_tasks", "n_sources")
    )
    table = [".. list-table::", "   :header-rows: 1", ""]
    for line in cells:
        table += [f"   {'* -' if i == 0 else '  -'} {c}" for i, c in enumerate(line)]
    notes = (
        f"Scores are mean main scores (× 100) over {tasks} tasks of {texts} sources of "
        "texts; layer 0 is the embedding output. *Reading*: how token states became one vector, "
        "by their mean unless it says otherwise. *Lead*: of the chosen layer over the model's "
        "own output, which "
        "is its last layer after its last norm and itself one of the candidates, on a task that "
        "had no say in the choice; the 95 % interval over tasks pays for the choice, and takes "
        "tasks of the same texts as one draw. An interval that holds 0 says that the two cannot "
        "be told apart. *May be best*: the layers that hold the best one with 95 % confidence. "
        "*As "
        "good as the output*: the layers of which these tasks show that they are within "
        f"{100 * MARGIN:.0f} point of it. A sentence speaks of the reading with the best score."
    )
    stand_in = rows.loc[rows["output_from"] == STAND_IN, "model"].unique()
    if len(stand_in):
        notes += f" Of {listing(sorted(stand_in))} no output was scored; the last layer stands in."
    return "\n".join([*headlines, "", *(f"- {s}" for s in sentences), "", *table, "", notes, ""])


def _headlines(final: pd.DataFrame) -> list[str]:
    """In how many models a layer inside leads the output, a sentence for each reading."""
    said = []
    for choice, part in final.groupby("reading", sort=False):
        count = leads_told_apart(part)
        if count is not None:
            how = reading_label(str(choice), sentence=True)
            claim = f"A layer inside leads the output on new tasks {how}"
            said.append(count.text(claim, "models"))
    return said


def leads_told_apart(rows: pd.DataFrame) -> Count | None:
    """In how many rows the interval of the lead lies above 0, None where no row has one."""
    known = rows[rows["gain_low"].notna()]
    return told_apart([int(low > 0) for low in known["gain_low"]]) if len(known) else None


def _cells(row: Mapping[Hashable, Any]) -> list[str]:
    return [
        plain(str(row["model"])) + _revision(row),
        plain(reading_label(str(row["reading"]))),
        "output" if row["best_is_output"] else f"{row['best_layer']} of {row['last_layer']}",
        _points(row["best_score"]),
        _lead(row),
        str(row["may_be_best"]) if pd.notna(row["may_be_best"]) else "–",
        str(row["as_good_as_output"]) if pd.notna(row["as_good_as_output"]) else "–",
    ]


def _lead(row: Mapping[Hashable, Any]) -> str:
    if pd.isna(row["output_score"]):
        return "the output has no score"
    if pd.isna(row["gain_new_task"]):
        return "–"
    if row["gain_low"] == row["gain_high"] == 0:
        return "none: the output is chosen each time"
    return f"{_points(row['gain_new_task'])} ({_span(row['gain_low'], row['gain_high'])})"


def _revision(row: Mapping[Hashable, object]) -> str:
    return "" if row["revision"] == "main" else f" ({plain(str(row['revision']))})"


def _sentence(rows: pd.DataFrame) -> str:
    top = rows.loc[[rows["best_score"].idxmax()]].to_dict("records")[0]
    where = f"layer {top['best_layer']} of {top['last_layer']}"
    if top["best_is_output"]:
        where, by = "its own output", "which no layer inside beats"
    elif pd.isna(top["output_score"]):
        by = "but its output has no score"
    elif pd.isna(top["gain_low"]):
        by = (
            f"{_points(top['gain'])} points above its own output on these tasks, too few for an "
            "interval"
        )
    else:
        lead = (
            f"{_points(top['gain_new_task'])} points ({_span(top['gain_low'], top['gain_high'])})"
        )
        by = (
            f"above its own output by {lead} on a new task"
            if top["gain_low"] > 0
            else f"with no evidence of a lead over its own output: {lead} on a new task"
        )
    return (
        f"**{plain(str(top['model']))}**{_revision(top)}: {where} "
        f"({plain(reading_label(str(top['reading'])))}), {100 * top['best_score']:.1f}, {by}."
    )


def _span(low: object, high: object) -> str:
    """An interval that breaks in one place at most: whole, it is too wide for the page."""
    return f"{_points(low)}{NO_BREAK}to {_points(high)}"


def _points(value: object) -> str:
    return f"{100 * float(str(value)):.1f}".replace("-", "−")
