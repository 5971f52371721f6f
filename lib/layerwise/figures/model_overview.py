"""One model at a glance: the score and every metric by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from layerwise.association.curves import last_layer_of
from layerwise.errors import LayerwiseError
from layerwise.figures import marks, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import mean_scores, metrics_there, pick_metrics
from layerwise.figures.labels import TOKENS, axis_label, counted, listing, metric_label, span
from layerwise.figures.settings import StudySettings, in_order
from layerwise.metrics.registry import directions

NEAR = 0.1  # of the depth: what counts as the same place


def draw(
    metrics: pd.DataFrame, scores: pd.DataFrame, study: StudySettings, order: Sequence[str]
) -> Drawn:
    """Draw the mean score in the first panel and a metric in each other one.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables.
    order : sequence of str
        All models of the config, which fixes their colours.

    Returns
    -------
    Drawn
        Its table has a row per panel, token choice and layer, with intervals.

    Raises
    ------
    LayerwiseError
        If the study is not about exactly one model.
    """
    models = sorted(set(scores["model"]) & set(metrics["model"]) & set(study.models or order))
    if len(models) != 1:
        raise LayerwiseError(
            f"An overview shows one model, this study has {len(models)} "
            f"({listing(models)}); name one under `models`."
        )
    model = models[0]
    study = study.with_default(*metrics_there(metrics[metrics["model"] == model], study))
    means = mean_scores(scores[scores["model"] == model], study)
    picked = pick_metrics(metrics[metrics["model"] == model], study)
    margin = style.Z95 * picked["stderr"].astype(float)
    table = pd.concat(
        [
            means.assign(
                panel=0, quantity="mean score", value=100 * means["score"],
                low=100 * means["low"], high=100 * means["high"],
            ),
            picked.assign(
                panel=picked["curve"] + 1, quantity=picked["metric"],
                low=picked["value"] - margin, high=picked["value"] + margin,
            ),
        ],
        ignore_index=True,
    )[
        ["model", "revision", "panel", "quantity", "tokens", "layer", "depth", "value", "low",
         "high", "n_tasks", "n"]
    ]  # fmt: skip
    tokens = in_order(list(table["tokens"].unique()), study.tokens or list(TOKENS))
    colour = style.colour_of(model, order)
    n_panels = 1 + len(study.curves)
    columns = min(style.COLUMNS, n_panels)
    rows = -(-n_panels // columns)
    figure, axes = style.grid(rows, columns, panel_height=1.75)
    facts = _facts(table, study, model, tokens)
    for i, axis in enumerate(axes.flat):
        axis.set_visible(i < n_panels)
        if i >= n_panels:
            continue
        _panel(axis, table[table["panel"] == i], tokens, colour, facts["best"])
        style.depth_axis(axis, label=i + columns >= n_panels)
        if i == 0:
            axis.set_title("Mean task score")
            axis.set_ylabel("× 100")
        else:
            choice = study.curves[i - 1]
            axis.set_title(marks.broken(metric_label(choice.metric), 27), linespacing=1.05)
            label = axis_label(choice.metric, choice.alpha, choice.normalization)
            axis.set_ylabel(
                label.removeprefix(metric_label(choice.metric)).strip(" ()") or "value"
            )
    handles = [*marks.tokens_handles(tokens, TOKENS), marks.best_line()]
    marks.legend(figure, handles)
    title = _title(facts)
    style.header(
        figure, title,
        f"Scores over {facts['n_tasks']} tasks, metrics on {facts['n_prompts']} prompts of "
        f"{listing(sorted(picked['corpus'].unique()))}, by depth. Bands: 95 % intervals.",
    )  # fmt: skip
    return Drawn(figure, table, title, _caption(facts, study), facts)


def _panel(
    axis: Any, part: pd.DataFrame, tokens: Sequence[str], colour: str, best: dict[str, Any]
) -> None:
    for choice in tokens:
        line = part[part["tokens"] == choice].sort_values("depth")
        if line.empty:
            continue
        axis.fill_between(
            line["depth"], line["low"], line["high"], color=colour, alpha=0.14, linewidth=0
        )
        axis.plot(line["depth"], line["value"], color=colour, linestyle=style.DASHES[choice])
        if choice in best:
            axis.axvline(
                best[choice]["depth"], color=style.GREY, linewidth=0.7,
                linestyle=style.DASHES[choice], zorder=1,
            )  # fmt: skip


def _facts(
    table: pd.DataFrame, study: StudySettings, model: str, tokens: Sequence[str]
) -> dict[str, Any]:
    best, near = {}, {}
    known = directions()
    for choice in tokens:
        scored = table[(table["panel"] == 0) & (table["tokens"] == choice)]
        if scored.empty:
            continue
        top = scored.iloc[int(scored["value"].argmax())]
        best[choice] = {
            "layer": int(top["layer"]),
            "depth": float(top["depth"]),
            "last_layer": last_layer_of(scored),
            "score": float(top["value"]),
        }
        picks = {}
        for i, curve in enumerate(study.curves, start=1):
            part = table[(table["panel"] == i) & (table["tokens"] == choice)]
            if curve.metric in known and len(part):
                at = part.iloc[int((known[curve.metric] * part["value"]).argmax())]
                picks[curve.metric] = float(at["depth"])
        near[choice] = {
            "of": len(picks),
            "near": [m for m, d in picks.items() if abs(d - best[choice]["depth"]) <= NEAR],
        }
    return {
        "model": model,
        "best": best,
        "near": near,
        "n_tasks": span(table["n_tasks"].dropna().tolist()),
        "n_prompts": span(table["n"].dropna().tolist()),
    }


def _title(facts: dict[str, Any]) -> str:
    parts = []
    for choice, best in facts["best"].items():
        near = facts["near"][choice]
        parts.append(
            f"layer {best['layer']} of {best['last_layer']} {TOKENS[choice]} "
            f"({len(near['near'])} of {near['of']} metrics point there)"
        )
    return f"{facts['model']} is best at {listing(parts)}".replace("all tokens", "with all tokens")


def _caption(facts: dict[str, Any], study: StudySettings) -> str:
    return (
        f"{facts['model']}: mean main score (× 100) over {facts['n_tasks']} tasks and "
        f"{counted(len(study.curves), 'metric')} on {facts['n_prompts']} prompts, by depth in per "
        "cent of the layers. Vertical lines: the layer with the best score under either choice of "
        "tokens. Bands: 95 % intervals, over tasks for the score, ± 1.96 standard errors for the "
        "metrics. A metric points to a layer if its better end lies within a tenth of the depth "
        "of it."
    )
