"""The tests and intervals of `layerwise.stats` against scipy, statsmodels and known answers."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy import signal

from layerwise import stats
from papers import shapes


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_mean_ci_is_students(rng):
    values = rng.normal(1, 1, size=(12, 3))
    found = stats.mean_ci(values)
    expected = scipy.stats.ttest_1samp(values, 0)
    low, high = expected.confidence_interval()
    np.testing.assert_allclose([found.low, found.high, found.p], [low, high, expected.pvalue])
    assert found.n == 12
    one = stats.mean_ci(values[:, 0])
    assert one.low == pytest.approx(low[0]) and isinstance(one.estimate, float)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_no_interval_of_any_kind_below_five_observations(n, rng):
    values = np.arange(n, dtype=float)
    mean = stats.mean_ci(values)
    assert mean.estimate == (n - 1) / 2 and mean.n == n
    every = (mean, stats.paired_difference(values, 0 * values), stats.ratio_ci(values, 1 + values))
    together = stats.simultaneous_ci(rng.normal(size=(n, 3)))
    of_clusters = stats.mean_ci(rng.normal(size=3 * n), np.repeat(np.arange(n), 3))
    for interval in (*every, together, of_clusters):
        assert np.isnan([interval.low, interval.high, interval.p]).all()
    table = pd.DataFrame({"value": [1.0, 1.0], "stderr": [0.1, 0.1], "n": [n, 5]})
    assert stats.with_intervals(table)["low"].isna().tolist() == [True, False]


def test_values_without_variation_have_no_p():
    found = stats.mean_ci(np.full(5, 0.1))
    assert (found.low, found.high) == (found.estimate, found.estimate)
    assert np.isnan(found.p)


def test_clusters_of_equal_size_are_averaged(rng):
    values, clusters = rng.normal(size=15), np.repeat(np.arange(5), 3)
    by_cluster = pd.Series(values).groupby(clusters).mean().to_numpy()
    clustered = stats.mean_ci(values, clusters)
    np.testing.assert_allclose(clustered[:5], stats.mean_ci(by_cluster)[:5])
    assert clustered.n == 5


def test_paired_difference(rng):
    a, b = rng.normal(size=(2, 10))
    assert stats.paired_difference(a, b).p == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue)


def test_corrections_skip_missing_values():
    np.testing.assert_allclose(stats.holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert np.isnan(stats.holm([np.nan])).all()


def test_simultaneous_intervals_cover_all_columns(rng):
    values = rng.normal(size=(120, 20, 8))
    inside = []
    for sample in values:
        found = stats.simultaneous_ci(sample)
        inside.append(((found.low <= 0) & (found.high >= 0)).all())
    assert 0.90 <= np.mean(inside) <= 0.99
    repeated = stats.simultaneous_ci(np.repeat(values[0][:, :1], 5, axis=1))
    assert repeated.low[0] == pytest.approx(stats.mean_ci(values[0][:, 0]).low, rel=0.1)


def test_ratio(rng):
    wholes = rng.normal(10, 1, size=(400, 5))
    parts = 0.3 * wholes + rng.normal(size=(400, 5))
    found = [stats.ratio_ci(a, b) for a, b in zip(parts, wholes, strict=True)]
    assert np.mean([one.low < 0.3 < one.high for one in found]) > 0.92
    many = stats.ratio_ci(parts.ravel(), wholes.ravel())
    assert many.low < 0.3 < many.high and many.high - many.low < 0.02
    assert np.isnan(stats.ratio_ci(parts[0, :2], wholes[0, :2]).low)


def test_intervals_for_all_columns_with_few_clusters(rng):
    values = rng.normal(size=(5, 7))
    assert np.isnan(stats.simultaneous_ci(values, [0, 0, 1, 2, 3]).low).all()
    few = stats.simultaneous_ci(values)
    half = scipy.stats.t.isf(0.025 / 7, 4) * values.std(axis=0, ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(few.high - few.estimate, half)
    alone = scipy.stats.ttest_1samp(values, 0).pvalue
    np.testing.assert_allclose(few.p, np.minimum(7 * alone, 1))
    # A column that does not vary is no comparison.
    same = stats.simultaneous_ci(np.column_stack([values, np.zeros(5)]))
    np.testing.assert_allclose(same.high[:7], few.high)
    wider = stats.simultaneous_ci(values, widening=1.5)
    np.testing.assert_allclose(wider.high - wider.estimate, 1.5 * half)


def test_unequal_clusters_have_fewer_degrees_of_freedom(rng):
    values, clusters = rng.normal(size=7), [0, 0, 0, 1, 2, 3, 4]
    found = stats.mean_ci(values, clusters)
    # tr(M)^2 / tr(M^2) of the covariance of the five deviations (Bell & McCaffrey 2002).
    sizes = np.bincount(clusters)
    weights = 1 / np.sqrt(1 - sizes / 7)
    M = np.outer(weights, weights) * (np.diag(sizes) - np.outer(sizes, sizes) / 7)
    quantile = scipy.stats.t.isf(0.025, np.trace(M) ** 2 / np.trace(M @ M))
    assert (found.high - found.estimate) / found.stderr == pytest.approx(quantile, rel=0.02)


def test_pairing_finds_what_belongs_together(rng):
    own = 0.2 * rng.normal(size=(3, 6, 6))
    own[0] += np.eye(6)
    found = stats.pairing_test(own)
    assert found.p[0] < 0.01 and found.p_adjusted[0] < 0.02 and found.p[1:].min() > 0.02
    np.testing.assert_allclose(found.statistic, np.trace(own, axis1=1, axis2=2) / 6)


def test_pairing_counts_both_signs_and_the_pairing_at_hand():
    own = np.eye(8)[None]
    for table in (own, -own):
        assert stats.pairing_test(table, 99).p[0] == stats.pairing_test(table, 99).p_adjusted[0]
        assert stats.pairing_test(table, 99).p[0] == pytest.approx(1 / 100)
    # All six pairings of three are tried, of which one is this strong.
    assert stats.pairing_test(np.eye(3)[None]).p[0] == pytest.approx(1 / 6)


def test_valley(rng):
    depth = np.linspace(0, 1, 13)
    curves = 4 * (depth - 0.5) ** 2 + rng.normal(0, 0.3, size=(60, 13))
    found = shapes.valley(curves)
    assert abs(found.layer - 6) <= 1 and (found.left, found.right) == (0, 12)
    assert found.depth.low < 1.1 and found.depth.p < 1e-6
    flat = [shapes.valley(rng.normal(size=(40, 9)), seed=s).depth for s in range(150)]
    assert np.mean([f.p < 0.05 and f.estimate > 0 for f in flat]) <= 0.09


def test_deepest_valley_has_the_highest_prominence(rng):
    for curve in np.cumsum(rng.normal(size=(300, 13)), axis=1):
        depths = shapes.prominences(curve)
        peaks = signal.find_peaks(-curve)[0]
        np.testing.assert_allclose(depths[peaks], signal.peak_prominences(-curve, peaks)[0])
        if depths.any():
            assert shapes._deepest(curve)[0] == int(depths.argmax())


def test_two_groups(rng):
    values = np.concatenate([rng.normal(0, 1, 60), rng.normal(8, 0.5, 40)])
    upper = shapes.two_groups(values)
    assert upper.tolist() == [False] * 60 + [True] * 40
    assert shapes.dip_test(values)[1] < 0.01 < shapes.dip_test(values[:60])[1]
    assert np.isnan(shapes.dip_test([1, 1, 1, 1])).all()
    found = shapes.group_effect(values, upper)
    assert found.estimate == 1 and found.p < 1e-10
    u = scipy.stats.mannwhitneyu(values[::2], values[1::2]).statistic
    some = shapes.group_effect(values, np.arange(100) % 2 == 0)
    assert (
        some.estimate == pytest.approx(2 * u / 2500 - 1) and some.low < some.estimate < some.high
    )
    assert np.isnan(shapes.group_effect(values, np.arange(100) == 0).p)
