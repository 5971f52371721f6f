"""Layer selection for each task on its own texts, as Table 2 of arXiv 2502.02013 has it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association.curves import ScoreCurves, usable
from layerwise.stats import FEWEST, mean_ci

LOWEST, HIGHEST = "lowest", "highest"
ENDS = {LOWEST: -1, HIGHEST: 1}


def gains_by_task(values: npt.NDArray[np.float64], scores: ScoreCurves) -> pd.DataFrame:
    """Mean gain over the model's output if each task takes the layer that a metric selects for it.

    Parameters
    ----------
    values : array, shape (t, n)
        The metric on each task's own texts, NaN where it has none. Tasks without a value at some
        layer are left out.
    scores : ScoreCurves

    Returns
    -------
    DataFrame
        A row for each end of the metric: end; score and gain (score of the selected layers less
        that of the output), means over tasks in [0, 1]; low and high, the 95% interval of the gain
        over task clusters, which needs three; n_tasks and n_clusters. Empty if no task has values,
        or the output no scores.
    """
    tasks, layers = usable(values)
    tasks &= np.isfinite(scores.output)
    rows = []
    for end, direction in ENDS.items() if tasks.any() else ():
        selected = (direction * values[tasks][:, layers]).argmax(axis=1)
        score = scores.values[tasks][:, layers][np.arange(tasks.sum()), selected]
        gain = mean_ci(score - scores.output[tasks], scores.sources[tasks])
        enough = gain.n >= FEWEST
        rows.append(
            {
                "end": end,
                "score": score.mean(),
                "gain": gain.estimate,
                "low": gain.low if enough else np.nan,
                "high": gain.high if enough else np.nan,
                "n_tasks": int(tasks.sum()),
                "n_clusters": gain.n,
            }
        )
    return pd.DataFrame(rows)
