"""The best layer of each model by its task scores, compared with the model's output.

The output is the last layer after the model's final norm, and one of the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import stats
from layerwise.association.curves import score_curves

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
        corrects for the selection. Intervals and `gain_new_task` need three task clusters, gains
        a score of the output. `output_from` is ``last layer`` without scores after the final norm.
    """
    rows = []
    for curves in score_curves(scores):
        for group in curves.groups():
            tasks = curves.of_type(group)
            candidates, sources = curves.candidates(tasks), curves.sources_of(tasks)
            mean = candidates.values.mean(axis=0)
            best = int(np.argmax(mean))
            leads = candidates.values - candidates.output_scores[:, None]
            gain = stats.simultaneous_ci(leads, sources, seed=seed)
            rows.append(
                {
                    **curves.about,
                    "task_type": group,
                    "best_layer": int(candidates.layers[best]),
                    "best_is_output": best == candidates.output,
                    "n_tied": int((mean >= mean[best] - 1e-12).sum()),
                    "last_layer": curves.last_layer,
                    "best_score": mean[best],
                    "output_score": candidates.output_scores.mean(),
                    "output_from": curves.output_from,
                    "n_layers": len(curves.layers),
                    "n_tasks": len(candidates.values),
                    "n_sources": gain.n,
                    "gain": gain.estimate[best],
                    "gain_low": gain.low[best],
                    "gain_high": gain.high[best],
                    "gain_new_task": _gain_left_out(leads, sources),
                }
            )
    return pd.DataFrame(rows)


def _gain_left_out(leads: Floats, sources: Sequence[str]) -> float:
    """Mean lead on each task cluster of the layer that the other clusters select."""
    names = np.array(sources)
    if len(set(sources)) < stats.FEWEST:
        return np.nan
    found = np.empty(len(leads))
    for source in set(sources):
        out = names == source
        found[out] = leads[out, leads[~out].mean(axis=0).argmax()]
    return float(found.mean())
