"""Probes: what a model that is fitted to labels can read off a layer's vectors.

============== =====================================================================
linear         on standardised features: multinomial logistic regression for classes,
               ridge regression for numbers (Alain & Bengio 2016, arXiv 1610.01644); the L2
               penalty is the strongest whose loss on validation rows is within one standard
               error of the least
neighbours     vote, or mean, of the 20 training rows of largest cosine, weighted by
               ``exp(cosine / 0.07)`` (Wu et al. 2018, arXiv 1805.01978)
control        linear probe trained on shuffled labels, mean over five shuffles. Of words:
               each word type has a label at random, in training and test rows alike
               (Hewitt & Liang 2019, arXiv 1909.03368)
selectivity    linear less control
============== =====================================================================

Classes are scored by accuracy, numbers by R². Rows of one group (the same text, words of one
sentence) are never on both sides of a split. Up to `FEW` rows, each row is tested once, over five
splits; beyond that there is one split of 64% training, 16% validation and 20% test rows.

Scores of predictions, by scikit-learn, and their values without each group of rows.

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

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import spearmanr
from sklearn import metrics
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

from layerwise.errors import LayerwiseError
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labels import class_names, is_missing

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


Array = npt.NDArray[Any]
# The word of each row, for the control; None for other rows than words.
Types = Sequence[object] | None

# L2 penalties per row, strongest first.
PENALTIES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
# Least probability in a cross-entropy.
LEAST = 1e-7
NEIGHBOURS, TEMPERATURE = 20, 0.07
FOLDS, FEW = 5, 2000
SHUFFLES = 5
FEWEST = 20
RESAMPLES = 1000


@dataclass(frozen=True)
class Split:
    """Rows to train on, to choose the penalty on, and to test on; no row is in two."""

    train: Array
    validation: Array
    test: Array

    @property
    def fitted(self) -> Array:
        """Rows that the final fit sees."""
        return np.concatenate([self.train, self.validation])


def classes(labels: Sequence[object] | pd.Series) -> Array:
    """Labels as numbers 0 … C-1 in the order of their first rows, shape (N,).

    Raises
    ------
    LayerwiseError
        As `named_classes`.
    """
    return named_classes(labels)[0]


def named_classes(labels: Sequence[object] | pd.Series) -> tuple[Array, tuple[str, ...]]:
    """Labels as numbers 0 … C-1, shape (N,), and the names of these classes, in their order.

    Classes are numbered by their first rows: what they are called changes no split and no score.

    Raises
    ------
    LayerwiseError
        If a label is missing or no class (`layerwise.tasks.labels.class_names`), all are the same,
        or a class has fewer rows than there are splits.
    """
    numbers, names = pd.factorize(np.array(class_names(_checked(labels).tolist()), dtype=object))
    if len(names) < 2:
        raise LayerwiseError(
            f"All {len(labels)} labels are {str(names[0])!r}; a probe needs two.",
            code="too_few",
        )
    rare = [str(n) for n, c in zip(names, np.bincount(numbers), strict=True) if c < FOLDS]
    if rare:
        raise LayerwiseError(
            f"{len(rare)} of {len(names)} classes have fewer than {FOLDS} rows "
            f"({', '.join(map(repr, rare[:5]))}); add rows or leave these classes out. Labels "
            "that are numbers on a scale are a regression (kind: regression, or --kind).",
            code="too_few",
        )
    return np.asarray(numbers), tuple(map(str, names))


def numbers(labels: Sequence[object] | pd.Series) -> Array:
    """Labels as numbers on a scale, shape (N,), float64.

    Raises
    ------
    LayerwiseError
        If one is missing or not a finite number, or all are the same.
    """
    series = _checked(labels)
    # pandas would make numbers of truth values and of dates, too.
    plain = [
        label
        if isinstance(label, str | Real | Decimal) and not isinstance(label, bool | np.bool_)
        else None
        for label in series
    ]
    values = pd.to_numeric(pd.Series(plain, dtype=object), errors="coerce").to_numpy(float)
    if not np.isfinite(values).all():
        row = int(np.isfinite(values).argmin())
        raise LayerwiseError(
            f"The label of {_place(series, row)} is {series.iloc[row]!r:.40}; a regression needs "
            "finite numbers, and classes are a classification.",
            code="wrong_type",
        )
    if np.ptp(values) == 0:
        raise LayerwiseError(
            f"All {len(values)} labels are {values[0]:g}; nothing to predict.", code="too_few"
        )
    return values


def _factorized(values: Iterable[object]) -> tuple[Array, Array]:
    """Numbers of values in the order of their names, and those names."""
    # An array of objects: one of strings has the longest one's width in every row.
    return pd.factorize(np.array([str(x) for x in values], dtype=object), sort=True)


def _checked(labels: Sequence[object] | pd.Series) -> pd.Series:
    """Labels, enough of them and none missing."""
    series = labels if isinstance(labels, pd.Series) else pd.Series(list(labels), dtype=object)
    if len(series) < FEWEST:
        raise LayerwiseError(
            f"{len(series)} labelled rows are too few; a probe needs {FEWEST}.", code="too_few"
        )
    missing = np.array([is_missing(label) for label in series])
    if missing.any():
        raise LayerwiseError(
            f"{_place(series, missing.argmax())} has no label; add one or leave the row out.",
            code="missing",
        )
    return series


def _place(labels: pd.Series, number: Any) -> str:
    """Place of a label in the file that it was read from, or in a list."""
    name = labels.index.name
    return f"row {number} (from 0)" if name is None else f"{name} {labels.index[number]}"


def splits(labels: Array, groups: Sequence[object] | None = None, seed: int = 0) -> list[Split]:
    """Rows for training, validation and test.

    Parameters
    ----------
    labels : array, shape (N,)
        Of `classes` (each class has about the same share in each part) or `numbers`.
    groups : sequence, length N, optional
        Rows of the same group stay together.
    seed : int

    Raises
    ------
    LayerwiseError
        If there are too few groups, or the training rows would lack a class.
    """
    strata = labels if _are_classes(labels) else np.zeros(len(labels), int)
    members = np.arange(len(labels)) if groups is None else _factorized(groups)[0]
    rng = np.random.default_rng(seed)
    rows = np.arange(len(labels))
    parts = _parts(strata, members, rng)
    made = []
    for test in parts if len(labels) <= FEW else parts[:1]:
        rest = np.setdiff1d(rows, test)
        chosen = rest[_parts(strata[rest], members[rest], rng)[0]]
        made.append(Split(np.setdiff1d(rest, chosen), chosen, test))
    n_classes = len(np.unique(strata))
    n_groups = len(np.unique(members))
    if n_groups < FEWEST or any(len(np.unique(strata[s.train])) < n_classes for s in made):
        raise LayerwiseError(
            f"The {len(labels)} labelled rows form {n_groups} groups (rows that share a text or a "
            f"group). A probe needs {FEWEST}, with each class in several; label more, or leave "
            "rare classes out.",
            code="too_few",
        )
    return made


def _parts(strata: Array, members: Array, rng: np.random.Generator) -> list[Array]:
    """Five parts of about the same size, classes shared out evenly and groups whole.

    A group counts for its rarest class. `StratifiedGroupKFold` leaves a part without a rare tag
    twice as often, and takes 5 s for 50,000 groups.
    """
    rarest = np.argsort(np.bincount(strata)[strata], kind="stable")
    first = rarest[np.unique(members[rarest], return_index=True)[1]]
    first = first[rng.permutation(len(first))]
    order = first[np.argsort(strata[first], kind="stable")]
    part_of = np.empty(members.max(initial=-1) + 1, int)
    part_of[members[order]] = np.arange(len(order)) % FOLDS
    return [np.flatnonzero(part_of[members] == k) for k in range(FOLDS)]


def probe(
    features: Array,
    labels: Array,
    splits: Sequence[Split],
    groups: Sequence[object] | None = None,
    *,
    seed: int = 0,
    types: Types = None,
    measure: str = "",
    n_shuffles: int = SHUFFLES,
    with_values: bool = False,
) -> Score:
    """Fit and score the probes of one layer.

    Parameters
    ----------
    features : array, shape (N, D)
    labels : array, shape (N,)
        Of `classes` or `numbers`.
    splits : sequence of Split
        Of the function `splits`; the same for all layers.
    groups : sequence, length N, optional
        As there.
    seed : int
        Of the shuffled labels.
    types : sequence, length N, optional
        Of words: the word of each row, for the control.
    measure : str
        Name of the main score, of `layerwise.tasks.probes`; by default accuracy or R², which
        neighbours and the control always have.
    n_shuffles : int
        Shuffles of the labels for the control; 0 for none.
    with_values : bool
        Whether the score has its values by group.
    """
    rng = np.random.default_rng(seed)
    of_classes = _are_classes(labels)
    measure = measure or ("accuracy" if of_classes else "r2")
    by_probability = measure in OF_SHARES
    predicted, penalties, controls, probabilities = [], [], [], []
    for split in splits:
        fitted, test = split.fitted, split.test
        y = labels[fitted]
        penalty = _chosen_penalty(_scaled(features, split.train), labels, split)
        penalties.append(penalty)
        scaled = _scaled(features, fitted)
        model = _linear(scaled[fitted], y)(penalty)
        neighbours = _neighbours(features[fitted], y).predict(features[test])
        guess = np.full(len(test), np.bincount(y).argmax() if of_classes else y.mean())
        predicted.append([model.predict(scaled[test]), neighbours, guess])
        if by_probability:
            shares = np.tile(np.bincount(y) / len(y), (len(test), 1))
            probabilities.append([model.predict_proba(scaled[test]), shares])
        for _ in range(n_shuffles // len(splits)):
            controls.append(_control(scaled, labels, split, penalty, types, rng))
    linear, neighbours, guess = np.concatenate(predicted, axis=1)
    tested = np.concatenate([split.test for split in splits])
    truth = labels[tested]
    test_groups = pd.factorize(tested if groups is None else _factorized(groups)[0][tested])[0]
    interval = _accuracy_interval if of_classes else _r2_interval
    low, high = interval(linear, truth, test_groups)
    neighbours_low, neighbours_high = interval(neighbours, truth, test_groups)
    split_of_row = np.repeat(np.arange(len(splits)), [len(split.test) for split in splits])
    compared = np.concatenate(probabilities, axis=1) if by_probability else (linear, guess)
    main_score, baseline = (score(measure, p, truth, split_of_row) for p in compared)
    if np.isnan(main_score):
        return Score(None, n_runs=len(truth), why="the test rows lack a class")
    values = None
    if with_values:
        values = pseudo_values(measure, compared[0], truth, test_groups, split_of_row)
    has_interval = measure in ("accuracy", "r2")
    control = float(np.mean(controls)) if controls else None
    return Score(
        main_score=main_score,
        score_low=low if has_interval else None,
        score_high=high if has_interval else None,
        n_runs=len(truth),
        chance=baseline if of_classes else None,
        neighbours=_score(truth, neighbours),
        neighbours_low=neighbours_low,
        neighbours_high=neighbours_high,
        control=control,
        selectivity=None if control is None else _score(truth, linear) - control,
        baseline=baseline,
        penalty=float(np.median(penalties)),
        n_train=len(splits[0].fitted),
        values=values,
    )


def _are_classes(labels: Array) -> bool:
    return bool(np.issubdtype(labels.dtype, np.integer))


def _scaled(features: Array, rows: Array) -> Array:
    """Features scaled to mean 0 and variance 1 over some rows, float32; constant ones are 0."""
    scaler = StandardScaler().fit(np.asarray(features[rows], dtype=np.float64))
    constant = np.sqrt(scaler.var_) <= 1e-7 * np.abs(scaler.mean_).clip(1e-30)
    scaled = scaler.transform(np.asarray(features, dtype=np.float64))
    scaled[:, constant] = 0
    return np.asarray(scaled, dtype=np.float32)


def _linear(x: Array, y: Array) -> Callable[[float], Any]:
    """Function from an L2 penalty per row to the fitted linear model."""
    if not _are_classes(y):
        wide = x.astype(np.float64)
        return lambda penalty: Ridge(alpha=penalty * len(y)).fit(wide, y)
    # Each fit starts where the last one on the same rows ended.
    model = LogisticRegression(tol=1e-3, max_iter=200, warm_start=True)

    def fit(penalty: float) -> Any:
        with warnings.catch_warnings():
            # With little penalty there may be no optimum; the validation rows decide all the same.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.set_params(C=1 / (penalty * len(y))).fit(x, y)

    return fit


def _chosen_penalty(x: Array, labels: Array, split: Split) -> float:
    """The strongest penalty whose loss is within one standard error of the least.

    The loss is the mean over validation rows of the cross-entropy, or of the squared error
    (Hastie et al. 2009, section 7.10). Unlike a count of right rows, it does not jump.
    """
    fit = _linear(x[split.train], labels[split.train])
    losses: list[Array] = []
    means: list[float] = []
    for penalty in PENALTIES:
        losses.append(_losses(fit(penalty), x[split.validation], labels[split.validation]))
        means.append(float(losses[-1].mean()))
        if len(means) - np.argmin(means) == 3:  # Two in a row are no better than the best.
            break
    best = int(np.argmin(means))
    bound = means[best] + losses[best].std(ddof=1) / np.sqrt(len(losses[best]))
    return next(p for p, mean in zip(PENALTIES, means, strict=False) if mean <= bound)


def _losses(model: Any, x: Array, y: Array) -> Array:
    """Loss of a fitted linear model at each row."""
    if not _are_classes(y):
        return np.asarray((model.predict(x) - y) ** 2)
    shares = model.predict_proba(x)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return np.asarray(-np.log(shares.clip(LEAST)))


def _neighbours(x: Array, y: Array) -> Any:
    make = KNeighborsClassifier if _are_classes(y) else KNeighborsRegressor
    return make(
        min(NEIGHBOURS, len(y)),
        metric="cosine",
        algorithm="brute",
        weights=lambda distances: np.exp((1 - distances) / TEMPERATURE),
    ).fit(x, y)


def _control(
    x: Array, labels: Array, split: Split, penalty: float, types: Types, rng: np.random.Generator
) -> float:
    """Score of a linear probe trained on shuffled labels, or on one drawn for each type."""
    if types is None:
        fitted, truth = rng.permutation(labels[split.fitted]), labels[split.test]
    else:
        codes = _factorized(types)[0]
        drawn = rng.choice(labels, size=codes.max() + 1)[codes]
        fitted, truth = drawn[split.fitted], drawn[split.test]
    predicted = np.full(len(truth), fitted[0])
    if len(np.unique(fitted)) > 1:  # Not if all types drew the same label.
        predicted = _linear(x[split.fitted], fitted)(penalty).predict(x[split.test])
    return _score(truth, predicted)


def _score(truth: Array, predicted: Array) -> float:
    """Accuracy of classes, R² of numbers."""
    if _are_classes(truth):
        return float(accuracy_score(truth, predicted))
    return float(r2_score(truth, predicted, force_finite=False))


def _accuracy_interval(predicted: Array, truth: Array, members: Array) -> tuple[float, float]:
    """Wilson's 95% interval; the number of rows is divided by the design effect of the groups."""
    right = predicted == truth
    share, n = float(right.mean()), float(len(truth))
    if 0 < share < 1:
        variance = (np.bincount(members, right - share) ** 2).sum()
        n /= max(float(variance / (n * share * (1 - share))), 1.0)
    else:  # The rows of a group may all be one answer.
        n = n**2 / float((np.bincount(members) ** 2).sum())
    low, high = proportion_confint(share * n, n, method="wilson")
    return float(low), float(high)


def _r2_interval(predicted: Array, truth: Array, members: Array) -> tuple[float, float]:
    """95% interval by the percentile bootstrap of whole groups."""
    rng = np.random.default_rng(0)
    terms = (predicted - truth) ** 2, truth**2, truth, np.ones(len(truth))
    sums = np.stack([np.bincount(members, values) for values in terms])
    n = sums.shape[1]
    drawn = np.array([sums[:, rng.integers(n, size=n)].sum(axis=1) for _ in range(RESAMPLES)])
    means = drawn[:, :3] / drawn[:, 3:]
    variance = (means[:, 1] - means[:, 2] ** 2).clip(1e-300)
    low, high = np.quantile(1 - means[:, 0] / variance, [0.025, 0.975])
    return float(low), float(high)
