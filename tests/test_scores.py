"""Scores of layers: mteb's own numbers, whatever was scored before, and kept when they hold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from articles import wikipedia
from hypothesis import given
from hypothesis import strategies as st
from mteb.abstasks import AbsTaskClustering
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.results import TaskResult
from scoring import LAYERS, Case, plain

from layerwise import tables
from layerwise.association.curves import score_curves
from layerwise.section import parse
from layerwise.config.scoring import ScoringSettings
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.tasks import catalog, evaluation, joined, names, results, score, texts
from layerwise.tasks.classes import CLASSES
from layerwise.tasks.encoders import StoredEncoder, model_meta
from layerwise.tasks.layout import Embeddings, Reading
from layerwise.tasks.score import Worker, normalized, score_task

pytest_plugins = ["task_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def processes_for_small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two threads be two processes on the tests' few texts, too."""
    monkeypatch.setattr(score, "TEXTS_PER_PROCESS", 1)


@pytest.fixture
def similarity(tmp_path: Path, folders: dict[str, str]) -> Case:
    """The cheapest task."""
    return Case(tmp_path, "LeeNewsSimilarity", folders)


# The same numbers as mteb's


@pytest.mark.parametrize("name", names.QUICKSTART)
def test_scores_are_those_of_a_plain_run_of_mteb(
    name: str,
    tmp_path: Path,
    folders: dict[str, str],
) -> None:
    case = Case(tmp_path, name, folders)
    table = case.score()
    assert table["layer"].tolist() == list(range(LAYERS))
    assert table["main_score"].nunique() > 1
    for layer in (0, LAYERS - 1):
        fresh = catalog.get_task(name, folders)
        expected = plain(fresh, case.texts, case.values[0, layer])
        written = json.loads(case.files()[layer].read_text())["scores"]["test"]
        for theirs, ours in zip(expected, written, strict=True):
            assert ours["main_score"] == pytest.approx(theirs["main_score"], abs=1e-6)
            assert set(ours) == set(theirs)
        assert table["main_score"][layer] == written[0]["main_score"]


class Drawn(AbsTaskClustering):
    """A clustering that draws its documents from the task's own random state."""

    metadata = TaskMetadata(
        name="Drawn", type="Clustering", description="d", reference=None, main_score="v_measure",
        dataset={"path": "none", "revision": "1"}, eval_splits=["test"],
        eval_langs=["eng-Latn"], modalities=["text"], category="t2c",
    )  # fmt: skip
    max_fraction_of_documents_to_embed = None
    max_document_to_embed = 60
    max_documents_per_cluster = 40
    n_clusters = 3

    def load_data(self, **_: Any) -> None:
        from datasets import Dataset, DatasetDict

        rows = wikipedia(articles=6, paragraphs=20)
        data = {"sentences": [r.text for r in rows], "labels": [r.title for r in rows]}
        self.dataset = DatasetDict({"test": Dataset.from_dict(data)})
        self.data_loaded = True


def test_what_was_scored_before_changes_no_score() -> None:
    task = Drawn()
    task.load_data()
    seeds = evaluation.Seeds(task)
    listed = texts.distinct_texts(task).texts
    assert len(listed) == 60
    encoder = StoredEncoder(model_meta("m", "r"), tuple(map(sha256_text, listed)), "embeddings.h5")
    values = np.random.default_rng(0).normal(size=(2, len(listed), 8)).astype(np.float32)
    found = []
    for layer in (0, 1, 0):
        seeds.restore()
        encoder.use(normalized(values[layer]))
        found.append(evaluation.evaluate(task, encoder)["test"]["default"])
    assert found[0] == found[2]
    assert found[0]["v_measure"] != found[1]["v_measure"]
    for layer in (0, 1):
        theirs = plain(Drawn(), listed, values[layer])[0]
        assert found[layer]["v_measures"] == theirs["v_measures"]


def test_every_layer_of_a_job_draws_the_same_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLASSES, "Drawn", Drawn)
    case = Case(tmp_path, "Drawn", {})
    table = case.score()
    for layer in range(LAYERS):
        theirs = plain(Drawn(), case.texts, case.values[0, layer])[0]
        assert table["main_score"][layer] == pytest.approx(theirs["main_score"], abs=1e-6)


