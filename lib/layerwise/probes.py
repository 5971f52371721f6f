"""Probes: how well a layer's embeddings tell labels, by a linear classifier and by neighbours.

The linear probe is multinomial logistic regression on standardised features, its L2 penalty chosen
on held-out training rows (Alain & Bengio 2016, arXiv 1610.01644). The neighbours' vote is weighted
by ``exp(cosine / 0.07)`` over the 20 nearest, as in Wu et al. 2018 (arXiv 1805.01978). The control
is the same linear probe trained on shuffled labels (Hewitt & Liang 2019, arXiv 1909.03368); what
the probe has over it is its selectivity.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""L2 penalties per row that are tried."""
NEIGHBOURS, TEMPERATURE = 20, 0.07
TEST, VALIDATION = 0.2, 0.2
CONFIDENCE = 0.95

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Rows to train on, to choose the penalty on, and to test on; no row is in two."""

    train: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class Probe:
    """What one layer's probes say of the test rows.

    Attributes
    ----------
    linear, neighbours : float
        Top-1 accuracy, 0 to 1.
    low, high, neighbours_low, neighbours_high : float
        Wilson's intervals of these at 95 %: over test rows, the training rows as they are.
    control : float
        The linear probe's accuracy after training on shuffled labels.
    majority : float
        The accuracy of always saying the training rows' most frequent label.
    penalty : float
        The penalty chosen.
    """

    linear: float
    low: float
    high: float
    neighbours: float
    neighbours_low: float
    neighbours_high: float
    control: float
    majority: float
    penalty: float

    @property
    def selectivity(self) -> float:
        """What the probe has over its control."""
        return self.linear - self.control


def classes(labels: Sequence[object]) -> Array:
    """Labels as numbers 0 … C-1, shape (N,).

    Raises
    ------
    LayerwiseError
        If a label is missing, there is one class alone, or one has fewer than five rows.
    """
    missing = [i for i, x in enumerate(labels) if x is None or x != x or x == ""]
    if missing:
        raise LayerwiseError(
            f"{len(missing)} of {len(labels)} rows have no label (the first is row {missing[0]}, "
            "from 0); label them or leave them out."
        )
    names, numbers, counts = np.unique(
        np.array([str(x) for x in labels]), return_inverse=True, return_counts=True
    )
    if len(names) < 2:
        raise LayerwiseError(
            f"All {len(labels)} labels are {names[0]!r}; a probe needs two classes or more."
            if len(names)
            else "There are no labels; a probe needs two classes or more."
        )
    rare = [str(n) for n, c in zip(names, counts, strict=True) if c < 5]
    if rare:
        raise LayerwiseError(
            f"{len(rare)} of {len(names)} classes have fewer than 5 rows ({', '.join(rare[:5])}); "
            "a probe needs 5 of each to train, choose and test. If these are numbers, they are no "
            "classes."
        )
    return np.asarray(numbers)


def split(labels: Array, seed: int = 0) -> Split:
    """Rows of each class in the same shares, drawn by a seed: 64 % train, 16 %, 20 % test."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    rest, test = train_test_split(rows, test_size=TEST, stratify=labels, random_state=seed)
    train, validation = train_test_split(
        rest, test_size=VALIDATION, stratify=labels[rest], random_state=seed
    )
    return Split(np.sort(train), np.sort(validation), np.sort(test))


def probe(features: Array, labels: Array, rows: Split, seed: int = 0) -> Probe:
    """The probes of one layer.

    Parameters
    ----------
    features : array, shape (N, D)
    labels : array, shape (N,)
        As `classes` gives them.
    rows : Split
    seed : int
        Of the shuffled labels.
    """
    train = np.concatenate([rows.train, rows.validation])
    scaled = _standardised(features, rows.train)
    penalty = _best_penalty(scaled, labels, rows)
    scaled = _standardised(features, train)
    truth = labels[rows.test]
    linear = _accuracy(scaled, labels, train, rows.test, truth, penalty)
    shuffled = labels.copy()
    shuffled[train] = np.random.default_rng(seed).permutation(labels[train])
    control = _accuracy(scaled, shuffled, train, rows.test, truth, penalty)
    neighbours = float((_vote(features, labels, train, rows.test) == truth).mean())
    majority = float((truth == np.bincount(labels[train]).argmax()).mean())
    bounds = (*_wilson(linear, len(truth)), neighbours, *_wilson(neighbours, len(truth)))
    return Probe(linear, *bounds, control, majority, penalty)


def probe_layers(layers: Iterable[Array], labels: Array, seed: int = 0) -> Iterator[Probe]:
    """The probes of each layer, all on the same rows."""
    rows = split(labels, seed)
    for features in layers:
        yield probe(features, labels, rows, seed)


def _standardised(features: Array, rows: Array) -> Array:
    """Mean 0 and standard deviation 1 over some rows; a constant feature is 0 everywhere."""
    part = np.asarray(features[rows], dtype=np.float64)
    mean, deviation = part.mean(axis=0), part.std(axis=0)
    constant = deviation <= 1e-7 * np.abs(mean).clip(1e-30)
    scaled = (features - mean) / np.where(constant, np.inf, deviation)
    return np.asarray(scaled, dtype=np.float32)


def _logistic(x: Array, y: Array, penalty: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / (penalty * len(y)), tol=1e-3, max_iter=300)
    with warnings.catch_warnings():
        # With little penalty there may be no optimum; the validation rows decide all the same.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def _best_penalty(x: Array, labels: Array, rows: Split) -> float:
    """The largest of the penalties that are best on the validation rows."""
    found = {
        penalty: _logistic(x[rows.train], labels[rows.train], penalty).score(
            x[rows.validation], labels[rows.validation]
        )
        for penalty in PENALTIES
    }
    return max(found, key=lambda penalty: (found[penalty], penalty))


def _accuracy(
    x: Array, labels: Array, train: Array, test: Array, truth: Array, penalty: float
) -> float:
    said = _logistic(x[train], labels[train], penalty).predict(x[test])
    return float((said == truth).mean())


def _vote(features: Array, labels: Array, train: Array, test: Array, block: int = 1000) -> Array:
    """What the nearest training rows say of the test rows."""
    unit: Array = np.asarray(features, dtype=np.float32)
    norms = np.linalg.norm(unit, axis=1, keepdims=True)
    unit = unit / np.where(norms > 0, norms, 1)
    k = min(NEIGHBOURS, len(train))
    n_classes = int(labels.max()) + 1
    said = []
    for start in range(0, len(test), block):
        cosines = unit[test[start : start + block]] @ unit[train].T
        near = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        weights = np.exp(np.take_along_axis(cosines, near, axis=1) / TEMPERATURE)
        votes = np.zeros((len(near), n_classes))
        np.add.at(votes, (np.arange(len(near))[:, None], labels[train][near]), weights)
        said.append(votes.argmax(axis=1))
    return np.concatenate(said)


def _wilson(share: float, n: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(round(share * n), n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)
