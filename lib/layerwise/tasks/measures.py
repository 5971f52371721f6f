"""Scores of predictions, by scikit-learn, and their values without each group of rows.

================== ===========================================================================
accuracy           share of right rows
balanced_accuracy  mean over classes of the share of their rows that are right
macro_f1           mean over classes of F1
auroc              area under the ROC curve of two classes, or the mean over classes
average_precision  area under the precision-recall curve of the rarer of two classes, or the mean
                   over classes
r2                 R²
spearman           Spearman's correlation of predictions and labels; 0 if one side does not vary
================== ===========================================================================

`auroc`, `average_precision` and `spearman` compare rows with each other, so they are taken within
each split and averaged by its rows: predictions of different probes are not on one scale. A class
that the rows of a split lack does not count there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import spearmanr
from sklearn import metrics

Array = npt.NDArray[Any]

OF_CLASSES = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "average_precision")
# Scores of each kind of labels, the default first.
OF_KIND = {
    "classification": OF_CLASSES,
    "tags": OF_CLASSES,
    "regression": ("r2", "spearman"),
    "pairs": ("spearman",),
}
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "r2": "R²",
    "spearman": "Spearman's correlation",
}
BY_SPLIT = ("auroc", "average_precision", "spearman")
# Scores that compare the probabilities of a class instead of the predicted class.
OF_SHARES = ("auroc", "average_precision")
# Most groups that are left out in turn.
BLOCKS = 200
# Share of the largest class from which `default` is AUROC.
MAJORITY = 0.8


def default(kind: str, labels: Array) -> str:
    """The score of labels, if nobody says: AUROC for classes of which one has most rows."""
    is_class = OF_KIND[kind] is OF_CLASSES
    if is_class and np.bincount(labels).max() >= MAJORITY * len(labels):
        return "auroc"
    return OF_KIND[kind][0]


def score(
    name: str, predicted: npt.ArrayLike, truth: Array, splits: npt.ArrayLike | None = None
) -> float:
    """Score predictions; NaN if the rows lack a class.

    Parameters
    ----------
    predicted : array, shape (N,) or (N, C)
        Classes or numbers; for `OF_SHARES` probabilities of all classes.
    truth : array, shape (N,)
    splits : array, shape (N,), optional
        Number of the split that tested each row; by default one.
    """
    return _Scored(name, predicted, truth, splits).score


def pseudo_values(
    name: str,
    predicted: npt.ArrayLike,
    truth: Array,
    groups: npt.ArrayLike,
    splits: npt.ArrayLike | None = None,
) -> Array:
    """Values of groups whose spread is that of the score (jackknife; Tukey 1958).

    The value of a group is ``B s - (B - 1) s'``, where s' is the score without its rows and B the
    number of groups; the mean of all is moved to the score s. More than `BLOCKS` groups are joined
    at random, those of one split with each other where that is possible.

    Parameters
    ----------
    predicted, truth, splits
        As for `score`.
    groups : array, shape (N,)
        Group of each row.

    Returns
    -------
    array, shape (B,)
    """
    scored = _Scored(name, predicted, truth, splits)
    blocks = blocks_of(groups, scored.splits)
    n = blocks.max() + 1
    values = n * scored.score - (n - 1) * np.array([scored.without(blocks == b) for b in range(n)])
    return np.asarray(values + scored.score - values.mean())


def blocks_of(groups: npt.ArrayLike, splits: Array) -> Array:
    """The number of the block that each row is left out with, shape (N,)."""
    codes = pd.factorize(np.asarray(groups))[0]
    first = np.unique(codes, return_index=True)[1]
    order = np.random.default_rng(0).permutation(len(first))
    order = order[np.argsort(splits[first[order]], kind="stable")]
    block_of_group = np.empty(len(first), int)
    for number, members in enumerate(np.array_split(order, min(len(first), BLOCKS))):
        block_of_group[members] = number
    return block_of_group[codes]


class _Scored:
    """Scores of each split, with their numbers of rows."""

    def __init__(
        self, name: str, predicted: npt.ArrayLike, truth: Array, splits: npt.ArrayLike | None
    ) -> None:
        self.compute, self.predicted, self.truth = _SCORES[name], np.asarray(predicted), truth
        if name in OF_SHARES:
            shown = list(range(self.predicted.shape[1]))
            if len(shown) == 2:  # The other class has the same curve reversed.
                shown = [int(np.bincount(truth, minlength=2).argmin())]
            self.predicted = self.predicted[:, shown]
            self.truth = truth[:, None] == np.asarray(shown)
        whole = splits is None or name not in BY_SPLIT
        self.splits = np.zeros(len(truth), int) if whole else np.asarray(splits)
        every = np.ones(len(truth), bool)
        self.of_splits = {number: self._of(number, every) for number in np.unique(self.splits)}
        self.score = self._mean(self.of_splits)

    def without(self, rows: Array) -> float:
        """The score without some rows."""
        changed = {number: self._of(number, ~rows) for number in np.unique(self.splits[rows])}
        return self._mean(self.of_splits | changed)

    def _of(self, number: int, rows: Array) -> tuple[float, int]:
        rows = rows & (self.splits == number)
        n = int(rows.sum())
        return (self.compute(self.truth[rows], self.predicted[rows]) if n else np.nan), n

    @staticmethod
    def _mean(of_splits: Mapping[int, tuple[float, int]]) -> float:
        """Mean over the splits that have a score, by their rows."""
        defined = [(value, n) for value, n in of_splits.values() if np.isfinite(value)]
        n_rows = sum(n for _, n in defined)
        return sum(value * n for value, n in defined) / n_rows if defined else float("nan")


def _over_classes(compute: Callable[[Array, Array], float], truth: Array, shares: Array) -> float:
    """Mean over the classes that some rows have and others do not, shape (N, C) each."""
    present = [k for k, column in enumerate(truth.T) if 0 < column.sum() < len(column)]
    scores = [compute(truth[:, k], shares[:, k]) for k in present]
    return float(np.mean(scores)) if scores else float("nan")


def _spearman(truth: Array, predicted: Array) -> float:
    varies = np.ptp(truth) > 0 and np.ptp(predicted) > 0
    return float(spearmanr(predicted, truth).statistic) if varies else 0.0


# Functions of the truth and the predictions.
_SCORES: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": metrics.accuracy_score,
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "macro_f1": partial(metrics.f1_score, average="macro"),
    "auroc": partial(_over_classes, metrics.roc_auc_score),
    "average_precision": partial(_over_classes, metrics.average_precision_score),
    "r2": partial(metrics.r2_score, force_finite=False),
    "spearman": _spearman,
}
