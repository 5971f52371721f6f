"""A metric by depth over training: a line per checkpoint, a column per model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, SymLogNorm

from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import pick_metrics, with_steps
from layerwise.figures.labels import (
    TOKENS,
    axis_label,
    counted,
    in_sentence,
    listing,
    metric_label,
    metric_unit,
    span,
)
from layerwise.figures.settings import SHOWN, MetricChoice, StudySettings, in_order
from layerwise.metrics.registry import directions

TALLEST = 4  # metrics one below the other

# As many lines as checkpoints lie close together; marks of the usual size would hide them.
SMALL_PICK = {"markersize": 4.5, "markeredgewidth": 0.6}
SMALL_LAST = {"markersize": 3.8, "markeredgewidth": 0.9}


def draw(metrics: pd.DataFrame, study: StudySettings, order: Sequence[str]) -> Drawn:
    """Draw each metric of each model, one line a checkpoint, coloured by training step.

    Parameters
    ----------
    metrics : DataFrame
        Tidy metrics. Models with a single checkpoint, and revisions whose name holds no step, are
        left aside.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table is the tidy metrics drawn, with the training step.

    Raises
    ------
    LayerwiseError
        If no model has two checkpoints with a step in their name.
    """
    study = study.with_default(*SHOWN)
    table = with_steps(pick_metrics(metrics, study, all_revisions=True))
    models = in_order(list(table["model"].unique()), study.models or order)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    panels = [(m, c) for m in models for c in tokens]
    steps = sorted(int(s) for s in table["step"].unique())
    colours, norm = style.step_colours(steps)
    # Metrics are rows; many of them are columns, or the page would be a ribbon.
    across = len(study.curves) > TALLEST
    columns = min(style.COLUMNS, len(study.curves)) if across else len(panels)
    n_rows = -(-len(study.curves) // columns) * len(panels) if across else len(study.curves)
    better = directions()
    figure, axes = style.grid(n_rows, columns, sharex=True, sharey=False if across else "row")
    for axis in axes.flat:
        axis.set_visible(False)
    for i, metric in enumerate(study.curves):
        block, column = divmod(i, columns)
        for k, (model, choice) in enumerate(panels):
            axis = axes[block * len(panels) + k, column] if across else axes[i, k]
            axis.set_visible(True)
            part = table[
                (table["model"] == model) & (table["curve"] == i) & (table["tokens"] == choice)
            ]
            _panel(axis, part, colours, norm, better.get(metric.metric))
            if across or k == 0:
                label = axis_label(metric.metric, metric.alpha, metric.normalization)
                axis.set_ylabel(marks.broken(label, 22))
            if (across and column == 0) or (not across and i == 0):
                notes = [TOKENS[choice]] if len(tokens) > 1 else []
                marks.panel_title(axis, model, notes, style.colour_of(model, order))
            if k == len(panels) - 1 if across else i == len(study.curves) - 1:
                style.depth_axis(axis)
                axis.tick_params(labelbottom=True)
    marks.step_bar(figure, axes, ScalarMappable(norm, colours), steps, n_rows)
    with_pick = any(metric.metric in better for metric in study.curves)
    marks.legend(figure, marks.pick_handles() if with_pick else marks.pick_handles()[1:])
    facts = _facts(table, study, models, tokens[0], steps)
    title = _title(facts, study.curves[0])
    corpora = listing(sorted(table["corpus"].unique()))
    n = span(table["n"].tolist())
    style.header(
        figure, title,
        f"By depth, a line per checkpoint ({counted(len(steps), 'step')} from {steps[0]:,} to "
        f"{steps[-1]:,}), on {n} prompts of {corpora}. "
        "Bands: ± 1.96 standard errors.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study, corpora, n), facts)


def _panel(
    axis: Axes, part: pd.DataFrame, colours: Colormap, norm: SymLogNorm, direction: int | None
) -> None:
    for step, line in part.groupby("step"):
        line = line.sort_values("depth")
        colour = colours(norm(int(str(step))))
        margin = style.Z95 * line["stderr"].astype(float)
        axis.fill_between(
            line["depth"], line["value"] - margin, line["value"] + margin, color=colour,
            alpha=0.1, linewidth=0,
        )  # fmt: skip
        axis.plot(
            line["depth"], line["value"], color=colour, marker="o", markersize=2.2, linewidth=1.3
        )
        last = line[line["depth"] == 1]  # the deepest with a value may be another
        axis.plot(last["depth"], last["value"], **(marks.last_mark(colour) | SMALL_LAST))
        if direction is not None and line["value"].notna().any():
            pick = line.iloc[int(np.nanargmax(direction * line["value"].to_numpy(float)))]
            axis.plot(pick["depth"], pick["value"], **(marks.best_mark(colour) | SMALL_PICK))


def _facts(
    table: pd.DataFrame,
    study: StudySettings,
    models: Sequence[str],
    tokens: str,
    steps: Sequence[int],
) -> dict[str, Any]:
    changes = []
    for model in models:
        part = table[
            (table["model"] == model) & (table["curve"] == 0) & (table["tokens"] == tokens)
        ]
        if part.empty:
            continue
        ends = part[part["step"].isin([part["step"].min(), part["step"].max()])]
        wide = ends.pivot_table(index=["layer", "depth"], columns="step", values="value")
        change = wide.iloc[:, -1] - wide.iloc[:, 0]
        where = int(np.argmax(change.abs()))
        layers, depths = (wide.index.get_level_values(n).to_numpy() for n in ("layer", "depth"))
        changes.append(
            {
                "model": model,
                "layer": int(layers[where]),
                "depth": float(depths[where]),
                "first": float(wide.to_numpy()[where, 0]),
                "last": float(wide.to_numpy()[where, -1]),
            }
        )
    return {
        "metric": study.curves[0].metric,
        "tokens": tokens,
        "steps": list(steps),
        "largest_change": changes,
        "n_prompts": span(table["n"].tolist()),
    }


def _title(facts: dict[str, Any], metric: MetricChoice) -> str:
    unit = metric_unit(metric.metric, metric.normalization)
    unit = f" {unit}" if unit else ""
    told = [
        f"from {c['first']:.2f} to {c['last']:.2f}{unit} at layer {c['layer']} of {c['model']}"
        for c in facts["largest_change"]
    ]
    return f"Training moves {in_sentence(metric.metric)} most {listing(told)}"


def _caption(facts: dict[str, Any], study: StudySettings, corpora: str, n: str) -> str:
    what = listing([metric_label(m.metric) for m in study.curves])
    return (
        f"{what} by depth in per cent of the layers (0 is the embedding output), on {n} prompts "
        f"of {corpora}, one line a checkpoint: {counted(len(facts['steps']), 'training step')} "
        f"from {facts['steps'][0]:,} to {facts['steps'][-1]:,}, coloured on a logarithmic scale, "
        "with 95 % intervals (± 1.96 standard errors over prompts); one panel a metric, a model "
        "and a choice of the tokens that count. Filled circles are the layers that the metrics "
        "themselves pick (the better end, where their source names one; no score is looked at), "
        "open circles the last layers. The title "
        f"gives the layer with the largest change of {metric_label(facts['metric'])} "
        f"({TOKENS[facts['tokens']]}) between the first and the last checkpoint."
    )
