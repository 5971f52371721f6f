"""Probes: what they find where something is to be found, and where nothing is."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import Ridge

from layerwise import probes
from layerwise.errors import LayerwiseError


def two_classes(n: int, shift: float, seed: int = 0, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Normal vectors, the classes `shift` apart in the first coordinate."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    x = rng.normal(size=(n, d)).astype(np.float32)
    x[:, 0] += shift * (labels - 0.5)
    return x, labels


def test_accuracy_is_bayes_and_the_control_is_chance() -> None:
    """Two normal classes 2 apart: the best any rule can do is Φ(1) = .841."""
    x, labels = two_classes(6000, 2.0)
    found = probes.probe(x, labels, probes.splits(labels))
    assert found.n_train == 4800 and found.n_test == 1200
    assert found.linear == pytest.approx(0.841, abs=0.03)
    assert found.low < 0.841 < found.high
    assert found.control == pytest.approx(0.5, abs=0.06)
    assert found.selectivity == pytest.approx(found.linear - found.control)
    assert 0.75 < found.neighbours < 0.86


def test_neighbours_find_what_no_line_does() -> None:
    """Exclusive or of two signs: the linear probe is at chance, neighbours are not."""
    x = np.random.default_rng(1).normal(size=(3000, 2))
    labels = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(int)
    found = probes.probe(x, labels, probes.splits(labels))
    assert found.linear < 0.6 and found.neighbours > 0.9


def test_numbers_are_foretold_as_ridge_does() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 5)) * [1, 10, 0.1, 3, 1]
    labels = probes.numbers(list(x @ [1, 0.1, 10, 0, 0] + rng.normal(size=3000)))
    (split,) = probes.splits(labels)
    found = probes.probe(x, labels, [split])
    scaled = (x - x[split.fitted].mean(0)) / x[split.fitted].std(0)
    ridge = Ridge(alpha=found.penalty * len(split.fitted)).fit(
        scaled[split.fitted], labels[split.fitted]
    )
    assert found.linear == pytest.approx(
        ridge.score(scaled[split.test], labels[split.test]), abs=1e-6
    )
    assert found.low < 0.75 < found.high  # R² of the truth: 3 of 4 parts of the variance
    assert found.control < 0.02


def test_penalty_is_chosen_on_validation_rows() -> None:
    """Many useless features and few rows want a strong penalty; none does one true feature."""
    rng = np.random.default_rng(3)
    x, labels = two_classes(120, 1.0, d=300)
    strong = probes.probe(x, labels, probes.splits(labels)).penalty
    z = rng.normal(size=(1500, 3))
    weak = probes.probe(z, probes.numbers(list(z[:, 0])), probes.splits(z[:, 0])).penalty
    assert strong > 10 * weak


def test_splits_keep_groups_whole_and_test_every_row_once() -> None:
    labels = np.arange(300) % 3
    groups = [f"author {k // 7}" for k in range(300)]
    found = probes.splits(labels, groups)
    assert len(found) == 5
    assert sorted(np.concatenate([s.test for s in found])) == list(range(300))
    for split in found:
        parts = [
            {groups[row] for row in rows} for rows in (split.train, split.validation, split.test)
        ]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        shares = np.bincount(labels[split.test]) / len(split.test)
        assert np.ptp(shares) < 0.1
    assert len(probes.splits(np.arange(2001) % 2)) == 1


def test_copies_of_a_text_are_no_help() -> None:
    """Random labels, every row five times: only groups keep the probe from knowing them."""
    rng = np.random.default_rng(4)
    x = np.repeat(rng.normal(size=(60, 100)), 5, axis=0)
    labels = np.repeat(rng.permutation(60) % 2, 5)
    groups = np.repeat(np.arange(60), 5)
    apart = probes.probe(x, labels, probes.splits(labels, list(groups)))
    mixed = probes.probe(x, labels, probes.splits(labels))
    assert apart.neighbours < 0.7 and mixed.neighbours > 0.9


@pytest.mark.parametrize("kind", [probes._Logistic, probes._Ridge])
def test_copies_make_no_interval_narrower(kind: type) -> None:
    """Rows that come three times say no more than once, and are taken for more if not grouped."""
    rng = np.random.default_rng(5)
    true = rng.integers(2, size=80).astype(float)
    said = np.where(rng.random(80) < 0.8, true, 1 - true)
    alone = kind.interval(said, true, 0.95, np.arange(80))
    three, thrice = (np.repeat(said, 3), np.repeat(true, 3)), np.repeat(np.arange(80), 3)
    assert kind.interval(*three, 0.95, thrice) == pytest.approx(alone)
    free = kind.interval(*three, 0.95, np.arange(240))
    assert alone[1] - alone[0] > 1.5 * (free[1] - free[0])
    right = kind.interval(true, true, 0.95, np.arange(80))
    assert kind.interval(three[1], three[1], 0.95, thrice) == pytest.approx(right)
    if kind is probes._Logistic:
        wilson = binomtest(int((said == true).sum()), 80).proportion_ci(0.95, method="wilson")
        assert alone == pytest.approx((wilson.low, wilson.high))


@pytest.mark.parametrize("kind", [probes._Logistic, probes._Ridge])
def test_parts_of_a_score_add_up_and_tell_what_a_row_changes(kind: type) -> None:
    rng = np.random.default_rng(5)
    true = rng.integers(2, size=400).astype(float)
    said = np.where(rng.random(400) < 0.8, true, 1 - true) + 0.1 * (kind is probes._Ridge)
    parts, whole = kind.parts(said, true), kind.score(said, true)
    assert parts.mean() == pytest.approx(whole)
    less = kind.score(said[1:], true[1:]) - whole
    assert less == pytest.approx((whole - parts[0]) / 399, rel=0.02)


def test_probes_know_their_groups() -> None:
    rng = np.random.default_rng(6)
    x, labels = two_classes(80, 1.5)
    x, labels, groups = (np.repeat(a, 4, axis=0) for a in (x, labels, np.arange(80)))
    order = rng.permutation(320)
    x, labels, groups = x[order], labels[order], list(groups[order])
    (grouped,) = probes.probe_layers([x], labels, groups)
    alone = probes.probe(x, labels, probes.splits(labels, groups))
    assert grouped.linear == alone.linear
    assert len(grouped.parts) == 80 and grouped.parts.sum() == pytest.approx(grouped.linear)
    assert grouped.high - grouped.low == pytest.approx(2 * (alone.high - alone.low), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 2400], ids=["five splits", "one split"])
def test_intervals_cover(n: int) -> None:
    """95 % intervals hold the accuracy that such a probe has on new data: the mean over many
    training sets, which for large n is that of the best rule."""
    repeats = 60
    found = []
    for seed in range(repeats):
        x, labels = two_classes(n, 1.5, seed, d=2)
        found.append(probes.probe(x, labels, probes.splits(labels, seed=seed)))
    truth = float(np.mean([f.linear for f in found]))
    held = sum(f.low <= truth <= f.high for f in found)
    assert held >= 0.85 * repeats
    # Not for being far too wide: an interval of half the width misses more often.
    narrow = sum(abs(f.linear - truth) <= (f.high - f.low) / 4 for f in found)
    assert narrow < 0.9 * repeats


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [False, True])
def test_intervals_cover_where_rows_are_in_groups(numbers: bool) -> None:
    """75 groups of four rows that are much alike; without groups too narrow by half."""
    grouped, alone = [], []
    groups = np.repeat(np.arange(75), 4)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(75, 3))[groups] + 0.3 * rng.normal(size=(300, 3))
        labels = (rng.permutation(75) % 2)[groups]
        x[:, 0] += 1.5 * labels
        if numbers:
            labels = x[:, 0] + rng.normal(size=75)[groups] + 0.3 * rng.normal(size=300)
        rows = probes.splits(labels, list(groups), seed)
        grouped.append(probes.probe(x, labels, rows, list(groups), seed=seed))
        alone.append(probes.probe(x, labels, rows, seed=seed))
    truth = float(np.mean([f.linear for f in grouped]))
    held = [np.mean([f.low <= truth <= f.high for f in found]) for found in (grouped, alone)]
    assert held[0] >= 0.8 and held[1] <= 0.7


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a"] * 30, "All 30 labels are 'a'"),
        (["a"] * 15 + ["b"] * 14 + [None], "1 of 30 rows have no label (the first is row 29"),
        ([1.0] * 29 + [float("nan")], "no label"),
        ([1.0] * 29 + [pd.NA], "no label"),
        (["a"] * 29 + [["b"]], "The label of row 29 (from 0) is a list"),
        (["a", "b"] * 9, "18 labelled rows came"),
        ([*"ab" * 20, "c"], "rows ('c'); a probe needs 5 of each: take more rows"),
        ([], "0 labelled rows came"),
    ],
)
def test_labels_that_make_no_classes(labels: list[object], said: str) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        probes.classes(labels)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["x"] * 30, "'x' is no number"),
        ([1.0] * 30, "All 30 labels are 1"),
        ([*range(29), float("inf")], "row 29 .* is infinite"),
        ([*range(29), None], "no label"),
    ],
)
def test_labels_that_make_no_numbers(labels: list[object], said: str) -> None:
    with pytest.raises(LayerwiseError, match=said):
        probes.numbers(labels)


def test_groups_that_cannot_be_told_apart() -> None:
    labels = np.arange(40) % 2
    with pytest.raises(LayerwiseError, match="3 different ones"):
        probes.splits(labels, [k % 3 for k in range(40)])
    with pytest.raises(LayerwiseError, match="too few groups"):
        probes.splits((np.arange(40) < 5).astype(int), ["one" if k < 5 else k for k in range(40)])


def test_vectors_that_are_no_numbers() -> None:
    x, labels = two_classes(100, 1.0)
    x[3, 2] = np.nan
    with pytest.raises(LayerwiseError, match="NaN or infinity"):
        probes.probe(x, labels, probes.splits(labels))
