"""Association: measures, nulls, bootstrap, and the tidy table."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from layerwise.association import nulls
from layerwise.association.curves import (
    OWN_TEXTS,
    baselines,
    metric_curves,
    of_poolings,
    score_curves,
    usable,
)
from layerwise.association.engine import associate_blocks, join
from layerwise.association.measures import (
    MEASURES,
    distance_correlation,
    embed,
    kendall,
    paired_strengths,
    spearman,
    strengths,
)
from layerwise.association.order import Order, order_key, step_of
from layerwise.association.table import COLUMNS, associate
from layerwise.config.association import AssociationSettings
from layerwise.errors import LayerwiseError

SINGLE = {"dcor": distance_correlation, "spearman": spearman, "kendall": kendall}
curve = arrays(float, 12, elements=st.floats(-100, 100, allow_nan=False, width=32))


def one(table: pd.DataFrame, **wanted: object) -> pd.Series:
    """The one row with these values."""
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1, f"{len(table)} rows"
    return table.iloc[0]


# Measures


@settings(deadline=None, max_examples=25)
@given(curve, curve)
def test_embedding_is_the_library_measure(x: np.ndarray, y: np.ndarray) -> None:
    for measure in MEASURES:
        ours = strengths(measure, embed(measure, [x]), embed(measure, [y]))[0, 0]
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            assert ours == 0
        else:
            assert ours == pytest.approx(SINGLE[measure](x, y), abs=1e-9)


def test_embedding_is_the_library_measure_to_rounding(rng: np.random.Generator) -> None:
    for n in (4, 7, 25, 60):
        x, y = rng.normal(size=(2, n))
        x[: n // 3] = x[0]  # ties
        for measure in MEASURES:
            ours = strengths(measure, embed(measure, [x]), embed(measure, [y]))[0, 0]
            assert ours == pytest.approx(SINGLE[measure](x, y), abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(curve, curve, st.floats(0.01, 100), st.floats(-100, 100))
def test_measures_do_not_see_scale_and_offset(
    x: np.ndarray, y: np.ndarray, scale: float, offset: float
) -> None:
    if np.ptp(x) < 1e-3 or np.ptp(y) < 1e-3:
        return
    a, b = embed("dcor", [x, x * scale + offset]), embed("dcor", [y])
    plain, moved = strengths("dcor", a, b)[:, 0]
    assert plain == pytest.approx(moved, abs=1e-5)
    assert 0 <= plain <= 1


def test_paired_is_the_diagonal(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 5, 9))
    for measure in MEASURES:
        left, right = embed(measure, x), embed(measure, y)
        np.testing.assert_allclose(
            paired_strengths(measure, left, right), np.diag(strengths(measure, left, right))
        )


def test_a_tiny_curve_is_not_taken_for_a_constant_one() -> None:
    x = np.arange(8) * 1e-9
    for measure in MEASURES:
        e = embed(measure, [x, np.full(8, 3.3)])
        assert strengths(measure, e[:1], e[:1])[0, 0] == pytest.approx(1)
        assert not e[1].any()


@pytest.mark.parametrize("function", [distance_correlation, spearman, kendall])
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([1, 2], [1, 2, 3], "same two or more layers"),
        ([1], [1], "same two or more layers"),
        ([1, np.nan, 2], [1, 2, 3], "finite"),
    ],
)
def test_bad_curves(function, x, y, words) -> None:
    with pytest.raises(LayerwiseError, match=words):
        function(x, y)


def test_constant_curve() -> None:
    assert distance_correlation([1, 1, 1], [1, 2, 3]) == 0
    for function in (spearman, kendall):
        with pytest.raises(LayerwiseError, match="constant"):
            function([1, 1, 1], [1, 2, 3])


# Nulls


def test_permutations_are_complete_when_few(rng: np.random.Generator) -> None:
    orders, exact = nulls.permutations([4], 24, rng)
    assert exact
    assert len({tuple(o) for o in orders}) == 24
    orders, exact = nulls.permutations([5], 24, rng)
    assert not exact
    assert orders.shape == (24, 5)


def test_orders_stay_within_blocks(rng: np.random.Generator) -> None:
    for null in (nulls.permutations, nulls.circular_shifts):
        orders, exact = null([3, 5], 10, rng)
        assert not exact
        assert (np.sort(orders[:, :3], axis=1) == np.arange(3)).all()
        assert (np.sort(orders[:, 3:], axis=1) == np.arange(3, 8)).all()


def test_shifts_are_rotations(rng: np.random.Generator) -> None:
    orders, exact = nulls.circular_shifts([5], 100, rng)
    assert exact
    np.testing.assert_array_equal(orders[2], [2, 3, 4, 0, 1])
    orders, exact = nulls.circular_shifts([2, 3], 6, rng)
    assert exact
    assert len({tuple(o) for o in orders}) == 6


def test_p_values_count_ties_and_never_reach_zero() -> None:
    observed = np.array([0.5, -0.5, 0.9])
    null = np.array([[0.5, 0.1, -0.7, 0.2], [0.5 - 1e-15, 0, 0, 0], [0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_allclose(nulls.p_values(observed, null, exact=False), [3 / 5, 2 / 5, 1 / 5])
    np.testing.assert_allclose(nulls.p_values(observed[:2], null[:2], exact=True), [2 / 4, 1 / 4])


def test_permutation_p_is_exact_for_a_perfect_match() -> None:
    x = np.arange(5.0)
    found = associate_blocks(
        [np.tile(x, (1, 1, 1))], [x[None]], "spearman",
        permutations=120, resamples=0, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert found.value[0] == pytest.approx(1)
    assert found.p_permutation[0] == pytest.approx(2 / 120)  # itself and its mirror image
    assert found.p_shift[0] == pytest.approx(1 / 5)


def test_permutation_p_is_uniform_under_the_null(rng: np.random.Generator) -> None:
    y = rng.normal(size=(1, 12))
    x = rng.normal(size=(400, 1, 12))
    for measure in MEASURES:
        found = associate_blocks(
            [x], [y], measure, permutations=199, resamples=0, rng=np.random.default_rng(1)
        )
        assert np.mean(found.p_permutation <= 0.05) == pytest.approx(0.05, abs=0.035)
        assert np.mean(found.p_permutation <= 0.5) == pytest.approx(0.5, abs=0.08)


def test_shift_null_is_the_stricter_one_for_smooth_curves(rng: np.random.Generator) -> None:
    depth = np.arange(25)
    phases = rng.uniform(0, 25, size=(200, 2))
    x = np.sin(2 * np.pi * (depth + phases[:, [0]]) / 25)[:, None, :]
    y = np.sin(2 * np.pi * (depth + phases[0, 1]) / 25)[None]
    found = associate_blocks(
        [x], [y], "spearman", permutations=500, resamples=0, rng=np.random.default_rng(0)
    )
    assert np.mean(found.p_permutation < 0.05) > 0.5  # smooth curves beat it by smoothness alone
    assert np.mean(found.p_shift < 0.05) < 0.1


def test_step_function_reaches_a_high_dcor_by_nothing() -> None:
    scores = np.r_[np.linspace(0.35, 0.45, 6), np.full(18, 0.5) + np.linspace(0, 0.03, 18), 0.44]
    step = ((np.arange(25) >= 6) & (np.arange(25) <= 23)).astype(float)
    assert distance_correlation(step, scores) > 0.85


def test_an_interval_holds_95_per_cent() -> None:
    assert nulls.interval(np.arange(1001.0)) == pytest.approx((25, 975))
    low, high = nulls.interval(np.stack([np.arange(1001.0), np.arange(0, 2002.0, 2)]))
    np.testing.assert_allclose([low, high], [[25, 50], [975, 1950]])
    assert nulls.interval(np.arange(1001.0), 0.5) == pytest.approx((250, 750))


# Blocks


def test_several_blocks_are_ranked_within() -> None:
    a, b = np.array([[1.0, 5.0, 3.0]]), np.array([[100.0, 300.0]])
    np.testing.assert_allclose(join([a, b]), [[0.5 / 3, 2.5 / 3, 1.5 / 3, 0.25, 0.75]])
    np.testing.assert_array_equal(join([a]), a)


def test_a_difference_between_models_is_no_association(rng: np.random.Generator) -> None:
    x = [rng.normal(size=(1, 1, 20)), rng.normal(size=(1, 1, 20)) + 1000]
    y = [rng.normal(size=(1, 20)), rng.normal(size=(1, 20)) + 1000]
    found = associate_blocks(
        x, y, "spearman", permutations=200, resamples=0, rng=np.random.default_rng(0)
    )
    assert abs(found.value[0]) < 0.4


# Tables


def test_scores_average_over_subsets_then_tasks() -> None:
    table = tidy_scores(np.full((2, 5), 0.5))
    extra = table[table["task"] == "task0"].assign(subset="en-ext", main_score=0.7)
    curves = score_curves(pd.concat([table, extra]))[0]
    np.testing.assert_allclose(curves.values[:, 0], [0.6, 0.5])
    assert curves.values.mean(axis=0)[0] == pytest.approx(0.55)


def test_a_task_is_over_the_same_subsets_at_all_layers(caplog: pytest.LogCaptureFixture) -> None:
    plain = tidy_scores(np.full((2, 6), 0.5))
    # The harder subset was scored at every second layer alone.
    hard = plain[(plain["task"] == "task0") & (plain["layer"] % 2 == 0)]
    curves = score_curves(pd.concat([plain, hard.assign(subset="hard", main_score=0.1)]))[0]
    assert list(curves.layers) == [0, 2, 4]
    assert curves.tasks == ("task0", "task1")
    np.testing.assert_allclose(curves.values, [[0.3] * 3, [0.5] * 3])
    assert "3 of 6 layers left out" in caplog.text
    nameless = score_curves(plain.assign(subset=None))[0]
    np.testing.assert_allclose(nameless.values, 0.5)
    assert nameless.tasks == ("task0", "task1")


def test_the_deepest_layer_with_scores_is_not_the_last() -> None:
    table = tidy_scores(np.random.default_rng(0).random((2, 5)))
    whole = score_curves(table)[0]
    np.testing.assert_array_equal(whole.output, whole.values[:, 4])
    assert whole.candidates([0, 1]).output == 4
    cut = score_curves(table[(table["layer"] < 4) | (table["task"] == "task0")])[0]
    assert (cut.last_layer, cut.layers[-1], cut.left_out) == (4, 3, (4,))
    assert np.isfinite(cut.output).tolist() == [True, False]
    assert cut.candidates([0, 1]).output is None
    assert cut.candidates([0]).output == 4


def test_layers_without_a_score_are_left_out_with_their_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = tidy_scores(np.random.default_rng(0).random((3, 5))).assign(why=None)
    bad = (table["layer"] == 0) & (table["task"] != "task2")
    table.loc[bad, "main_score"], table.loc[bad, "why"] = np.nan, "its embeddings are all alike"
    curves = score_curves(table)[0]
    assert (list(curves.layers), curves.left_out) == ([1, 2, 3, 4], (0,))
    assert "1 of 5 layers left out" in caplog.text
    never = table["task"] == "task1"
    table.loc[never, "main_score"], table.loc[never, "why"] = np.nan, "its labels are all alike"
    curves = score_curves(table)[0]
    assert curves.tasks == ("task0", "task2")
    assert "task1 left out, without a score at any layer: its labels are all alike" in caplog.text


def test_the_output_of_other_readings_counts_for_them_alone() -> None:
    values = np.random.default_rng(0).random((2, 5))
    parts = [
        tidy_scores(values + shift, tokens=tokens).assign(readout=readout)
        for tokens, readout, shift in (
            ("all", "residual", 0), ("all", "output", 1), ("drop_first", "residual", 2),
            ("drop_first", "final_norm", 3),
        )
    ]  # fmt: skip
    table = pd.concat(parts)
    found = {(c.tokens, c.pooling): c.output - values[:, 4] for c in score_curves(table)}
    np.testing.assert_allclose(found["all", "mean"], 1)
    np.testing.assert_allclose(found["all", "mean, output"], 1)
    np.testing.assert_allclose(found["drop_first", "mean"], 3)
    np.testing.assert_allclose(found["drop_first", "mean, final_norm"], 3)
    assert {c.output_from for c in score_curves(table)} == {"output"}
    kept = of_poolings(table)
    told = set(zip(kept["tokens"], kept["pooling"], strict=True))
    assert told == set(found) - {("all", "mean, output")}
    pd.testing.assert_frame_equal(of_poolings(kept), kept)


def test_what_a_metric_is_set_against() -> None:
    nan = np.nan
    for values, tasks, layers in (
        ([[1, 2, 3], [1, 2, 3]], [1, 1], [1, 1, 1]),
        ([[1, nan, 3], [1, nan, 3]], [1, 1], [1, 0, 1]),  # a layer of which nobody knows
        ([[1, 2, 3], [1, nan, 3]], [1, 0], [1, 1, 1]),  # the task goes, not the layer
        ([[1, 2, 3], [nan, nan, nan]], [1, 0], [1, 1, 1]),
        ([[1, nan, 3], [nan, 2, 3]], [0, 0], [1, 1, 1]),
        ([[nan, nan, nan]], [0], [0, 0, 0]),
    ):
        found = usable(np.array(values, dtype=float))
        np.testing.assert_array_equal(found[0], np.array(tasks, dtype=bool))
        np.testing.assert_array_equal(found[1], np.array(layers, dtype=bool))


def test_layers_that_a_task_lacks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    table = tidy_scores(np.full((2, 6), 0.5))
    table = table[~((table["task"] == "task1") & (table["layer"] == 2))]
    curves = score_curves(table)[0]
    assert list(curves.layers) == [0, 1, 3, 4, 5]
    assert curves.last_layer == 5
    assert "1 of 6 layers left out" in caplog.text


def test_scores_without_a_value_are_refused() -> None:
    table = tidy_scores(np.full((1, 5), np.nan))
    with pytest.raises(LayerwiseError, match="task0 at layer 0 is nan"):
        score_curves(table)


def test_scores_of_two_readouts_are_not_averaged() -> None:
    table = tidy_scores(np.random.default_rng(0).random((2, 5))).assign(readout="residual")
    both = pd.concat([table, table.assign(readout="final_norm")])
    both["main_score"] += np.where(both["readout"] == "final_norm", 1.0, 0.0)
    found = {c.pooling: c.values for c in score_curves(both)}
    assert set(found) == {"mean", "mean, final_norm"}
    np.testing.assert_allclose(found["mean, final_norm"], found["mean"] + 1)
    alone = score_curves(both[both["readout"] == "final_norm"])
    assert [c.pooling for c in alone] == ["mean"], "one readout needs no mention"
    splits = pd.concat([table, table.assign(split="train")])
    with pytest.raises(LayerwiseError, match="more than once: splits test, train"):
        score_curves(splits)


def test_missing_column_is_named() -> None:
    with pytest.raises(LayerwiseError, match=r"lacks the column.*main_score"):
        score_curves(tidy_scores(np.ones((1, 5))).drop(columns="main_score"))


def test_a_metric_given_twice_is_refused() -> None:
    scores = score_curves(tidy_scores(np.random.default_rng(0).random((1, 5))))[0]
    metrics = tidy_metrics({"curvature": np.arange(5.0)})
    with pytest.raises(LayerwiseError, match="more than once"):
        metric_curves(pd.concat([metrics, metrics]), scores)


def test_baselines() -> None:
    scores = score_curves(tidy_scores(np.random.default_rng(0).random((1, 5))))[0]
    rows, values = baselines(scores)
    by_name = dict(zip(rows["metric"], values[:, 0], strict=True))
    np.testing.assert_allclose(by_name["layer index"], [0, 1, 2, 3, 4])
    np.testing.assert_allclose(by_name["distance from the middle"], [0.5, 0.25, 0, 0.25, 0.5])


def test_table(rng: np.random.Generator) -> None:
    values = rng.random((4, 9)) * 0.1 + np.linspace(0.2, 0.6, 9)
    scores = pd.concat([
        tidy_scores(values, types=("STS", "Clustering")),
        tidy_scores(values, types=("STS", "Clustering"), tokens="drop_first"),
    ])  # fmt: skip
    mean = values.mean(axis=0)
    metrics = pd.concat([
        tidy_metrics({"prompt_entropy": mean**3, "curvature": -mean, "flat": np.ones(9)}),
        tidy_metrics({"prompt_entropy": rng.random(9)}, tokens="drop_first"),
    ])  # fmt: skip
    table = associate(metrics, scores, AssociationSettings(permutations=200, resamples=100))
    assert list(table.columns) == list(COLUMNS)
    assert set(table["task_type"]) == {"all", "STS", "Clustering"}
    assert "flat" not in set(table["metric"])
    assert table[["value", "p_permutation", "p_shift", "low", "high"]].notna().all(axis=None)
    rho = one(table, metric="prompt_entropy", tokens="all", task_type="all", measure="spearman")
    assert rho["value"] == pytest.approx(1)
    assert rho["p_permutation"] < 0.01
    assert (rho["n_layers"], rho["n_tasks"], rho["n_models"]) == (9, 4, 1)
    assert rho["low"] <= rho["high"] <= 1
    tau = one(table, metric="curvature", tokens="all", task_type="all", measure="kendall")
    assert tau["value"] == pytest.approx(-1)
    other = one(
        table, metric="prompt_entropy", tokens="drop_first", task_type="all", measure="spearman"
    )
    assert other["value"] < 0.9  # its own tokens' metric, not that of `all`
    one(table, metric="layer index", tokens="all", task_type="STS", measure="dcor")


def test_adding_a_model_leaves_the_others_rows_alone(rng: np.random.Generator) -> None:
    values = rng.random((3, 8))
    first = tidy_scores(values), tidy_metrics({"curvature": rng.random(8)})
    second = (
        tidy_scores(values, model="n"),
        tidy_metrics({"curvature": rng.random(8)}, model="n"),
    )
    plan = AssociationSettings(permutations=100, resamples=50)
    alone = associate(first[1], first[0], plan)
    both = associate(pd.concat([first[1], second[1]]), pd.concat([first[0], second[0]]), plan)
    pd.testing.assert_frame_equal(
        alone, both[both["model"] == "m"].reset_index(drop=True), check_dtype=False
    )
    assert set(both.loc[both["model"] == "all", "n_models"]) == {2}


def test_pooled_takes_the_last_revision(rng: np.random.Generator) -> None:
    scores, metrics = [], []
    for model, revision in (("m", "step1"), ("m", "step10"), ("n", "main")):
        y = rng.random(8)
        x = -y if revision == "step1" else y
        scores.append(tidy_scores(y[None], model=model, revision=revision))
        metrics.append(tidy_metrics({"curvature": x}, model=model, revision=revision))
    table = associate(
        pd.concat(metrics), pd.concat(scores), AssociationSettings(permutations=50, resamples=0)
    )
    assert one(table, model="all", metric="curvature", measure="spearman")[
        "value"
    ] == pytest.approx(1)


def test_what_a_model_lacks_leaves_the_pooled_rows_with_a_word(
    rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    values = rng.random((2, 8))
    curves = {"curvature": rng.random(8), "prompt_entropy": rng.random(8)}
    scores = pd.concat([tidy_scores(values, model=m, types=("A", "B")) for m in ("m", "n")])
    metrics = pd.concat([
        tidy_metrics(curves | {"lidar": rng.random(8)}, model="m"),
        tidy_metrics({"curvature": curves["curvature"]}, model="n"),
    ])  # fmt: skip
    table = associate(metrics, scores, AssociationSettings(permutations=20, resamples=0))
    pooled = table[(table["model"] == "all") & (table["protocol"] != "baseline")]
    assert set(pooled["metric"]) == {"curvature"}
    told = [r.getMessage() for r in caplog.records if "lacks them" in r.getMessage()]
    assert len(told) == 1, "once, not for each task type"
    assert "on wikipedia, since n at main lacks them" in told[0]
    assert told[0].endswith(": lidar/paper/raw, prompt_entropy/paper/1.0/raw")


def test_own_texts_set_each_task_against_its_own_corpus(rng: np.random.Generator) -> None:
    values = rng.random((2, 8))
    metrics = pd.concat(
        [
            tidy_metrics({"curvature": values[0] * 2}, corpus="texts0"),
            tidy_metrics({"curvature": values[1] * 2}, corpus="texts1"),
        ]
    )
    plan = AssociationSettings(
        permutations=50, resamples=200, own_texts={"texts0": "task0", "texts1": "task1"}
    )
    table = associate(metrics, tidy_scores(values), plan)
    row = one(table, corpus=OWN_TEXTS, metric="curvature", measure="dcor")
    assert row["value"] == pytest.approx(1)
    assert row["n_tasks"] == 2
    # Metric and score are resampled together, so the match holds in every resample.
    assert row["low"] == pytest.approx(1)
    apart = one(table, corpus="texts0", metric="curvature", measure="dcor")
    assert apart["value"] < 0.999


def test_bootstrap_interval_widens_with_disagreement(rng: np.random.Generator) -> None:
    base = np.linspace(0, 1, 10)
    agree = np.stack([base + rng.normal(0, 0.01, 10) for _ in range(6)])
    disagree = np.stack([base + rng.normal(0, 1.0, 10) for _ in range(6)])
    widths = []
    for scores in (agree, disagree):
        found = associate_blocks(
            [np.tile(base, (1, 6, 1))], [scores], "kendall",
            permutations=10, resamples=500, rng=np.random.default_rng(0),
        )  # fmt: skip
        widths.append(found.high[0] - found.low[0])
    assert widths[0] < 0.15 < widths[1]


def test_nothing_in_common_is_said() -> None:
    with pytest.raises(
        LayerwiseError, match="metrics are of other main all, scores of m main all"
    ):
        associate(
            tidy_metrics({"curvature": np.arange(5.0)}, model="other"),
            tidy_scores(np.random.default_rng(0).random((1, 5))),
            AssociationSettings(),
        )


@pytest.mark.parametrize(
    "given_settings", [{"measure": ["dcor"]}, {"measures": ["dkor"]}, {"permutations": 0}]
)
def test_bad_settings(given_settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AssociationSettings.model_validate_json(json.dumps(given_settings))


def test_the_configs_order_comes_before_steps() -> None:
    order = Order(["m"], {"m": ["step9", "step10", "sft"]})
    assert order.checkpoints("m", ["sft", "step10", "other"]) == ["other", "step10", "sft"]
    assert order.last("m", ["step10", "step9"]) == "step10"
    assert Order(["m"], {"m": ["sft", "dpo"]}).last("m", ["dpo", "sft"]) == "dpo"
    frame = pd.DataFrame({"model": ["m", "m", "n"], "revision": ["sft", "step10", "main"]})
    assert order.only_last(frame)["revision"].tolist() == ["sft", "main"]


def test_pooled_takes_the_last_of_the_config(rng: np.random.Generator) -> None:
    names, metrics, scores = ("sft", "dpo"), [], []
    for model in ("m", "n"):
        for revision in names if model == "m" else ("main",):
            at = {"model": model, "revision": revision}
            metrics.append(tidy_metrics({"curvature": rng.random(6)}, **at))
            scores.append(tidy_scores(rng.random((2, 6)), **at))
    plan = AssociationSettings(permutations=20, resamples=0, measures=("spearman",))
    found = {}
    for last in names:
        order = Order(["m", "n"], {"m": sorted(names, key=lambda n, last=last: n == last)})
        table = associate(pd.concat(metrics), pd.concat(scores), plan, order)
        only = [f for f in metrics if f["revision"].iloc[0] in (last, "main")]
        alone = associate(pd.concat(only), pd.concat(scores), plan)
        keys = {"model": "all", "metric": "curvature"}
        found[last] = one(table, **keys)["value"]
        assert found[last] == one(alone, **keys)["value"]
    assert found["sft"] != found["dpo"]


def test_a_flat_face_for_notebooks() -> None:
    from layerwise import association

    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]
    assert association.spearman(x, y) == pytest.approx(0.8)
    assert association.kendall(x, y) == pytest.approx(2 / 3)
    assert 0 < association.distance_correlation(x, y) < 1


def test_revisions_are_in_order_of_training() -> None:
    names = ["main", "step512", "step2", "step16", "step0"]
    assert sorted(names, key=order_key) == ["step0", "step2", "step16", "step512", "main"]
    assert Order().last("m", ["step9", "step10"]) == "step10"
    assert step_of("stage1-step1000-tokens5B") == 1000
    assert step_of("checkpoint-40") == 40
    assert step_of("v1.0") is None
    assert step_of("9a4c5f1e") is None


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240930)
