"""The best layer of each model by its task scores: which, by how much, and how sure that is.

The best of many layers is best partly by luck, so its lead over the last layer is too high on the
tasks it was chosen by. `gain_new_task` is free of that: each task in turn is left out, the layer
is chosen by the others, and its gain over the last layer is read off the task left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from layerwise.association import nulls
from layerwise.association.curves import Floats, score_curves

COLUMNS = (
    "model", "revision", "tokens", "pooling", "task_type", "best_layer", "last_layer",
    "best_depth", "best_score", "last_score", "gain", "gain_low", "gain_high", "gain_new_task",
    "certainty", "likely_from", "likely_to", "n_layers", "n_tasks",
)  # fmt: skip


def best_layers(scores: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Find each model's best layer, over all tasks and per task type.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    resamples, seed : int
        Bootstrap over tasks.

    Returns
    -------
    DataFrame
        One row a model, revision, tokens, pooling and task type. Scores in [0, 1]. `gain` is the
        best layer's lead over the last one, with a 95 % bootstrap interval for that layer; without
        a score of the last layer, that score and every gain are null;
        `certainty` the share of resamples in which the same layer is best; `likely_from` and
        `likely_to` the range of the layers that are best in 95 % of the resamples. All that needs
        several tasks is null for one.
    """
    rows = []
    for curves in score_curves(scores):
        for group in curves.groups():
            values = curves.values[curves.of_type(group)]
            mean = values.mean(axis=0)
            best = int(np.argmax(mean))
            row: dict[str, object] = {
                "model": curves.model,
                "revision": curves.revision,
                "tokens": curves.tokens,
                "pooling": curves.pooling,
                "task_type": group,
                "best_layer": int(curves.layers[best]),
                "last_layer": curves.last_layer,
                "best_depth": float(curves.layers[best] / max(curves.last_layer, 1)),
                "best_score": float(mean[best]),
                "last_score": float(curves.at_last(mean)),
                "gain": float(mean[best] - curves.at_last(mean)),
                "n_layers": len(mean),
                "n_tasks": len(values),
            }
            if len(values) > 1:
                rng = nulls.generator(
                    seed, curves.model, curves.revision, curves.tokens, curves.pooling, group
                )
                weights = nulls.task_resamples(len(values), resamples, rng)
                samples = weights @ values
                winners = curves.layers[samples.argmax(axis=1)]
                low, high = nulls.interval(samples[:, best] - curves.at_last(samples))
                first, last = np.quantile(winners, [0.025, 0.975], method="nearest")
                row |= {
                    "gain_low": float(low),
                    "gain_high": float(high),
                    "gain_new_task": _left_out_gain(values, curves.at_last(values)),
                    "certainty": float((winners == curves.layers[best]).mean()),
                    "likely_from": int(first),
                    "likely_to": int(last),
                }
            rows.append(row)
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    whole = ["likely_from", "likely_to"]
    return table.astype(dict.fromkeys(whole, "Int64"))


def _left_out_gain(values: Floats, last: Floats) -> float:
    """Mean gain over the last layer on a task that had no say in the choice."""
    total = values.sum(axis=0)
    chosen = (total - values).argmax(axis=1)
    return float((values[np.arange(len(values)), chosen] - last).mean())
