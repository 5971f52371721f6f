"""Mean scores of several layers together, and of the model's output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from layerwise import stats
from layerwise.association.curves import TASK, ScoreCurves, score_curves, with_output


def mean_of_combinations(
    scores: pd.DataFrame, combinations: pd.DataFrame, *, seed: int = 0
) -> pd.DataFrame:
    """Mean score of each combination of layers over all tasks, and its lead over the output.

    Parameters
    ----------
    scores, combinations : DataFrame
        Tidy scores of layers, and of combinations (``combinations`` of `Results.table`).

    Returns
    -------
    DataFrame
        The columns of `layerwise.association.selection.best_layers` that apply, layers and
        combine. Intervals hold for all combinations of a model and representation together.
        Combinations without a score on some of the tasks are left out.
    """
    both = with_output(pd.concat([scores, combinations], ignore_index=True))
    single = both["combine"].isna()
    together = both[~single]
    rows: list[dict[str, Any]] = []
    for curves in score_curves(both[single]):
        own = together["task"].isin(curves.tasks)
        for column, value in curves.about.items():
            own &= together[column] == value
        rows += _rows(curves, together[own], seed)
    return pd.DataFrame(rows)


def _rows(curves: ScoreCurves, own: pd.DataFrame, seed: int) -> Iterator[dict[str, Any]]:
    table = own.pivot(
        index=[*TASK, "subset"], columns=["layers", "combine"], values="main_score"
    ).astype(float)
    # First over the subsets of a task: a task counts once.
    means = table.groupby(level="task").mean(skipna=False).reindex(list(curves.tasks))
    means = means.dropna(axis=1)
    if means.empty:
        return
    values = means.to_numpy()
    lead = stats.simultaneous_ci(values - curves.output[:, None], curves.sources, seed=seed)
    for place, names in enumerate(means.columns.to_frame().to_dict("records")):
        yield {
            **curves.about,
            **{str(name): value for name, value in names.items()},
            "last_layer": curves.last_layer,
            "best_score": values[:, place].mean(),
            "output_score": np.mean(curves.output),
            "gain": lead.estimate[place],
            "gain_low": lead.low[place],
            "gain_high": lead.high[place],
            "n_tasks": len(values),
            "n_sources": len(set(curves.sources)),
        }
