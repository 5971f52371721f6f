"""Scores of predictions, as the mean of a value for each row.

A row's value is the score plus the row's influence on it (Hampel 1974), so the spread of the
values gives the standard error, and differences between layers pair by row. For accuracy and R²
the values sum to the score exactly; for others the error is to first order.

================== ===========================================================================
accuracy           share of right rows
balanced_accuracy  mean over classes of the share of their rows that are right
macro_f1           mean over classes of F1
auroc              area under the ROC curve of two classes, or the mean over classes
average_precision  area under the precision-recall curve of the rarer of two classes, or the mean
                   over classes
r2                 R²
spearman           Spearman's correlation of predictions and labels
================== ===========================================================================

`auroc`, `average_precision` and `spearman` compare rows with each other, so they are taken within
each split and averaged: predictions of different probes are not on one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

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
# Share of the largest class from which `default` is AUROC.
MAJORITY = 0.8


def default(kind: str, labels: Array) -> str:
    """The score of labels, if nobody says: AUROC for classes of which one has most rows."""
    is_class = OF_KIND[kind] is OF_CLASSES
    if is_class and np.bincount(labels).max() >= MAJORITY * len(labels):
        return "auroc"
    return OF_KIND[kind][0]


def values(name: str, predicted: Array, truth: Array, splits: Array) -> Array:
    """Value of each row, shape (N,); their mean is the score.

    Parameters
    ----------
    predicted : array, shape (N,) or (N, C)
        Classes or numbers; for `OF_SHARES` probabilities of all classes.
    truth : array, shape (N,)
    splits : array, shape (N,)
        Number of the split that tested each row.
    """
    if name not in BY_SPLIT:
        return _VALUES[name](predicted, truth)
    groups = [splits == number for number in np.unique(splits)]
    if name in OF_SHARES and any(len(set(truth[rows])) < predicted.shape[1] for rows in groups):
        groups = [np.ones(len(truth), bool)]  # Groups may keep a class out of a split.
    each = np.empty(len(truth))
    for rows in groups:
        each[rows] = _VALUES[name](predicted[rows], truth[rows])
    return each


def accuracy(predicted: Array, truth: Array) -> Array:
    """1 for right rows."""
    return np.asarray(predicted == truth, float)


def balanced_accuracy(predicted: Array, truth: Array) -> Array:
    """Values of the mean over classes of the share of their rows that are right."""

    def of_class(number: int) -> Array:
        is_class = truth == number
        recall = (predicted == truth)[is_class].mean()
        return np.asarray(recall + is_class * ((predicted == truth) - recall) / is_class.mean())

    return np.asarray(np.mean([of_class(number) for number in np.unique(truth)], axis=0))


def macro_f1(predicted: Array, truth: Array) -> Array:
    """Values of the mean over classes of F1."""

    def of_class(number: int) -> Array:
        said, is_class = predicted == number, truth == number
        whole = said.mean() + is_class.mean()
        f1 = 2 * (said & is_class).mean() / whole
        return np.asarray(f1 + (2 * (said & is_class) - f1 * (1 * said + is_class)) / whole)

    return np.asarray(np.mean([of_class(number) for number in np.unique(truth)], axis=0))


def auroc(shares: Array, truth: Array) -> Array:
    """Values of the area under the ROC curve, by placements (DeLong et al. 1988)."""

    def of_class(share: Array, is_class: Array) -> Array:
        n, n_in = len(is_class), is_class.sum()
        within = np.empty(n)
        within[is_class], within[~is_class] = rankdata(share[is_class]), rankdata(share[~is_class])
        beaten = rankdata(share) - within  # Rows of the other side that are below, ties by half.
        placement = np.where(is_class, beaten / (n - n_in), 1 - beaten / n_in)
        area = placement[is_class].mean()
        weights = np.where(is_class, n / n_in, n / (n - n_in))
        return np.asarray(area + (placement - area) * weights)

    return _over_classes(of_class, shares, truth)


def average_precision(shares: Array, truth: Array) -> Array:
    """Values of the mean, over rows of a class, of the precision at their probability."""

    def of_class(share: Array, is_class: Array) -> Array:
        reached = share[:, None] >= share  # by row i at the threshold of row j
        n_reached = reached.sum(axis=0)
        precision = (reached & is_class[:, None]).sum(axis=0) / n_reached
        area = precision[is_class].mean()
        weights = is_class / n_reached
        moved = is_class * (reached @ weights) - reached @ (weights * precision)
        return np.asarray(area + (is_class * (precision - area) + moved) / is_class.mean())

    return _over_classes(of_class, shares, truth)


def _over_classes(of_class: Callable[[Array, Array], Array], shares: Array, truth: Array) -> Array:
    """Mean over classes; the rarer one of two, since the other has the same curve reversed."""
    counts = np.bincount(truth, minlength=shares.shape[1])
    classes = [int(counts.argmin())] if len(counts) == 2 else range(len(counts))
    return np.asarray(np.mean([of_class(shares[:, n], truth == n) for n in classes], axis=0))


def r2(predicted: Array, truth: Array) -> Array:
    """Values of R², to first order; their mean is R²."""
    variance = np.var(truth)
    wrong, spread = (predicted - truth) ** 2 / variance, (truth - truth.mean()) ** 2 / variance
    return np.asarray(1 - wrong + wrong.mean() * (spread - 1))


def spearman(predicted: Array, truth: Array) -> Array:
    """Values of Spearman's correlation; 0 if one side does not vary.

    With mid-ranks F and G scaled to (0, 1), ``ρ = a / sqrt(b c)``, a their covariance and b, c
    their variances; the influence of a row on each is that of a U-statistic of order 3.
    """
    x, y = _Ranks(np.asarray(predicted, dtype=float)), _Ranks(np.asarray(truth, dtype=float))
    (a, of_a), (b, of_b), (c, of_c) = x.covariance(y), x.covariance(x), y.covariance(y)
    if b <= 0 or c <= 0:
        return np.zeros(len(truth))
    rho = float(np.clip(a / np.sqrt(b * c), -1.0, 1.0))
    return np.asarray(rho + of_a / np.sqrt(b * c) - rho / 2 * (of_b / b + of_c / c))


class _Ranks:
    """Mid-ranks of N values in (0, 1), and means over the values beyond each."""

    def __init__(self, values: Array) -> None:
        ranks = rankdata(values)
        self.centred = (ranks - 0.5) / len(values) - 0.5
        self._order = np.argsort(values, kind="stable")
        # Of each value the numbers of smaller ones, and of smaller or equal ones.
        self._below = rankdata(values, "min") - 1
        self._up_to = rankdata(values, "max")

    def beyond(self, weights: Array) -> Array:
        """Mean of the weights of larger values, equal ones by half, for each value."""
        total = np.r_[0.0, np.cumsum(weights[self._order])]
        inside = (total[self._below] + total[self._up_to]) / 2
        return np.asarray((total[-1] - inside) / len(weights))

    def covariance(self, other: _Ranks) -> tuple[float, Array]:
        """Covariance of two rankings of the same rows, and each row's influence on it."""
        product = self.centred * other.centred
        value = float(product.mean())
        influence = product + self.beyond(other.centred) + other.beyond(self.centred) - 3 * value
        return value, influence


_VALUES: dict[str, Callable[[Array, Array], Array]] = {
    function.__name__: function
    for function in (accuracy, balanced_accuracy, macro_f1, auroc, average_precision, r2, spearman)
}
