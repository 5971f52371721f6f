"""Probes: what can be read off a layer's vectors by a model fitted to labels.

============== =====================================================================
linear         on standardised features: multinomial logistic regression for classes,
               ridge regression for numbers; its L2 penalty is the one that is best on
               validation rows (Alain & Bengio 2016, arXiv 1610.01644)
neighbours     the vote, or mean, of the 20 training rows of largest cosine, weighted
               by ``exp(cosine / 0.07)`` (Wu et al. 2018, arXiv 1805.01978)
control        the linear probe again, trained on shuffled labels, the mean over five
               shuffles: what it scores by fitting anything. Of rows that have types (words),
               each type has a label at random, for training and test rows alike, drawn as often
               as it is among the rows: what it scores by knowing types by heart (Hewitt & Liang
               2019, arXiv 1909.03368)
selectivity    linear less control
============== =====================================================================

Classes are scored by accuracy, numbers by R², the share of the test rows' variance that is
foretold (below 0 where their mean would have done better).

Rows that belong together (the same text, answers to one prompt, words of one sentence) are never
on both sides of a split. Up to `FEW` rows, each row is tested once, over five splits; beyond that
there is one split of 64 % to train on, 16 % to choose the penalty on and 20 % to test on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.errors import LayerwiseError

Kind = Literal["classes", "numbers"]
Array = npt.NDArray[Any]

PENALTIES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""L2 penalties per row, from the strongest on; the path ends where two in a row do no better."""
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
        """The rows that the final fit sees."""
        return np.concatenate([self.train, self.validation])


@dataclass(frozen=True)
class Probe:
    """What the probes of one layer say of the test rows.

    Attributes
    ----------
    linear, neighbours, control : float
        Accuracy in [0, 1], or R² up to 1; `control` of the linear probe on shuffled labels.
    low, high, neighbours_low, neighbours_high : float
        Intervals over the groups of test rows, for the training rows as they are: for an accuracy
        Wilson's, of as many rows as tell as much if drawn one by one (Kish 1965, design effect);
        for R² a percentile bootstrap of whole groups.
    chance : float
        Accuracy of always saying the training rows' most frequent class; for numbers 0, the R² of
        always saying the test rows' mean.
    penalty : float
        The penalty chosen, the median over splits.
    n_train, n_test : int
        Rows behind one fit, and rows tested in all.
    parts : array, shape (G,)
        What each group of test rows adds to `linear`, which is their sum; of R² to first order.
        The groups are the same for all layers.
    """

    linear: float
    low: float
    high: float
    neighbours: float
    neighbours_low: float
    neighbours_high: float
    control: float
    chance: float
    penalty: float
    n_train: int
    n_test: int
    parts: Array = field(compare=False, repr=False)

    @property
    def selectivity(self) -> float:
        """What the linear probe has over its control."""
        return self.linear - self.control


def classes(labels: Sequence[object]) -> Array:
    """Labels as numbers 0 … C-1 in the order of their names, shape (N,).

    Raises
    ------
    LayerwiseError
        If a label is missing, all are the same, or a class has fewer rows than there are splits.
    """
    _none_missing(labels)
    numbers, names = _factorized(labels)
    counts = np.bincount(numbers)
    if len(names) < 2:
        raise LayerwiseError(
            f"All {len(labels)} labels are {str(names[0])!r}; a probe needs two classes or more."
        )
    rare = [str(n) for n, c in zip(names, counts, strict=True) if c < FOLDS]
    if rare:
        raise LayerwiseError(
            f"{len(rare)} of {len(names)} classes have fewer than {FOLDS} rows "
            f"({', '.join(repr(name) for name in rare[:5])}); a probe needs {FOLDS} of each: "
            "take more rows, or leave these classes out. If the labels are numbers on a scale, "
            "they are a regression."
        )
    return np.asarray(numbers)


def numbers(labels: Sequence[object]) -> Array:
    """Labels as numbers on a scale, shape (N,), float64.

    Raises
    ------
    LayerwiseError
        If one is missing or no finite number, or all are the same.
    """
    _none_missing(labels)
    try:
        found = np.array([float(x) for x in labels])  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        odd = next(x for x in labels if not _is_number(x))
        raise LayerwiseError(
            f"The label {odd!r:.40} is no number; a regression needs numbers, and classes are a "
            "classification."
        ) from error
    if not np.isfinite(found).all():
        place = int((~np.isfinite(found)).argmax())
        raise LayerwiseError(f"The label of row {place} (from 0) is infinite; mend it.")
    if np.ptp(found) == 0:
        raise LayerwiseError(f"All {len(found)} labels are {found[0]:g}; nothing to foretell.")
    return found


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _factorized(values: Sequence[object]) -> tuple[Array, Array]:
    """Numbers of values in the order of their names, and those names."""
    # An array of objects: one of strings has the longest one's width in every row.
    return pd.factorize(np.array([str(x) for x in values], dtype=object), sort=True)


