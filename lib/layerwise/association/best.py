"""The best layer of each model by its task scores: which, by how much, and how sure that is.

It is set against the model's own output: the last layer as the model hands it out, after its last
norm, which is one of the candidates. The best of many is best partly by luck, so its lead is too
high on the tasks it was chosen by; what is said of it is its lead on a new task, with an interval
that pays for the choice (`layerwise.statistics.tasks.gain_new_task`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerwise.association.curves import Candidates, of_poolings, score_curves
from layerwise.statistics import corrections, tasks

MARGIN = 0.01
"""Layers within this of the output, one point of 100, count as being as good."""
ALPHA = 0.05
OUTPUT = "output"

COLUMNS = (
    "model", "revision", "tokens", "pooling", "task_type", "best_layer", "best_is_output",
    "last_layer", "best_depth", "best_score", "output_score", "output_from", "gain",
    "gain_new_task", "gain_low", "gain_high", "n_rivals", "may_be_best", "as_good_as_output",
    "n_layers", "n_tasks", "n_sources",
)  # fmt: skip


def best_layers(
    scores: pd.DataFrame, *, poolings: Sequence[str] | None = None, seed: int = 0
) -> pd.DataFrame:
    """Find each model's best layer, over all tasks and per task type.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    poolings : sequence of str, optional
        As in `layerwise.association.curves.of_poolings`.
    seed : int
        Of the distributions that are drawn.

    Returns
    -------
    DataFrame
        One row a model, revision, tokens, pooling and task type. Scores in [0, 1]. `best_layer`
        is L where the model's own output is best, and then `best_is_output`. `gain` is the best
        layer's lead over the output on these very tasks, `gain_new_task` that on a task that had
        no say in the choice, with its 95 % interval. `may_be_best` are the layers (and
        ``output``) that hold the best one with 95 % confidence, `n_rivals` their number;
        `as_good_as_output` those that are within `MARGIN` of the output (two one-sided tests,
        Holm's correction over layers). Without a score of the output, that and every gain are
        null. `output_from` is ``last layer`` where the scores hold no readout ``output`` and layer
        L stands in. Whatever needs tasks of two text sources is null for fewer. Layers with a
        score: `n_layers`.
    """
    rows = []
    for curves in score_curves(of_poolings(scores, poolings)):
        for group in curves.groups():
            chosen = curves.of_type(group)
            candidates, sources = curves.candidates(chosen), curves.sources_of(chosen)
            values, output = candidates.values, candidates.output_scores
            mean = values.mean(axis=0)
            best = int(np.argmax(mean))
            layer = int(candidates.layers[best])
            row: dict[str, object] = {
                "model": curves.model,
                "revision": curves.revision,
                "tokens": curves.tokens,
                "pooling": curves.pooling,
                "task_type": group,
                "best_layer": layer,
                "best_is_output": best == candidates.output,
                "last_layer": curves.last_layer,
                "best_depth": float(layer / max(curves.last_layer, 1)),
                "best_score": float(mean[best]),
                "output_score": float(output.mean()),
                "output_from": curves.output_from,
                "gain": float(mean[best] - output.mean()),
                "n_layers": len(curves.layers),
                "n_tasks": len(values),
                "n_sources": len(set(sources)),
            }
            rows.append(row | _how_sure(candidates, sources, seed))
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    return table.astype({"n_rivals": "Int64"})


def _how_sure(candidates: Candidates, sources: Sequence[str], seed: int) -> dict[str, object]:
    """The columns that need tasks of two text sources."""
    if len(set(sources)) < 2:
        return {}
    likely = np.flatnonzero(tasks.best_set(candidates.values, sources, seed=seed))
    found: dict[str, object] = {
        "n_rivals": len(likely),
        "may_be_best": _named(candidates, likely),
    }
    if candidates.output is None:
        return found
    gain = tasks.gain_new_task(candidates.values, candidates.output_scores, sources, seed=seed)
    inside = np.flatnonzero(np.arange(len(candidates.layers)) != candidates.output)
    leads = candidates.values[:, inside] - candidates.output_scores[:, None]
    p = corrections.holm(tasks.equivalent(leads, MARGIN, sources)) if len(inside) else np.empty(0)
    return found | {
        "gain_new_task": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "as_good_as_output": _named(candidates, inside[p <= ALPHA]) or "none",
    }


def layers_named(text: str) -> set[str]:
    """The layers, by number, and the output that a cell of `may_be_best` names."""
    found: set[str] = set()
    for name in text.split(", "):
        first, _, last = name.partition("–")
        found |= {str(n) for n in range(int(first), int(last) + 1)} if last else {name}
    return found


def _named(candidates: Candidates, places: Sequence[int] | np.ndarray) -> str:
    """Layers by number, runs of them as ``4–7``, and the output by name."""
    layers = [int(candidates.layers[i]) for i in places if i != candidates.output]
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    names = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    if candidates.output is not None and candidates.output in list(places):
        names.append(OUTPUT)
    return ", ".join(names)
