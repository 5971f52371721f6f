"""Association: measures, curves from tidy tables, and the table of associations."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.association_tables import tidy_metrics, tidy_scores
from helpers.refused import refused
from scipy import stats
from scipy.spatial.distance import pdist

from layerwise import association
from layerwise.association.curves import (
    OWN_TEXTS,
    metric_curves,
    score_curves,
    usable,
    with_text_sources,
)
from layerwise.association.table import associate
from layerwise.config import Config
from layerwise.config.settings import AssociationSettings
from layerwise.io import tables
from layerwise.names import Order, in_order, order_key, size_of, step_of
from layerwise.run.plan import Plan
from layerwise.run.results import Results
from layerwise.tasks.catalog import PAPER
from papers import similarity


def one(table: pd.DataFrame, **wanted: object) -> pd.Series:
    """The one row with these values."""
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1, f"{len(table)} rows"
    return table.iloc[0]


# Measures


def test_partial_correlation_is_that_of_a_regression(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 1, 9)).cumsum(axis=2)
    at = np.linspace(-1, 1, 9)
    smooth = np.stack([np.ones(9), at, at**2], axis=1)
    left = [c[0] - smooth @ np.linalg.lstsq(smooth, c[0], rcond=None)[0] for c in (x, y)]
    assert association.strengths("r", x, y)[0] == pytest.approx(np.corrcoef(*left)[0, 1])
    assert association.strengths("r", (3 * at**2 + 1)[None], y)[0] == 0


def test_rank_and_distance_correlations_are_those_of_the_definitions(
    rng: np.random.Generator,
) -> None:
    """Szekely, Rizzo & Bakirov 2007; tau and rho from scipy."""
    x, y = rng.normal(size=(2, 9)).round(1)  # rounded, for ties

    def centred(z: np.ndarray) -> np.ndarray:
        d = np.abs(z[:, None] - z)
        return d - d.mean(axis=0) - d.mean(axis=1, keepdims=True) + d.mean()

    p, q = centred(x), centred(y)
    expected = {
        "dcor": np.sqrt((p * q).sum() / np.sqrt((p * p).sum() * (q * q).sum())),
        "kendall": stats.kendalltau(x, y).statistic,
        "spearman": stats.spearmanr(x, y).statistic,
    }
    for measure, value in expected.items():
        assert association.strengths(measure, x[None], y[None])[0] == pytest.approx(value), measure


@pytest.mark.slow
def test_processes_that_start_at_once_leave_a_usable_cache_of_dcor(tmp_path: Path) -> None:
    """Without a lock, numba keeps parts of two compilations and aborts (numba's issue 10128)."""
    code = """
import numpy as np
from layerwise.association import strengths
print(strengths("dcor", np.arange(5.0)[None], np.arange(5.0)[None]))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        processes = []
        for _ in range(3):
            processes.append(subprocess.Popen([sys.executable, "-c", code], env=environment))
            time.sleep(2)
        assert [process.wait() for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("measure", ["r", "dcor", "spearman", "kendall"])
def test_measures_ignore_scale_and_offset(measure: str, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(2, 3, 12))
    found = association.strengths(measure, x, y)
    np.testing.assert_allclose(
        association.strengths(measure, 1e-6 * x + 7, -y),
        found if measure == "dcor" else -found,
        rtol=1e-5,
    )
    assert association.strengths(measure, np.ones((1, 12)), y[:1])[0] == 0


def test_null_level_ignores_scale_and_takes_six_layers(rng: np.random.Generator) -> None:
    x, walks = np.cumsum(rng.normal(size=(2, 1, 25)), axis=2)
    for measure in ("r", "spearman", "kendall"):
        level = association.null_level(measure, x, walks)
        assert association.null_level(measure, x, 2 * walks + 3) == pytest.approx(level)
        rough = association.null_level(measure, x, rng.normal(size=(1, 25)))
        assert 0.1 < rough < level < 0.9
    assert np.isnan(association.null_level("r", x[:, :5], x[:, :5]))


def test_cubic_trends_of_depth_are_taken_out_from_12_layers_on() -> None:
    for n_layers in (11, 12):
        left = association.residuals(np.linspace(-1.0, 1.0, n_layers)[None] ** 3)
        assert left.any() == (n_layers == 11)


def test_similarity_of_layers_is_that_of_scipy_and_its_error_a_jackknife(rng) -> None:
    X, Y = rng.normal(size=(2, 12, 5)), rng.normal(size=(3, 12, 7))
    found = similarity.rsa(similarity.ranked(X), similarity.ranked(Y))
    expected = stats.spearmanr(pdist(X[1], "correlation"), pdist(Y[2], "correlation")).statistic
    assert found.value[1, 2] == pytest.approx(expected)

    def debiased(rows: np.ndarray) -> similarity.Compared:
        return similarity.cka_debiased(*(similarity.grams(Z[:, rows]) for Z in (X, Y)))

    without = np.stack([debiased(np.delete(np.arange(12), i)).value for i in range(12)])
    error = np.sqrt(11 / 12 * np.square(without - without.mean(axis=0)).sum(axis=0))
    np.testing.assert_allclose(debiased(np.arange(12)).stderr, error)
    np.testing.assert_allclose(similarity.cka_debiased(*2 * [similarity.grams(X)]).value[0, 0], 1)


def stored(model: str, corpus: str = "c", n_layers: int = 3, **more: Any) -> Any:
    """An activations file in memory, of some layers and twelve prompts."""
    values = np.random.default_rng(len(model)).normal(size=(n_layers, 12, 4))
    about = {"model": model, "revision": f"of {model}", "corpus": corpus, "path": f"{model}.h5"}
    about |= {"prompts": tuple(range(12)), "protocols": ("summary", "paper")}
    about |= {"tokens": ("all", "drop_first"), "n_layers": n_layers, "layers": range(n_layers)}
    about |= more
    asked: list[tuple[Any, ...]] = []

    def pooled(*place: Any) -> np.ndarray:
        asked.append(place)
        return values[place[2]] * (1 if place[1] == "all" else values[0])

    return SimpleNamespace(**about, values=values, pooled=pooled, asked=asked)


def test_a_table_of_similarity_has_a_row_for_each_pair_of_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = stored("a"), stored("bb", n_layers=5, tokens=("all",))
    found = similarity.table([one, other])
    assert set(found["tokens"]) == {"all"}, "those that both have"
    assert set(found["protocol"]) == {"paper"} and set(found["corpus"]) == {"c"}
    assert set(found["n"]) == {12} and set(found["measure"]) == {"cka_debiased", "rsa"}
    pairs = found.drop_duplicates(["model", "other_model"])
    names = ["model", "revision", "other_model", "other_revision"]
    assert pairs[names].to_numpy().tolist() == [
        ["a", "of a", "a", "of a"],
        ["a", "of a", "bb", "of bb"],
        ["bb", "of bb", "bb", "of bb"],
    ]
    pair = found[(found["other_model"] == "bb") & (found["model"] == "a")]
    for name, last in (("", 2), ("other_", 4)):
        assert (pair[f"{name}depth"] == pair[f"{name}layer"] / last).all()
    same = found[(found["model"] == "a") & (found["other_model"] == "a")]
    same = same[same["layer"] == same["other_layer"]]
    assert same["value"].tolist() == pytest.approx([1.0] * 6)
    assert set(similarity.table([one], ["drop_first"])["tokens"]) == {"drop_first"}
    assert {place[1] for place in one.asked[-3:]} == {"drop_first"}
    released = stored("a", protocols=("reference",))
    assert set(similarity.table([released])["protocol"]) == {"reference"}
    assert {place[0] for place in released.asked} == {"reference"}
    # Prompts without an embedding are left out, and beyond the most, the last ones.
    other.values[1, 2, 0] = np.nan
    monkeypatch.setattr(similarity, "MOST_PROMPTS", 7)
    fewer = similarity.table([one, other])
    rows = [0, 1, 3, 4, 5, 6, 7]
    expected = similarity.rsa(*(similarity.ranked(f.values[:, rows]) for f in (one, other)))
    rsa = fewer[(fewer["model"] != fewer["other_model"]) & (fewer["measure"] == "rsa")]
    assert set(fewer["n"]) == {7}
    np.testing.assert_allclose(rsa["value"], expected.value.ravel())
    # A layer whose embeddings are all equal has no similarity.
    one.values[1] = 1.0
    left = similarity.table([one], ["all"])
    assert set(left["layer"]) == set(left["other_layer"]) == {0, 2}
    assert left.index.tolist() == list(range(len(left)))
    one.values[0, 4:] = np.nan
    with refused("too_few"):
        similarity.table([one], ["all"])
    for more in ({"corpus": "d"}, {"prompts": (1, 2)}):
        with refused("mismatch"):
            similarity.table([stored("a"), stored("b", **more)])


# Tables


def test_a_task_is_the_mean_of_the_same_subsets_at_all_layers() -> None:
    plain = tidy_scores(np.full((2, 6), 0.5))
    # The harder subset was scored at every second layer alone.
    hard = plain[(plain["task"] == "task0") & (plain["layer"] % 2 == 0)]
    curves = score_curves(pd.concat([plain, hard.assign(subset="hard", main_score=0.1)]))[0]
    assert list(curves.layers) == [0, 2, 4]
    assert curves.tasks == ("task0", "task1")
    np.testing.assert_allclose(curves.values, [[0.3] * 3, [0.5] * 3])
    nameless = score_curves(plain.assign(subset=None))[0]
    np.testing.assert_allclose(nameless.values, 0.5)
    assert nameless.tasks == ("task0", "task1")


def test_the_deepest_layer_with_scores_is_not_the_last() -> None:
    table = tidy_scores(np.random.default_rng(0).random((2, 5)))
    whole = score_curves(table)[0]
    np.testing.assert_array_equal(whole.output, whole.values[:, 4])
    assert list(whole.candidates([0, 1])[0]) == [0, 1, 2, 3, 4, 4]
    cut = score_curves(table[(table["layer"] < 4) | (table["task"] == "task0")])[0]
    assert (cut.last_layer, cut.layers[-1], cut.layers_left_out) == (4, 3, (4,))
    assert np.isfinite(cut.output).tolist() == [True, False]
    assert list(cut.candidates([0, 1])[0]) == [0, 1, 2, 3]
    assert list(cut.candidates([0])[0]) == [0, 1, 2, 3, 4]


def test_layers_and_tasks_without_a_score_are_left_out() -> None:
    table = tidy_scores(np.random.default_rng(0).random((3, 5))).assign(why=None)
    bad = (table["layer"] == 0) & (table["task"] != "task2")
    table.loc[bad, "main_score"], table.loc[bad, "why"] = np.nan, "its embeddings are all alike"
    curves = score_curves(table)[0]
    assert (list(curves.layers), curves.layers_left_out) == ([1, 2, 3, 4], (0,))
    never = table["task"] == "task1"
    table.loc[never, "main_score"], table.loc[never, "why"] = np.nan, "its labels are all alike"
    curves = score_curves(table)[0]
    assert curves.tasks == ("task0", "task2")
    absent = table[~((table["task"] == "task2") & (table["layer"] == 2))]
    curves = score_curves(absent)[0]
    assert (list(curves.layers), curves.last_layer) == ([1, 3, 4], 4)


@pytest.mark.parametrize(
    ("missing", "n_tasks", "layers"),
    [
        ([(0, 1), (0, 2), (0, 3)], 3, [0, 1, 2, 3, 4]),  # of one task: it drops out
        ([(0, 2), (1, 2), (2, 2)], 4, [0, 1, 3, 4]),  # of one layer
        ([(0, 4)], 3, [0, 1, 2, 3, 4]),  # most tasks have the last layer, which stays
        ([(0, 4), (1, 4), (2, 4)], 4, [0, 1, 2, 3]),  # most tasks lack it
        ([(0, 0), (0, 1), (0, 2), (3, 3)], 3, [0, 1, 2, 4]),  # one of each
    ],
)
def test_missing_scores_cost_tasks_or_layers(
    missing: list[tuple[int, int]], n_tasks: int, layers: list[int]
) -> None:
    values = np.random.default_rng(0).random((4, 5))
    values[tuple(np.transpose(missing))] = np.nan
    curves = score_curves(tidy_scores(values))[0]
    assert (len(curves.tasks), list(curves.layers)) == (n_tasks, layers)
    assert len(curves.tasks_left_out) == 4 - n_tasks
    assert ("task0" in curves.omitted) == (n_tasks < 4)
    assert (f"{5 - len(layers)} of 5 layers" in curves.omitted) == (len(layers) < 5)


def test_models_of_one_family_are_ordered_by_size() -> None:
    names = ["bert-base", "Pythia-160m", "Pythia-410m", "Pythia-1b", "Pythia-70m", "Pythia-6.9b"]
    sizes = ["Pythia-70m", "Pythia-160m", "Pythia-410m", "Pythia-1b", "Pythia-6.9b"]
    assert in_order(names, None) == [*sizes, "bert-base"]
    assert in_order(names, ["bert-base", "Pythia-1b"])[:3] == ["bert-base", "Pythia-1b", sizes[0]]
    named = ("Pythia-6.9b", "7B-of-7b", "OLMo-7B-300B", "v2")
    assert [size_of(name) for name in named] == [6.9e9, 7e9, None, None]


def test_the_output_is_the_last_layer_after_the_final_norm() -> None:
    values = np.random.default_rng(0).random((2, 5))
    parts = [
        tidy_scores(values + shift, tokens=tokens).assign(readout=readout)
        for tokens, readout, shift in (
            ("all", "residual", 0),
            ("all", "final_norm", 1),
            ("drop_first", "residual", 2),
        )
    ]
    table = pd.concat(parts)
    found = {(c.tokens, c.pooling): c for c in score_curves(table)}
    for name, shift, of_output in (
        (("all", "mean"), 1, 1),
        (("all", "mean, residual"), 0, 1),
        (("drop_first", "mean, residual"), 2, 2),
    ):
        np.testing.assert_allclose(found[name].values, values + shift)
        np.testing.assert_allclose(found[name].output, values[:, 4] + of_output)
    assert [c.output_from for c in found.values()] == ["output", "output", "last layer"]
    (alone,) = score_curves(table[table["readout"] == "final_norm"])
    assert alone.pooling == "mean", "one readout needs no mention"


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


def test_tables_that_cannot_be_compared() -> None:
    table = tidy_scores(np.random.default_rng(0).random((2, 5)))
    with refused("too_few"):
        score_curves(table.assign(main_score=np.nan))
    with refused("duplicate"):
        score_curves(pd.concat([table, table.assign(split="train")]))
    with refused("unknown_name"):
        score_curves(table.drop(columns="main_score"))
    scores = score_curves(table)[0]
    metrics = tidy_metrics({"curvature": np.arange(5.0)})
    with refused("duplicate"):
        metric_curves(pd.concat([metrics, metrics]), scores)
    with refused("too_few"):
        associate(metrics.assign(model="other"), table)


def test_a_normalised_metric_is_not_counted_again(rng: np.random.Generator) -> None:
    scores, metrics = tidy_scores(rng.random((3, 9))), tidy_metrics({"lidar": rng.random(9)})
    again = metrics.assign(normalization="logD", value=metrics["value"] / 2)
    both = associate(pd.concat([metrics, again], ignore_index=True), scores)
    pd.testing.assert_frame_equal(both, associate(metrics, scores))


def test_table(rng: np.random.Generator) -> None:
    values = rng.random((5, 9)) * 0.1 + np.linspace(0.2, 0.6, 9)
    scores = pd.concat(
        [
            tidy_scores(values, types=("STS", "Clustering")),
            tidy_scores(values, types=("STS", "Clustering"), tokens="drop_first"),
        ]
    )
    mean = values.mean(axis=0)
    metrics = pd.concat(
        [
            tidy_metrics({"prompt_entropy": mean**3, "curvature": -mean, "flat": np.ones(9)}),
            tidy_metrics({"prompt_entropy": rng.random(9)}, tokens="drop_first"),
        ]
    )
    table = associate(metrics, scores)
    assert set(table["task_type"]) == {"all", "STS", "Clustering"}
    assert "flat" not in set(table["metric"])
    assert table["value"].notna().all()
    assert table[["p", "p_adjusted"]].isna().all(axis=None)
    assert set(table["reason"]) == {"one model: its layers are one curve, not a sample"}
    same = {"metric": "prompt_entropy", "tokens": "all", "task_type": "all"}
    rho = one(table, **same, measure="spearman")
    assert rho["value"] == pytest.approx(1)
    assert (rho["n_layers"], rho["n_tasks"], rho["n_sources"], rho["n_models"]) == (9, 5, 5, 1)
    assert 0.4 < rho["null95"] < 1
    tau = one(table, metric="curvature", tokens="all", task_type="all", measure="kendall")
    assert tau["value"] == pytest.approx(-1)
    falling = one(table, metric="curvature", tokens="all", task_type="all", measure="dcor")
    assert (falling["sign"], falling["value"]) == (-1, pytest.approx(1)), "dCor hides the sign"
    other = one(
        table, metric="prompt_entropy", tokens="drop_first", task_type="all", measure="spearman"
    )
    assert other["value"] < 0.9  # its own tokens' metric, not that of `all`
    one(table, metric="layer index", tokens="all", task_type="STS", measure="dcor")
    # The regression by hand: score on constant, depth, depth squared and the metric.
    at = np.linspace(-1, 1, 9)
    smooth = np.stack([np.ones(9), at, at**2], axis=1)
    left = mean**3 - smooth @ np.linalg.lstsq(smooth, mean**3, rcond=None)[0]
    slopes = [
        np.linalg.lstsq(np.column_stack([smooth, mean**3]), 100 * v, rcond=None)[0][-1]
        * np.sqrt(left @ left / 6)
        for v in values
    ]
    slope = one(table, **same, measure="slope")
    assert slope["value"] == pytest.approx(np.mean(slopes))
    # Student's t with four degrees of freedom
    half = 2.776445 * np.std(slopes, ddof=1) / np.sqrt(5)
    assert slope["high"] - slope["value"] == pytest.approx(half, rel=1e-5)


def test_tasks_of_one_source_are_one_draw(rng: np.random.Generator) -> None:
    values = rng.random((6, 9))
    values[1] = values[0]
    metrics, scores = tidy_metrics({"curvature": rng.random(9)}), tidy_scores(values)
    apart = one(associate(metrics, scores), metric="curvature", measure="slope")
    own = {f"task{i}": "shared" for i in range(2)}
    shared = with_text_sources(scores, own)
    together = one(associate(metrics, shared), metric="curvature", measure="slope")
    assert (apart["n_sources"], together["n_sources"]) == (6, 5)
    assert together["value"] == apart["value"]
    assert together["high"] - together["low"] > apart["high"] - apart["low"]
    none = with_text_sources(scores, dict.fromkeys(scores["task"], "shared"))
    alone = one(associate(metrics, none), metric="curvature", measure="slope")
    assert pd.isna(alone["low"]), "one text has no interval"


def test_sources_are_known_and_can_be_named() -> None:
    known = with_text_sources(pd.DataFrame({"task": list(PAPER)}), {})
    assert known["text_source"].nunique() == 24
    table = pd.DataFrame({"task": ["STS12", "STS13", "mine", "STSBenchmark"]})
    found = with_text_sources(table, {"STS12": "mine"})
    assert found["text_source"].tolist() == ["mine", "sts", "mine", "sts"]


def test_scores_are_read_with_the_sources_that_the_config_names(tmp_path: Path) -> None:
    given = {
        "results": str(tmp_path),
        "models": {"m": {"source": {"hub": "x/m"}}},
        "tasks": ["STS12"],
        "association": {"text_sources": {"task0": "mine"}},
        "studies": {"s": {"kind": "score_by_depth"}},
    }
    planned = Plan(Config.of(given))
    tables.write(Path(planned.score_files[0]), tidy_scores(np.full((2, 3), 0.5)))
    read = Results.of(planned).read(planned.score_files, "scores")
    assert dict(read[["task", "text_source"]].to_numpy()) == {"task0": "mine", "task1": "task1"}


def of_models(n: int, rng: np.random.Generator, *, knows: bool) -> tuple[pd.DataFrame, ...]:
    """Models whose metric is their own score's curve, or that of nobody."""
    trend = np.linspace(0, 1, 10)
    scores, metrics = [], []
    for i in range(n):
        own = np.cumsum(rng.normal(0, 0.1, 10))
        other = np.cumsum(rng.normal(0, 0.1, 10))
        values = trend + own + rng.normal(0, 0.02, (5, 10))
        scores.append(tidy_scores(values, model=f"m{i}"))
        curves = {"curvature": trend + (own if knows else other), "lidar": trend + other}
        metrics.append(tidy_metrics(curves, model=f"m{i}"))
    return pd.concat(metrics), pd.concat(scores)


def test_metrics_are_matched_across_models(rng: np.random.Generator) -> None:
    metrics, scores = of_models(7, rng, knows=True)
    metrics.loc[(metrics["model"] == "m2") & (metrics["metric"] == "curvature"), "n"] = 40
    table = associate(metrics, scores)
    knows = one(table, model="all", metric="curvature", measure="match")
    assert knows["p_adjusted"] < 0.01
    assert knows["value"] > 0.8
    counts = ["n_models", "n_layers", "n_tasks", "n_sources", "n"]
    assert knows[counts].tolist() == [7, 10, 5, 5, 40], "the fewest prompts of any model"
    about = ["revision", "corpus", "tokens", "pooling", "task_type", "sign", "reason"]
    assert knows[about].tolist() == ["all", "wikipedia", "all", "mean", "all", 1, ""]
    assert "baseline" not in set(table.loc[table["model"] == "all", "protocol"])
    lidar = one(table, model="all", metric="lidar", measure="match")
    assert lidar["p_adjusted"] > 0.05
    assert lidar["p_adjusted"] >= lidar["p"]
    few = associate(*of_models(4, rng, knows=True))
    row = one(few, model="all", metric="curvature", measure="match")
    assert pd.isna(row["p_adjusted"])
    assert row["reason"] == "4 models: a test over models takes 6"


def test_a_match_is_the_mean_correlation_without_the_mean_over_models(
    rng: np.random.Generator,
) -> None:
    """By hand, of three models with the same layers."""
    metrics, scores = of_models(3, rng, knows=False)
    table = associate(metrics, scores)

    def apart(curves: np.ndarray) -> np.ndarray:
        for axis in (1, 0):
            curves = curves - curves.mean(axis=axis, keepdims=True)
            curves = curves / np.linalg.norm(curves, axis=1, keepdims=True)
        return curves

    mean = scores.groupby(["model", "layer"])["main_score"].mean().unstack().to_numpy()
    for name in ("curvature", "lidar"):
        values = metrics[metrics["metric"] == name].pivot(
            index="model", columns="layer", values="value"
        )
        expected = (apart(values.to_numpy()) * apart(mean)).sum() / 3
        row = one(table, model="all", metric=name, measure="match")
        assert row["value"] == pytest.approx(expected) and row["sign"] == np.sign(expected)


def test_readings_are_corrected_together(rng: np.random.Generator) -> None:
    metrics, scores = of_models(6, rng, knows=True)
    twice = [pd.concat([t, t.assign(tokens="drop_first")]) for t in (metrics, scores)]
    alone, both = associate(metrics, scores), associate(*twice)
    keys = {"model": "all", "metric": "lidar", "measure": "match"}
    first, again = one(alone, **keys), one(both[both["tokens"] == "all"], **keys)
    assert first["p"] == again["p"]
    # The same curves under another name are no further chance.
    assert first["p_adjusted"] == again["p_adjusted"]
    other = twice[0].assign(
        value=np.where(twice[0]["tokens"] == "all", twice[0]["value"], rng.random(len(twice[0])))
    )
    more = one(associate(other, twice[1]).query("tokens == 'all'"), **keys)
    assert more["p_adjusted"] >= first["p_adjusted"]


def test_what_a_model_lacks_leaves_the_pooled_rows_with_a_word(
    rng: np.random.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    values = rng.random((2, 8))
    curves = {"curvature": rng.random(8), "prompt_entropy": rng.random(8)}
    scores = pd.concat([tidy_scores(values, model=m, types=("A", "B")) for m in ("m", "n")])
    metrics = pd.concat(
        [
            tidy_metrics(curves | {"lidar": rng.random(8)}, model="m"),
            tidy_metrics({"curvature": curves["curvature"]}, model="n"),
        ]
    )
    table = associate(metrics, scores)
    pooled = table[(table["model"] == "all") & (table["protocol"] != "baseline")]
    assert set(pooled["metric"]) == {"curvature"}
    assert "lacks variants of lidar, prompt_entropy, which are left out" in caplog.text


def test_own_texts_set_each_task_against_its_own_corpus(rng: np.random.Generator) -> None:
    values = rng.random((2, 8))
    metrics = pd.concat(
        [
            tidy_metrics({"curvature": values[0] * 2}, corpus="texts0"),
            tidy_metrics({"curvature": values[1] * 2}, corpus="texts1"),
        ]
    )
    plan = AssociationSettings(own_texts={"texts0": "task0", "texts1": "task1"})
    table = associate(metrics, tidy_scores(values), plan)
    row = one(table, corpus=OWN_TEXTS, metric="curvature", measure="dcor")
    assert row["value"] == pytest.approx(1)
    assert row["n_tasks"] == 2
    # Each task's slope is that on its own texts: half a unit of the metric is one of score.
    slope = one(table, corpus=OWN_TEXTS, metric="curvature", measure="slope")
    sizes = np.linalg.norm(association.residuals(values), axis=1) / np.sqrt(8 - 3)
    assert slope["value"] == pytest.approx(100 * np.mean(sizes))
    apart = one(table, corpus="texts0", metric="curvature", measure="dcor")
    assert apart["value"] < 0.999


def test_over_tasks_a_measure_is_the_mean_over_layers(rng: np.random.Generator) -> None:
    values, metric = rng.random((6, 8)), rng.random((6, 8))
    metrics = [tidy_metrics({"lidar": m}, corpus=f"texts{t}") for t, m in enumerate(metric)]
    plan = AssociationSettings(own_texts={f"texts{t}": f"task{t}" for t in range(6)})
    table = associate(pd.concat(metrics), tidy_scores(values), plan, over="tasks")
    found = table[table["metric"] == "lidar"].set_index(["corpus", "measure"])
    wanted = [stats.spearmanr(metric[:, at], values[:, at]).statistic for at in range(8)]
    assert found.loc[("task texts", "spearman"), "value"] == pytest.approx(np.mean(wanted))
    assert "no depth" in found.loc[("task texts", "r"), "reason"]
    assert "same for all tasks" in found.loc[("texts0", "spearman"), "reason"]
    # For its null level tasks change places, not layers.
    same = np.repeat(values[:, :1], 8, axis=1)
    rows = enumerate(same + range(8))
    curves = [tidy_metrics({"lidar": m}, corpus=f"texts{t}") for t, m in rows]
    known = associate(pd.concat(curves), tidy_scores(same), plan, over="tasks")
    row = one(known, metric="lidar", corpus="task texts", measure="spearman")
    assert row["value"] == pytest.approx(1) and 0.6 < row["null95"] < 0.95


def test_revisions_are_in_order_of_training() -> None:
    names = ["main", "step512", "step2", "step16", "step0"]
    assert sorted(names, key=order_key) == ["step0", "step2", "step16", "step512", "main"]
    assert step_of("stage1-step1000-tokens5B") == 1000
    assert step_of("checkpoint-40") == 40
    assert step_of("512") == 512
    for name in ("main", "v1.0", "v2", "e5", "9a4c5f1e"):
        assert step_of(name) is None


def test_the_configs_order_comes_before_steps() -> None:
    order = Order(["m"], {"m": ["step9", "step10", "sft"]})
    assert order.checkpoints("m", ["sft", "step10", "other"]) == ["other", "step10", "sft"]
    assert Order(["m"], {"m": ["sft", "dpo"]}).checkpoints("m", ["dpo", "sft"])[-1] == "dpo"
    frame = pd.DataFrame({"model": ["m", "m", "n"], "revision": ["sft", "step10", "main"]})
    assert order.only_last(frame)["revision"].tolist() == ["sft", "main"]


def test_the_last_of_the_config_stands_for_a_model(rng: np.random.Generator) -> None:
    names, metrics, scores = ("sft", "dpo"), [], []
    for model in ("m", "n"):
        for revision in names if model == "m" else ("main",):
            at = {"model": model, "revision": revision}
            metrics.append(tidy_metrics({"curvature": rng.random(6)}, **at))
            scores.append(tidy_scores(rng.random((2, 6)), **at))
    found = {}
    for last in names:
        order = Order(["m", "n"], {"m": sorted(names, key=lambda n, last=last: n == last)})
        table = associate(pd.concat(metrics), pd.concat(scores), order=order)
        only = [f for f in metrics if f["revision"].iloc[0] in (last, "main")]
        alone = associate(pd.concat(only), pd.concat(scores))
        keys = {"model": "all", "metric": "curvature", "measure": "match"}
        found[last] = one(table, **keys)["value"]
        assert found[last] == one(alone, **keys)["value"]
    assert found["sft"] != found["dpo"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240930)
