"""Score several layers of a model together, with their vectors concatenated or averaged.

Each layer's vectors are first divided by their mean length, so that layers count equally. Layers
are selected on the training rows of each split, greedily: the best layer first, then the one that
adds most to those before. The criterion is Spearman's correlation for pairs, else the
leave-one-out error of a ridge regression (of one-hot classes); the selected layers are scored
like one layer on the test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from layerwise.tasks import probes
from layerwise.tasks.labelled import Labels, cosines, pairs_score
from layerwise.tasks.results import Score
from layerwise.tasks.task import Array

Columns = Sequence[Array]
"""Vectors of one layer: of each column of texts an array of shape (N, D)."""

CONCATENATED, AVERAGED = "concatenated", "averaged"
JOINED: dict[str, Callable[..., Any]] = {
    CONCATENATED: partial(np.concatenate, axis=1),
    AVERAGED: partial(np.mean, axis=0),
}


@dataclass(frozen=True)
class Combination:
    """Layers that are used together.

    Attributes
    ----------
    layers : list of tuples of int
        Of each split, in order of selection.
    """

    name: str
    layers: list[tuple[int, ...]]
    score: Score


def combinations(data: Labels, layers: Sequence[Columns], k: int) -> list[Combination]:
    """Score the output, the best layer, and the last and selected k layers in each way.

    The output is the last of `layers`.

    Raises
    ------
    LayerwiseError
        As `layerwise.tasks.probes.splits`.
    """
    lengths = [np.linalg.norm(np.concatenate(columns), axis=1).mean() for columns in layers]
    scaled = [
        [column / max(length, np.finfo(float).tiny) for column in columns]
        for columns, length in zip(layers, lengths, strict=True)
    ]
    selected = {
        way: [_selected(data, scaled, k, way, split.fitted) for split in data.splits]
        for way in JOINED
    }
    every, n = len(data.splits), len(layers)
    best = [chosen[:1] for chosen in selected[CONCATENATED]]
    tried: list[tuple[str, list[tuple[int, ...]], str]] = [
        ("output", [(n - 1,)] * every, CONCATENATED),
        ("best layer", best, CONCATENATED),
        *((f"last {k}, {way}", [tuple(range(n - k, n))] * every, way) for way in JOINED),
        *((f"selected {k}, {way}", selected[way], way) for way in JOINED),
    ]
    return [
        Combination(name, chosen, _score(data, [_joined(scaled, of, way) for of in chosen]))
        for name, chosen, way in tried
    ]


def _joined(layers: Sequence[Columns], chosen: Sequence[int], way: str) -> list[Array]:
    columns = zip(*(layers[layer] for layer in chosen), strict=True)
    return [JOINED[way](column) for column in columns]


def _selected(
    data: Labels, layers: Sequence[Columns], k: int, way: str, rows: Array
) -> tuple[int, ...]:
    """The k layers that some rows select."""
    chosen: tuple[int, ...] = ()
    while len(chosen) < k:
        rest = [layer for layer in range(len(layers)) if layer not in chosen]
        fits = [_fit(data, _joined(layers, (*chosen, layer), way), rows) for layer in rest]
        chosen = (*chosen, rest[int(np.argmax(fits))])
    return chosen


def _fit(data: Labels, columns: Columns, rows: Array) -> float:
    """How well vectors predict the labels of some rows; more is better."""
    labels = data.labels[rows]
    if data.kind == "pairs":
        values = cosines([column[rows] for column in columns])
        return float(spearmanr(values, labels).statistic) if np.ptp(values) > 0 else -1.0
    if np.issubdtype(labels.dtype, np.integer):
        labels = np.eye(labels.max() + 1)[labels]
    x = StandardScaler().fit_transform(columns[0][rows].astype(np.float64))
    return float(RidgeCV(np.multiply(probes.PENALTIES, len(rows))).fit(x, labels).best_score_)


def _score(data: Labels, of_splits: Sequence[Columns]) -> Score:
    """Score vectors that may differ between splits.

    Cosines become ranks among those of the training rows, which makes them comparable.
    """
    if data.kind != "pairs":
        return probes.probe(
            [columns[0] for columns in of_splits],
            data.labels,
            data.splits,
            data.groups,
            seed=data.seed,
            types=data.types,
        )
    ranks = []
    for columns, split in zip(of_splits, data.splits, strict=True):
        values = cosines(columns)
        known = np.sort(values[split.fitted])
        ranks.append(np.interp(values[split.test], known, np.linspace(0, 1, len(known))))
    tested = np.concatenate([split.test for split in data.splits])
    part = replace(
        data,
        texts=[[column[row] for row in tested] for column in data.texts],
        labels=data.labels[tested],
        groups=[data.groups[row] for row in tested],
    )
    return pairs_score(part, np.concatenate(ranks))
