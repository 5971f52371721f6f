"""Layer selection without labels, best layers, published tables, and their script."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from helpers.association_tables import tidy_metrics, tidy_scores
from helpers.refused import refused

from layerwise import stats
from layerwise.association.curves import with_text_sources
from layerwise.association.scores import best_layers
from layerwise.association.selection import (
    CONSENSUS,
    LOES,
    MIDDLE,
    MODEL_OUTPUT,
    NESTED,
    ORACLE,
    OTHER_TASKS,
    regret_of_rule_of_others,
    select_layers,
    summarize,
    why_unreliable,
)
from layerwise.association.table import associate
from layerwise.config.settings import AssociationSettings
from layerwise.io.tables import read_table
from layerwise.metrics.catalog.spectrum import participation_ratio
from papers.published import published_metrics, published_scores

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
    # Of equal layers the shallowest.
    metrics = tidy_metrics({"curvature": np.array([5, 1, 1, 2, 4.0]), "lidar": np.arange(5.0)})
    table = select_layers(metrics, scores, DOWN_UP)
    low = pick(table, "curvature")
    assert (low["layer"], low["score"], low["best_layer"]) == (1, 0.5, 3)
    assert low["regret"] == pytest.approx(0.1)
    assert low["gain_over_output"] == pytest.approx(0.3)
    assert pd.isna(low["gain_low"])  # one task has no interval
    assert pick(table, "lidar")["layer"] == 4
    assert pick(table, MODEL_OUTPUT)["layer"] == 4
    assert pick(table, MIDDLE)["layer"] == 2
    four = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6]]))
    table = select_layers(tidy_metrics({"lidar": np.arange(4.0)}), four, DOWN_UP)
    assert pick(table, MIDDLE)["layer"] == 1, "rounded down"


def test_a_metric_at_chance_selects_nothing() -> None:
    """InfoNCE of embeddings that all point one way is log(2N - 1) but for a few hundredths."""
    scores = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6, 0.2]]))
    chance = np.log(2 * 100 - 1)
    flat = tidy_metrics({"infonce": chance * np.array([0.93, 0.97, 0.98, 0.99, 1.0])})
    table = select_layers(flat, scores, {"infonce": -1})
    selected = pick(table, "infonce")
    assert selected[["layer", "score", "regret"]].isna().all()
    assert selected["unreliable"] == "near chance at every layer; it selects none"
    rates = summarize(table).set_index("metric").loc["infonce"]
    assert (rates["n_models"], rates["n_unreliable"]) == (0, 1)
    told = tidy_metrics({"infonce": chance * np.array([1.0, 0.97, 0.98, 0.5, 1.0])})
    assert pick(select_layers(told, scores, {"infonce": -1}), "infonce")["layer"] == 3
    # The released code's loss is one-way, of N: log N is its chance.
    one_way = flat.assign(protocol="reference", value=flat["value"] * np.log(100) / chance)
    assert pd.isna(pick(select_layers(one_way, scores, {"infonce": -1}), "infonce")["layer"])
    two_way = one_way.assign(variant="two_way")  # as some released tables of that protocol are
    assert pick(select_layers(two_way, scores, {"infonce": -1}), "infonce")["layer"] == 0


def test_consensus_is_the_best_mean_rank_of_the_papers_metrics() -> None:
    scores = tidy_scores(np.full((1, 4), 0.5))
    papers = {
        "curvature": np.array([1, 2, 9, 9.0]),
        "lidar": np.array([0, 5, 6, 1.0]),
        "prompt_entropy": np.array([9, 1, 2, 3.0]),
    }
    variations = {f"variation{i}": np.array([1, 2, 3, 9.0]) for i in range(5)}
    directions = {**DOWN_UP, "prompt_entropy": -1, **dict.fromkeys(variations, 1)}
    table = select_layers(tidy_metrics(papers | variations), scores, directions)
    assert pick(table, CONSENSUS)["layer"] == 1


@pytest.mark.parametrize("n_prompts", [12, 60])
def test_loes_selects_the_most_isotropic_layer(n_prompts: int, rng: np.random.Generator) -> None:
    """Isotropy as in arXiv 2605.23033: mean over standard deviation of the eigenvalues."""
    layers = [rng.normal(size=(n_prompts, 20)) * np.arange(1, 21.0) ** -s for s in (1, 0.2, 0.6)]
    spectra = [np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2 for x in layers]
    isotropy = [spectrum.mean() / spectrum.std() for spectrum in spectra]
    ratios = np.array([participation_ratio(x) for x in layers])
    assert ratios.argsort().tolist() == np.argsort(isotropy).tolist()
    scores = tidy_scores(np.array([[0.2, 0.5, 0.6]] * 2))
    table = select_layers(
        tidy_metrics({"participation_ratio": ratios, "lidar": np.arange(3.0)}), scores, DOWN_UP
    )
    row = pick(table, LOES)
    assert (row["layer"], row["regret"]) == (np.argmax(isotropy), pytest.approx(0.1))
    assert "participation_ratio" not in set(table["metric"]), "it has no direction"


def test_the_best_layer_of_the_other_tasks_is_held_to_the_task_left_out() -> None:
    values = np.array([[0.9, 0.6, 0.5], [0.4, 0.6, 0.5], [0.4, 0.6, 0.5]])
    table = select_layers(tidy_metrics({"lidar": np.arange(3.0)}), tidy_scores(values), DOWN_UP)
    row = pick(table, OTHER_TASKS)
    # Without the first task layer 1 is best, without another one layer 0.
    assert row["score"] == pytest.approx((0.6 + 0.4 + 0.4) / 3) and pd.isna(row["layer"])
    assert row["gain_over_output"] == pytest.approx(row["score"] - 0.5)
    two = select_layers(tidy_metrics({"lidar": np.arange(3.0)}), tidy_scores(values[:2]), DOWN_UP)
    assert OTHER_TASKS not in set(two["metric"])


def test_nested_regrets_are_against_the_best_layer_of_the_other_tasks() -> None:
    values = np.array([[0.9, 0.6, 0.5], [0.4, 0.6, 0.5], [0.4, 0.6, 0.5], [0.4, 0.6, 0.4]])
    values = np.concatenate([values, values[1:]])
    table = select_layers(tidy_metrics({"lidar": np.arange(3.0)}), tidy_scores(values), DOWN_UP)
    others, oracle, lidar = (pick(table, m) for m in (OTHER_TASKS, ORACLE, "lidar"))
    # Each task's others select layer 1, as all of them do.
    assert (oracle["layer"], oracle["regret"], oracle["nested_regret"]) == (1, 0, 0)
    assert others["nested_regret"] == 0 and others["score"] == oracle["score"]
    assert lidar["nested_regret"] == pytest.approx(lidar["regret"])
    # One interval for all layers, of layer 1 over layer 2.
    leads = stats.simultaneous_ci(values - values[:, [2]])
    ends = lidar[["nested_low", "nested_high"]].tolist()
    assert ends == pytest.approx([leads.low[1], leads.high[1]])
    gains = others[["gain_low", "gain_high"]].tolist()
    assert gains == pytest.approx([leads.low[1], leads.high[1]]), "selected by these scores"
    assert lidar["gain_low"] == stats.mean_ci(values[:, 2] - values[:, 2]).low
    few = select_layers(tidy_metrics({"lidar": np.arange(3.0)}), tidy_scores(values[:4]), DOWN_UP)
    unknown = few.loc[few["metric"] == OTHER_TASKS, ["nested_low", "regret_low", "gain_low"]]
    assert unknown.isna().all(axis=None) and few["no_interval"].str.len().min() > 0


def test_the_interval_of_a_regret_says_whether_tasks_agree() -> None:
    metrics = tidy_metrics({"lidar": np.array([3.0, 2, 1])})  # picks layer 0; layer 1 is best
    level = np.array([[0.1], [0.4], [0.7], [0.2], [0.3]])
    agreed = tidy_scores(level + np.array([0.0, 0.1, 0.05]))
    row = pick(select_layers(metrics, agreed, DOWN_UP), "lidar")
    assert [row["regret_low"], row["regret_high"]] == pytest.approx([0.1, 0.1])
    unlike = np.array([[0.0, 0.5, 0], [0, 0.4, 0], [0.3, 0, 0], [0.4, 0, 0], [0.1, 0.2, 0]])
    row = pick(select_layers(metrics, tidy_scores(unlike), DOWN_UP), "lidar")
    assert (row["best_layer"], row["regret"]) == (1, pytest.approx(0.06))
    assert row["regret_low"] == 0 < row["regret"] < row["regret_high"]
    assert row["regret_high"] <= 1 - stats.mean_ci(unlike[:, 0]).low
    leads = unlike[:, 0] - unlike[:, 2]
    half = 2.776445 * leads.std(ddof=1) / np.sqrt(5)  # Student's t, four degrees of freedom
    assert row["gain_high"] - row["gain_over_output"] == pytest.approx(half, rel=1e-5)
    assert row["no_interval"] == ""
    few = select_layers(metrics, tidy_scores(unlike[:4]), DOWN_UP)
    assert few[["regret_low", "regret_high"]].isna().all(axis=None)
    assert few["no_interval"].str.startswith("4 task clusters;").all()
    one = select_layers(metrics, tidy_scores(unlike[:1]), DOWN_UP)
    assert one["no_interval"].str.startswith("1 task cluster;").all()


def of_rules(n: int, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Models in each of which one metric (lidar) knows the best layer, and two do not."""
    scores, metrics = [], []
    for i in range(n):
        best = rng.permutation(7)
        scores.append(tidy_scores(0.3 + 0.05 * best + rng.normal(0, 0.01, (4, 7)), model=f"m{i}"))
        curves = {
            "lidar": best.astype(float),
            "curvature": rng.random(7),
            "dime": rng.random(7),
            "twin": 2.0 * best,
        }
        metrics.append(tidy_metrics(curves, model=f"m{i}").assign(stderr=0.001))
    return pd.concat(metrics), pd.concat(scores)


