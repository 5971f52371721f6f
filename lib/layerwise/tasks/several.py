"""Score several layers of a model together, with their vectors concatenated or averaged.

Vectors are combined by `layerwise.tasks.task.combined`. Layers are selected on the training rows
of each split, greedily: the best layer first, then the one that adds most to those before. The
criterion is Spearman's correlation for pairs, else the leave-one-out error of a ridge regression
(of one-hot classes); the selected layers are scored like one layer on the test rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from layerwise.progress import Progress
from layerwise.tasks import probes
from layerwise.tasks.labelled import Labels, cosines, pairs_score, probed
from layerwise.tasks.results import Score
from layerwise.tasks.task import Array, Combination, combined, normalized
from layerwise.vocabulary import COMBINES

# Vectors of one layer: of each column of texts an array of shape (N, D).
Columns = Sequence[Array]


@dataclass(frozen=True)
class ScoredCombination:
    """Layers that may be used together.

    Attributes
    ----------
    combination : Combination
        The layers that all rows select.
    of_splits : list of tuples of int
        Those that each split selects, ascending.
    """

    name: str
    combination: Combination
    of_splits: list[tuple[int, ...]]
    score: Score


def score_combinations(
    data: Labels, layers: Sequence[Columns], k: int, *, normalize: bool = False
) -> list[ScoredCombination]:
    """Score the output, the best layer, and the last and selected k layers in each way.

    Parameters
    ----------
    layers : sequence
        Vectors of every layer, the output last.
    normalize : bool
        Scale combined vectors to unit length.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.probes.splits`.
    """
    n_layers = len(layers)
    row_sets = [np.arange(len(data.labels)), *(split.fitted for split in data.splits)]
    selected: dict[str, list[tuple[int, ...]]] = {}
    with Progress(len(COMBINES) * len(row_sets), f"select {k} layers", "selection") as bar:
        for way in COMBINES:
            selected[way] = []
            for rows in row_sets:
                selected[way].append(_selected(data, layers, k, way, rows, normalize))
                bar.update()
    output, last = ([tuple(range(n_layers - m, n_layers))] * len(row_sets) for m in (1, k))
    # Of each combination the layers that each set of rows selects.
    combinations: list[tuple[str, list[tuple[int, ...]], str]] = [
        ("output", output, "mean"),
        ("best layer", [chosen[:1] for chosen in selected["mean"]], "mean"),
        *((f"last {k}, {word}", last, way) for way, word in COMBINES.items()),
        *((f"selected {k}, {word}", selected[way], way) for way, word in COMBINES.items()),
    ]
    scored = []
    for name, (by_all_rows, *by_splits), way in combinations:
        columns = [_columns(layers, chosen, way, normalize) for chosen in by_splits]
        of_splits = [tuple(sorted(chosen)) for chosen in by_splits]
        used = Combination(tuple(sorted(by_all_rows)), way if len(by_all_rows) > 1 else "")
        scored.append(ScoredCombination(name, used, of_splits, score_of_splits(data, columns)))
    return scored


def _columns(
    layers: Sequence[Columns], chosen: Sequence[int], way: str, normalize: bool
) -> list[Array]:
    """Combined vectors of each column of texts."""
    of_chosen = zip(*(layers[n] for n in sorted(chosen)), strict=True)
    columns = [combined(of_column, way) for of_column in of_chosen]
    return [normalized(column) for column in columns] if normalize else columns


def _selected(
    data: Labels, layers: Sequence[Columns], k: int, way: str, rows: Array, normalize: bool
) -> tuple[int, ...]:
    """The k layers that some rows select."""
    chosen: tuple[int, ...] = ()
    while len(chosen) < k:
        rest = [layer for layer in range(len(layers)) if layer not in chosen]
        tried = ((*chosen, layer) for layer in rest)
        fits = [_fit(data, _columns(layers, one, way, normalize), rows) for one in tried]
        chosen = (*chosen, rest[int(np.argmax(fits))])
    return chosen


def _fit(data: Labels, columns: Columns, rows: Array) -> float:
    """Score of vectors as predictors of the labels of some rows; more is better."""
    labels = data.labels[rows]
    if data.kind == "pairs":
        values = cosines([column[rows] for column in columns])
        return float(spearmanr(values, labels).statistic) if np.ptp(values) > 0 else -1.0
    if np.issubdtype(labels.dtype, np.integer):
        labels = np.eye(labels.max() + 1)[labels]
    x = StandardScaler().fit_transform(columns[0][rows].astype(np.float64))
    return float(RidgeCV(np.multiply(probes.PENALTIES, len(rows))).fit(x, labels).best_score_)


def score_of_splits(data: Labels, of_splits: Sequence[Columns]) -> Score:
    """Score vectors that may differ between splits.

    Cosines become ranks among those of the training rows, which makes them comparable.
    """
    if data.kind != "pairs":
        return probed(data, [columns[0] for columns in of_splits])
    ranks = []
    for columns, split in zip(of_splits, data.splits, strict=True):
        values = cosines(columns)
        fitted = np.sort(values[split.fitted])
        ranks.append(np.interp(values[split.test], fitted, np.linspace(0, 1, len(fitted))))
    tested = np.concatenate([split.test for split in data.splits])
    score = pairs_score(data.rows(tested), np.concatenate(ranks))
    return replace(score, n_train=len(data.splits[0].fitted))
