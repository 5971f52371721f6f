"""Mean task scores by layer, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from layerwise.association.curves import ScoreCurves, score_curves, with_output
from layerwise.stats import mean_ci, within

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
    """Mean task score by layer with a 95% interval over task clusters.

    The interval is Student's, of each layer, after each task's own mean over layers is taken off:
    tasks differ in level, and the reader compares layers. With a single task it is the evaluator's
    own. Tasks of one cluster share texts and count as one draw.

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
    guess: Mapping[str, float] = {}
    if "chance" in scores:
        guess = {str(t): float(c) for t, c in scores.groupby("task")["chance"].first().items()}
    for curves in score_curves(scores):
        names = pd.DataFrame({"task_type": curves.task_types, "task": curves.tasks})
        for group, part in names.groupby(list(groups)) if groups else [((), names)]:
            chosen = part.index.to_numpy()
            about = {**curves.about, **dict(zip(groups, map(str, group), strict=True))}
            values, output = curves.values[chosen], curves.output[chosen]
            low, high = _interval(scores, curves, chosen)
            _, candidates = curves.candidates(chosen)
            best = candidates[:, candidates.mean(axis=0).argmax()]
            layers = np.array(sorted([*curves.layers, *curves.left_out]))
            ends = {"value": values.mean(axis=0), "low": low, "high": high}
            frame = pd.DataFrame(ends, curves.layers).reindex(layers)
            frames.append(
                frame.assign(
                    layer=layers,
                    **about,
                    representation=representation(curves.tokens, curves.pooling),
                    depth=layers / max(curves.last_layer, 1),
                    output_score=output.mean(),
                    output_from=curves.output_from,
                    output_is_best=np.array_equal(best, output),
                    chance=np.mean([guess.get(t, np.nan) for t in part["task"]]),
                    n_tasks=len(chosen),
                    n_clusters=len(set(curves.sources[chosen])),
                )
            )
    table = pd.concat(frames, ignore_index=True)
    return table.drop_duplicates(
        ["model", "revision", "representation", *groups, "layer"], ignore_index=True
    )


def _interval(
    scores: pd.DataFrame, curves: ScoreCurves, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    values, clusters = curves.values[chosen], curves.sources[chosen]
    none = np.full(values.shape[1], np.nan)
    if len(chosen) > 1:
        if values.shape[1] < 2:  # a single layer has no differences
            return none, none
        found = mean_ci(within(values), clusters)
        floor = -float(np.mean([t in CORRELATED for t in curves.task_types[chosen]]))
        return np.clip(found.low, floor, 1), np.clip(found.high, floor, 1)
    part = with_output(scores)
    for column, value in {**curves.about, "task": curves.tasks[chosen[0]]}.items():
        part = part[part[column] == value]
    # The interval of a mean over subsets does not follow from theirs.
    if part["subset"].nunique(dropna=False) > 1:
        return none, none
    ends = part.set_index("layer")[["score_low", "score_high"]].astype(float)
    ends = ends.reindex(curves.layers)
    return ends["score_low"].to_numpy(), ends["score_high"].to_numpy()
