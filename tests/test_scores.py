"""Means of task scores by layer, and gains of the layers that a metric selects, by hand."""

import numpy as np
import pandas as pd
import pytest
from helpers.association_tables import tidy_metrics, tidy_scores

from layerwise import stats
from layerwise.association.curves import metric_curves, score_curves, with_text_sources
from layerwise.association.scores import best_elsewhere, gains_by_task, mean_scores
from layerwise.association.selection import MODEL_OUTPUT, ORACLE, select_layers, summarize

VALUES = np.array(
    [[0.2, 0.6, 0.5], [0.3, 0.8, 0.5], [0.4, 0.7, 0.5], [0.1, 0.7, 0.4], [0, 0.7, 0.6]]
)


def test_a_mean_score_is_over_tasks_and_its_interval_over_clusters() -> None:
    scores = tidy_scores(np.vstack([VALUES, VALUES[:1]]), types=("Clustering",))
    scores = with_text_sources(scores, {"task0": "shared", "task5": "shared"})
    table = mean_scores(scores)
    values = np.vstack([VALUES, VALUES[:1]])
    assert table["layer"].tolist() == [0, 1, 2] and table["depth"].tolist() == [0, 0.5, 1]
    assert table["value"].tolist() == pytest.approx(values.mean(axis=0).tolist())
    output = values[:, 2].mean()
    assert table["output_score"].tolist() == pytest.approx([output] * 3)
    assert set(table["output_from"]) == {"last layer"} and not table["output_is_best"].any()
    assert set(table["n_tasks"]) == {6} and set(table["n_clusters"]) == {5}
    assert table["chance"].isna().all()
    assert set(table["representation"]) == {"all"}
    sources = ["shared", *"abcd", "shared"]
    leads = stats.simultaneous_ci(values - values[:, [2]], sources)
    assert table["low"].tolist() == pytest.approx((output + leads.low).clip(0, 1).tolist())
    assert table["high"].tolist() == pytest.approx((output + leads.high).clip(0, 1).tolist())
    two = mean_scores(tidy_scores(VALUES[:2]).assign(score_low=0.1, score_high=0.9))
    assert two[["low", "high"]].isna().all(axis=None), "two tasks have no interval, nor one's"
    best = mean_scores(tidy_scores(values[:, [0, 2, 1]]))
    assert best["output_is_best"].all()


def test_a_task_by_itself_has_the_interval_of_its_evaluator() -> None:
    scores = tidy_scores(VALUES, types=("STS", "Clustering"))
    scores = scores.assign(score_low=scores["main_score"] - 0.1)
    scores = scores.assign(score_high=scores["main_score"] + 0.2)
    table = mean_scores(scores, ["task"]).set_index(["task", "layer"])
    for task, values in enumerate(VALUES):
        for layer, value in enumerate(values):
            row = table.loc[(f"task{task}", layer)]
            assert row[["value", "low", "high"]].tolist() == pytest.approx(
                [value, value - 0.1, value + 0.2]
            )
            assert (row["output_score"], row["n_tasks"]) == (values[2], 1)
    by_type = mean_scores(scores, ["task_type"]).set_index(["task_type", "layer"])
    assert by_type.loc[("Clustering", 1), "value"] == pytest.approx((0.8 + 0.7) / 2)
    assert by_type.loc[("STS", 1), "n_tasks"] == 3
    # The interval of a mean over subsets does not follow from theirs.
    hard = scores.assign(subset="hard", main_score=scores["main_score"] / 2)
    both = mean_scores(pd.concat([scores, hard]), ["task"])
    assert both[["low", "high"]].isna().all(axis=None)
    assert both["value"][:3].tolist() == pytest.approx((0.75 * VALUES[0]).tolist())


def test_layers_without_all_tasks_are_null_in_their_place() -> None:
    scores = tidy_scores(VALUES)
    table = mean_scores(scores[(scores["layer"] != 1) | (scores["task"] == "task0")])
    assert table["layer"].tolist() == [0, 1, 2]
    assert table["value"].isna().tolist() == [False, True, False]
    assert table["depth"].tolist() == [0, 0.5, 1]