def _none_missing(labels: Sequence[object]) -> None:
    if len(labels) < FEWEST:
        raise LayerwiseError(
            f"{len(labels)} labelled rows came; a probe needs {FEWEST} or more to train, choose "
            "and test."
        )
    odd = [i for i, x in enumerate(labels) if not pd.api.types.is_scalar(x)]
    if odd:
        raise LayerwiseError(
            f"The label of row {odd[0]} (from 0) is a {type(labels[odd[0]]).__name__}; a label is "
            "one string or one number."
        )
    missing = [i for i, x in enumerate(labels) if pd.isna(x) or x == ""]  # type: ignore[call-overload]
    if missing:
        raise LayerwiseError(
            f"{len(missing)} of {len(labels)} rows have no label (the first is row {missing[0]}, "
            "from 0); label them or leave them out."
        )


def splits(labels: Array, groups: Sequence[object] | None = None, seed: int = 0) -> list[Split]:
    """Rows for training, validation and test.

    Parameters
    ----------
    labels : array, shape (N,)
        Of `classes` (each class is in each part in about the same share) or `numbers`.
    groups : sequence, length N, optional
        Rows of the same group stay together.
    seed : int

    Raises
    ------
    LayerwiseError
        If there are too few groups, or a part would lack a class.
    """
    strata = labels if np.issubdtype(labels.dtype, np.integer) else np.zeros(len(labels), int)
    members = np.arange(len(labels))
    if groups is not None:
        members = _factorized(groups)[0]
    n_groups = len(np.unique(members))
    if n_groups < FEWEST:
        raise LayerwiseError(
            f"The {len(labels)} labelled rows are {n_groups} different ones, rows that share "
            f"a text or a group being one; a probe needs {FEWEST} or more."
        )
    rng = np.random.default_rng(seed)
    rows = np.arange(len(labels))
    parts = _parts(strata, members, rng)
    found = []
    for test in parts if len(labels) <= FEW else parts[:1]:
        rest = np.setdiff1d(rows, test)
        chosen = rest[_parts(strata[rest], members[rest], rng)[0]]
        found.append(Split(np.setdiff1d(rest, chosen), chosen, test))
    wanted = np.unique(strata)
    for split in found:
        if len(np.unique(strata[split.train])) < len(wanted):
            raise LayerwiseError(
                "A class is in too few groups for training rows and test rows to be apart; label "
                "more, or leave the class out."
            )
    return found


def _parts(strata: Array, members: Array, rng: np.random.Generator) -> list[Array]:
    """Five parts of about the same size, classes shared out evenly and groups whole."""
    # A group counts for the class of its row whose class is the rarest.
    rarest = np.argsort(np.bincount(strata)[strata], kind="stable")
    first = rarest[np.unique(members[rarest], return_index=True)[1]]
    first = first[rng.permutation(len(first))]
    order = first[np.argsort(strata[first], kind="stable")]
    part_of = np.empty(members.max() + 1, int)
    part_of[members[order]] = np.arange(len(order)) % FOLDS
    return [np.flatnonzero(part_of[members] == k) for k in range(FOLDS)]