def test_processes_change_no_score(tmp_path: Path, folders: dict[str, str]) -> None:
    case = Case(tmp_path, "WikipediaArticleClustering", folders, readings=2)
    alone = case.score(threads=1)
    for path in (tmp_path / "layers").rglob("*.json"):
        path.unlink()
    pd.testing.assert_frame_equal(alone, case.score(threads=2))
    assert alone.groupby("tokens")["layer"].apply(list).to_dict() == {
        "all": [0, 1, 2],
        "drop_first": [0, 1, 2],
    }


def test_normalising_is_a_choice(tmp_path: Path, folders: dict[str, str]) -> None:
    case = Case(tmp_path, "LeeNewsSimilarity", folders)
    scale = np.linspace(1, 50, len(case.texts), dtype=np.float32)[:, None]
    case.write(case.values * scale)
    unit = case.score(ScoringSettings(normalize=True))
    entries = [json.loads(p.read_text())["scores"]["test"][0] for p in case.files().values()]
    # On unit vectors, Euclidean distance and cosine rank pairs alike.
    for entry in entries:
        assert entry["euclidean_spearman"] == pytest.approx(entry["cosine_spearman"], abs=1e-4)
    raw = case.score(ScoringSettings(normalize=False))
    np.testing.assert_allclose(unit["main_score"], raw["main_score"], atol=1e-4)
    document = json.loads(case.files()[0].read_text())
    assert document["scores"]["test"][0]["euclidean_spearman"] != pytest.approx(
        document["scores"]["test"][0]["cosine_spearman"], abs=1e-2
    )


