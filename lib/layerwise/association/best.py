"""The best layer of each model by its task scores, compared with the model's output.

The output is the last layer after the model's final norm, and one of the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import stats
from layerwise.association.curves import Candidates, score_curves

Floats = npt.NDArray[np.float64]


def best_layers(scores: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Find each model's best layer by its scores, over all tasks and per task type.

    Returns
    -------
    DataFrame
        One row per model, revision, tokens, pooling and task type; scores in [0, 1]. `best_layer`
        is L where the model's output is best (`best_is_output`). `n_tied` is the number of layers
        with the best score. `gain` is the lead over the output on these tasks, `gain_new_task`
        that on each task cluster of the layer that the other clusters select. The 95% interval
        corrects for the selection. `may_be_best` are the layers (and ``output``) that hold the
        best one with 95% confidence. Intervals need three task clusters, gains a score of
        the output. `output_from` is ``last layer`` without scores after the final norm.
    """
    rows = []
    for curves in score_curves(scores):
        for group in curves.groups():
            tasks = curves.of_type(group)
            candidates, sources = curves.candidates(tasks), curves.sources_of(tasks)
            mean = candidates.values.mean(axis=0)
            best = int(np.argmax(mean))
            layer = int(candidates.layers[best])
            row: dict[str, object] = {
                **curves.about,
                "task_type": group,
                "best_layer": layer,
                "best_is_output": best == candidates.output,
                "n_tied": int((mean >= mean[best] - 1e-12).sum()),
                "last_layer": curves.last_layer,
                "best_score": mean[best],
                "output_score": candidates.output_scores.mean(),
                "output_from": curves.output_from,
                "n_layers": len(curves.layers),
                "n_tasks": len(candidates.values),
                "n_sources": len(set(sources)),
            }
            rows.append(row | _uncertainty(candidates, best, sources, seed))
    return pd.DataFrame(rows)


def _uncertainty(
    candidates: Candidates, best: int, sources: Sequence[str], seed: int
) -> dict[str, object]:
    leads = candidates.values - candidates.output_scores[:, None]
    found: dict[str, object] = {"gain": float(leads[:, best].mean())}
    found |= dict.fromkeys(("gain_new_task", "gain_low", "gain_high", "may_be_best"), np.nan)
    if len(set(sources)) < stats.FEWEST:
        return found
    may_be = np.flatnonzero(stats.best_set(candidates.values, sources, seed=seed))
    found["may_be_best"] = _layers_text(candidates, may_be)
    if candidates.output is not None:
        over_all = stats.simultaneous_ci(leads, sources, seed=seed)
        found |= {
            "gain_new_task": _gain_left_out(leads, sources),
            "gain_low": float(over_all.low[best]),
            "gain_high": float(over_all.high[best]),
        }
    return found


def _gain_left_out(leads: Floats, sources: Sequence[str]) -> float:
    """Mean lead on each task cluster of the layer that the other clusters select."""
    found = np.empty(len(leads))
    for source in set(sources):
        out = np.array([s == source for s in sources])
        found[out] = leads[out, leads[~out].mean(axis=0).argmax()]
    return float(found.mean())


def _layers_text(candidates: Candidates, places: npt.NDArray[np.intp]) -> str:
    """Layers as text: runs of them as ``4–7``, and ``output``."""
    runs: list[list[int]] = []
    for layer in (int(candidates.layers[i]) for i in places if i != candidates.output):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    names = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    if candidates.output is not None and candidates.output in list(places):
        names.append("output")
    return ", ".join(names)