def probe(
    features: Array,
    labels: Array,
    rows: Sequence[Split],
    groups: Sequence[object] | None = None,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    centred: bool = True,
    types: Sequence[object] | None = None,
) -> Probe:
    """The probes of one layer.

    Parameters
    ----------
    features : array, shape (N, D)
    labels : array, shape (N,)
        Of `classes` or `numbers`.
    rows : sequence of Split
        Of `splits`; the same for all layers.
    groups : sequence, length N, optional
        As there; rows of the same group are not independent. Without, each row is its own.
    seed : int
        Of the shuffled labels.
    confidence : float
        Of the intervals.
    centred : bool
        Whether features are centred and the linear probe has an intercept. False for differences
        of two vectors, whose sign is the label.
    types : sequence, length N, optional
        Of classes: what each row is of (the word), for the control.

    Raises
    ------
    LayerwiseError
        If a feature is no finite number.
    """
    if not np.isfinite(features).all():
        raise LayerwiseError("The vectors hold NaN or infinity; no probe can be fitted to them.")
    rng = np.random.default_rng(seed)
    make: Any = _Logistic if np.issubdtype(labels.dtype, np.integer) else _Ridge
    said: dict[str, list[Array]] = {"linear": [], "neighbours": [], "chance": []}
    truth, penalties, controls = [], [], []
    for split in rows:
        scaled = _standardised(features, split.train, centred)
        penalty = _best_penalty(make, scaled, labels, split, centred)
        fitted, test = split.fitted, split.test
        scaled = _standardised(features, fitted, centred)
        model = make(scaled[fitted], labels[fitted], centred)
        said["linear"].append(model.fit(penalty).predict(scaled[test]))
        for _ in range(SHUFFLES // len(rows)):
            known, wanted = _control_labels(labels, split, types, rng)
            if len(np.unique(known)) == 1:  # of types that all drew the same
                controls.append(make.score(known[:1], wanted))
                continue
            model = make(scaled[fitted], known, centred)
            controls.append(make.score(model.fit(penalty).predict(scaled[test]), wanted))
        near, weights = _nearest(features, fitted, test)
        said["neighbours"].append(make.vote(labels[fitted][near], weights))
        said["chance"].append(np.full(len(test), make.guess(labels[fitted])))
        truth.append(labels[test])
        penalties.append(penalty)
    true = np.concatenate(truth)
    found = {name: np.concatenate(parts) for name, parts in said.items()}
    score = {name: make.score(values, true) for name, values in found.items()}
    tested = np.concatenate([split.test for split in rows])
    if groups is not None:
        tested = _factorized(groups)[0][tested]
    members = pd.factorize(tested)[0]
    ends = [make.interval(found[n], true, confidence, members) for n in ("linear", "neighbours")]
    (low, high), (near_low, near_high) = ends
    return Probe(
        linear=score["linear"], low=low, high=high,
        neighbours=score["neighbours"], neighbours_low=near_low, neighbours_high=near_high,
        control=float(np.mean(controls)), chance=score["chance"],
        penalty=float(np.median(penalties)), n_train=len(rows[0].fitted), n_test=len(true),
        parts=np.bincount(members, make.parts(found["linear"], true) / len(true)),
    )  # fmt: skip


def _control_labels(
    labels: Array, split: Split, types: Sequence[object] | None, rng: np.random.Generator
) -> tuple[Array, Array]:
    """What the control is trained on, and what it is scored against."""
    if types is None:
        return rng.permutation(labels[split.fitted]), labels[split.test]
    codes = _factorized(types)[0]
    given = rng.choice(labels, size=codes.max() + 1)[codes]
    return given[split.fitted], given[split.test]


def probe_layers(
    layers: Iterable[Array],
    labels: Array,
    groups: Sequence[object] | None = None,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    centred: bool = True,
) -> Iterator[Probe]:
    """The probes of each layer, all on the same rows; parameters as of `splits` and `probe`."""
    rows = splits(labels, groups, seed)
    for features in layers:
        yield probe(
            features, labels, rows, groups, seed=seed, confidence=confidence, centred=centred
        )


class _Logistic:
    """Multinomial logistic regression, and what else is said of classes."""

    def __init__(self, x: Array, y: Array, intercept: bool) -> None:
        from sklearn.linear_model import LogisticRegression

        self._x, self._y = x, y
        self._model = LogisticRegression(
            tol=1e-3, max_iter=200, warm_start=True, fit_intercept=intercept
        )

    def fit(self, penalty: float) -> Any:
        """Fit it, from where the last fit ended."""
        from sklearn.exceptions import ConvergenceWarning

        self._model.set_params(C=1 / (penalty * len(self._y)))
        with warnings.catch_warnings():
            # With little penalty there may be no optimum; the validation rows decide all the same.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return self._model.fit(self._x, self._y)

    @staticmethod
    def score(said: Array, true: Array) -> float:
        return float((said == true).mean())

    @staticmethod
    def parts(said: Array, true: Array) -> Array:
        return np.asarray(said == true)

    @staticmethod
    def interval(
        said: Array, true: Array, confidence: float, members: Array
    ) -> tuple[float, float]:
        from scipy.stats import norm

        right = said == true
        p, n = float(right.mean()), float(len(true))
        sizes = np.bincount(members)
        if 0 < p < 1:
            variance = (np.bincount(members, right - p) ** 2).sum()
            n /= max(float(variance / (n * p * (1 - p))), 1.0)
        else:  # The rows of a group may all be one answer.
            n = n**2 / float((sizes**2).sum())
        z2 = float(norm.isf((1 - confidence) / 2)) ** 2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n**2))) / (1 + z2 / n)
        return max(float(middle - half), 0.0), min(float(middle + half), 1.0)

    @staticmethod
    def guess(known: Array) -> int:
        return int(np.bincount(known).argmax())

    @staticmethod
    def vote(near: Array, weights: Array) -> Array:
        votes = np.zeros((len(near), int(near.max()) + 1))
        np.add.at(votes, (np.arange(len(near))[:, None], near), weights)
        return np.asarray(votes.argmax(axis=1))