ENDS = {"curvature": -1, "lidar": 1, "dime": 1, "twin": 1}


def test_a_winner_is_judged_where_it_was_not_chosen(rng: np.random.Generator) -> None:
    metrics, scores = of_rules(6, rng)
    table = select_layers(metrics, scores, ENDS)
    nested = table[(table["metric"] == NESTED) & (table["task_type"] == "all")]
    assert len(nested) == 6
    assert nested["regret"].max() < 0.02
    np.testing.assert_allclose(nested["score"] + nested["regret"], nested["best_score"])
    # A metric that selects no layer in one model has no say.
    at_chance = metrics[(metrics["metric"] == "dime") & (metrics["model"] == "m0")].assign(
        metric="infonce", value=np.log(199)
    )
    table = select_layers(pd.concat([metrics, at_chance]), scores, {**ENDS, "infonce": -1})
    beside = table[(table["metric"] == NESTED) & (table["task_type"] == "all")]
    np.testing.assert_allclose(beside["nested_regret"], nested["nested_regret"])
    # Nor has one of too few prompts in one model.
    knows = metrics["metric"].isin(["lidar", "twin"])
    few = metrics.assign(n=metrics["n"].mask(knows & (metrics["model"] == "m0"), 20))
    table = select_layers(few, scores, ENDS)
    without = table[(table["metric"] == NESTED) & (table["task_type"] == "all")]
    assert len(without) == 6 and without["regret"].max() > 0.02
    shuffled = metrics.copy()
    at = metrics["metric"].isin(["lidar", "twin"])
    shuffled.loc[at, "value"] = rng.random(int(at.sum()))
    chance = select_layers(shuffled, scores, ENDS)
    assert chance.loc[chance["metric"] == NESTED, "regret"].mean() > nested["regret"].max()


