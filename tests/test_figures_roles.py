"""Roles: nothing is pooled in silence, checkpoints stay apart, the config's order is the order."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_metrics, tidy_scores
from conftest import ROOT
from test_figures import OF_PROMPTS, fed

from layerwise.association.choice import choose_layers
from layerwise.association.table import associate
from layerwise.config.association import AssociationSettings
from layerwise.config.kinds import KINDS as ALL
from layerwise.config.kinds import checkpoints_said, kinds_table, needs
from layerwise.config.studies import Study, corpora_of, revisions_of
from layerwise.config.study_checks import Known, check
from layerwise.errors import LayerwiseError
from layerwise.figures.drawn import Drawn
from layerwise.figures.marks import checkpoint_labels
from layerwise.figures.studies import Order, Tables, draw
from layerwise.figures.style import text_width

NAMED = ["base", "sft", "dpo"]
FEW = AssociationSettings()
# Those on prompts have tables and a suite of their own: test_prompt_studies.py.
KINDS = {name: kind for name, kind in ALL.items() if name not in OF_PROMPTS}
DIRECTIONS = {"prompt_entropy": -1, "curvature": -1, "infonce": -1, "lidar": 1}
OFFERED = Known(
    models={"a": NAMED, "b": ["main"]},
    corpora=["wikipedia", "own0", "own1"],
    tasks={"task0": "STS", "task1": "Clustering"},
    tokens=["all", "drop_first"],
    poolings=["mean", "last_token"],
    sublayers=["block", "mlp"],
    protocols=["paper"],
    alphas=[1.0, 2.0],
    normalizations=["raw", "logN"],
    metrics=["prompt_entropy", "curvature", "infonce", "lidar", "prefix_entropy"],
    measures=["dcor", "spearman"],
    own_texts={"own0": "task0", "own1": "task1"},
)


def made(**settings: Any) -> Study:
    return Study.model_validate_json(json.dumps(settings))


@pytest.fixture(scope="module")
def tables() -> Tables:
    """Model a at three named checkpoints and b at one, on two choices of tokens."""
    rng = np.random.default_rng(0)
    metrics, scores, prompts = [], [], []
    for model, revisions in (OFFERED.models or {}).items():
        for revision in revisions:
            for tokens in ("all", "drop_first"):
                where: dict[str, Any] = {"model": model, "revision": revision, "tokens": tokens}
                curves = {m: rng.random(6) for m in DIRECTIONS}
                metrics.append(tidy_metrics(curves, **where))
                scores.append(
                    tidy_scores(rng.random((3, 6)), types=("STS", "Clustering"), **where)
                )
                part = metrics[-1][metrics[-1]["metric"] == "prompt_entropy"]
                many = part.loc[part.index.repeat(20)].reset_index(drop=True)
                many["prompt_id"] = [f"p{i}" for i in range(20)] * 6
                prompts.append(many.assign(value=rng.random(len(many))))
    found = pd.concat(metrics, ignore_index=True), pd.concat(scores, ignore_index=True)
    order = Order(["a", "b"], OFFERED.models or {})
    return Tables(
        metrics=found[0],
        prompts=pd.concat(prompts, ignore_index=True),
        scores=found[1],
        associations=associate(*found, FEW, order),
        choices=choose_layers(*found, DIRECTIONS),
    )


def study(tables: Tables, order: Order | None = None, **settings: Any) -> Drawn:
    order = order or Order(["a", "b"], OFFERED.models or {})
    return draw(made(**settings), tables, order)


APART = [k for k, kind in KINDS.items() if kind.over is not None]
# Those that need factors, or tables of their own, are in tests of their own.
OWN = ("paired_by_depth", "probes_by_depth", "factorial")
REFUSE = [k for k, kind in KINDS.items() if kind.over is None and kind.needs and k not in OWN]


# What a row of a kind's table is of, beside the checkpoint, if not of a layer alone.
ROWS = {
    "along_sequence": ["layer", "position"],
    "block_parts": ["layer", "path", "part", "step"],
    "layers_together": ["layer", "layers"],
    "sink_valley": ["tokens"],
    "task_heatmap": ["layer", "task"],
}


@pytest.mark.parametrize("kind", APART)
def test_checkpoints_stay_apart(kind: str, tables: Tables) -> None:
    tokens = ["all", "drop_first"] if kind == "sink_valley" else ["all"]
    wanted = {"kind": kind, "models": ["a"], "revisions": "all", "tokens": tokens}
    check(made(corpora=["wikipedia"], **wanted), OFFERED)
    table = study(fed(kind, tables), **wanted).table
    assert set(table["revision"]) == set(NAMED)
    keys = ["revision", *ROWS.get(kind, ["layer"])]
    if {"metrics", "associations"} & set(needs(made(kind=kind))):
        keys.append("metric")
    assert not table.duplicated(keys).any(), "a row is of one checkpoint"
    if kind == "score_by_depth":
        scores = tables.scores
        assert scores is not None
        mine = scores.query("model == 'a' and revision == 'sft' and tokens == 'all'")
        means = mine.groupby("layer")["main_score"].mean()
        drawn = table[table["revision"] == "sft"].set_index("layer")["value"]
        np.testing.assert_allclose(drawn, means)


@pytest.mark.parametrize("kind", REFUSE)
def test_kinds_without_a_place_for_checkpoints_refuse_them(kind: str, tables: Tables) -> None:
    wanted = {"kind": kind, "models": ["a"], "revisions": ["base", "dpo"]}
    for attempt in (
        lambda: check(made(corpora=["wikipedia"], **wanted), OFFERED),
        lambda: study(tables, **wanted),
    ):
        with pytest.raises(LayerwiseError, match=r"shows one checkpoint of a model.*`revisions`"):
            attempt()


def test_every_kind_shows_checkpoints_apart_or_refuses_them() -> None:
    assert set(APART) | set(REFUSE) | set(OWN) == set(KINDS) - {"power_law"}


# The corpora of claims are the tasks' own texts; tests/test_claims.py has the rest.
@pytest.mark.parametrize(
    "kind", [k for k, v in KINDS.items() if "metrics" in v.needs and k not in (*OWN, "claims")]
)
def test_corpora_are_not_pooled(kind: str, tables: Tables) -> None:
    metrics = tables.metrics
    assert metrics is not None
    both = pd.concat([metrics, metrics.assign(corpus="other")])
    wanted = {"kind": kind, "models": ["a"]}
    with pytest.raises(LayerwiseError, match=r"several values of corpus: .* under `corpora`"):
        study(replace(tables, metrics=both), **wanted)
    with pytest.raises(LayerwiseError, match="several values of corpus"):
        check(made(**wanted), OFFERED)


def test_what_has_no_role_is_not_pooled(tables: Tables) -> None:
    for wanted, dimension in (
        ({"kind": "curves", "column": "y", "colour": "tokens", "dashes": "protocol"}, "model"),
        ({"kind": "curves", "dashes": "protocol"}, "tokens"),
        ({"kind": "curves", "models": ["a"], "alpha": [1, 2]}, "alpha"),
        ({"kind": "model_overview"}, "model"),
        ({"kind": "score_by_depth", "dashes": "protocol"}, "tokens"),
    ):
        with pytest.raises(LayerwiseError, match=f"would mix several values of {dimension}"):
            check(made(corpora=["wikipedia"], **wanted), OFFERED)
    for wanted, dimension in (
        ({"kind": "curves", "column": "y", "colour": "tokens", "dashes": "protocol"}, "model"),
        ({"kind": "curves", "dashes": "protocol"}, "(tokens|reading)"),
    ):
        with pytest.raises(LayerwiseError, match=f"would mix several values of {dimension}"):
            study(tables, **wanted)


def test_a_further_column_is_a_dimension(tables: Tables) -> None:
    metrics = tables.metrics
    assert metrics is not None
    graded = replace(tables, metrics=pd.concat([
        metrics.assign(corpus=f"repeated {p}", repetition=p) for p in (0.5, 0.0, 0.1)
    ]))  # fmt: skip
    one: dict[str, Any] = {"kind": "curves", "models": ["b"], "tokens": ["all"]}
    drawn = study(graded, colour="repetition", ordered=True, metrics=["curvature"], **one)
    assert drawn.table.groupby("repetition").size().to_dict() == {0.0: 6, 0.1: 6, 0.5: 6}
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels[:3] == [f"repetition {p}" for p in ("0", "0.1", "0.5")]
    same = replace(tables, metrics=graded.metrics.assign(corpus="one"))  # type: ignore[union-attr]
    with pytest.raises(LayerwiseError, match="several values of repetition"):
        study(same, metrics=["curvature"], **one)


def test_the_configs_order_is_the_order(tables: Tables) -> None:
    def labels(order: Order) -> list[str]:
        drawn = study(tables, order, kind="metrics_over_checkpoints", tokens=["all"])
        return [t.get_text() for t in drawn.figure.legends[0].get_texts()][:3]

    assert labels(Order(["a"], {"a": NAMED})) == NAMED
    assert labels(Order(["a"], {"a": NAMED[::-1]})) == NAMED[::-1]
    last = study(tables, kind="score_by_depth", models=["a"]).table
    assert set(last["revision"]) == {"dpo"}
    turned = Order(["a", "b"], {"a": NAMED[::-1]})
    assert set(study(tables, turned, kind="score_by_depth").table["revision"]) == {"base", "main"}
    drawn = study(tables, kind="checkpoint_heatmap", tokens=["all"])
    assert [t.get_text() for t in drawn.figure.axes[0].get_xticklabels()] == NAMED
    assert "Left out: b with a single checkpoint." in drawn.caption


def test_a_checkpoint_without_a_step_is_not_left_out(tables: Tables) -> None:
    names = dict(zip(NAMED, ("step0", "step64", "epoch-final"), strict=True))
    renamed = Tables(**{
        name: table.assign(revision=table["revision"].replace(names))
        for name, table in vars(tables).items() if table is not None
    })  # fmt: skip
    order = Order(["a", "b"], {"a": list(names.values())})
    for kind in ("metrics_over_checkpoints", "checkpoint_heatmap", "scores_over_checkpoints"):
        drawn = study(renamed, order, kind=kind)
        assert set(drawn.table["revision"]) == set(names.values())
    assert (
        "from step0 to epoch-final"
        in study(renamed, order, kind="metrics_over_checkpoints").caption
    )


def test_the_lead_over_training_is_that_of_the_best_layers(tables: Tables) -> None:
    table = study(tables, kind="scores_over_checkpoints", tokens=["all"]).table
    for _, part in table.groupby("revision"):
        lead = part["value"].max() - part.loc[part["depth"] == 1, "value"].iloc[0]
        np.testing.assert_allclose(part["gain"], lead)
        assert part.loc[part["best"], "value"].tolist() == [part["value"].max()]
        assert (part["gain_low"] <= part["gain"]).all()


def test_a_direction_can_be_turned(tables: Tables) -> None:
    def picks(**more: Any) -> list[int]:
        shown = {"metrics": more.pop("metrics", ["curvature"]), "tokens": ["all"]}
        table = draw(made(kind="metrics_by_depth", models=["b"], **shown), tables, **more).table
        return [int(v) for v in table.loc[table["best"], "layer"]]

    curve = tables.metrics.query(  # type: ignore[union-attr]
        "model == 'b' and tokens == 'all' and metric == 'curvature'"
    ).set_index("layer")["value"]
    low, high = [curve.idxmin()], [curve.idxmax()]
    assert picks() == low
    assert picks(directions={"curvature": 1}) == high
    own = [{"metric": "curvature", "direction": 1}]
    assert picks(metrics=own) == high
    assert made(kind="layer_choice", metrics=own).directions == {"curvature": 1}
    assert tables.metrics is not None
    assert tables.scores is not None
    turned = {**DIRECTIONS, "curvature": 1}
    choices = choose_layers(tables.metrics, tables.scores, turned)
    mine = choices.query("model == 'b' and tokens == 'all' and task_type == 'all'")
    assert mine.set_index("metric")["layer"]["curvature"] == high[0]
    drawn = study(replace(tables, choices=choices), kind="layer_choice")
    assert "turned round here: Curvature" in drawn.caption
    assert "turned" not in study(tables, kind="layer_choice").caption


def test_sublayers_are_compared(tables: Tables) -> None:
    metrics = tables.metrics
    assert metrics is not None
    parts = replace(tables, metrics=pd.concat([
        metrics.assign(sublayer="block"), metrics[metrics["layer"] > 0].assign(sublayer="mlp")
    ]))  # fmt: skip
    # Parts that are equal in all are not told apart.
    same = study(parts, kind="metrics_by_depth", models=["b"], colour="sublayer")
    assert same.title.startswith("No evidence which part of the blocks of b has the lowest")
    mlp = parts.metrics["sublayer"] == "mlp"
    parts.metrics.loc[mlp, "value"] -= 1
    drawn = study(parts, kind="metrics_by_depth", models=["b"], colour="sublayer")
    assert set(drawn.table["sublayer"]) == {"block", "mlp"}
    assert "is lowest at" in drawn.title
    assert set(study(parts, kind="metrics_by_depth").table["sublayer"]) == {"block"}


def decoder(values: np.ndarray, output: np.ndarray, **about: Any) -> pd.DataFrame:
    """Scores of the residual stream and of the output, which differ in the last layer alone."""
    handed_out = np.column_stack([values[:, :-1], output])
    return pd.concat([
        tidy_scores(values, **about).assign(readout="residual", why=None),
        tidy_scores(handed_out, **about).assign(readout="output", why=None),
    ])  # fmt: skip


def circles(drawn: Drawn, panel: int = 0) -> dict[bool, tuple[float, float]]:
    """The marks of a panel, by whether they are filled."""
    lines = [x for x in drawn.figure.axes[panel].get_lines() if np.size(x.get_xdata()) == 1]
    return {
        x.get_markerfacecolor() != "white": (float(x.get_xdata()[0]), float(x.get_ydata()[0]))
        for x in lines
    }


HILL = np.array([[0.2, 0.6, 0.4, 0.3], [0.2, 0.8, 0.4, 0.3]])


@pytest.mark.parametrize("output", [0.5, 0.9])
def test_curves_end_in_the_layer_and_circles_are_the_output(output: float) -> None:
    tables = Tables(scores=decoder(HILL, np.array([output, output])))
    drawn = study(tables, kind="score_by_depth")
    (line,) = [x for x in drawn.figure.axes[0].get_lines() if np.size(x.get_xdata()) > 1]
    np.testing.assert_allclose(line.get_ydata(), 100 * HILL.mean(axis=0))
    best = (1.0, 100 * output) if output > 0.7 else (pytest.approx(1 / 3), pytest.approx(70))
    assert circles(drawn) == {True: best, False: (1.0, pytest.approx(100 * output))}
    assert drawn.table["best"].sum() == (output < 0.7)
    assert set(drawn.table["output_is_best"]) == {output > 0.7}
    beaten = (
        "The output of m is its best"
        if output > 0.7
        else "No evidence that a layer of m beats its output: 20.0 points on a new task (95 % "
    )
    assert drawn.title.startswith(beaten), "two tasks are few"
    assert "stands in" not in drawn.caption
    tasks = study(tables, kind="task_heatmap")
    assert tasks.facts["panels"][0]["beats_output"] == (2 if output < 0.6 else 0)
    np.testing.assert_allclose(tasks.table["above_output"], tasks.table["value"] - output)


def test_the_output_is_a_line_of_its_own_where_asked_for() -> None:
    tables = Tables(scores=decoder(HILL, np.array([0.5, 0.5])))
    drawn = study(tables, kind="score_by_depth", pooling=["mean", "mean, output"])
    assert set(drawn.table["reading"]) == {"all", "all, output"}
    ends = drawn.table[drawn.table["depth"] == 1].set_index("reading")["value"]
    assert ends.to_dict() == {"all": pytest.approx(0.3), "all, output": pytest.approx(0.5)}


def test_layers_without_a_score_are_gaps_and_counted() -> None:
    scores = decoder(np.tile(HILL, (1, 2)), np.array([0.5, 0.5]))
    bad = scores["layer"].isin([0, 3]) & (scores["task"] == "task0")
    scores.loc[bad, "main_score"], scores.loc[bad, "why"] = np.nan, "the embeddings are alike"
    drawn = study(Tables(scores=scores), kind="score_by_depth")
    (line,) = [x for x in drawn.figure.axes[0].get_lines() if np.size(x.get_xdata()) > 1]
    assert np.flatnonzero(np.isnan(line.get_ydata())).tolist() == [0, 3]
    assert "2 gaps: layers at which some task has no score" in drawn.caption
    study(Tables(scores=scores), kind="task_heatmap")


def test_a_model_without_a_reading_is_left_out_and_said() -> None:
    normed = tidy_scores(HILL, model="gpt").assign(readout="final_norm")
    both = [tidy_scores(HILL, model=m).assign(readout="residual") for m in ("gpt", "bert")]
    tables = Tables(scores=pd.concat([normed, *both]))
    for models in ({}, {"models": ["gpt", "bert"]}):
        drawn = study(tables, kind="score_by_depth", pooling="mean, final_norm", **models)
        assert set(drawn.table["model"]) == {"gpt"}
        assert "Left out: bert without the reading mean, final_norm." in drawn.caption
    drawn = study(tables, kind="score_by_depth", pooling=["mean", "mean, final_norm"])
    assert drawn.table.groupby("model")["reading"].nunique().to_dict() == {"bert": 1, "gpt": 2}


def test_variants_have_roles(tables: Tables) -> None:
    metrics = tables.metrics
    assert metrics is not None
    two = metrics[metrics["metric"] == "prompt_entropy"].assign(alpha=2.0)
    both = replace(tables, metrics=pd.concat([metrics, two]))
    one: dict[str, Any] = {"kind": "curves", "models": ["b"], "metrics": ["prompt_entropy"]}
    drawn = study(both, alpha=[1, 2], colour="alpha", **one)
    assert set(drawn.table["alpha"]) == {1.0, 2.0}
    labels = [t.get_text() for t in drawn.figure.legends[0].get_texts()]
    assert labels[:2] == ["α = 1", "α = 2"]
    # Without a word on alpha: 1, or the only one there is.
    assert set(study(both, **one).table["alpha"]) == {1.0}
    assert set(study(replace(tables, metrics=two), **one).table["alpha"]) == {2.0}


def test_tasks_and_types_have_roles(tables: Tables) -> None:
    one: dict[str, Any] = {"kind": "curves", "y": ["scores"], "tokens": ["all"]}
    scores = tables.scores
    assert scores is not None
    by_task = study(tables, column="task", **one).table
    row = by_task.query("model == 'b' and task == 'task1' and layer == 2").iloc[0]
    mine = scores.query("model == 'b' and task == 'task1' and layer == 2 and tokens == 'all'")
    assert row["value"] == mine["main_score"].iloc[0]
    by_type = study(tables, column="task_type", **one).table
    assert by_type.groupby("task_type")["n_tasks"].first().to_dict() == {"STS": 2, "Clustering": 1}


# What a config can be told before anything is computed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "metrics_by_depth", "metrics": ["curvatur"]}, "did you mean 'curvature'"),
        ({"kind": "metrics_by_depth", "alpha": 3}, r"the alpha 3, and the config has 1, 2\."),
        ({"kind": "metrics_by_depth", "protocol": "reference"}, "config has paper"),
        ({"kind": "metrics_by_depth", "normalization": "logD"}, "config has raw, logN"),
        ({"kind": "metrics_by_depth", "metrics": [{"metric": "lidar", "alpha": "inf"}]}, "alpha"),
        ({"kind": "metrics_by_depth", "tokens": ["drop_sinks"]}, "choice of tokens 'drop_sinks'"),
        ({"kind": "metrics_by_depth", "sublayers": ["mixer"]}, "sublayer 'mixer'"),
        ({"kind": "metrics_by_depth", "corpora": ["wikipedi"]}, "did you mean 'wikipedia'"),
        ({"kind": "metrics_by_depth", "corpora": ["task texts"]}, "does not; name corpora"),
        ({"kind": "metrics_by_depth", "y": ["scores"]}, "for the kind curves"),
        ({"kind": "score_by_depth", "models": ["aa"]}, "did you mean 'a'"),
        ({"kind": "score_by_depth", "tasks": ["task7"]}, "did you mean 'task"),
        ({"kind": "score_by_depth", "task_types": ["STSS"]}, "did you mean 'STS'"),
        ({"kind": "score_by_depth", "pooling": "cls"}, "config has mean, last_token"),
        ({"kind": "score_by_depth", "revisions": ["dpp"]}, "did you mean 'dpo'"),
        ({"kind": "score_by_depth", "colour": "modle"}, "did you mean 'model'"),
        ({"kind": "score_by_depth", "colour": "model", "column": "model"}, "two roles"),
        ({"kind": "score_by_depth", "colour": "y"}, "units of their own"),
        ({"kind": "layer_choice", "colour": "corpus"}, "cannot choose its colour"),
        ({"kind": "metric_vs_score", "measure": "kendall"}, "config has dcor, spearman"),
        ({"kind": "metric_vs_score", "task_types": ["STS", "Clustering"]}, "one task type or all"),
        ({"kind": "association_strength", "measure": "all"}, "draws one measure"),
        (
            {
                "kind": "layer_choice",
                "metrics": ["lidar", {"metric": "lidar", "protocol": "paper"}],
            },
            "lidar in several variants; name one",
        ),
        ({"kind": "value_distribution", "metrics": ["lidar", "infonce"]}, "shows one metric"),
        ({"kind": "checkpoint_heatmap", "models": ["b"]}, "two or more checkpoints"),
        ({"kind": "model_overview"}, "several values of model: a, b; name one under `models`"),
    ],
)
def test_mistakes_are_said_when_the_config_is_read(settings: dict[str, Any], words: str) -> None:
    corpora = {} if "corpora" in settings else {"corpora": ["wikipedia"]}
    with pytest.raises(LayerwiseError, match=words) as error:
        check(made(**settings, **corpora), OFFERED)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "factorial"])
def test_a_plain_study_of_every_kind_is_accepted(kind: str) -> None:
    one = {"model_overview": {"models": ["a"]}, "claims": {"tokens": ["all"]}}.get(kind, {})
    check(made(kind=kind, corpora=["wikipedia"], **one), OFFERED)
    check(made(kind=kind, corpora=["wikipedia"], **one), Known())


def test_what_a_study_reads() -> None:
    assert needs(made(kind="curves")) == ("metrics",)
    assert needs(made(kind="curves", y=["scores", "metrics"])) == ("scores", "metrics")
    own = {"own0": "task0"}
    study = made(kind="metric_vs_score", corpora=["task texts", "wikipedia"])
    assert corpora_of(study, ["wikipedia", "own0"], own) == ("own0", "wikipedia")
    assert corpora_of(made(kind="curves"), ["x", "y"], own) == ("x", "y")
    assert revisions_of(made(kind="score_by_depth"), NAMED) == ("dpo",)
    assert revisions_of(made(kind="checkpoint_heatmap"), NAMED) == tuple(NAMED)
    chosen = made(kind="score_by_depth", revisions=["dpo", "base"])
    assert revisions_of(chosen, NAMED) == ("base", "dpo")
    check(made(kind="metric_vs_score", corpora=["task texts"]), OFFERED)


def test_settings_are_described() -> None:
    for name, field in {**Study.model_fields, **AssociationSettings.model_fields}.items():
        assert field.description, f"{name} has no description"
        assert field.description.endswith("."), name


# Many checkpoints, and what titles say of them

PYTHIA = [f"step{s}" for s in (0, *(2**k for k in range(10)), *range(1000, 144_000, 1000))]


@pytest.mark.parametrize("room", [60, 137, 300])
def test_the_first_and_the_last_of_many_checkpoints_are_named(room: float) -> None:
    assert len(PYTHIA) == 154
    places, words = checkpoint_labels(PYTHIA, room)
    assert (words[0], words[-1], places[-1]) == ("0", "143k", 153)
    assert len(places) > room / 40
    assert room < 100 or ("100k" in words and {"1k", "10k"} & {*words})
    apart = np.diff(places) * room / len(PYTHIA)
    halves = np.array([text_width(w, 7.5) / 2 for w in words])
    assert (apart >= halves[1:] + halves[:-1] + 6).all(), "no two labels touch"


def test_few_checkpoints_are_all_named() -> None:
    assert checkpoint_labels(["step0", "step16", "step1500"], 140)[1] == ["0", "16", "1,500"]
    assert checkpoint_labels(NAMED, 140) == ([0, 1, 2], NAMED)
    assert checkpoint_labels(["main"], 140) == ([0], ["main"])
    assert checkpoint_labels(["base", "checkpoint-after-sft", "dpo"], 60)[0] == [0, 2]


@pytest.mark.parametrize(
    ("best", "said"),
    [
        ([0, 0, 0], "the best layer stays at layer 0 of 5 in a "),
        ([1, 3, 1], "the best layer ends where it began in a, at layer 1 of 5 "),
        ([1, 3, 2], "the best layer goes from layer 1 to 2 of 5 in a "),
    ],
)
def test_titles_say_where_the_best_layer_goes(best: list[int], said: str) -> None:
    scores = [
        tidy_scores(
            np.tile(0.3 + 0.2 * (np.arange(6) == layer), (2, 1)), model="a", revision=revision
        )
        for revision, layer in zip(NAMED, best, strict=True)
    ]
    table = Tables(scores=pd.concat(scores, ignore_index=True))
    drawn = study(table, kind="scores_over_checkpoints", models=["a"])
    assert drawn.title.startswith(f"Over training {said}")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["a", "b"], "No model shows a valley of prompt entropy, with all tokens"),
        (["a"], "a shows no valley of prompt entropy, with all tokens"),
    ],
)
def test_titles_say_that_there_is_no_valley(models: list[str], said: str) -> None:
    rising = {"prompt_entropy": np.linspace(1, 2, 6)}
    table = Tables(metrics=pd.concat([tidy_metrics(rising, model=m) for m in models]))
    drawn = study(table, kind="metrics_by_depth", metrics=["prompt_entropy"])
    assert drawn.title == said


def test_dots_of_tasks_are_inside_their_cells() -> None:
    scores = tidy_scores(np.array([[5, 1, 1, 2.0], [1, 1, 1, 0.5]]) / 10, model="a")
    drawn = study(Tables(scores=scores), kind="task_heatmap")
    (panel,) = (axis for axis in drawn.figure.axes if axis.get_ylabel() == "" and axis.collections)
    low, high = panel.get_xlim()
    assert low == pytest.approx(-1 / 6) and high == pytest.approx(7 / 6)


def test_the_page_of_kinds_is_that_of_the_kinds() -> None:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert kinds_table() in page, "put what kinds_table() returns into docs/studies.md"
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\((studies/\w+\.png)\)", gallery))
    for own in ROOT.glob("docs/studies/*.md"):  # some have a page of their own
        figures = re.findall(r"\]\((\w+\.png)\)", own.read_text(encoding="utf-8"))
        shown |= {f"studies/{name}" for name in figures}
    files = ROOT.glob("docs/studies/*.png")
    assert sorted(p.relative_to(ROOT / "docs").as_posix() for p in files) == sorted(shown)
    assert all(p.stat().st_size < 150_000 for p in ROOT.glob("docs/studies/*.png"))


def test_the_page_says_what_kinds_do_with_checkpoints() -> None:
    for kind in KINDS.values():
        said = checkpoints_said(kind)
        assert said.startswith("Refused") == (kind.over is None and bool(kind.needs))
        assert ("two or more" in said) == kind.checkpoints