class _Ridge:
    """Ridge regression, and what else is said of numbers."""

    def __init__(self, x: Array, y: Array, intercept: bool) -> None:
        x = x.astype(np.float64)
        self._mean = (x.mean(axis=0), y.mean()) if intercept else (np.zeros(x.shape[1]), 0.0)
        x, y = x - self._mean[0], y - self._mean[1]
        self._n = len(x)
        self._values, self._vectors = np.linalg.eigh(x.T @ x)
        self._projected = self._vectors.T @ (x.T @ y)
        self._slope = np.zeros(x.shape[1])

    def fit(self, penalty: float) -> _Ridge:
        self._slope = self._vectors @ (
            self._projected / (self._values.clip(0) + penalty * self._n)
        )
        return self

    def predict(self, x: Array) -> Array:
        return np.asarray((x - self._mean[0]) @ self._slope + self._mean[1])

    @staticmethod
    def score(said: Array, true: Array) -> float:
        return float(1 - np.mean((said - true) ** 2) / np.var(true))

    @staticmethod
    def parts(said: Array, true: Array) -> Array:
        wrong, spread = (said - true) ** 2 / np.var(true), (true - true.mean()) ** 2 / np.var(true)
        return np.asarray(1 - wrong + wrong.mean() * (spread - 1))

    @staticmethod
    def interval(
        said: Array, true: Array, confidence: float, members: Array
    ) -> tuple[float, float]:
        rng = np.random.default_rng(0)
        squares = (said - true) ** 2, true**2, true, np.ones(len(true))
        sums = np.stack([np.bincount(members, values) for values in squares])
        n = sums.shape[1]
        drawn = np.array([sums[:, rng.integers(n, size=n)].sum(axis=1) for _ in range(RESAMPLES)])
        means = drawn[:, :3] / drawn[:, 3:]
        variance = (means[:, 1] - means[:, 2] ** 2).clip(1e-300)
        tail = (1 - confidence) / 2
        low, high = np.quantile(1 - means[:, 0] / variance, [tail, 1 - tail])
        return float(low), float(high)

    @staticmethod
    def guess(known: Array) -> float:
        return float(known.mean())

    @staticmethod
    def vote(near: Array, weights: Array) -> Array:
        return np.asarray((near * weights).sum(axis=1) / weights.sum(axis=1))


def _standardised(features: Array, rows: Array, centred: bool) -> Array:
    """Scale 1, and mean 0 if `centred`, over some rows; a constant feature is 0 everywhere."""
    part = np.asarray(features[rows], dtype=np.float64)
    mean = part.mean(axis=0) if centred else np.zeros(part.shape[1])
    scale = np.sqrt(((part - mean) ** 2).mean(axis=0))
    constant = scale <= 1e-7 * np.abs(mean).clip(1e-30)
    scaled = (features - mean) / np.where(constant, np.inf, scale)
    return np.asarray(scaled, dtype=np.float32)


def _best_penalty(make: Any, x: Array, labels: Array, split: Split, centred: bool) -> float:
    """The strongest of the penalties that are best on the validation rows."""
    model = make(x[split.train], labels[split.train], centred)
    best, score, worse = PENALTIES[0], -np.inf, 0
    for penalty in PENALTIES:
        said = model.fit(penalty).predict(x[split.validation])
        found = make.score(said, labels[split.validation])
        worse = 0 if found > score else worse + 1
        if found > score:
            best, score = penalty, found
        if worse == 2:
            break
    return best


def _nearest(features: Array, train: Array, test: Array, block: int = 1000) -> tuple[Array, Array]:
    """Places among the training rows of each test row's neighbours, and their weights."""
    unit: Array = np.asarray(features, dtype=np.float32)
    norms = np.linalg.norm(unit, axis=1, keepdims=True)
    unit = unit / np.where(norms > 0, norms, 1)
    k = min(NEIGHBOURS, len(train))
    places, weights = [], []
    for start in range(0, len(test), block):
        cosines = unit[test[start : start + block]] @ unit[train].T
        near = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        places.append(near)
        weights.append(np.exp(np.take_along_axis(cosines, near, axis=1) / TEMPERATURE))
    return np.concatenate(places), np.concatenate(weights)