def test_other_tasks_select_a_layer_where_three_clusters_are() -> None:
    values = np.array([[0.1, 0.9], [0.2, 0.8], [0.9, 0.1], [0.8, 0.0]])
    assert best_elsewhere(values, np.array(["a", "a", "b", "b"])) is None
    columns = best_elsewhere(values, np.array(["a", "a", "b", "c"]))
    assert columns is not None and columns.tolist() == [0, 0, 1, 1]


def test_gains_of_the_layers_that_a_metric_selects_for_each_task() -> None:
    highest = [1, 1, 2, 0, 1]
    metric = np.full(VALUES.shape, 0.5)
    metric[np.arange(5), highest] = 1.0
    metric[np.arange(5), [0, 2, 0, 1, 2]] = 0.0
    metrics = [tidy_metrics({"dime": row}, corpus=f"texts{n}") for n, row in enumerate(metric)]
    (scores,) = score_curves(tidy_scores(VALUES))
    own = metric_curves(pd.concat(metrics), scores, {f"texts{n}": f"task{n}" for n in range(5)})
    of_tasks = own.values[own.variants["corpus"].tolist().index("task texts")]
    table = gains_by_task(of_tasks, scores).set_index("end")
    assert list(table.index) == ["lowest", "highest"]
    for end, columns in (("highest", highest), ("lowest", [0, 2, 0, 1, 2])):
        selected = VALUES[np.arange(5), columns]
        gain = stats.mean_ci(selected - VALUES[:, 2])
        row = table.loc[end]
        assert row["score"] == pytest.approx(selected.mean())
        assert row[["gain", "low", "high"]].tolist() == pytest.approx(
            [gain.estimate, gain.low, gain.high]
        )
        assert (row["n_tasks"], row["n_clusters"]) == (5, 5)
    of_tasks = of_tasks.copy()
    of_tasks[4, 0] = np.nan
    fewer = gains_by_task(of_tasks, scores).set_index("end")
    assert fewer["n_tasks"].tolist() == [4, 4] and fewer["low"].isna().all()
    assert gains_by_task(np.full((5, 3), np.nan), scores).empty


def test_a_summary_of_selections_by_hand() -> None:
    """Two models of three tasks each: the metric selects layer 1, then layer 0."""
    values = {
        "a": np.array([[0.2, 0.6, 0.5], [0.2, 0.7, 0.5], [0.2, 0.8, 0.5]]),
        "b": np.array([[0.3, 0.6, 0.5], [0.4, 0.6, 0.5], [0.2, 0.6, 0.5]]),
    }
    curves = {"a": np.array([0, 2, 1.0]), "b": np.array([2, 1, 0.0])}
    metrics = pd.concat([tidy_metrics({"lidar": c}, model=m) for m, c in curves.items()])
    scores = pd.concat([tidy_scores(v, model=m) for m, v in values.items()])
    table = summarize(select_layers(metrics, scores, {"lidar": 1})).set_index("metric")
    assert list(table.columns[-10:]) == [
        *("n_models", "mean_score", "mean_regret", "worst_regret", "mean_nested_regret"),
        *("mean_gain_over_output", "beats_output", "ties_output", "n_above_output"),
        "n_unreliable",
    ]
    row = table.loc["lidar"]
    assert row[["mean_score", "mean_regret", "worst_regret"]].tolist() == pytest.approx(
        [(0.7 + 0.3) / 2, (0 + 0.3) / 2, 0.3]
    )
    # Each task's others select layer 1 in both models.
    assert row["mean_nested_regret"] == pytest.approx((0 + 0.3) / 2)
    assert row["mean_gain_over_output"] == pytest.approx((0.2 - 0.2) / 2)
    counts = ["n_models", "beats_output", "ties_output", "n_above_output", "n_unreliable"]
    assert row[counts].tolist() == [2, 1, 0, 0, 0]
    assert table.loc[MODEL_OUTPUT, counts].tolist() == [2, 0, 2, 0, 0]
    # The best rules first.
    assert table.index[0] == ORACLE and table["mean_regret"].is_monotonic_increasing
    wide = pd.concat([tidy_scores(np.tile(v, (3, 1)), model=m) for m, v in values.items()])
    above = summarize(select_layers(metrics, wide, {"lidar": 1})).set_index("metric")
    assert above.loc["lidar", "n_above_output"] == 1
