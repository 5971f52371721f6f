"""What counting the first token does: score and metrics by depth under each token choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import mean_scores, pick_metrics
from layerwise.figures.labels import (
    TOKENS,
    axis_label,
    listing,
    metric_label,
    percent,
    signed,
    span,
)
from layerwise.figures.settings import StudySettings, in_order

KEYS = ["model", "tokens", "row", "layer"]


def draw(
    metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings, order: Sequence[str]
) -> Drawn:
    """Draw a column per model: the mean score on top, metrics below, a line per token choice.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables with two or more token choices.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per model, token choice, layer and row of panels: the value, and its
        difference from that with all tokens.
    """
    study = study.with_default("prompt_entropy")
    table = _table(metrics, scores, study)
    models = in_order(list(table["model"].unique()), study.models or order)
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    figure, axes = style.grid(1 + len(study.curves), len(models), sharex=True, sharey="row")
    for row, line_of_axes in enumerate(axes):
        for model, axis in zip(models, line_of_axes, strict=True):
            part = table[(table["model"] == model) & (table["row"] == row)]
            _panel(axis, part, tokens, style.colour_of(model, order), scored=row == 0)
    axes[0, 0].set_ylabel("Mean task score (× 100)")
    for choice, axis in zip(study.curves, axes[1:, 0], strict=True):
        axis.set_ylabel(axis_label(choice.metric, choice.alpha, choice.normalization))
    for model, axis in zip(models, axes[0], strict=True):
        marks.panel_title(axis, model, [], style.colour_of(model, order))
    for axis in axes[-1]:
        style.depth_axis(axis)
    handles = [*marks.tokens_handles(tokens, TOKENS), *marks.mark_handles()]
    marks.legend(figure, handles)
    facts = _facts(table, models, tokens)
    title = _title(facts)
    style.header(
        figure, title,
        f"By depth. Shaded: the difference that the token choice makes. Scores over "
        f"{facts['n_tasks']} tasks, metrics on {facts['n_prompts']} prompts.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study), facts)


def _table(metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings) -> pd.DataFrame:
    means = mean_scores(scores, study)
    means = means.assign(row=0, quantity="mean score", value=100 * means["score"])
    picked = pick_metrics(metrics, study)
    picked = picked.assign(row=picked["curve"] + 1, quantity=picked["metric"])
    columns = [*KEYS, "revision", "depth", "quantity", "value"]
    table = pd.concat([means[[*columns, "n_tasks"]], picked[[*columns, "n"]]], ignore_index=True)
    with_all = table[table["tokens"] == "all"].set_index(["model", "row", "layer"])["value"]
    key = pd.MultiIndex.from_frame(table[["model", "row", "layer"]])
    table["difference"] = table["value"] - with_all.reindex(key).to_numpy()
    return table


def _panel(
    axis: Any, part: pd.DataFrame, tokens: Sequence[str], colour: str, *, scored: bool
) -> None:
    curves = {
        choice: part[part["tokens"] == choice].set_index("depth")["value"].sort_index()
        for choice in tokens
    }
    if "all" in curves:
        for choice, curve in curves.items():
            shared = curve.index.intersection(curves["all"].index)
            if choice != "all":
                axis.fill_between(
                    shared, curves["all"].loc[shared], curve.loc[shared],
                    color=colour, alpha=0.12, linewidth=0,
                )  # fmt: skip
    for choice, curve in curves.items():
        axis.plot(curve.index, curve, color=colour, linestyle=style.DASHES[choice])
        if scored and len(curve):
            last = curve[curve.index == 1]  # the deepest with a score may be another
            axis.plot(last.index, last, **marks.last_mark(colour))
            axis.plot(curve.idxmax(), curve.max(), **marks.best_mark(colour))


def _facts(table: pd.DataFrame, models: Sequence[str], tokens: Sequence[str]) -> dict[str, Any]:
    largest = []
    for model in models:
        part = table[
            (table["model"] == model) & (table["row"] == 0) & (table["tokens"] != "all")
        ].dropna(subset=["difference"])
        if part.empty:
            continue
        top = part.iloc[int(part["difference"].abs().argmax())]
        largest.append(
            {
                "model": model,
                "tokens": str(top["tokens"]),
                "layer": int(top["layer"]),
                "depth": float(top["depth"]),
                "points": float(top["difference"]),
            }
        )
    return {
        "largest": sorted(largest, key=lambda f: -abs(f["points"])),
        "tokens": list(tokens),
        "n_tasks": span(table["n_tasks"].dropna().tolist()),
        "n_prompts": span(table["n"].dropna().tolist()),
    }


def _title(facts: dict[str, Any]) -> str:
    if not facts["largest"]:
        return "Scores are there for one choice of tokens only"
    top, rest = facts["largest"][0], facts["largest"][1:]
    verb = "raises" if top["points"] > 0 else "lowers"
    text = (
        f"Scoring {TOKENS[top['tokens']]} {verb} {top['model']} by up to {abs(top['points']):.1f} "
        f"points (at {percent(top['depth'])} depth)"
    )
    if rest:
        text += "; " + listing([f"{r['model']} by {signed(r['points'])}" for r in rest])
    return text


def _caption(facts: dict[str, Any], study: StudySettings) -> str:
    what = listing([metric_label(c.metric) for c in study.curves])
    return (
        f"Mean main score (× 100) over {facts['n_tasks']} tasks and {what} on "
        f"{facts['n_prompts']} prompts, by depth in per cent of the layers, under "
        f"{listing([TOKENS[t] for t in facts['tokens']])}; a column per model. Both come from the "
        "same forward pass and differ only in which tokens are averaged. Shaded: the difference. "
        "Filled circle: best layer; open circle: last layer. The title gives each model's "
        "largest difference in score at any layer."
    )
