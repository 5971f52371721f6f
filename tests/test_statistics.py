"""Statistics against hand-worked cases and other libraries; calibration has a suite of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from layerwise.errors import LayerwiseError
from layerwise.statistics import (
    corrections,
    depth,
    headlines,
    matching,
    mixed,
    power,
    samples,
    sampling,
    tasks,
    variance,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Intervals over tasks


def test_interval_is_students(rng):
    x = rng.normal(1, 2, size=9)
    found = tasks.interval(x)
    want = stats.ttest_1samp(x, 0)
    low, high = want.confidence_interval(0.95)
    assert np.allclose([found.low, found.high, found.p], [low, high, want.pvalue])


def test_tasks_of_one_source_count_as_fewer(rng):
    x = rng.normal(size=10)
    apart = tasks.interval(np.repeat(x, 3))
    together = tasks.interval(np.repeat(x, 3), np.repeat(np.arange(10), 3).tolist())
    alone = tasks.interval(x)
    width = [i.high - i.low for i in (apart, together, alone)]
    assert width[0] < 0.6 * width[1]
    assert width[1] == pytest.approx(width[2], rel=0.1)
    assert together.value == pytest.approx(alone.value)


def test_sources_that_are_all_different_change_nothing(rng):
    x = rng.normal(size=7)
    assert tasks.interval(x, list("abcdefg")) == tasks.interval(x)


@pytest.mark.parametrize(
    ("values", "sources", "said"),
    [
        ([1.0], None, "two tasks"),
        ([1.0, 2.0], ["a", "a"], "of 1 source"),
        ([1.0, 2.0], ["a"], "1 text sources for 2 tasks"),
        ([1.0, math.nan], None, "NaN"),
    ],
)
def test_what_has_no_interval_is_refused(values, sources, said):
    with pytest.raises(LayerwiseError, match=said):
        tasks.interval(values, sources)


def test_band_holds_the_intervals_and_costs_more_for_more_layers(rng):
    x = rng.normal(size=(8, 20))
    few, many = tasks.band(x[:, :3]), tasks.band(x)
    assert (many.band_low < many.low).all()
    assert (many.high < many.band_high).all()
    assert (few.band_high[0] - few.band_low[0]) < (many.band_high[0] - many.band_low[0])


def test_band_of_one_layer_many_times_is_that_of_one(rng):
    x = np.repeat(rng.normal(size=(12, 1)), 10, axis=1)
    found = tasks.band(x)
    assert np.allclose(found.band_high, found.high, rtol=0.05)


def test_a_clear_best_layer_stands_alone_and_equal_ones_stay_together(rng):
    level = rng.normal(size=(10, 1))
    noise = 0.01 * rng.normal(size=(10, 5))
    clear = level + noise + np.array([0, 0, 1, 0, 0])
    assert tasks.best_set(clear).tolist() == [False, False, True, False, False]
    assert tasks.best_set(level + noise).sum() >= 4


def test_gain_of_a_clear_layer_is_students_interval(rng):
    scores = rng.normal(size=(10, 1)) + 0.05 * rng.normal(size=(10, 4)) + np.array([0, 3, 0, 0])
    found = tasks.gain_new_task(scores, scores[:, -1])
    plain = tasks.interval(scores[:, 1] - scores[:, -1])
    assert found.layer == 1
    assert found.rivals == 1
    assert (found.value, found.low, found.high) == pytest.approx(
        (plain.value, plain.low, plain.high)
    )


def test_gain_leaves_out_the_whole_source():
    # Each pair of tasks shares its texts and likes a layer of its own, which no other task does.
    likes = np.repeat(np.eye(4), 2, axis=0)
    scores = np.column_stack([likes, np.full(8, 0.5)])
    found = tasks.gain_new_task(scores, scores[:, -1], np.repeat(range(4), 2).tolist())
    assert found.value == pytest.approx(0.0)  # the last layer is chosen, .5 against .33
    alone = tasks.gain_new_task(scores[:, :4], scores[:, -1], np.repeat(range(4), 2).tolist())
    assert alone.value == pytest.approx(-0.5)


def test_gain_when_the_reference_is_best_is_zero():
    scores = np.column_stack([np.zeros(6), np.linspace(1, 2, 6)])
    found = tasks.gain_new_task(scores, scores[:, -1])
    assert (found.value, found.low, found.high, found.sign) == (0, 0, 0, 0)


def test_regret_is_not_below_zero_and_none_for_the_best(rng):
    scores = rng.normal(size=(10, 1)) + 0.05 * rng.normal(size=(10, 4)) + np.array([0, 3, 0, 0])
    assert tasks.regret(scores, 1).high == pytest.approx(0, abs=1e-12)
    worse = tasks.regret(scores, 0)
    assert worse.low > 2.5 < worse.value < worse.high


def test_a_regret_ends_where_the_scores_do(rng):
    scores = np.clip(rng.uniform(0.2, 0.9, size=(4, 1)) + 0.5 * rng.normal(size=(4, 20)), 0, 1)
    free, held = (tasks.regret(scores, 3, top=top) for top in (np.inf, 1.0))
    assert free.high > 1, "leads this noisy reach beyond the scores"
    assert held.value == free.value <= held.high
    assert held.high == pytest.approx(1 - tasks.interval(scores[:, 3]).low)


def test_equivalence(rng):
    lead = np.column_stack([rng.normal(0, 0.1, 20), rng.normal(2, 0.1, 20)])
    p = tasks.equivalent(lead, 0.5)
    assert p[0] < 0.001 < 0.9 < p[1]
    t = stats.ttest_1samp(lead[:, 0], -0.5, alternative="greater").pvalue
    u = stats.ttest_1samp(lead[:, 0], 0.5, alternative="less").pvalue
    assert p[0] == pytest.approx(max(t, u))
    with pytest.raises(LayerwiseError, match="margin"):
        tasks.equivalent(lead, 0)


def test_within_tasks_takes_levels_off(rng):
    scores = rng.normal(size=(6, 5))
    moved = scores + rng.normal(size=(6, 1)) * 100
    a, b = tasks.within_tasks(scores), tasks.within_tasks(moved)
    assert np.allclose(a - a.mean(), b - b.mean())
    assert np.allclose(a.mean(axis=0), scores.mean(axis=0))


# Association given depth


def test_partial_correlation_is_that_of_a_regression(rng):
    x, y = rng.normal(size=(2, 15))
    basis = np.vander(np.linspace(-1, 1, 15), 4)
    full = np.column_stack([basis, x])

    def left(design):
        return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]

    found = depth.beyond_depth(x, y)
    total = np.square(y - y.mean()).sum()
    gained = (np.square(left(basis)).sum() - np.square(left(full)).sum()) / total
    assert float(found.increment) == pytest.approx(gained)
    assert float(found.by_depth) == pytest.approx(1 - np.square(left(basis)).sum() / total)


def test_a_smooth_of_depth_says_nothing_beyond_depth(rng):
    d = np.linspace(0, 1, 13)
    found = depth.beyond_depth(3 - d**2, rng.normal(size=(4, 13)))
    assert np.allclose(found.r, 0)
    assert np.allclose(found.increment, 0)


def test_slope_has_the_units_of_the_scores(rng):
    x = rng.normal(size=20)
    residual = depth.residuals(x)
    sd = np.sqrt(np.square(residual).sum() / 16)
    scores = rng.normal(size=(6, 1)) + 0.7 * residual / sd + np.linspace(0, 5, 20)
    found = depth.slope_beyond_depth(x, scores)
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.7, 0.7))
    assert depth.slope_beyond_depth(x, scores, metric_reliability=0.5).value == pytest.approx(1.4)


def test_bias_corrected_dcor_agrees_with_the_library(rng):
    import dcor

    x, y = rng.normal(size=(2, 30))
    for other in (y, x + 0.1 * y, np.abs(x)):
        want = dcor.u_distance_correlation_sqr(x, other)
        assert depth.bias_corrected_dcor(x, other) == pytest.approx(want)


def test_chance_level_falls_with_layers():
    levels = [depth.chance_level(n, "r", draws=500) for n in (7, 13, 31)]
    assert levels == sorted(levels, reverse=True)
    assert depth.chance_level(25, "dcor", draws=500) > 0.75  # what looks strong is not


def test_noise_in_a_metric_is_allowed_for(rng):
    x = rng.normal(size=25)
    assert float(depth.reliability(x, np.zeros(25))) == 1
    assert float(depth.reliability(x, np.full(25, 100.0))) == 0
    assert depth.without_error(0.4, 0.64, 1.0) == pytest.approx(0.5)
    assert math.isnan(depth.without_error(0.4, 0.1, 1.0))


def test_few_layers_are_refused(rng):
    with pytest.raises(LayerwiseError, match="6 layers"):
        depth.beyond_depth(rng.normal(size=5), rng.normal(size=5))


# Matching across models


def test_matching_finds_what_belongs_together(rng):
    own = np.cumsum(rng.normal(size=(8, 12)), axis=1)
    trend = np.linspace(0, 50, 12)
    x = np.stack([own + trend, np.cumsum(rng.normal(size=(8, 12)), axis=1) + trend])
    found = matching.match(x, -own + trend, permutations=999)
    assert found.value[0] == pytest.approx(-1, abs=0.4)
    assert found.p_all[0] < 0.01 < found.p[1]
    assert (found.p_all >= found.p - 1e-9).all()
    assert found.reason == ""


def test_a_trend_that_all_share_is_no_match(rng):
    trend = np.linspace(0, 50, 12)
    x, y = (trend + np.cumsum(rng.normal(size=(2, 8, 12)), axis=2)).reshape(2, 8, 12)
    found = matching.match(x[None], y, permutations=999)
    assert abs(found.value[0]) < 0.5
    assert found.p[0] > 0.05


def test_few_models_have_a_value_and_a_reason_instead_of_a_p(rng):
    found = matching.match(rng.normal(size=(1, 4, 9)), rng.normal(size=(4, 9)))
    assert np.isfinite(found.value).all()
    assert np.isnan(found.p).all()
    assert "4 models" in found.reason


def test_all_permutations_are_taken_where_few(rng):
    x = rng.normal(size=(1, 6, 9))
    found = matching.match(x, x[0])
    assert found.p[0] == pytest.approx(1 / 720)
    strata = matching.match(x, x[0], ["a", "a", "a", "b", "b", "b"])
    assert np.isnan(strata.p[0])
    assert "36 ways" in strata.reason


def test_models_of_different_depth_meet_at_common_depths():
    found = matching.on_common_depths([np.linspace(0, 1, 7), np.linspace(0, 1, 13)])
    assert found.shape == (2, 7)
    assert np.allclose(found[0], found[1])


# Corrections


def test_corrections_agree_with_scipy_and_by_hand(rng):
    p = rng.uniform(size=12) ** 3
    assert np.allclose(
        corrections.benjamini_hochberg(p), stats.false_discovery_control(p, method="bh")
    )
    assert np.allclose(corrections.holm([0.01, 0.04, 0.03, math.nan])[:3], [0.03, 0.06, 0.06])
    assert math.isnan(corrections.holm([0.01, math.nan])[1])


# Headlines


def test_counts_against_chance():
    found = headlines.count(2, [6 / 7, 6 / 7, 6 / 7, 30 / 31])
    assert found.expected == pytest.approx(3.54, abs=0.01)
    assert found.p > 0.99
    assert not found.stands
    assert found.text("An earlier layer beats the last", "models").startswith("No evidence")
    same = headlines.count(7, [0.3] * 10)
    assert same.p == pytest.approx(stats.binom.sf(6, 10, 0.3))
    assert same.stands


def test_earlier_is_best_expects_one_in_l(rng):
    found = headlines.earlier_is_best([rng.normal(size=7), rng.normal(size=31)])
    assert found.expected == pytest.approx(6 / 7 + 30 / 31)


def test_ends_of_smooth_curves_are_best_more_often(rng):
    walks = np.cumsum(rng.normal(size=(10, 25)), axis=1)
    assert headlines.earlier_is_best_if_equal(walks) < 0.92 < 24 / 25


def test_duplicates_are_one_rule():
    assert headlines.distinct([[1, 2], [0, 2], [1, 2], [0, 2]]).tolist() == [0, 1, 0, 1]


def test_the_winner_is_judged_where_it_was_not_chosen():
    # Each of four rules is perfect on one model and useless on the others.
    scores = [np.array([0.0, 1.0])] * 4
    found = headlines.best_rule(np.eye(4, dtype=int), scores)
    assert found.apparent == pytest.approx(0.75)
    assert found.nested == pytest.approx(1.0)
    doubled = headlines.best_rule(np.tile(np.eye(4, dtype=int), (2, 1)), scores)
    assert doubled.distinct == 4
    assert doubled.p == found.p > 0.5


def test_always_the_last_layer_is_its_own_chance(rng):
    # Of models of other depths, beside which an output does better.
    scores = [np.linspace(0.1, 0.4, 7 if k % 2 else 31) + rng.normal(0, 0.02) for k in range(8)]
    picks = np.array([[len(s) - 1 for s in scores]])
    found = headlines.best_rule(picks, scores, best=[s.max() + 0.1 for s in scores], draws=99)
    assert found.p == 1
    assert found.apparent == pytest.approx(0.1)


def test_a_rule_that_knows_the_models_stands(rng):
    scores = [rng.normal(size=20) for _ in range(8)]
    picks = np.stack([[s.argmax() for s in scores], rng.integers(20, size=8)])
    found = headlines.best_rule(picks, scores, draws=500)
    assert (found.rule, found.apparent, found.nested) == (0, 0, 0)
    assert found.p < 0.05


# Sample size


def test_share_of_delta_is_what_delta_moves(rng):
    views = rng.normal(size=(3, 12, 40))
    at = 1e-2

    def mass(delta):
        means = views.mean(axis=0)
        between = (means - means.mean(axis=0)).T / np.sqrt(12)
        apart = (views - means).reshape(36, 40)
        within = apart.T @ apart / 36 + delta * np.eye(40)
        return np.trace(between.T @ np.linalg.solve(within, between))

    step = 1e-4
    slope = (math.log(mass(at * (1 + step))) - math.log(mass(at * (1 - step)))) / (2 * step)
    assert samples.share_decided_by_delta(views, at) == pytest.approx(-slope, rel=1e-4)


def test_delta_decides_where_views_are_few(rng):
    prompts = rng.normal(size=(20, 60))
    few = prompts + 0.1 * rng.normal(size=(2, 20, 60))
    many = prompts + 0.1 * rng.normal(size=(16, 20, 60))
    assert samples.share_decided_by_delta(few, 1e-6) > 0.99
    assert samples.share_decided_by_delta(many, 1e-6) < 0.01
    assert not samples.enough_for_lidar(20, 2, 60)
    assert samples.enough_for_lidar(20, 16, 60)


def test_pick_stability():
    whole = np.array([0.0, 2.0, 1.0, 0.0])
    halves = np.array([[0, 1.0, 0.5, 0], [0, 1.0, 0.5, 0], [3, 1.0, 0.5, 0], [0, 1, 0.5, 0]])
    found = samples.stability_of(whole, halves, +1)
    assert (found.pick, found.same) == (1, 0.75)
    assert not found.stable
    assert found.change_from_half == pytest.approx(0.5)
    moved = samples.pick_stability(lambda rows: np.array([len(rows), 1.0]), 10, -1, repeats=5)
    assert (moved.pick, moved.same) == (1, 1)
    assert moved.stable


# Models together, components, power


def test_pooling_agrees_with_a_mean_where_errors_are_equal(rng):
    x = rng.normal(1, 3, size=10)
    found = mixed.pool(x, np.full(10, 0.1))
    want = stats.ttest_1samp(x, 0)
    assert (found.low, found.high) == pytest.approx(
        tuple(want.confidence_interval(0.95)), rel=1e-3
    )
    assert found.between == pytest.approx(x.std(ddof=1), rel=0.05)
    assert np.allclose(found.own, x, atol=0.05)


def test_noisy_models_are_drawn_to_the_mean():
    found = mixed.pool([0.0, 0.0, 0.0, 1.0, 5.0], [0.1, 0.1, 0.1, 0.1, 50.0])
    assert found.own[4] < 1.0
    assert found.new_low < found.low < found.high < found.new_high


def test_left_out_models_show_what_a_metric_adds(rng):
    x = [rng.normal(size=13) for _ in range(5)]
    y = [5 * (np.arange(13) > 1) + 2 * m for m in x]
    adds = mixed.leave_out_models(x, y)
    assert adds.increment.min() > 0.1
    assert (adds.with_metric > 0.9).all()
    idle = mixed.leave_out_models([rng.normal(size=13) for _ in x], y)
    assert idle.increment.mean() < 0.05


def test_slope_over_models_is_blind_to_what_they_share(rng):
    step = 10.0 * (np.arange(13) > 1)
    own = [np.cumsum(rng.normal(size=13)) for _ in range(6)]
    shared = mixed.beyond_depth_over_models(
        [step + m for m in own], [step + rng.normal(size=(5, 13)) for _ in own]
    )
    assert shared.low < 0 < shared.high
    told = mixed.beyond_depth_over_models(
        own, [step + 2 * m / m.std() + 0.1 * rng.normal(size=(5, 13)) for m in own]
    )
    assert told.value == pytest.approx(2, abs=0.1)
    assert told.p < 0.01
    with pytest.raises(LayerwiseError, match="four of them"):
        mixed.beyond_depth_over_models(own[:3], [step[None]] * 3)


def test_a_metrics_error_flattens_the_slope_over_models_by_its_reliability(rng):
    own = [np.cumsum(rng.normal(size=25)) for _ in range(200)]
    own = [m / m.std() for m in own]
    y = [2 * m + 0.1 * rng.normal(size=(4, 25)) for m in own]
    errors = [np.full(25, 0.6)] * 200
    seen = [m + 0.6 * rng.normal(size=25) for m in own]
    flat = mixed.beyond_depth_over_models(seen, y).value
    # What is left is per standard deviation of the metric as measured, sqrt(1 + 0.6²) of its own.
    true = 2 * np.mean([m.std() for m in seen])
    known = mixed.reliability_over_models(seen, errors)
    assert flat < 0.85 * true
    assert flat / known == pytest.approx(true, rel=0.03)
    assert mixed.reliability_over_models(seen, [np.zeros(25)] * 200) == 1
    assert np.isnan(mixed.reliability_over_models(seen, [np.full(25, np.nan)] * 200))


def test_left_out_groups_of_tasks(rng):
    x = rng.normal(size=13)
    scores = rng.normal(size=(6, 1)) + x + 0.1 * rng.normal(size=(6, 13))
    found = mixed.leave_out_tasks(x, scores, ["a", "a", "b", "b", "c", "c"])
    assert len(found.depth) == 3
    assert (found.increment > 0.3).all()


def test_components_of_a_balanced_table_are_those_of_anova(rng):
    y = rng.normal(size=(6, 1)) * 3 + rng.normal(size=(6, 4))
    rows = np.repeat(np.arange(6), 4).tolist()
    found = variance.components(y.ravel(), {"task": rows})
    within = np.var(y, axis=1, ddof=1).mean()
    between = np.var(y.mean(axis=1), ddof=1) - within / 4
    assert found.variance["task"] == pytest.approx(between)
    assert found.variance["residual"] == pytest.approx(within)
    assert found.error_with({"task": 24}) < found.error
    several = variance.components(np.stack([y.ravel(), 2 * y.ravel()], axis=1), {"task": rows})
    assert several.variance["task"] == pytest.approx(2.5 * between)
    with pytest.raises(LayerwiseError, match="one seed"):
        variance.components(y.ravel(), {"seed": [0] * 24})


def test_more_text_sources_are_more_tasks(rng):
    """12 tasks of 6 sources in 5 models: sources are groups of tasks and add no cells."""
    source, task, model = np.repeat(np.arange(6), 10), np.repeat(np.arange(12), 5), np.tile(
        np.arange(5), 12
    )  # fmt: skip
    drawn = [
        variance.components(
            3 * rng.normal(size=6)[source] + 2 * rng.normal(size=12)[task]
            + rng.normal(size=5)[model] + rng.normal(size=60),
            {"text source": source.tolist(), "task": task.tolist(), "model": model.tolist()},
        )
        for _ in range(300)
    ]  # fmt: skip
    assert drawn[0].groups == ("text source",)
    mean = {k: np.mean([d.variance[k] for d in drawn]) for k in drawn[0].variance}
    assert mean == pytest.approx(
        {"text source": 9, "task": 4, "model": 1, "residual": 1}, rel=0.25
    )  # fmt: skip
    one = variance.Components({"text source": 9, "task": 4, "model": 1, "residual": 1},
                              drawn[0].levels, drawn[0].groups)  # fmt: skip
    assert one.error**2 == pytest.approx(9 / 6 + 4 / 12 + 1 / 5 + 1 / 60)


def test_power_grows_and_tasks_suffice():
    assert power.power_of_gain(32, 2, 5) > power.power_of_gain(10, 2, 5)
    enough = power.tasks_for_gain(2, 5)
    assert enough is not None
    assert power.power_of_gain(enough, 2, 5) >= 0.8 > power.power_of_gain(enough - 1, 2, 5)
    assert power.power_of_matching(4, 13, 0.9, repeats=5) == 0


def test_pivots_are_students_without_shared_sources():
    assert sampling.design(5).critical(0.025) == pytest.approx(stats.t.isf(0.025, 4))
    pairs = sampling.design(20, np.repeat(range(10), 2).tolist())
    assert pairs.critical(0.025) == pytest.approx(stats.t.isf(0.025, 9), rel=0.1)


def test_two_curves_differ_where_their_errors_allow() -> None:
    from layerwise.statistics.two_curves import difference

    found = difference([0, 0, 0], [0.1] * 3, [0.0, 1.0, -0.3], [0.0] * 3)
    # Bonferroni over three layers: a normal quantile of 1 - .05 / 6.
    np.testing.assert_allclose(found.high - found.value, 0.1 * 2.3939798, atol=1e-7)
    assert found.told.tolist() == [False, True, True]
    assert found.most == 1
    # Two pairs of curves, and errors of few prompts.
    few = difference([0, 0, 0], [0.1] * 3, [0.0, 1.0, -0.3], [0.0] * 3, n=8, comparisons=2)
    assert few.told.tolist() == [False, True, False]
    with pytest.raises(LayerwiseError, match="layer by layer"):
        difference([0, 0], [0.1] * 2, [0.0] * 3, [0.0] * 3)


def test_a_band_ends_with_its_range() -> None:
    whole = tasks.band(np.array([[0.9, 0.1], [1.0, 0.0], [0.8, 0.3]]))
    held = whole.within(0, 1)
    assert whole.high[0] > 1
    assert held.high[0] == held.band_high[0] == 1
    assert held.low[1] == held.band_low[1] == 0
    assert held.low[0] == whole.low[0]


def test_the_layers_that_may_be_best_over_prompts() -> None:
    from layerwise.statistics.prompts import may_be_best

    rng = np.random.default_rng(0)
    level = rng.normal(size=(60, 1)) * 5  # prompts differ in level, which no layer gains from
    values = level + np.array([0.0, 1.0, 1.01, 0.0]) + 0.1 * rng.normal(size=(60, 4))
    assert may_be_best(values).tolist() == [False, True, True, False]
    assert may_be_best(-values).tolist() == [True, False, False, True]
    assert may_be_best(np.tile([0.0, 2.0, 1.0], (10, 1))).tolist() == [False, True, False]


@pytest.mark.slow
def test_the_power_that_captions_quote() -> None:
    from layerwise.figures.evidence import POWER
    from layerwise.statistics.power import power_of_matching

    assert "r = .5" in POWER
    assert "in about half of cases with 6 models, and in .8 to .95 with 12" in POWER
    # Give or take three standard errors of so few repeats.
    for models, low, high in ((6, 0.5, 0.6), (12, 0.8, 0.95)):
        for layers in (7, 25):
            assert low - 0.1 < power_of_matching(models, layers, 0.5, repeats=200) < high + 0.1