def test_the_rule_for_a_model_is_selected_in_the_others() -> None:
    regrets = np.array([[0.0, 0.3, 0.3], [0.5, 0.1, 0.1]])
    np.testing.assert_allclose(regret_of_rule_of_others(regrets), [0.5, 0.3, 0.3])


def test_rules_that_select_the_same_layers_count_once() -> None:
    """In m1 and m2 the rules lose alike, so in m0 each counts half, whatever the twin."""
    picked = {"one": (0, 1, 2), "twin": (0, 1, 2), "other": (3, 2, 1)}
    metrics, scores = [], []
    for n in range(3):
        curves = {name: np.eye(4)[layers[n]] for name, layers in picked.items()}
        metrics.append(tidy_metrics(curves, model=f"m{n}").assign(stderr=0.001))
        scores.append(tidy_scores(np.array([[0.9, 0.8, 0.7, 0.6]]), model=f"m{n}"))
    table = select_layers(pd.concat(metrics), pd.concat(scores), dict.fromkeys(picked, 1))
    nested = table[(table["metric"] == NESTED) & (table["task_type"] == "all")]
    assert nested.set_index("model").loc["m0", "regret"] == pytest.approx(0.15)


def test_no_regret_reaches_beyond_the_highest_score() -> None:
    """Another layer may vary so much that its lead is unknown, but a score ends at 1."""
    own = 0.9 + 0.01 * np.resize([1, -1], 12)
    values = np.stack([np.full(12, 0.5), np.repeat([1.0, 0.3], [10, 2]), own], axis=1)
    table = select_layers(
        tidy_metrics({"lidar": np.arange(3.0)}), tidy_scores(values), {"lidar": 1}
    )
    lidar = pick(table, "lidar")
    assert lidar["layer"] == 2 and 0.1 < lidar["regret_high"] < 0.11


