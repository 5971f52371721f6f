"""What would make a difference between layers smaller: its variance by source, for captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import ScoreCurves, score_curves
from layerwise.figures.frames import Rows, pick_scores
from layerwise.figures.labels import counted, listing, percent, reading, reading_label
from layerwise.statistics.variance import RESIDUAL, Components, components

DEPTHS = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6)
WORDS = {"text source": "text sources", "task": "tasks of one source", "model": "models",
         "checkpoint": "checkpoints of one model"}  # fmt: skip


def of_leads(curves: Sequence[ScoreCurves]) -> Components | None:
    """Variance of a layer's lead over the output by source, in points², mean over `DEPTHS`.

    Sources are tasks, the texts that they are made of, models and their checkpoints, those of
    which there are several. None without outputs that have scores, or with too little of all.
    """
    leads, labels = [], []
    for c in curves:
        if not np.isfinite(c.output).all():
            continue
        at = c.layers / max(c.last_layer, 1)
        for task, source, values, output in zip(
            c.tasks, c.sources, c.values, c.output, strict=True
        ):
            leads.append(100 * (np.interp(DEPTHS, at, values) - output))
            labels.append({"text source": source, "task": task, "model": c.model,
                           "checkpoint": (c.model, c.revision)})  # fmt: skip
    levels = {k: [label[k] for label in labels] for k in WORDS}
    counts = {k: len(set(v)) for k, v in levels.items()}
    for fine, coarse in (("task", "text source"), ("checkpoint", "model")):
        if counts[fine] == counts[coarse]:  # each its own, and one and the same
            counts[coarse if fine == "task" else fine] = 1
    several = {k: v for k, v in levels.items() if counts[k] > 1}
    if len(leads) <= 1 + len(several) or not several:
        return None
    return components(np.array(leads), several)


def said(rows: Rows, scores: pd.DataFrame) -> tuple[str, dict[str, Any]]:
    """Where the uncertainty of a lead comes from in what a study shows, and the numbers in it."""
    choice = rows.values("reading")[0]
    table = rows.scored_rows
    shown = set(zip(table["model"], table["revision"], table["reading"], strict=True))
    curves = [
        c for c in score_curves(pick_scores(scores, rows.study))
        if (c.model, c.revision, reading(c.tokens, c.pooling)) in shown
        and reading(c.tokens, c.pooling) == choice
    ]  # fmt: skip
    found = of_leads(curves)
    if found is None or not found.error > 0:
        return "", {}
    words = dict(WORDS)
    words |= {"task": "tasks"} if "text source" not in found.levels else {}
    words |= {"checkpoint": "checkpoints"} if "model" not in found.levels else {}
    shares = [
        f"{percent(v)} between {words[k]}"
        if k != RESIDUAL
        else f"{percent(v)} is of one cell alone"
        for k, v in found.shares.items()
    ]
    doubled = {
        "tasks, of texts of their own": ("text source", "task"),
        "models": ("model", "checkpoint"),
        "checkpoints": ("checkpoint",),
    }
    less = []
    for name, group in doubled.items():
        if group[0] in found.levels or (name.startswith("tasks") and "task" in found.levels):
            more = {k: 2 * found.levels[k] for k in group if k in found.levels}
            less.append(f"{found.error_with(more):.1f} with twice the {name}")
    of = listing([counted(n, k) for k, n in found.levels.items()])
    text = (
        " What would make a difference between layers surer: of the variance of a layer's lead "
        f"over the output ({reading_label(choice)}, mean over five depths inside), "
        f"{listing(shares)}. The mean lead over {of} has a standard error of {found.error:.1f} "
        f"points; {listing(less)}."
    )
    return text, {"variance": found.variance, "levels": found.levels, "error": found.error}
