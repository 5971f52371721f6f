"""Layer choice without labels, best layers, published tables, and their scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from layerwise.association import spearman
from layerwise.association.best import best_layers
from layerwise.association.choice import CONSENSUS, LAST, MIDDLE, choose_layers, summarize
from layerwise.association.curves import score_curves
from layerwise.association.published import (
    TASK_OF_DATASET,
    published_metrics,
    published_scores,
    read_table,
)
from layerwise.association.recommendation import recommend
from layerwise.association.table import associate
from layerwise.config.association import AssociationSettings
from layerwise.errors import LayerwiseError

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "published"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published tables are not beside the repository"
)
DOWN_UP = {"curvature": -1, "lidar": 1}


def pick(table: pd.DataFrame, metric: str) -> pd.Series:
    """The one row of a metric over all tasks."""
    found = table[(table["metric"] == metric) & (table["task_type"] == "all")]
    assert len(found) == 1
    return found.iloc[0]


# Choice


def test_choice_follows_the_direction() -> None:
    scores = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6, 0.2]]))
    metrics = tidy_metrics({"curvature": np.array([5, 1, 3, 2, 4.0]), "lidar": np.arange(5.0)})
    table = choose_layers(metrics, scores, DOWN_UP)
    low = pick(table, "curvature")
    assert (low["layer"], low["score"], low["best_layer"]) == (1, 0.5, 3)
    assert low["regret"] == pytest.approx(0.1)
    assert low["gain_over_last"] == pytest.approx(0.3)
    assert low["gain_over_middle"] == pytest.approx(0.2)
    assert pd.isna(low["gain_low"])  # one task has no interval
    assert pick(table, "lidar")["layer"] == 4
    assert pick(table, LAST)["layer"] == 4
    assert pick(table, MIDDLE)["layer"] == 2


def test_of_equal_layers_the_shallowest() -> None:
    scores = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6]]))
    metrics = tidy_metrics({"curvature": np.array([5, 1, 1, 2.0])})
    assert pick(choose_layers(metrics, scores, DOWN_UP), "curvature")["layer"] == 1


def test_consensus_is_the_best_mean_rank() -> None:
    scores = tidy_scores(np.full((1, 4), 0.5))
    metrics = tidy_metrics(
        {
            "curvature": np.array([1, 2, 9, 9.0]),
            "lidar": np.array([0, 5, 6, 1.0]),
            "prompt_entropy": np.array([9, 1, 2, 3.0]),
        }
    )
    directions = {**DOWN_UP, "prompt_entropy": -1}
    assert pick(choose_layers(metrics, scores, directions), CONSENSUS)["layer"] == 1


def test_consensus_does_not_count_variations_twice() -> None:
    scores = tidy_scores(np.full((1, 4), 0.5))
    seven = {"curvature": np.array([1, 2, 3, 4.0]), "lidar": np.array([4, 3, 2, 1.0])}
    more = {f"variation{i}": np.array([1, 2, 3, 9.0]) for i in range(5)}
    directions = {**DOWN_UP, **dict.fromkeys(more, 1)}
    table = choose_layers(tidy_metrics(seven | more), scores, directions)
    assert pick(table, CONSENSUS)["layer"] == 0


@settings(deadline=None, max_examples=12)
@given(arrays(float, (3, 6), elements=st.floats(0, 1)), st.permutations(range(6)))
def test_regret_and_gain_hold_together(values: np.ndarray, ranks: list[int]) -> None:
    metrics = tidy_metrics({"lidar": np.array(ranks, dtype=float), "curvature": np.arange(6.0)})
    table = choose_layers(metrics, tidy_scores(values), DOWN_UP, resamples=20)
    assert (table["regret"] >= 0).all()
    close = partial(np.testing.assert_allclose, atol=1e-12)
    close(table["score"] + table["regret"], table["best_score"])
    close(table["score"] - table["gain_over_last"], table["last_score"])
    assert pick(table, "lidar")["layer"] == ranks.index(5)
    # A pick depends on the order of the values alone.
    bent = metrics.assign(value=np.exp(metrics["value"]))
    again = choose_layers(bent, tidy_scores(values), DOWN_UP, resamples=20)
    assert list(again["layer"]) == list(table["layer"])


def test_the_interval_of_a_regret_says_whether_tasks_agree() -> None:
    metrics = tidy_metrics({"lidar": np.array([3.0, 2, 1])})  # picks layer 0; layer 1 is best
    level = np.array([[0.1], [0.4], [0.7], [0.2]])
    agreed = tidy_scores(level + np.array([0.0, 0.1, 0.05]))
    row = pick(choose_layers(metrics, agreed, DOWN_UP), "lidar")
    assert [row["regret_low"], row["regret_high"]] == pytest.approx([0.1, 0.1])
    unlike = np.array([[0.0, 0.5, 0], [0, 0.4, 0], [0.3, 0, 0], [0.4, 0, 0]])
    row = pick(choose_layers(metrics, tidy_scores(unlike), DOWN_UP), "lidar")
    assert (row["best_layer"], row["regret"]) == (1, pytest.approx(0.05))
    assert row["regret_low"] < 0 < row["regret"] < row["regret_high"] <= 0.5
    alone = choose_layers(metrics, tidy_scores(unlike[:1]), DOWN_UP)
    assert alone[["regret_low", "regret_high"]].isna().all(axis=None)


def test_layers_without_a_value_are_not_picked() -> None:
    scores = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6]]))
    metrics = tidy_metrics({"curvature": np.array([5, 1, 3, 2.0])})
    metrics = metrics[metrics["layer"] != 1]
    assert pick(choose_layers(metrics, scores, DOWN_UP), "curvature")["layer"] == 3


def without_last(table: pd.DataFrame, task: str = "task0") -> pd.DataFrame:
    """Scores in which a task lacks the last layer, so that all do."""
    return table[~((table["task"] == task) & (table["depth"] == 1))]


def test_a_last_layer_without_a_score_is_no_baseline() -> None:
    scores = without_last(tidy_scores(np.random.default_rng(0).random((3, 5))))
    metrics = tidy_metrics({"lidar": np.arange(5.0)})
    table = choose_layers(metrics, scores, DOWN_UP)
    assert set(table["metric"]) == {"lidar", MIDDLE}
    unknown = ["last_score", "gain_over_last", "gain_low", "gain_high"]
    assert table[unknown].isna().all(axis=None)
    others = ["score", "regret", "regret_low", "gain_over_middle", "middle_score"]
    assert table[others].notna().all(axis=None)
    assert (pick(table, MIDDLE)["layer"], pick(table, MIDDLE)["gain_over_middle"]) == (2, 0)
    row = summarize(table).set_index("metric").loc["lidar"]
    assert (row["beats_last"], row["ties_last"]) == (0, 0)


def test_own_texts_pick_from_the_tasks_known_throughout(caplog: pytest.LogCaptureFixture) -> None:
    scores = tidy_scores(np.random.default_rng(0).random((2, 5)))
    first = tidy_metrics({"lidar": np.array([0, 1, 9, 1, 0.0])}, corpus="t0")
    second = tidy_metrics({"lidar": np.array([99, 0, 0, 0, 99.0])}, corpus="t1")
    own = {"t0": "task0", "t1": "task1"}

    def picked(*metrics: pd.DataFrame) -> pd.Series:
        table = choose_layers(pd.concat(metrics), scores, DOWN_UP, own_texts=own)
        return table.set_index("corpus")["layer"]

    assert picked(first, second)["task texts"] == 0
    # A mean over other tasks at layer 1 than at the next would be of no use.
    assert picked(first, second[second["layer"] != 1])["task texts"] == 2
    assert "without a pick" not in caplog.text
    assert "task texts" not in picked(first[first["layer"] != 2], second[second["layer"] != 1])
    assert "all tasks: metrics without a pick: 1" in caplog.text


def test_summary_counts_models() -> None:
    scores, metrics = [], []
    for model, good in (("a", 0), ("b", 3)):
        values = np.full((2, 4), 0.2)
        values[:, good] = 0.6
        scores.append(tidy_scores(values, model=model))
        metrics.append(tidy_metrics({"curvature": np.array([0, 1, 2, 3.0])}, model=model))
    summary = summarize(choose_layers(pd.concat(metrics), pd.concat(scores), DOWN_UP))
    row = summary[summary["metric"] == "curvature"].iloc[0]
    assert (row["n_models"], row["beats_last"], row["beats_middle"]) == (2, 1, 1)
    assert row["mean_regret"] == pytest.approx(0.2)
    last = summary[summary["metric"] == LAST].iloc[0]
    assert (last["beats_last"], last["ties_last"]) == (0, 2)


def test_summary_takes_the_last_checkpoint_alone() -> None:
    scores, metrics = [], []
    for revision, value in (("step1", 0.1), ("step10", 0.9)):
        values = np.array([[value, 0.5, 0.5, 0.5]])
        scores.append(tidy_scores(values, revision=revision))
        metrics.append(tidy_metrics({"curvature": np.arange(4.0)}, revision=revision))
    summary = summarize(choose_layers(pd.concat(metrics), pd.concat(scores), DOWN_UP))
    row = summary[summary["metric"] == "curvature"].iloc[0]
    assert row["mean_score"] == pytest.approx(0.9)
    assert row["n_models"] == 1


def test_the_sign_that_the_scores_show_stands_beside_the_declared_one(
    rng: np.random.Generator,
) -> None:
    rise = np.linspace(0.2, 0.6, 8)
    scores = tidy_scores(rise + rng.normal(0, 0.005, (5, 8)))
    metrics = tidy_metrics({"curvature": rise, "lidar": rise, "flat": np.ones(8)})
    table = choose_layers(metrics, scores, {"curvature": -1, "lidar": 1, "flat": 1}, resamples=50)
    table = table.set_index("metric")
    assert table.loc[["curvature", "lidar"], "direction"].tolist() == [-1, 1]
    for name in ("curvature", "lidar"):
        row = table.loc[name]
        mean = scores.groupby("layer")["main_score"].mean()
        assert row["spearman"] == pytest.approx(spearman(rise, mean))
        assert 0 < row["spearman_low"] <= row["spearman_high"] <= 1 + 1e-12
    assert table.loc[["flat", LAST, MIDDLE], "spearman"].isna().all()
    assert table.loc[[LAST, MIDDLE], "direction"].isna().all()


def test_no_direction_is_said() -> None:
    with pytest.raises(LayerwiseError, match="None of the metrics has a direction"):
        choose_layers(
            tidy_metrics({"depthness": np.arange(4.0)}), tidy_scores(np.ones((1, 4))), DOWN_UP
        )


# Recommendation


def test_recommendation() -> None:
    curves = {"curvature": np.array([5, 4, 1, 2, 3.0]), "lidar": np.array([1, 2, 9, 3, 4.0])}
    metrics = pd.concat(
        [
            tidy_metrics(curves, tokens="drop_first"),
            tidy_metrics({k: v[::-1] for k, v in curves.items()}, tokens="all"),
        ]
    )
    picks, chosen = recommend(metrics, DOWN_UP, model="m")
    assert (chosen["tokens"], chosen["layer"], chosen["last_layer"]) == ("drop_first", 2, 4)
    assert chosen["agreement"] == 1
    assert dict(zip(picks["metric"], picks["better"], strict=True)) == {
        "curvature": "lower",
        "lidar": "higher",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "mm"}, "did you mean 'm'"),
        ({"model": "m", "tokens": "drop_sinks"}, "no tokens 'drop_sinks'"),
        ({"model": "m", "protocol": "reference"}, "no protocol 'reference'"),
    ],
)
def test_recommendation_of_what_is_not_there(given: dict[str, str], words: str) -> None:
    metrics = tidy_metrics({"curvature": np.arange(4.0), "lidar": np.arange(4.0)})
    with pytest.raises(LayerwiseError, match=words):
        recommend(metrics, DOWN_UP, **given)


def test_recommendation_needs_two_metrics_and_one_corpus() -> None:
    one = tidy_metrics({"curvature": np.arange(4.0)})
    with pytest.raises(LayerwiseError, match="fewer than two"):
        recommend(one, DOWN_UP, model="m")
    with pytest.raises(LayerwiseError, match="name one with --corpus"):
        recommend(pd.concat([one, one.assign(corpus="news")]), DOWN_UP, model="m")


# Best layers


def test_best_layer_and_its_lead() -> None:
    values = np.array([[0.2, 0.6, 0.5], [0.2, 0.8, 0.5], [0.4, 0.7, 0.5]])
    row = best_layers(tidy_scores(values), resamples=200).iloc[0]
    assert (row["best_layer"], row["last_layer"], row["n_tasks"]) == (1, 2, 3)
    assert row["gain"] == pytest.approx(0.2)
    assert 0.099 <= row["gain_low"] < row["gain"] < row["gain_high"] <= 0.301
    assert row["gain_new_task"] == pytest.approx(0.2)
    assert row["certainty"] == 1
    assert (row["likely_from"], row["likely_to"]) == (1, 1)


def test_lead_on_a_new_task_is_free_of_luck(rng: np.random.Generator) -> None:
    leads, honest = [], []
    for _ in range(60):
        row = best_layers(tidy_scores(rng.random((4, 12))), resamples=5).iloc[0]
        leads.append(row["gain"])
        honest.append(row["gain_new_task"])
    assert np.mean(leads) > 0.15  # noise alone: the best of twelve looks good
    assert abs(np.mean(honest)) < 0.1


def test_no_lead_over_a_last_layer_without_a_score() -> None:
    values = np.array([[0.2, 0.6, 0.5, 0.9], [0.2, 0.8, 0.5, 0.9]])
    row = best_layers(without_last(tidy_scores(values)), resamples=50).iloc[0]
    assert (row["best_layer"], row["last_layer"], row["best_score"]) == (1, 3, 0.7)
    assert row[["last_score", "gain", "gain_low", "gain_high", "gain_new_task"]].isna().all()
    assert row["certainty"] == 1


def test_the_interval_of_a_lead_is_near_the_normal_one(rng: np.random.Generator) -> None:
    lead = rng.normal(0.1, 0.05, 30)
    values = np.stack([np.full(30, 0.2), 0.4 + lead, np.full(30, 0.4)], axis=1)
    row = best_layers(tidy_scores(values), resamples=20_000).iloc[0]
    margin = 1.96 * lead.std() / np.sqrt(30)
    assert lead.mean() - row["gain_low"] == pytest.approx(margin, rel=0.06)
    assert row["gain_high"] - lead.mean() == pytest.approx(margin, rel=0.06)


def test_single_task_has_no_certainty() -> None:
    row = best_layers(tidy_scores(np.array([[0.2, 0.6, 0.5]]))).iloc[0]
    assert pd.isna(row["certainty"])
    assert pd.isna(row["gain_low"])
    assert pd.isna(row["likely_from"])


# Published tables


@pytest.fixture(scope="module")
def published() -> tuple[pd.DataFrame, pd.DataFrame]:
    scores = published_scores(read_table(PUBLISHED / "mteb_scores.csv.gz"))
    return published_metrics(read_table(PUBLISHED / "metrics.csv.gz")), scores


@needs_published
def test_published_scores_have_the_known_answers(published) -> None:
    found = {
        c.model: (c.values.mean(axis=0), c.layers, c.tasks) for c in score_curves(published[1])
    }
    for model, layer, best, last in (
        ("Pythia-14m", 0, 40.38, 34.16),
        ("Pythia-70m", 0, 44.39, 40.38),
        ("Pythia-160m", 8, 47.07, 43.53),
    ):
        mean, layers, tasks = found[model]
        assert len(tasks) == 32
        assert layers[mean.argmax()] == layer
        assert 100 * mean.max() == pytest.approx(best, abs=0.005)
        assert 100 * mean[-1] == pytest.approx(last, abs=0.005)


@needs_published
def test_published_metrics_are_of_the_test_split(published) -> None:
    raw = read_table(PUBLISHED / "metrics.csv.gz")
    mine = published[0]
    emotion = mine[
        (mine["corpus"] == "mteb/emotion")
        & (mine["metric"] == "lidar")
        & (mine["normalization"] == "raw")
        & (mine["model"] == "Pythia-70m")
    ].set_index("layer")["value"]
    theirs = raw[
        (raw["dataset"] == "mteb/emotion")
        & (raw["split"] == "test")
        & (raw["metric"] == "lidar")
        & (raw["normalization"] == "raw")
        & (raw["size"] == "70m")
    ].set_index("layer")["value"]
    pd.testing.assert_series_equal(emotion.sort_index(), theirs.sort_index(), check_names=False)
    entropy = mine[mine["metric"] == "prompt_entropy"]
    assert set(entropy.loc[entropy["corpus"] == "wikitext", "alpha"]) == {2.0}
    assert set(entropy.loc[entropy["corpus"] != "wikitext", "alpha"]) == {1.0}
    assert mine["value"].notna().all()
    assert set(mine.loc[mine["metric"] == "curvature", "alpha"].isna()) == {True}


@needs_published
def test_published_tables_can_be_associated(published) -> None:
    metrics, scores = published
    plan = AssociationSettings(
        measures=("spearman",), own_texts=TASK_OF_DATASET, permutations=300, resamples=50,
        metrics=("infonce", "lidar"),
    )  # fmt: skip
    table = associate(metrics, scores, plan)
    wikitext = table[
        (table["corpus"] == "wikitext")
        & (table["metric"] == "infonce")
        & (table["task_type"] == "all")
    ].set_index("model")
    assert wikitext.loc["Pythia-160m", "value"] == pytest.approx(-0.868, abs=0.001)
    assert wikitext.loc["Pythia-160m", "n_layers"] == 13
    assert wikitext.loc["all", "n_models"] == 3
    own = table[(table["corpus"] == "task texts") & (table["task_type"] == "all")]
    assert set(own["n_tasks"]) == {29}
    assert set(TASK_OF_DATASET.values()) < set(scores["task"])


def test_published_columns_are_checked() -> None:
    with pytest.raises(LayerwiseError, match=r"lacks the column.*hf_subset"):
        published_scores(pd.DataFrame({"family": ["x"], "size": ["1m"]}))


def test_missing_published_table(tmp_path: Path) -> None:
    with pytest.raises(LayerwiseError, match="There is no table"):
        read_table(tmp_path / "no.csv")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(LayerwiseError, match="neither CSV nor parquet"):
        read_table(tmp_path / "bad.parquet")


# Scripts


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@needs_published
def test_import_script(tmp_path: Path) -> None:
    scores = tmp_path / "s.parquet"
    done = run_script(
        "import_published.py", "--published-scores", PUBLISHED / "mteb_scores.csv.gz",
        "--scores", scores,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert pd.read_parquet(scores)["task"].nunique() == 32


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
