"""Task scores by layer: their means with intervals, the best layers, and gains over the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import stats
from layerwise.association.curves import ScoreCurves, Tasks, score_curves, usable, with_output

Floats = npt.NDArray[np.float64]
# One column of a table of values for each task.
Columns = npt.NDArray[np.intp]

NO_INTERVAL = f"{{}}; an interval takes {stats.FEWEST}"
# Task clusters of which two or more select a layer for another.
FEWEST_ELSEWHERE = 3
LOWEST, HIGHEST = "lowest", "highest"
ENDS = {LOWEST: -1, HIGHEST: 1}

# Types of task whose main score is a correlation, from -1 to 1; all others' is from 0 to 1.
CORRELATED = frozenset({"STS", "Summarization", "InstructionReranking"})


def representation(tokens: str, pooling: str) -> str:
    """Key of a token selection with a pooling: ``drop_first``, ``last_token, residual``.

    Mean pooling is not mentioned, and neither is the token selection of the last token, which is
    the same token whatever is dropped in front of it.
    """
    how, *readout = pooling.split(", ")
    base = tokens if how == "mean" else how
    if how not in ("mean", "last_token") and tokens != "all":
        base = f"{how} of {tokens}"
    return ", ".join([base, *readout])


def with_representation(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the column ``representation``, from its tokens and poolings."""
    keys = zip(table["tokens"], table["pooling"], strict=True)
    return table.assign(representation=[representation(t, p) for t, p in keys])


def mean_scores(scores: pd.DataFrame, groups: Sequence[str] = ()) -> pd.DataFrame:
    """Mean task score by layer with a 95% interval of its difference to the model's output.

    Layers are compared, so the interval is that of the difference over task clusters, for all
    layers together, added to the output's score: a layer differs significantly where its interval
    excludes that score. With a single task it is the evaluator's own. Tasks of one cluster share
    texts and count as one draw; below `layerwise.stats.FEWEST` clusters there is no interval.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    groups : of ``task_type`` and ``task``
        Within which the mean is taken; by default over all tasks.

    Returns
    -------
    DataFrame
        model, revision, tokens, pooling, representation, the groups, layer, depth; value,
        low, high and output_score in [0, 1] (below 0 only for correlations; null at layers where
        some task has no score); output_from, output_is_best, chance, n_tasks, n_clusters.
    """
    frames = []
    chance = pd.Series(dtype=float)
    if "chance" in scores:
        chance = scores.groupby("task")["chance"].first().astype(float)
    for curves in score_curves(scores):
        names = pd.DataFrame({"task_type": curves.task_types, "task": curves.tasks})
        for group, members in names.groupby(list(groups)) if groups else [((), names)]:
            tasks = members.index.to_numpy()
            values, output = curves.values[tasks], curves.output[tasks]
            low, high = _interval(scores, curves, tasks)
            _, candidates = curves.candidates(tasks)
            best = candidates[:, candidates.mean(axis=0).argmax()]
            layers = np.array(sorted([*curves.layers, *curves.layers_left_out]))
            ends = {"value": values.mean(axis=0), "low": low, "high": high}
            about = {
                **curves.about,
                **({"task": names["task"][tasks[0]]} if len(tasks) == 1 else {}),
                **dict(zip(groups, map(str, group), strict=True)),
                "representation": representation(curves.tokens, curves.pooling),
                "depth": layers / max(curves.last_layer, 1),
                "output_score": output.mean(),
                "output_from": curves.output_from,
                "output_is_best": np.array_equal(best, output),
                "chance": chance.reindex(members["task"]).mean(skipna=False),
                "n_tasks": len(tasks),
                "n_clusters": len(set(curves.sources[tasks])),
            }
            frame = pd.DataFrame(ends, curves.layers).reindex(layers)
            frames.append(frame.assign(layer=layers, **about))
    keys = ["model", "revision", "representation", *groups, "layer"]
    return pd.concat(frames).drop_duplicates(keys, ignore_index=True)