def test_layers_without_a_value_are_not_picked() -> None:
    scores = tidy_scores(np.array([[0.1, 0.5, 0.3, 0.6]]))
    metrics = tidy_metrics({"curvature": np.array([5, 1, 3, 2.0])})
    metrics = metrics[metrics["layer"] != 1]
    assert pick(select_layers(metrics, scores, DOWN_UP), "curvature")["layer"] == 3


def without_last(table: pd.DataFrame, has: str = "task0") -> pd.DataFrame:
    """Scores in which one task alone has the last layer, so that none is shown with it."""
    return table[(table["task"] == has) | (table["depth"] < 1)]


def test_a_last_layer_without_a_score_is_no_baseline() -> None:
    scores = without_last(tidy_scores(np.random.default_rng(0).random((3, 5))))
    metrics = tidy_metrics({"lidar": np.arange(5.0)})
    table = select_layers(metrics, scores, DOWN_UP)
    assert set(table["metric"]) == {"lidar", MIDDLE, ORACLE, OTHER_TASKS}
    unknown = ["output_score", "gain_over_output", "gain_low", "gain_high"]
    assert table[unknown].isna().all(axis=None)
    others = ["score", "regret"]
    assert table[others].notna().all(axis=None)
    assert pick(table, MIDDLE)["layer"] == 2
    row = summarize(table).set_index("metric").loc["lidar"]
    assert (row["beats_output"], row["ties_output"]) == (0, 0)


def test_own_texts_pick_from_the_tasks_known_throughout() -> None:
    scores = tidy_scores(np.random.default_rng(0).random((2, 5)))
    first = tidy_metrics({"lidar": np.array([0, 1, 9, 1, 0.0])}, corpus="t0")
    second = tidy_metrics({"lidar": np.array([99, 0, 0, 0, 99.0])}, corpus="t1")
    own = {"t0": "task0", "t1": "task1"}

    def picked(*metrics: pd.DataFrame) -> pd.Series:
        table = select_layers(pd.concat(metrics), scores, DOWN_UP, own_texts=own)
        return table.set_index("corpus")["layer"]

    assert picked(first, second)["task texts"] == 0
    # A mean over other tasks at layer 1 than at the next would be of no use.
    assert picked(first, second[second["layer"] != 1])["task texts"] == 2
    assert "task texts" not in picked(first[first["layer"] != 2], second[second["layer"] != 1])


def test_no_direction_is_said() -> None:
    with refused("too_few"):
        select_layers(
            tidy_metrics({"depthness": np.arange(4.0)}), tidy_scores(np.ones((1, 4))), DOWN_UP
        )


def test_too_few_prompts() -> None:
    good = np.array([0.0, 1, 2, 9, 3])
    rng = np.random.default_rng(0)
    none = np.empty((0, 5))
    assert why_unreliable(good, none, 100) == why_unreliable(good, none, np.nan) == ""
    assert why_unreliable(good, good + rng.normal(size=(99, 5)), 100) == ""
    assert why_unreliable(good, none, 29) == "29 prompts; selecting a layer takes 30"
    noisy = why_unreliable(good, good + rng.normal(0, 20, size=(99, 5)), 100)
    assert noisy.endswith("of resamples select another layer")


def test_noise_that_layers_share_moves_no_selection(rng: np.random.Generator) -> None:
    curve = np.array([0.0, 0.2, 0.5, 0.2, 0.0])
    values = curve + rng.normal(0, 5, (40, 1)) + rng.normal(0, 0.1, (40, 5))
    metrics = tidy_metrics({"lidar": values.mean(axis=0)}).assign(stderr=5 / np.sqrt(40))
    prompts = pd.concat(
        [
            tidy_metrics({"lidar": row})
            .drop(columns=["stderr", "n", "normalization"])
            .assign(prompt_id=f"p{i}")
            for i, row in enumerate(values)
        ]
    )
    scores = tidy_scores(np.full((2, 5), 0.5))
    alone = select_layers(metrics, scores, DOWN_UP)
    paired = select_layers(metrics, scores, DOWN_UP, prompts=prompts)
    assert pick(alone, "lidar")["unreliable"] and pick(paired, "lidar")["unreliable"] == ""