def test_unit_length_leaves_a_zero_vector() -> None:
    rows = normalized(np.array([[3, 4], [0, 0], [1e-20, 0]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
    assert rows.dtype == np.float32


# Kept when they hold


def times(case: Case) -> dict[int, int]:
    return {layer: path.stat().st_mtime_ns for layer, path in case.files().items()}


def test_layers_that_are_there_are_kept(similarity: Case) -> None:
    first = similarity.score()
    before = times(similarity)
    similarity.files()[1].unlink()
    again = similarity.score()
    pd.testing.assert_frame_equal(first, again)
    after = times(similarity)
    assert [after[i] == before[i] for i in range(LAYERS)] == [True, False, True]


def test_only_layers_whose_embeddings_changed_are_scored_again(similarity: Case) -> None:
    similarity.score()
    before = times(similarity)
    changed = similarity.values.copy()
    changed[0, 2] += np.random.default_rng(3).normal(size=changed[0, 2].shape)
    similarity.write(similarity.values)  # the same again, only younger
    similarity.score()
    assert times(similarity) == before
    similarity.write(changed)
    similarity.score()
    after = times(similarity)
    assert [after[i] == before[i] for i in range(LAYERS)] == [True, True, False]


@pytest.mark.parametrize("what", ["cut off", "foreign", "other key"])
def test_a_result_that_does_not_hold_is_replaced(similarity: Case, what: str) -> None:
    good = similarity.score()
    path = similarity.files()[0]
    document = json.loads(path.read_text())
    document["scores"]["test"][0]["main_score"] = 0.999
    if what == "foreign":
        del document["layerwise"]
    elif what == "other key":
        document["layerwise"]["key"] = "0" * 64
    text = json.dumps(document)
    path.write_text(text[: len(text) // 2] if what == "cut off" else text)
    pd.testing.assert_frame_equal(similarity.score(), good)


def test_changed_task_data_are_scored_anew(similarity: Case, tmp_path: Path) -> None:
    first = similarity.score()
    folder = tmp_path / "changed"
    folder.mkdir()
    table = pd.read_parquet(Path(similarity.folders[similarity.name], "test.parquet"))
    table["score"] = table["score"].sample(frac=1, random_state=0).to_numpy()
    table.to_parquet(folder / "test.parquet")
    similarity.folders = {similarity.name: str(folder)}
    second = similarity.score()
    assert (first["main_score"] - second["main_score"]).abs().min() > 1e-4


def test_layers_are_scored_anew_by_changed_code(similarity: Case) -> None:
    """A table that says that it was made by this code holds no numbers of other code's."""
    similarity.score(code={"evaluation": "one"})
    before = times(similarity)
    similarity.score(code={"evaluation": "one"})
    assert times(similarity) == before
    similarity.score(code={"evaluation": "two"})
    after = times(similarity)
    assert not any(after[layer] == before[layer] for layer in before)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_that_stopped_goes_on_where_it_was(similarity: Case, threads: int) -> None:
    similarity.score()
    places = similarity.files()
    for path in (*places.values(), similarity.root / "table.parquet"):
        path.unlink()
    (places[2] / "in the way").mkdir(parents=True)
    with pytest.raises((LayerwiseError, OSError)):
        similarity.score(threads=threads)
    shutil.rmtree(places[2])
    assert not (similarity.root / "table.parquet").exists()
    before = times(similarity)
    assert 2 not in before
    assert before or threads > 1
    assert len(similarity.score(threads=threads)) == LAYERS
    after = times(similarity)
    assert all(after[layer] == before[layer] for layer in before)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_layer_without_a_score_is_a_row_that_says_why(
    similarity: Case, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = similarity.score(threads=threads)
    assert whole["why"].isna().all()
    flat = similarity.values.copy()
    flat[0, 0] = 1.0
    similarity.write(flat)
    table = similarity.score(threads=threads)
    lacking = table["main_score"].isna()
    assert table.loc[lacking, "layer"].tolist() == [0]
    (why,) = table.loc[lacking, "why"]
    assert why == f"the embeddings of all {len(similarity.texts)} texts are alike"
    pd.testing.assert_frame_equal(table[~lacking], whole[~lacking])
    assert f"{similarity.name} has no score at layer 0 of minilm at main" in caplog.text
    before = times(similarity)
    caplog.clear()
    pd.testing.assert_frame_equal(similarity.score(threads=threads), table)
    assert times(similarity) == before
    assert why in caplog.text, "said again, though it was there"
    curves = score_curves(table)
    assert curves[0].left_out == (0,)


def test_labels_that_are_all_alike_are_blamed_on_the_task(
    similarity: Case, tmp_path: Path
) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    table = pd.read_parquet(Path(similarity.folders[similarity.name], "test.parquet"))
    table.assign(score=3.0).to_parquet(folder / "test.parquet")
    similarity.folders = {similarity.name: str(folder)}
    found = similarity.score()
    assert found["main_score"].isna().all()
    assert set(found["why"]) == {"the task's labels are all alike"}


# Equal embeddings


def test_the_output_costs_one_layer(similarity: Case) -> None:
    plain = similarity.score()
    before = times(similarity)
    rng = np.random.default_rng(5)
    both = np.stack([similarity.values[0], similarity.values[0]])
    both[1, 2] += rng.normal(size=both[1, 2].shape).astype(np.float32)
    readings = [Reading(), Reading(readout="output")]
    similarity.write(both, readings=readings)
    table = similarity.score()
    assert len(table) == 2 * LAYERS
    made = list((similarity.root / "layers").rglob(f"{similarity.name}.json"))
    assert len(made) == LAYERS + 1
    assert {k: v for k, v in times(similarity).items() if k < 2} == {0: before[0], 1: before[1]}
    residual, output = (
        table[table["readout"] == r]["main_score"].to_numpy() for r in ("residual", "output")
    )
    np.testing.assert_array_equal(residual, plain["main_score"])
    np.testing.assert_array_equal(output[:2], residual[:2])
    assert output[2] != residual[2]
    # A post-norm model hands out its last layer as it is.
    both[1] = both[0]
    similarity.write(both, readings=readings)
    with Embeddings(similarity.embeddings) as file:
        assert set(file.alike().values()) == {(Reading(), layer) for layer in range(LAYERS)}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_without_embedding_is_named(similarity: Case, threads: int) -> None:
    similarity.write(similarity.values[:, :, 1:], similarity.texts[1:])
    lost = similarity.texts[0][:40]
    with pytest.raises(LayerwiseError, match="has no embedding of the text") as caught:
        similarity.score(threads=threads)
    assert lost in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((4, 62, 50, "STS"), 1),
        ((4, 62, 2_000, "PairClassification"), 2),
        ((4, 62, 50_000, "STS"), 4),
        ((4, 62, 50, "Reranking"), 4),
        ((4, 62, 50, "Clustering"), 4),
        ((4, 3, 50, "Classification"), 3),
        ((1, 62, 50_000, "STS"), 1),
        ((0, 62, 10, "Classification"), 1),
    ],
)
def test_small_work_is_done_by_few_processes(
    given: tuple[int, int, int, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "TEXTS_PER_PROCESS", 100_000)
    assert score.processes(*given) == expected


def test_many_processes_after_one(tmp_path: Path, folders: dict[str, str]) -> None:
    # Loading a reranking task starts threads of polars', and a fork would wait for them for ever.
    script = tmp_path / "twice.py"
    script.write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "from scoring import Case\n"
        "from layerwise.tasks.score import can_fork\n"
        "if __name__ == '__main__':\n"
        "    assert can_fork() == (sys.platform == 'linux')\n"
        "    folders = json.loads(sys.argv[2])\n"
        "    case = Case(Path(sys.argv[1]), 'WikipediaArticleReranking', folders)\n"
        "    alone = case.score()\n"
        "    assert not can_fork()\n"
        "    for path in case.files().values():\n"
        "        path.unlink()\n"
        "    assert case.score(threads=2).equals(alone)\n"
    )
    paths = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    found = subprocess.run(
        [sys.executable, script, tmp_path, json.dumps(folders)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr


def test_a_process_that_is_killed_is_said(
    similarity: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("only a forked process dies as it is told here")
    monkeypatch.setattr(score, "can_fork", lambda: True)  # whatever tests before this one did
    monkeypatch.setattr(Worker, "score", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LayerwiseError, match="killed, most likely because memory ran out"):
        similarity.score(threads=2)


def test_a_file_about_another_task_is_refused(similarity: Case) -> None:
    with pytest.raises(LayerwiseError, match="task"):
        score_task(similarity.embeddings, "STS12", similarity.root / "t.parquet", similarity.root)


# MTEB's JSON


def test_results_are_read_by_mtebs_own_reader(similarity: Case) -> None:
    table = similarity.score()
    cache = mteb.ResultCache(similarity.root / "layers")
    loaded = cache.load_results(load_experiments="match_name", include_remote=False)
    assert len(loaded.model_results) == LAYERS
    for run in loaded.model_results:
        about = run.model_meta.experiment_kwargs
        assert about.items() >= Reading("all", "mean", "residual")._asdict().items()
        assert (run.model_name, run.model_revision) == ("layerwise/minilm", "main")
        score = run.task_results[0].get_score()
        assert score == table["main_score"][about["layer"]]
    one = TaskResult.from_disk(similarity.files()[1])
    assert one.task_name == "LeeNewsSimilarity"
    assert one.mteb_version == mteb.__version__
    assert one.evaluation_time is not None
    assert one.evaluation_time > 0


def test_names_that_are_no_paths_are_still_kept_apart(tmp_path: Path) -> None:
    one = model_meta("org/model", "refs/pr/1", {"layer": 1})
    path = results.result_path(tmp_path, one, "a/b")
    assert path.relative_to(tmp_path).as_posix() == (
        "results/org__model/refs%2Fpr%2F1/experiments/layer_1/a%2Fb.json"
    )


# The tidy table


def test_the_table_says_what_each_row_is(tmp_path: Path, folders: dict[str, str]) -> None:
    case = Case(tmp_path, "PangLeePolarity", folders)
    case.score(ScoringSettings(seed=5))
    table = pq.read_table(tmp_path / "table.parquet")
    assert table.schema.names == list(results.COLUMNS)
    facts = tables.facts(tmp_path / "table.parquet")
    assert facts["schema"] == "layerwise.scores"
    assert json.loads(facts["settings"])["seed"] == 5
    assert json.loads(facts["versions"])["mteb"] == mteb.__version__
    frame = table.to_pandas()
    assert frame["depth"].tolist() == [0, 0.5, 1]
    assert set(frame["task_type"]) == {"Classification"}
    assert set(frame["n_runs"]) == {10}
    assert (frame["score_low"] <= frame["main_score"]).all()
    assert (frame["main_score"] <= frame["score_high"]).all()
    assert (frame["score_high"] - frame["score_low"]).min() > 0


def test_tasks_without_runs_have_no_interval(similarity: Case) -> None:
    similarity.score()
    table = pq.read_table(similarity.root / "table.parquet")
    assert table["score_low"].null_count == table["score_high"].null_count == LAYERS
    assert table.schema.field("score_low").type == "double"
    assert table["n_runs"].to_pylist() == [1] * LAYERS


def test_values_of_runs_are_found_where_mteb_keeps_them() -> None:
    classification = {
        "accuracy": 0.5,
        "scores_per_experiment": [{"accuracy": 0.4}, {"accuracy": 0.6}],
    }
    assert results.runs(classification, "accuracy") == [0.4, 0.6]
    assert results.runs({"v_measures": [0.1, 0.2]}, "v_measure") == [0.1, 0.2]
    levels = {"v_measures": {"Level 0": [0.1], "Level 1": [0.3]}, "ami_scores": {"Level 0": [0.9]}}
    assert results.runs(levels, "v_measure") == [0.1, 0.3]
    assert results.runs(levels, "ami") == [0.9]
    assert results.runs({"cosine_spearman": 0.3}, "cosine_spearman") == []


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.integers(0, 100))
def test_an_interval_lies_within_the_values(values: list[float], seed: int) -> None:
    settings = ScoringSettings(seed=seed, bootstrap=200)
    low, high = results.interval(values, settings)
    assert low is not None
    assert high is not None
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    assert (low, high) == results.interval(values, settings)
    wider = results.interval(values, ScoringSettings(seed=seed, bootstrap=200, confidence=0.99))
    assert wider[0] <= low  # type: ignore[operator]


def test_an_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    settings = ScoringSettings(bootstrap=400)
    hits = 0
    for _ in range(300):
        low, high = results.interval(rng.normal(0.5, 0.1, size=40).tolist(), settings)
        assert low is not None
        assert high is not None
        hits += low <= 0.5 <= high
    assert 0.90 <= hits / 300 <= 0.98


def test_one_value_has_no_interval() -> None:
    assert results.interval([0.5], ScoringSettings()) == (None, None)
    assert results.interval([], ScoringSettings()) == (None, None)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"normalise": True}, "did you mean 'normalize'"),
        ({"confidence": 1}, "accepted is less than 1"),
        ({"poolings": ["means"]}, "did you mean 'mean'"),
        ({"readouts": []}, "at least 1 is needed"),
        ({"bootstrap": 0}, "1 or more"),
    ],
)
def test_wrong_settings_are_named(given_: dict[str, object], said: str) -> None:
    with pytest.raises(LayerwiseError, match=f"^scoring.*{said}"):
        parse(ScoringSettings, given_, "scoring")


def test_a_missing_embeddings_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(LayerwiseError, match="no file"):
        score_task(tmp_path / "none.h5", "STS12", tmp_path / "t.parquet", tmp_path)


def test_embeddings_file_is_closed_after_scoring(similarity: Case) -> None:
    similarity.score()
    with Embeddings(similarity.embeddings) as file:
        assert file.n_layers == LAYERS


# Several layers


def by_hand(values: np.ndarray, layers: str, layer: int, *, normalize: bool) -> np.ndarray:
    """The embeddings of several layers, from those of all, shape (L, N, D), in float64."""
    values = values.astype(float)
    if normalize:
        values = values / np.linalg.norm(values, axis=-1, keepdims=True)
    how, which = layers.split()
    if how == "mean":
        first = 0 if which == "all" else max(0, layer - int(which) + 1)
        return values[first : layer + 1].mean(axis=0)
    return np.concatenate([values[layer], values[-1 if which == "last" else int(which)]], axis=-1)


SEVERAL = ("one", "mean 2", "mean all", "concat last", "concat 1")
BOTH = [Reading(), Reading(readout="output")]


def of_several(case: Case, *, normalize: bool = True, threads: int = 1) -> pd.DataFrame:
    settings = parse(ScoringSettings, {"layers": list(SEVERAL), "normalize": normalize}, "scoring")
    return case.score(settings, threads)


@pytest.mark.parametrize("normalize", [True, False])
def test_several_layers_are_joined_as_by_hand(
    tmp_path: Path, folders: dict[str, str], normalize: bool
) -> None:
    case = Case(tmp_path, "LeeNewsSimilarity", folders, readings=2)
    # Of unlike norms, so that it shows whether each was scaled before.
    case.values *= np.array([1, 30, 5], np.float32)[None, :, None, None]
    case.embeddings = case.write(case.values, readings=BOTH)
    stored = np.stack([case.values[0], case.values[0]])
    stored[1, -1] = case.values[1, -1]  # below the last layer the output is the residual stream
    with Embeddings(case.embeddings) as file:
        units = joined.units(file, SEVERAL)
        joiner = joined.Joiner(file, normalize=normalize)
        rng = np.random.default_rng(0)
        for at in [*range(len(units)), *rng.permutation(len(units))]:
            unit = units[at]
            found = joiner.read(unit)
            own = stored[BOTH.index(unit.reading)]
            if unit.layers == "one":
                np.testing.assert_array_equal(found, own[unit.layer])
                continue
            if unit.layers == "concat last":
                own = np.concatenate([own, stored[1, -1:]])
            wanted = by_hand(own, unit.layers, unit.layer, normalize=normalize)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_scores_of_several_layers_are_mtebs_own(tmp_path: Path, folders: dict[str, str]) -> None:
    case = Case(tmp_path, "WikipediaArticlePairs", folders)
    case.embeddings = case.write(case.values, readings=BOTH[1:])
    table = of_several(case).set_index(["layers", "layer"])["main_score"]
    task = catalog.load(catalog.get_task(case.name, folders))
    for layers in SEVERAL[1:]:
        for layer in range(LAYERS):
            hand = by_hand(case.values[0], layers, layer, normalize=True)
            wanted = plain(task, case.texts, hand.astype(np.float32))[0]["main_score"]
            assert table[layers, layer] == pytest.approx(wanted, abs=1e-5), (layers, layer)


def test_what_is_one_layer_is_scored_once(similarity: Case) -> None:
    similarity.embeddings = similarity.write(similarity.values, readings=BOTH[1:])
    alone = similarity.score()
    table = of_several(similarity)
    assert len(table) == len(SEVERAL) * LAYERS
    files = list((similarity.root / "layers").rglob(f"{similarity.name}.json"))
    # The mean up to layer 0 is layer 0, and that of two up to layer 1 is the mean of all.
    assert len(files) == len(table) - 3
    one = table[table["layers"] == "one"]
    pd.testing.assert_frame_equal(one.reset_index(drop=True), alone)
    at_first = table[(table["layer"] == 0) & table["layers"].isin(["one", "mean 2", "mean all"])]
    assert at_first["main_score"].nunique() == 1


def test_several_processes_change_no_score_of_several_layers(
    tmp_path: Path, folders: dict[str, str]
) -> None:
    tables = []
    for threads in (1, 2):
        (tmp_path / str(threads)).mkdir()
        case = Case(tmp_path / str(threads), "LeeNewsSimilarity", folders)
        case.embeddings = case.write(case.values, readings=BOTH[1:])
        tables.append(of_several(case, threads=threads))
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize(
    ("layers", "said"), [("concat 3", "no layer 3 read as"), ("concat last", "all/mean/output")]
)
def test_a_layer_that_is_not_there_is_said(similarity: Case, layers: str, said: str) -> None:
    settings = parse(ScoringSettings, {"layers": ["one", layers]}, "scoring")
    with pytest.raises(LayerwiseError, match=rf"scoring\.layers: '{layers}' came.*{said}"):
        similarity.score(settings)