def best_layers(scores: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Find each model's best layer by its scores, over all tasks and per task type.

    Returns
    -------
    DataFrame
        One row per model, revision, tokens, pooling and task type; scores in [0, 1]. `best_layer`
        is L where the model's output is best (`best_is_output`). `n_tied` is the number of layers
        with the best score. `gain` is the lead over the output on these tasks, `gain_new_task`
        that on each task cluster of the layer that the other clusters select. The 95% interval
        corrects for the selection. `no_interval` says why there is none. `gain_new_task` needs
        three task clusters, gains a score of the output. `output_from` is ``last layer`` without
        scores after the final norm.
    """
    rows = []
    for curves in score_curves(scores):
        for group, tasks in curves.groups().items():
            (layers, values), sources = curves.candidates(tasks), curves.sources[tasks]
            mean, leads = values.mean(axis=0), values - curves.output[tasks, None]
            gain, best = stats.simultaneous_ci(leads, sources, seed=seed), mean.argmax()
            rows.append(
                {
                    **best_of(curves, group, tasks),
                    "n_tied": len({*layers[mean >= mean[best] - 1e-12]}),
                    "last_layer": curves.last_layer,
                    "gain": gain.estimate[best],
                    "gain_low": gain.low[best],
                    "gain_high": gain.high[best],
                    "gain_new_task": at_columns(leads, best_elsewhere(values, sources)).mean(),
                }
            )
    return pd.DataFrame(rows)


def best_of(curves: ScoreCurves, group: str, tasks: Tasks) -> dict[str, Any]:
    """The best layer and the output of a model: columns of both tables."""
    (layers, values), output = curves.candidates(tasks), curves.output[tasks]
    n_sources = len(set(curves.sources[tasks]))
    few = NO_INTERVAL.format(stats.task_clusters(n_sources))
    mean = values.mean(axis=0)
    best = int(mean.argmax())
    return {
        **curves.about,
        "task_type": group,
        "best_layer": int(layers[best]),
        "best_is_output": np.array_equal(values[:, best], output),
        "best_score": mean[best],
        "output_score": output.mean(),
        "output_from": curves.output_from,
        "n_layers": len(curves.layers),
        "n_tasks": len(values),
        "n_sources": n_sources,
        "no_interval": "" if n_sources >= stats.FEWEST else few,
    }


def best_elsewhere(values: Floats, sources: npt.NDArray[Any]) -> Columns | None:
    """For each task the column that the other task clusters select; None for too few of them."""
    if len(set(sources)) < FEWEST_ELSEWHERE:
        return None
    columns = np.empty(len(values), dtype=np.intp)
    for source in set(sources):
        out = sources == source
        columns[out] = values[~out].mean(axis=0).argmax()
    return columns


def at_columns(values: Floats, columns: Columns | None) -> Floats:
    """The value of each task at its column, shape (tasks,); NaN if there are none."""
    if columns is None:
        return np.full(len(values), np.nan)
    return np.asarray(values[np.arange(len(values)), columns])


def gains_by_task(values: Floats, scores: ScoreCurves) -> pd.DataFrame:
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
        over task clusters; n_tasks and n_clusters. Empty if no task has values,
        or the output no scores.
    """
    tasks, layers = usable(values)
    tasks &= np.isfinite(scores.output)
    of_tasks = scores.values[tasks][:, layers]
    rows = []
    for end, direction in ENDS.items() if tasks.any() else ():
        selected = (direction * values[tasks][:, layers]).argmax(axis=1)
        score = at_columns(of_tasks, selected)
        gain = stats.mean_ci(score - scores.output[tasks], scores.sources[tasks])
        rows.append(
            {
                "end": end,
                "score": score.mean(),
                "gain": gain.estimate,
                "low": gain.low,
                "high": gain.high,
                "n_tasks": len(score),
                "n_clusters": gain.n,
            }
        )
    return pd.DataFrame(rows)


def _interval(scores: pd.DataFrame, curves: ScoreCurves, tasks: Tasks) -> tuple[Floats, Floats]:
    values, clusters = curves.values[tasks], curves.sources[tasks]
    none = np.full(values.shape[1], np.nan)
    if len(tasks) > 1:
        output = curves.output[tasks]
        leads = stats.simultaneous_ci(values - output[:, None], clusters)
        floor = -np.isin(curves.task_types[tasks], list(CORRELATED)).mean()
        low, high = (np.clip(output.mean() + end, floor, 1) for end in (leads.low, leads.high))
        return low, high
    rows = with_output(scores)
    for column, value in {**curves.about, "task": curves.tasks[tasks[0]]}.items():
        rows = rows[rows[column] == value]
    # The interval of a mean over subsets does not follow from theirs.
    if rows["subset"].nunique() > 1:
        return none, none
    ends = rows.set_index("layer")[["score_low", "score_high"]].astype(float)
    low, high = ends.reindex(curves.layers).to_numpy().T
    return low, high
