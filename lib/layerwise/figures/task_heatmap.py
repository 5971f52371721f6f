"""Which tasks want which layer: every task's score by depth, against its last layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import score_curves
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_scores
from layerwise.figures.labels import TOKENS, counted, listing
from layerwise.figures.settings import StudySettings, in_order


def draw(scores: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw a heat map of tasks by depth per model and token choice.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per model, tokens, task and layer: score in [0, 1], difference from
        the task's last layer, whether it is the task's best layer.
    """
    table = _table(pick_scores(scores, study))
    models = in_order(list(table["model"].unique()), study.models or order)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    tasks = list(
        table[["task_type", "task"]].drop_duplicates().sort_values(["task_type", "task"])["task"]
    )
    there = set(zip(table["model"], table["tokens"], strict=True))
    panels = [(m, c) for m in models for c in tokens if (m, c) in there]
    columns = min(style.COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = style.grid(rows, columns, panel_height=max(1.3, 0.19 * len(tasks) + 0.5))
    # Symmetric, and not stretched by a few extreme cells: those take the end colour.
    limit = float(np.ceil(np.quantile(100 * table["above_last"].abs(), 0.98))) or 1.0
    for i, axis in enumerate(axes.flat):
        axis.set_visible(i < len(panels))
        if i >= len(panels):
            continue
        model, choice = panels[i]
        part = table[(table["model"] == model) & (table["tokens"] == choice)]
        image = _panel(axis, part, tasks, limit)
        notes = [TOKENS[choice]] if len(tokens) > 1 else []
        marks.panel_title(axis, model, notes, style.colour_of(model, order))
        style.depth_axis(axis, label=i // columns == rows - 1)
        axis.set_xlim(0, 1)
        axis.tick_params(labelleft=i % columns == 0)
    bar = figure.colorbar(
        image, ax=axes, location="right", aspect=25, pad=0.01, extend="both",
        shrink=min(1.0, 2 / rows), anchor=(0.0, 1.0),
    )  # fmt: skip
    bar.set_label("Points above the last layer")
    facts = _facts(table, panels)
    title = _title(facts, tokens)
    style.header(
        figure, title,
        f"Main score (× 100) of each of {counted(len(tasks), 'task')} by depth, less that of its "
        "last layer. Dots: each task's best layer.",
    )  # fmt: skip
    caption = (
        f"Main score (× 100) of each of {counted(len(tasks), 'task')}, grouped by type, by depth "
        "in per cent of the layers, less the same task's score at the last layer; a panel per "
        "model and choice of the tokens that count. Dots mark each task's best layer. Colours are "
        f"cut off at ± {limit:.0f} points."
    )
    return Drawn(figure, table, title, caption, facts)


def _table(scores: pd.DataFrame) -> pd.DataFrame:
    frames = []
    for curves in score_curves(scores):
        n_tasks, n = curves.values.shape
        if not curves.has_last:
            raise LayerwiseError(
                f"Some task of {curves.model} at {curves.revision} has no score at the last "
                f"layer, {curves.last_layer}, and this study shows scores less that one; score "
                "the tasks again, or name others under `tasks` or `models`."
            )
        frames.append(
            pd.DataFrame(
                {
                    "model": curves.model,
                    "revision": curves.revision,
                    "tokens": curves.tokens,
                    "task": np.repeat(curves.tasks, n),
                    "task_type": np.repeat(curves.task_types, n),
                    "layer": np.tile(curves.layers, n_tasks),
                    "depth": np.tile(curves.layers / max(curves.last_layer, 1), n_tasks),
                    "score": curves.values.ravel(),
                    "above_last": (curves.values - curves.values[:, -1:]).ravel(),
                    "best": (np.arange(n) == curves.values.argmax(axis=1)[:, None]).ravel(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _panel(axis: Any, part: pd.DataFrame, tasks: list[str], limit: float) -> Any:
    wide = part.pivot_table(index="task", columns="depth", values="above_last").reindex(tasks)
    depths = wide.columns.to_numpy(dtype=float)
    middle = (depths[1:] + depths[:-1]) / 2
    image = axis.pcolormesh(
        np.r_[0.0, middle, 1.0], np.arange(len(tasks) + 1) - 0.5,
        np.ma.masked_invalid(100 * wide.to_numpy(dtype=float)),
        cmap=style.DIVERGING, vmin=-limit, vmax=limit, rasterized=True,
    )  # fmt: skip
    best = part[part["best"]].set_index("task").reindex(tasks)["depth"].to_numpy(dtype=float)
    axis.plot(
        best, np.arange(len(tasks)), linestyle="none", marker="o", markersize=3.2, color=style.INK,
        markeredgecolor="white", markeredgewidth=0.5, clip_on=False, zorder=4,
    )  # fmt: skip
    axis.set_yticks(range(len(tasks)), tasks)
    axis.set_ylim(len(tasks) - 0.5, -0.5)
    axis.grid(visible=False)
    return image


def _facts(table: pd.DataFrame, panels: Sequence[tuple[str, str]]) -> dict[str, Any]:
    best = table[table["best"]]
    found = []
    for model, choice in panels:
        mine = best[(best["model"] == model) & (best["tokens"] == choice)]
        found.append(
            {
                "model": model,
                "tokens": choice,
                "n_tasks": len(mine),
                "before_last": int((mine["above_last"] > 0).sum()),
                "median_depth": float(mine["depth"].median()),
            }
        )
    return {"panels": found}


def _title(facts: dict[str, Any], tokens: Sequence[str]) -> str:
    # With several token choices, the last is the one in which no single token dominates.
    shown = [f for f in facts["panels"] if f["tokens"] == tokens[-1]]
    told = [f"{f['before_last']} of {f['n_tasks']} in {f['model']}" for f in shown]
    what = f" {TOKENS[tokens[-1]]}" if len(tokens) > 1 else ""
    return f"Tasks better served by an earlier layer than the last{what}: {listing(told)}"
