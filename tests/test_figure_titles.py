"""Titles: what they state is of the curves that are drawn, by a test that allows it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores

from layerwise.association.order import Order
from layerwise.config.studies import MetricChoice, Study
from layerwise.figures.drawn import Drawn
from layerwise.figures.studies import Tables, draw

STEPS = ["step1", "step8"]


def study(tables: Tables, **settings: Any) -> Drawn:
    asked = Study.model_validate_json(json.dumps(settings))
    return draw(asked, tables, Order(["m"], {"m": STEPS}))


def guessing(levels: list[float], known: int) -> pd.DataFrame:
    """Tasks at their levels over nine layers; chance is known of the first ones."""
    noise = np.random.default_rng(0).normal(0, 0.003, (len(levels), 9))
    scores = tidy_scores(np.array(levels)[:, None] + noise)
    ends = {"score_low": scores["main_score"] - 0.1, "score_high": scores["main_score"] + 0.1}
    chance = scores["task"].isin([f"task{i}" for i in range(known)])
    return scores.assign(**ends, chance=np.where(chance, 0.5, np.nan))


@pytest.mark.parametrize(
    ("levels", "known", "settings"),
    [
        ([0.2, 0.9, 0.3, 0.8, 0.4], 5, {}),  # of a mean, the interval is of differences alone
        ([0.2, 0.9, 0.3, 0.8, 0.4], 1, {"column": "task"}),
        ([0.9], 0, {}),
    ],
)
def test_only_a_task_with_chance_and_interval_is_set_against_chance(
    levels: list[float], known: int, settings: dict[str, Any]
) -> None:
    drawn = study(Tables(scores=guessing(levels, known)), kind="score_by_depth", **settings)
    assert "chance, by 95 %" not in drawn.title
    assert drawn.title.startswith(("No evidence", "Layer", "A layer", "The output"))


def test_layers_above_chance_are_counted() -> None:
    drawn = study(Tables(scores=guessing([0.9], 1)), kind="score_by_depth")
    assert drawn.title == (
        "Above chance, by 95 % intervals of a layer each: 9 of 9 layers with all tokens (by luck "
        "0.2)"
    )
    assert "leads over the output" not in drawn.caption
    both = guessing([0.9, 0.52], 2)
    drawn = study(Tables(scores=both), kind="score_by_depth", column="task")
    assert "9 of 18 layers with all tokens (by luck 0.5)" in drawn.title


def chosen(*, pooling: str, sources: int) -> Tables:
    """Five tasks under two choices of tokens that differ at layer 3."""
    noise = np.random.default_rng(0).normal(0, 0.002, (2, 5, 7))
    fall = np.eye(7)[3] * 0.2
    parts = [
        tidy_scores(0.5 - fall * (tokens == "all") + noise[i], tokens=tokens)
        for i, tokens in enumerate(("all", "drop_first"))
    ]
    scores = pd.concat(parts).assign(pooling=pooling)
    texts = scores["task"].str[-1].astype(int).clip(upper=sources - 1)
    curve = {"prompt_entropy": np.arange(7.0)}
    metrics = pd.concat(tidy_metrics(curve, tokens=t) for t in ("all", "drop_first"))
    return Tables(scores=scores.assign(text_source=texts.astype(str)), metrics=metrics)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_choices_of_tokens_are_compared_within_a_pooling(pooling: str) -> None:
    drawn = study(chosen(pooling=pooling, sources=5), kind="token_choice", pooling=pooling)
    said = "Scoring without the first token changes the score at 1 of 7 layers of m (by up to +20"
    assert drawn.title.startswith(said)
    scored = drawn.figure.axes[0]
    assert len(scored.collections) == 1, "the difference is shaded"


def test_a_difference_without_a_second_source_is_untested() -> None:
    drawn = study(chosen(pooling="mean", sources=1), kind="token_choice")
    assert drawn.title.startswith(
        "Whether scoring without the first token changes the score is untested in m (by up to +20"
    )
    assert drawn.title.endswith("tasks of one source")


def measured(**labels: Any) -> pd.DataFrame:
    """Entropy and curvature on two corpora at two checkpoints; only entropy, only on w, moves."""
    parts = []
    for corpus in ("w", "p"):
        for revision in STEPS:
            moved = 1.0 * (corpus == "w") * (revision == "step8")
            curves = {"prompt_entropy": np.full(5, 3.0 - moved), "curvature": np.full(5, 2.0)}
            own = {"corpus": corpus, "revision": revision}
            parts.append(tidy_metrics(curves, **own).assign(**labels))
    return pd.concat(parts, ignore_index=True).assign(stderr=0.01)


def test_training_is_told_of_each_corpus() -> None:
    drawn = study(
        Tables(metrics=measured()), kind="metrics_over_checkpoints", row=["y", "corpus"],
        metrics=["prompt_entropy"], corpora=["w", "p"],
    )  # fmt: skip
    assert "at 5 of 5 layers of m (w)" in drawn.title
    assert "at none of 5 layers of m (p)" in drawn.title


def test_a_heat_map_has_a_lowest_value_for_each_corpus() -> None:
    drawn = study(
        Tables(metrics=measured()), kind="checkpoint_heatmap",
        column=["model", "reading", "corpus"], corpora=["w", "p"],
    )  # fmt: skip
    assert "goes from 3.00 to 2.00 in m (w)" in drawn.title
    assert "stays at 3.00 in m (p)" in drawn.title


def test_an_overview_counts_picks_on_every_corpus() -> None:
    hill = np.sin(np.pi * np.linspace(0, 1, 11))
    metrics = pd.concat(
        tidy_metrics({"lidar": sign * hill}, corpus=corpus)
        for corpus, sign in (("w", 1), ("p", -1))
    )
    scores = tidy_scores(np.tile(0.5 + 0.1 * hill, (2, 1)))
    drawn = study(
        Tables(metrics=metrics, scores=scores), kind="model_overview", row="corpus",
        corpora=["w", "p"],
    )  # fmt: skip
    assert "1 of 2 metrics point there" in drawn.title


def test_what_grows_along_the_sequence_is_told_of_each_corpus() -> None:
    parts = []
    for corpus, slope in (("w", 1.0), ("p", 0.0)):
        one = tidy_metrics({"prefix_entropy": np.ones(3)}, corpus=corpus)
        for position in (1, 2, 4):
            value = one["value"] + slope * np.log2(position)
            parts.append(one.assign(position=position, value=value, quartile_1=1, quartile_3=2))
    drawn = study(
        Tables(positions=pd.concat(parts, ignore_index=True)), kind="along_sequence",
        column=["model", "reading", "corpus"], corpora=["w", "p"],
    )  # fmt: skip
    assert "by +1.00 (layer 0) to +1.00 nats (layer 0) in m (w)" in drawn.title
    assert "by +0.00 (layer 0) to +0.00 nats (layer 0) in m (p)" in drawn.title


def test_prompts_as_they_are_come_before_perturbed_ones() -> None:
    metrics = measured()
    metrics = metrics[metrics["revision"] == "step8"]
    metrics = metrics.assign(repetition=metrics["corpus"].map({"w": np.nan, "p": 0.5}))
    logs = metrics[metrics["metric"] == "prompt_entropy"]
    metrics = pd.concat([metrics, logs.assign(normalization="logN", value=0.5)])
    drawn = study(
        Tables(metrics=metrics), kind="metrics_by_depth", colour="repetition",
        corpora=["w", "p"],
        metrics=[{"metric": "prompt_entropy", "normalization": "logN"}, "curvature"],
    )  # fmt: skip
    assert drawn.title.startswith(
        "No evidence that going from as they are to 0.5 moves curvature: at none of 5 layers of m"
    )


@pytest.mark.parametrize("dimension", ["task", "task_type"])
def test_the_best_layer_over_training_is_that_of_the_panel(dimension: str) -> None:
    """Two tasks of two types, best at layers 1 and 4, with leads of 10 and of 20 points."""
    values = 0.5 + np.array([0.1 * np.eye(6)[1], 0.2 * np.eye(6)[4]])
    scores = pd.concat(
        tidy_scores(values, revision=revision, types=("STS", "Clustering")) for revision in STEPS
    )
    drawn = study(
        Tables(scores=scores), kind="scores_over_checkpoints",
        column=["model", "reading", dimension],
    )  # fmt: skip
    best = drawn.table[drawn.table["best"]].groupby(dimension)[["layer", "gain"]].max()
    names = ["task0", "task1"] if dimension == "task" else ["STS", "Clustering"]
    assert best["layer"].loc[names].tolist() == [1, 4]
    assert best["gain"].loc[names].tolist() == pytest.approx([0.1, 0.2])
    for name, layer in zip(names, (1, 4), strict=True):
        assert f"stays at layer {layer} of 5 in m ({name})" in drawn.title


@pytest.mark.parametrize(
    ("lead", "tasks", "said"),
    [
        (0.2, 6, "goes from layer 1 to 4 of 5 in m ("),
        (0.004, 6, "in m (not beyond noise)"),
        (0.2, 1, "goes from layer 1 to 4 of 5 in m (untested)"),
    ],
)
def test_a_best_layer_moves_beyond_noise_or_not(lead: float, tasks: int, said: str) -> None:
    rng = np.random.default_rng(2)
    drawn = study(
        Tables(
            scores=pd.concat(
                tidy_scores(0.5 + lead * np.eye(6)[best] + rng.normal(0, 0.01, (tasks, 6)),
                            revision=revision)
                for revision, best in zip(STEPS, (1, 4), strict=True)
            )
        ),
        kind="scores_over_checkpoints",
    )  # fmt: skip
    assert said in drawn.title
    assert ("noise" in drawn.title, "untested" in drawn.title) == (lead < 0.1, tasks == 1)


def test_layers_named_are_those_of_the_set() -> None:
    from layerwise.association.best import layers_named

    assert layers_named("1, 4–7, output") == {"1", "4", "5", "6", "7", "output"}


def test_a_rule_is_hidden_only_beside_the_one_it_equals() -> None:
    from layerwise.figures.layer_choice import _rules

    table = pd.DataFrame({"metric": ["a", "b", "c"], "same_as": ["", "gone", "a"]})
    table = table.assign(column="all", refused="", regret=[0.1, 0.2, 0.1])
    assert _rules(table, "all") == (["a", "b"], {"a": ["c"]})


def paired(*readouts: str, **other: Any) -> pd.DataFrame:
    from layerwise.figures.paired import COLUMNS

    about = dict.fromkeys(COLUMNS, 0.5) | {
        "model": "m", "revision": "step1", "task": "t", "task_type": "STS", "subset": "default",
        "tokens": "all", "pooling": "match_f1", "against": "mean", "n": 100, **other,
    }  # fmt: skip
    return pd.DataFrame(
        {**about, "readout": readout, "layer": layer, "depth": layer / 3}
        for readout in readouts
        for layer in range(4)
    )


def test_readouts_of_paired_scores_are_curves_of_their_own() -> None:
    rows = paired("residual", "final_norm", "output")
    drawn = study(Tables(paired=rows), kind="paired_by_depth")
    assert {c["pooling"]: c["n_layers"] for c in drawn.facts["curves"]} == {
        "match_f1": 4, "match_f1, final_norm": 4,
    }  # fmt: skip
    assert "matched tokens, F1, final norm" in drawn.caption


@pytest.mark.parametrize("names", [{"subset": "b"}, {"readout": "output"}])
def test_no_layer_of_a_paired_curve_is_left_out(names: dict[str, str]) -> None:
    """Subsets have panels, and curves, of their own; an output alone is a curve."""
    other = paired("residual").assign(**names, score=0.7, task="t" if "subset" in names else "u")
    drawn = study(
        Tables(paired=pd.concat([paired("residual"), other], ignore_index=True)),
        kind="paired_by_depth",
    )
    assert [c["n_layers"] for c in drawn.facts["curves"]] == [4, 4]


def test_titles_over_many_curves_are_corrected_over_them() -> None:
    """Of twenty curves one passes its own correction, as by chance."""
    found = [
        paired("residual", task=f"t{i}", p=p, p_holm=p) for i, p in enumerate([0.03] + [0.6] * 19)
    ]
    drawn = study(Tables(paired=pd.concat(found, ignore_index=True)), kind="paired_by_depth")
    assert drawn.title == "No layer differs from the pooled cosine beyond noise"
    assert drawn.facts["curves"][0]["above"] == 4


def test_an_overview_tells_each_model_with_its_own_metrics() -> None:
    hill = np.sin(np.pi * np.linspace(0, 1, 11))
    tables: dict[str, list[pd.DataFrame]] = {"metrics": [], "scores": []}
    for model, sign in (("m", 1), ("n", -1)):
        tables["metrics"].append(tidy_metrics({"lidar": hill}, model=model))
        tables["scores"].append(tidy_scores(np.tile(0.5 + 0.1 * sign * hill, (2, 1)), model=model))
    drawn = study(
        Tables(**{name: pd.concat(parts) for name, parts in tables.items()}),
        kind="model_overview", row="model",
    )  # fmt: skip
    assert drawn.title == (
        "Scores are highest at layer 5 of 10 with all tokens in m (1 of 1 metrics point there, by "
        "chance 0.3) and layer 0 of 10 with all tokens in n (0 of 1 metrics point there, by "
        "chance 0.2)"
    )


def test_what_has_no_error_is_not_told_from_noise() -> None:
    """As LiDAR where δ decides: an unknown error is none of 0."""
    metrics = measured()
    lacking = (metrics["layer"] == 2) & (metrics["corpus"] == "w")
    metrics.loc[lacking, "stderr"] = np.nan
    drawn = study(
        Tables(metrics=metrics), kind="metrics_over_checkpoints", metrics=["prompt_entropy"],
        corpora=["w"],
    )  # fmt: skip
    assert "at 4 of 4 layers of m" in drawn.title


def course(model: str, difference: float, p: float) -> dict[str, Any]:
    return {"model": model, "reading": "all", "late less early": [difference, 0.0, 0.0, p, p],
            "valley": None, "sink": None, "has_sink": True, "places": {}}  # fmt: skip


def test_what_is_not_rejected_is_not_called_alike() -> None:
    from layerwise.figures import block_parts, training_course

    class Shown:
        metrics = (MetricChoice(metric="prompt_entropy"),)

        @staticmethod
        def values(_: str) -> list[str]:
            return ["all"]

    title = training_course._title
    assert title({"courses": [course("m", 0.1, 0.6)]}, Shown()).startswith(
        "m: no evidence that early and late layers change differently,"
    )
    few = [course(m, 0.1, 0.04 if m == "a" else 0.6) for m in "abcdefgh"]
    assert title({"courses": few}, Shown()) == (
        "No evidence that early layers change less than late ones: in 1 of 8 models (by chance in "
        "0.2)"
    )
    all_of_them = [course(m, 0.1, 0.001) for m in "abcdefgh"]
    assert title({"courses": all_of_them}, Shown()) == (
        "Early layers change less than late ones in 8 of 8 models (by chance in 0.2)"
    )
    panel = {"model": "m", "reading": "all", "fall": {"value": 0.1, "low": -0.1, "high": 0.3}}
    assert block_parts._title([panel], Shown()) == (
        "What makes prompt entropy fall: no evidence in m that it falls"
    )