def test_unreliable_metrics_are_shown_and_have_no_say() -> None:
    scores = tidy_scores(np.full((2, 4), 0.5))
    curves = {
        "curvature": np.array([1, 2, 9, 9.0]),
        "lidar": np.array([0, 4, 6, 5.0]),
        "prompt_entropy": np.array([9, 1, 2, 3.0]),
    }
    directions = {**DOWN_UP, "prompt_entropy": -1}
    metrics = tidy_metrics(curves)
    plain = select_layers(metrics, scores, directions)
    assert (plain["unreliable"] == "").all() and pick(plain, CONSENSUS)["layer"] == 1
    metrics["stderr"] = np.where(metrics["metric"] == "curvature", 50.0, 0.1)
    table = select_layers(metrics, scores, directions)
    assert pick(table, "curvature")["layer"] == 0 and pick(table, "curvature")["unreliable"]
    assert pick(table, CONSENSUS)["layer"] == 2
    row = summarize(table).set_index("metric").loc["curvature"]
    assert (row["n_unreliable"], row["n_models"]) == (1, 0) and np.isnan(row["mean_regret"])


def test_another_seed_resamples_otherwise() -> None:
    rng = np.random.default_rng(0)
    metrics = tidy_metrics({name: rng.normal(size=9) for name in DOWN_UP})
    metrics["stderr"] = 1.0
    scores = tidy_scores(np.full((2, 9), 0.5))
    drawn = [
        list(select_layers(metrics, scores, DOWN_UP, seed=seed)["unreliable"])
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


# Best layers


def test_best_layer_and_its_lead() -> None:
    values = np.array(
        [[0.2, 0.6, 0.5], [0.2, 0.8, 0.5], [0.4, 0.7, 0.5], [0, 0.7, 0.5], [0, 0.7, 0.5]]
    )
    row = best_layers(tidy_scores(values)).iloc[0]
    assert (row["best_layer"], row["last_layer"], row["n_tied"]) == (1, 2, 1)
    assert (row["n_tasks"], row["n_sources"]) == (5, 5)
    assert (row["gain"], row["gain_new_task"]) == pytest.approx((0.2, 0.2))
    alone = stats.mean_ci(values[:, 1] - values[:, 2])
    assert row["gain_low"] < alone.low, "the interval corrects for selecting the layer"
    few = best_layers(tidy_scores(values[:2])).iloc[0]
    assert few[["gain_low", "gain_new_task"]].isna().all()


def test_ties_are_counted() -> None:
    row = best_layers(tidy_scores(np.ones((3, 4)))).iloc[0]
    assert (row["n_tied"], row["n_layers"], row["gain"]) == (4, 4, 0)


def test_tasks_of_shared_texts_tell_less() -> None:
    values = np.array([[0.2, 0.6, 0.5], [0.2, 0.8, 0.5], [0.4, 0.7, 0.5]] * 2)
    scores = tidy_scores(values)
    shared = with_text_sources(scores, {"task0": "same", "task3": "same"})
    apart, together = (best_layers(t).iloc[0] for t in (scores, shared))
    assert (apart["n_sources"], together["n_sources"]) == (6, 5)
    assert together["gain_high"] - together["gain_low"] > apart["gain_high"] - apart["gain_low"]


def test_no_lead_over_a_last_layer_without_a_score() -> None:
    values = np.array([[0.2, 0.6, 0.5, 0.9], [0.2, 0.8, 0.5, 0.9]])
    row = best_layers(without_last(tidy_scores(values))).iloc[0]
    assert (row["best_layer"], row["last_layer"], row["best_score"]) == (1, 3, 0.7)
    assert row[["output_score", "gain", "gain_low", "gain_high"]].isna().all()


def with_output(values: np.ndarray, output: np.ndarray) -> pd.DataFrame:
    """Scores of the residual stream, and of the last layer after the final norm."""
    residual = tidy_scores(values).assign(readout="residual")
    normed = tidy_scores(np.column_stack([values[:, :-1], output])).assign(readout="final_norm")
    return pd.concat([residual, normed[normed["depth"] == 1]])


def test_the_best_layer_is_held_against_the_models_output() -> None:
    values = np.array([[0.2, 0.6, 0.1], [0.2, 0.8, 0.1], [0.4, 0.7, 0.1]])
    row = best_layers(with_output(values, np.array([0.5, 0.5, 0.5]))).iloc[0]
    assert (row["pooling"], row["best_layer"], row["best_is_output"]) == ("mean", 1, False)
    assert (row["output_score"], row["output_from"]) == (0.5, "output")
    assert row["gain"] == pytest.approx(0.2)
    assert row["n_layers"] == 3
    alone = best_layers(tidy_scores(values)).iloc[0]
    assert alone["gain"] == pytest.approx(0.6), "without one the last layer stands in"
    assert alone["output_from"] == "last layer"


def test_the_output_may_be_the_best() -> None:
    values = np.array([[0.2, 0.6, 0.1], [0.2, 0.8, 0.1], [0.3, 0.7, 0.1]])
    row = best_layers(with_output(values, np.array([0.9, 0.9, 0.9]))).iloc[0]
    assert (row["best_layer"], row["last_layer"], row["best_is_output"]) == (2, 2, True)
    assert (row["best_score"], row["gain"]) == (pytest.approx(0.9), 0)
    # A post-norm model's output is its last layer.
    same = best_layers(with_output(values[:, [0, 2, 1]], values[:, 1])).iloc[0]
    assert (same["best_layer"], same["best_is_output"], same["gain"]) == (2, True, 0)


def test_picks_are_held_against_the_models_output() -> None:
    metrics = tidy_metrics({"lidar": np.array([0, 1, 2.0]), "curvature": np.array([2, 0, 1.0])})
    scores = with_output(np.array([[0.2, 0.6, 0.1], [0.2, 0.8, 0.1]]), np.array([0.9, 0.9]))
    table = select_layers(metrics, scores, DOWN_UP)
    table = table[table["pooling"] == "mean"].set_index("metric")
    assert len(table) == 3 + len({MODEL_OUTPUT, MIDDLE, ORACLE}) - (CONSENSUS not in table.index)
    assert table.loc["lidar", ["layer", "score"]].tolist() == [2, 0.1], "layer L is not the output"
    assert table.loc[MODEL_OUTPUT, ["layer", "score", "regret"]].tolist() == [2, 0.9, 0]
    assert table.loc["curvature", "gain_over_output"] == pytest.approx(-0.2)
    assert table.loc["curvature", "regret"] == pytest.approx(0.2)
    assert table["best_is_output"].all()


# Published tables


@pytest.fixture(scope="module")
def published() -> tuple[pd.DataFrame, pd.DataFrame]:
    scores = published_scores(read_table(PUBLISHED / "mteb_scores.csv.gz"))
    return published_metrics(read_table(PUBLISHED / "metrics.csv.gz")), scores


@needs_published
def test_published_tables_can_be_associated(published) -> None:
    metrics, scores = published
    preset = yaml.safe_load((ROOT / "presets/published.yaml").read_text())
    own_texts = preset["association"]["own_texts"]
    few = metrics["model"].isin(["Pythia-70m", "Pythia-160m"]) & (metrics["revision"] == "main")
    metrics = metrics[few & metrics["metric"].isin(["infonce", "lidar"])]
    table = associate(metrics, scores, AssociationSettings(own_texts=own_texts))
    table = table[table["measure"].isin(["spearman", "match"])]
    wikitext = table[
        (table["corpus"] == "wikitext")
        & (table["metric"] == "infonce")
        & (table["task_type"] == "all")
    ].set_index("model")
    assert wikitext.loc["Pythia-160m", "value"] == pytest.approx(-0.868, abs=0.001)
    assert wikitext.loc["Pythia-160m", "n_layers"] == 13
    n_models = len(wikitext) - 1
    assert wikitext.loc["all", "n_models"] == n_models
    assert wikitext.loc["all", "reason"].startswith(f"{n_models} models: a test")
    own = table[(table["corpus"] == "task texts") & (table["task_type"] == "all")]
    assert set(own["n_tasks"]) == {29}
    assert set(own_texts.values()) < set(scores["task"])


def test_published_columns_are_checked() -> None:
    with refused("unknown_name"):
        published_scores(pd.DataFrame({"family": ["x"], "size": ["1m"]}))


def test_missing_published_table(tmp_path: Path) -> None:
    with refused("missing_file"):
        read_table(tmp_path / "no.csv")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with refused("unreadable"):
        read_table(tmp_path / "bad.parquet")


# Scripts


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
