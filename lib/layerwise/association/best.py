"""The best layer of each model by its task scores: which, by how much, and how sure that is.

It is set against the model's own output: the last layer as the model hands it out, after its last
norm, which is one of the candidates. The best of many is best partly by luck, so its lead is too
high on the tasks it was chosen by. `gain_new_task` is free of that: each task in turn is left out,
the layer is chosen by the others, and its gain over the output is read off the task left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerwise.association import nulls
from layerwise.association.curves import Floats, of_poolings, score_curves

COLUMNS = (
    "model", "revision", "tokens", "pooling", "task_type", "best_layer", "best_is_output",
    "last_layer", "best_depth", "best_score", "output_score", "output_from", "gain", "gain_low",
    "gain_high", "gain_new_task", "certainty", "likely_from", "likely_to", "n_layers", "n_tasks",
)  # fmt: skip


def best_layers(
    scores: pd.DataFrame,
    *,
    poolings: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Find each model's best layer, over all tasks and per task type.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    poolings : sequence of str, optional
        As in `layerwise.association.curves.of_poolings`.
    resamples, seed : int
        Bootstrap over tasks.

    Returns
    -------
    DataFrame
        One row a model, revision, tokens, pooling and task type. Scores in [0, 1]. `best_layer`
        is L where the model's own output is best, and then `best_is_output`. `gain` is the best
        layer's lead over the output, with a 95 % bootstrap interval for that layer; without a
        score of the output, that score and every gain are null. `output_from` is ``last layer``
        where the scores hold no readout ``output`` and layer L stands in. `certainty` is the share
        of resamples in which the same layer is best; `likely_from` and `likely_to` the range of
        the layers that are best in 95 % of the resamples. All that needs several tasks is null
        for one. Layers with a score: `n_layers`.
    """
    rows = []
    for curves in score_curves(of_poolings(scores, poolings)):
        for group in curves.groups():
            candidates = curves.candidates(curves.of_type(group))
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
            }
            if len(values) > 1:
                rng = nulls.generator(
                    seed, curves.model, curves.revision, curves.tokens, curves.pooling, group
                )
                weights = nulls.task_resamples(len(values), resamples, rng)
                samples = weights @ values
                places = samples.argmax(axis=1)
                against = np.nan if candidates.output is None else samples[:, candidates.output]
                low, high = nulls.interval(samples[:, best] - against)
                first, last = np.quantile(
                    candidates.layers[places], [0.025, 0.975], method="nearest"
                )
                row |= {
                    "gain_low": float(low),
                    "gain_high": float(high),
                    "gain_new_task": _left_out_gain(values, output),
                    "certainty": float((places == best).mean()),
                    "likely_from": int(first),
                    "likely_to": int(last),
                }
            rows.append(row)
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    whole = ["likely_from", "likely_to"]
    return table.astype(dict.fromkeys(whole, "Int64"))


def _left_out_gain(values: Floats, output: Floats) -> float:
    """Mean gain over the model's output on a task that had no say in the choice."""
    total = values.sum(axis=0)
    chosen = (total - values).argmax(axis=1)
    return float((values[np.arange(len(values)), chosen] - output).mean())
