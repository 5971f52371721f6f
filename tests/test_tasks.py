"""Tasks of mteb and of the quickstart, and the prompts in front of their texts."""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import datasets
import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from helpers import tiny
from helpers.articles import wikipedia
from helpers.refused import refused
from mteb import TaskResult
from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader
from sklearn.cluster import MiniBatchKMeans

from layerwise.config import Config
from layerwise.config.corpora import HubData
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.config.tasks import MtebType
from layerwise.corpora.sources import load_hub
from layerwise.models.load import load
from layerwise.models.saved import Embedder
from layerwise.project import ROOT
from layerwise.run.plan import Plan
from layerwise.run.script import task_of
from layerwise.tasks import catalog
from layerwise.tasks.evaluate import TaskScores, score_tasks
from layerwise.tasks.mteb_task import MtebTask, _ranked, _relevant, k_means
from layerwise.tasks.task import ModelPrompts, Vectors, prompts_of, set_up
from quickstart import tasks as quickstart
from tools import forecast

MODELS = {"m": {"source": {"hub": "me/tiny"}}}


def test_english_subsets_and_the_test_split() -> None:
    task = catalog.get_task("STS17")
    assert task.hf_subsets == ["en-en"] and task.eval_splits == ["test"]
    assert len(catalog.PAPER) == len(set(catalog.PAPER)) == 32


@pytest.mark.parametrize("place", ["train.parquet", "data/train-00000-of-00001.parquet"])
def test_a_users_training_split_is_not_cross_validated(tmp_path: Path, place: str) -> None:
    (tmp_path / "test.parquet").touch()
    assert catalog.get_task("mine", str(tmp_path), "Classification").is_cross_validation
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    assert not catalog.get_task("mine", str(tmp_path), "Classification").is_cross_validation


@pytest.mark.parametrize("name", ["STSBenchmark", "Banking77Classification", "SciDocsRR"])
def test_data_that_were_never_fetched_are_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with refused("missing_file") as caught:
        catalog.load(catalog.get_task(name))
    said = str(caught.value)
    assert said.startswith(f"The data of {name} from mteb/") and "\n" not in said
    assert "run `layerwise fetch` with this config" in said
    with refused("missing_file") as caught:
        load_hub(HubData(hub="owner/never-fetched"))
    assert "layerwise fetch" in str(caught.value) and "\n" not in str(caught.value)


def test_units_hold_what_the_evaluators_ask_for(folders: dict[str, str]) -> None:
    def units(name: str, most: int = 10**6) -> list[Any]:
        return list(MtebTask(name, folders[name], quickstart.TYPES[name]).units(most))

    (reranking,) = units("WikipediaArticleReranking")
    assert {kind for kind, _ in reranking.keys} == {"query", "document"}
    (polarity,) = units("PangLeePolarity")
    assert len(polarity.keys) == 200
    clustering = units("WikipediaArticleClustering", 100)
    assert len(clustering) > 1 and all(unit.selection for unit in clustering)
    (whole,) = units("WikipediaArticleClustering")
    assert {key for unit in clustering for key in unit.keys} == set(whole.keys)


def test_every_layer_is_scored_on_the_same_draws(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = MtebTask("LeeNewsSimilarity", folders["LeeNewsSimilarity"], "STS")
    task, vectors = named.task, Vectors(np.zeros((1, 2), np.float32), {})

    def drawn(*_: Any, **__: Any) -> dict[str, Any]:
        legacy = np.random.rand()  # noqa: NPY002
        draws = random.random(), task.rng_state.random(), task.np_rng.random(), legacy
        return {"default": {"main_score": sum(draws)}}

    monkeypatch.setattr(task, "evaluate", drawn)
    first, second = (named.score(None, vectors, ScoringSettings()) for _ in range(2))
    assert first == second


def test_passages_are_the_same_on_every_machine() -> None:
    chosen = quickstart.passages_of(wikipedia())
    assert chosen == quickstart.passages_of(list(reversed(wikipedia())))
    pairs = quickstart.pairs(chosen)
    assert not pairs[["sentence1", "sentence2"]].apply(frozenset, axis=1).duplicated().any()
    of = {passage.text: passage.article for passage in chosen}
    same = pairs["sentence1"].map(of) == pairs["sentence2"].map(of)
    assert (same == (pairs["labels"] == 1)).all()
    tables = quickstart.reranking(chosen)
    assert (tables["top_ranked"]["corpus-ids"].map(len) == quickstart.CANDIDATES).all()


BY_NAME = {
    "T-query": "a",
    "T": "b",
    "Reranking-query": "c",
    "Reranking": "d",
    "query": "e",
    "default": "f",
}


@pytest.mark.parametrize(
    ("left_out", "prompt_type", "expected"),
    [
        (0, "query", "a"),
        (1, "query", "b"),
        (2, "query", "c"),
        (3, "query", "d"),
        (4, "query", "e"),
        (5, "query", ""),
        (0, "document", "b"),
        (2, "document", "d"),
        (4, "", "f"),
        (1, "", "b"),
    ],
)
def test_the_first_fitting_prompt_is_used(left_out: int, prompt_type: str, expected: str) -> None:
    given = dict(list(BY_NAME.items())[left_out:])
    task: Any = SimpleNamespace(task_type="Reranking", instruction=lambda _: "")
    assert ModelPrompts(given).of("T", task, prompt_type) == expected


def test_instructions_are_mtebs(folders: dict[str, str]) -> None:
    task = MtebTask("LeeNewsSimilarity", folders["LeeNewsSimilarity"], "STS")
    prompt = ModelPrompts({"STS": "Instruct: {instruction}\n"}).of("LeeNewsSimilarity", task, "")
    assert prompt == "Instruct: Retrieve semantically similar text.\n"


def test_a_task_of_several_splits_has_mtebs_mean() -> None:
    task = MtebTask("HumanConceptsClustering")
    scores = {"Rosch1973": 0.25, "Rosch1975": 0.5, "McCloskey1978": 0.9}
    of_mteb = {
        split: {"default": {"main_score": s, "hf_subset": "default"}}
        for split, s in scores.items()
    }
    whole = TaskResult.from_task_results(catalog.get_task(task.name), of_mteb, evaluation_time=0.0)
    unit: Any = {(split, "default"): ({"main_score": s}, []) for split, s in scores.items()}
    (score,) = task.combine([unit], ScoringSettings())
    assert score.main_score == pytest.approx(whole.get_score(), abs=1e-9)
    assert score.split == "Rosch1973, Rosch1975, McCloskey1978"
    unit["Rosch1975", "default"] = ({"main_score": np.nan}, [])
    assert task.combine([unit], ScoringSettings())[0].main_score is None


@pytest.mark.parametrize("prompts", ["saved", None])
def test_saved_prompts_are_the_models(prompts: Any) -> None:
    def of(embedder: Embedder, **settings: Any) -> ModelPrompts:
        entry = tiny.entry("m", **{"prompts": prompts} | settings)
        return prompts_of(SimpleNamespace(name="m", entry=entry, embedder=embedder))  # type: ignore[arg-type]

    if prompts is None:
        assert of(Embedder()) == ModelPrompts()
    else:
        with refused("missing_file"):
            of(Embedder())
    own = Embedder(prompts={"query": "q: ", "web": "w: "}, prompt="w: ", include_prompt=False)
    by_name = {"query": "q: ", "document": "", "web": "w: ", "default": "w: "}
    assert of(own) == ModelPrompts(by_name, False)
    assert of(own, include_prompt=True) == ModelPrompts(by_name, True)
    named = of(own, prompts={"query": "x"}, include_prompt=False)
    assert named == ModelPrompts({"query": "x"}, False)
    assert of(own, prompts={}) == ModelPrompts()


def test_quickstart_folders_are_equal_each_time(tmp_path: Path) -> None:
    for place in ("a", "b"):
        for task in quickstart.TYPES:
            quickstart.make_task(tmp_path / place / task, quickstart.passages_of(wikipedia()))
    files = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.parquet")]
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert len(pd.read_parquet(tmp_path / "a/PangLeePolarity/test.parquet")) == 200


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [("STS", "score", None), ("STS", "sentence1", None), ("Clustering", "labels", [0, None, 1])],
)
def test_a_row_without_a_value_is_named(
    kind: str, column: str, value: Any, tmp_path: Path
) -> None:
    tables = {
        "STS": {"sentence1": ["a", "b", "c"], "sentence2": ["d"] * 3, "score": [0.1, 0.2, 0.3]},
        "Clustering": {"sentences": [["a", "b", "c"]] * 3, "labels": [[0, 1, 0]] * 3},
    }
    table = tables[kind]
    table[column][1] = value
    pd.DataFrame(table).to_parquet(tmp_path / "test.parquet")
    with refused("unreadable") as caught:
        list(MtebTask(f"own {column}", str(tmp_path), kind).units(10**6))
    assert f"test, row 2, column '{column}' has no value" in str(caught.value)


@pytest.mark.parametrize("n_clusters", [5, 70])
def test_k_means_is_that_of_scikit_learn(n_clusters: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2500, 24)) + 2 * rng.normal(size=(n_clusters, 24))[np.arange(2500) % 5]
    x = x.astype(np.float32)
    settings = {"n_clusters": n_clusters, "batch_size": 500, "n_init": "auto", "random_state": 42}
    expected = MiniBatchKMeans(**settings).fit(x).labels_
    assert (k_means(**settings).fit(x).labels_ == expected).all()


def mind(folder: Path) -> None:
    """Data of the shape of MindSmallReranking: queries with subqueries, which are one."""
    rng, documents = np.random.default_rng(0), [f"d{number}" for number in range(12)]
    names = [f"{query}_{number}" for query in range(8) for number in range(3)]
    ranked = {str(q): [*rng.choice(documents, 6, replace=False)] for q in range(8)}
    good = [(name, ranked[name[0]][k]) for name in names for k in (0, 3)]
    # A good document that is not among the candidates cannot be found, and counts.
    good += [(name, next(d for d in documents if d not in ranked[name[0]])) for name in names[:9]]
    tables = {
        "queries": {
            "_id": names,
            "text": [f"read {number}" for number in rng.integers(9, size=24)],
        },
        "corpus": {"_id": documents, "text": [f"news {n // 2}" for n in range(12)]},
        "default": {
            "query-id": [name for name, _ in good],
            "corpus-id": [name for _, name in good],
            "score": [1] * len(good),
        },
        "top_ranked": {"query-id": names, "corpus-ids": [ranked[name[0]] for name in names]},
    }
    configs = ""
    for name, table in tables.items():
        (folder / name).mkdir()
        pd.DataFrame(table).to_parquet(folder / f"{name}/test.parquet")
        configs += f"- config_name: {name}\n  data_files:\n  - split: test\n"
        configs += f"    path: {name}/test.parquet\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


@pytest.mark.parametrize("name", ["WikipediaArticleReranking", "MindSmallReranking"])
def test_rerankings_have_mtebs_score(name: str, folders: dict[str, str], tmp_path: Path) -> None:
    if name == "MindSmallReranking":
        mind(tmp_path)
    task = MtebTask(name, folders.get(name, str(tmp_path)), quickstart.TYPES.get(name))
    (unit,) = task.units(10**6)
    rows = {key: row for row, key in enumerate(unit.keys)}
    for seed in range(3):
        vectors = Vectors(np.random.default_rng(seed).normal(size=(len(rows), 4)), rows)
        both = [
            task.score(unit.selection, vectors, ScoringSettings(sub_scores=all_of_mteb))
            for all_of_mteb in (False, True)
        ]
        ours, theirs = (scores["test", "default"][0]["main_score"] for scores in both)
        assert ours == pytest.approx(theirs, abs=1.1e-5) and 0 < ours < 1


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"query-id": [1, 2, 2]},
        {"score": [1.0, 0.0, 2.0]},
        {"score": [0.5, 1, 1]},
        {"score": ["1", "0", "2"]},
        {"score": [1, None, 2]},
        {"corpus-id": ["a", None, "b"]},
        {"corpus-ids": [[1, 2], [], [3]]},
        {"corpus-ids": ["ab", "b", "c"]},
        {"corpus-ids": [["a"], None, ["b"]]},
        {"score": None},
        {"configs": ["corpus"]},
    ],
    ids=str,
)
def test_relevance_is_read_or_refused_as_by_mteb(change: dict[str, Any]) -> None:
    columns = {"query-id": ["q", "p", "q"], "corpus-id": ["a", "b", "c"], "score": [1, 0, 2]}
    columns |= {"corpus-ids": [["a", "b"], ["b"], ["c"]]} | change
    loader: Any = object.__new__(RetrievalDatasetLoader)
    loader.config, loader.split = None, "test"
    loader.dataset_configs = columns.pop("configs", ["qrels", "top_ranked"])
    columns = {k: v for k, v in columns.items() if v is not None}
    ranked = {k: columns[k] for k in ("query-id", "corpus-ids")}
    data = {"qrels": columns, "top_ranked": ranked}
    loader._load_dataset_split = lambda name, _: Dataset.from_dict(data[name])
    readers = ((loader._load_qrels, _relevant), (loader._load_top_ranked, _ranked))
    for theirs, ours in readers if "configs" not in change else readers[:1]:
        try:
            expected = theirs(None)
        except Exception:
            expected = None
        if expected is None or "None" in str(expected):  # which no query can have
            with pytest.raises((TypeError, ValueError)):
                ours(loader, None)
        else:
            assert ours(loader, None) == expected


def test_candidates_that_mteb_left_out_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there stay; a reranking without any would rank all documents."""
    asked: list[Any] = []

    def load_dataset(*given: Any, **options: Any) -> dict[str, list[Any]]:
        asked.append((given, options))
        return {"query-id": [1, "q2"], "corpus-ids": [[7, 8], ["9"]]}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    there = {"q": ["d"]}
    splits = {"test": {"top_ranked": None}, "dev": {"top_ranked": there}}
    for kind, n_asked in (("STS", 0), ("Reranking", 1)):
        task: Any = SimpleNamespace(
            metadata=SimpleNamespace(type=kind, dataset={"path": "me/ranked", "revision": "abc"}),
            dataset={"default": {split: dict(data) for split, data in splits.items()}},
            load_data=lambda: None,
        )
        assert catalog.load(task) is task and len(asked) == n_asked
    assert asked == [(("me/ranked", "top_ranked"), {"split": "test", "revision": "abc"})]
    assert task.dataset["default"]["test"]["top_ranked"] == {"1": ["7", "8"], "q2": ["9"]}
    assert task.dataset["default"]["dev"]["top_ranked"] is there


def test_the_size_of_a_task_is_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """From statistics of two splits, of which the test rows and the drawn training rows count."""
    subset = {
        "num_samples": 90,
        "text_statistics": {"unique_texts": 80, "average_text_length": 45.0},
        "label_statistics": {"labels": {"a": {"count": 8}, "b": {"count": 100}}},
    }
    train = {**subset, "text_statistics": {"unique_texts": 108, "average_text_length": 9.0}}
    ranked = {
        "num_samples": 50,
        "queries_text_statistics": {"unique_texts": 40, "average_text_length": 9.0},
        "documents_text_statistics": {"unique_texts": 200, "average_text_length": 18.0},
        "top_ranked_statistics": {"num_top_ranked": 1000},
    }
    pairs = {
        "num_samples": 30,
        "text1_statistics": {"unique_texts": 20, "average_text_length": 9.0},
        "text2_statistics": {"unique_texts": 25, "average_text_length": 18.0},
    }
    named = {
        "Banking77Classification": {"test": subset, "train": train},
        "AskUbuntuDupQuestions": {"test": ranked},
        "STS12": {"test": {"hf_subset_descriptive_stats": {"default": pairs, "other": subset}}},
        "STS13": {},
    }
    monkeypatch.setattr(forecast, "_statistics", named.get)
    forecast.task_size.cache_clear()
    sizes = {name: forecast.task_size(name) for name in named}
    forecast.task_size.cache_clear()
    assert sizes["STS13"] is None
    # Tokens: a character is 1 / 4.5 of one, and each text has two more.
    assert sizes["STS12"] == pytest.approx((45, (20 * 9 + 25 * 18) / 4.5 + 90))
    tokens = (40 * 9 + 200 * 18) / 4.5 + 2 * 240
    assert sizes["AskUbuntuDupQuestions"] == pytest.approx((240, tokens))
    task = catalog.get_task("Banking77Classification")
    n, most = task.n_experiments, task.samples_per_label
    shares = [min(most / 8, 1), most / 100]
    drawn = 8 * (1 - (1 - shares[0]) ** n) + 100 * (1 - (1 - shares[1]) ** n)
    texts = 80 + drawn
    tokens = (80 * 45 + 9 * drawn) / 4.5 + 2 * texts
    assert sizes["Banking77Classification"] == pytest.approx((texts, tokens))


def test_units_of_a_task_are_one_score_for_each_split_and_subset() -> None:
    """A clustering's score is the mean of its sets, whichever unit they are in."""
    clustering = MtebTask("TwentyNewsgroupsClustering")
    first = {("test", "default"): ({"main_score": 0.2, "v_measures": [0.1, 0.3]}, [0.1, 0.3])}
    second = {("test", "default"): ({"main_score": 0.6, "v_measures": [0.6]}, [0.6])}
    (score,) = clustering.combine([first, second], ScoringSettings(sub_scores=True))
    assert (score.main_score, score.n_runs) == (pytest.approx(1 / 3, abs=1e-6), 3)
    assert (score.split, score.subset) == ("test", "default")
    assert 0.1 <= score.score_low < 1 / 3 < score.score_high <= 0.6
    whole = json.loads(score.sub_scores)
    assert whole["v_measures"] == [0.1, 0.3, 0.6]
    assert whole["v_measure"] == whole["main_score"] == pytest.approx(1 / 3)
    assert whole["v_measure_std"] == pytest.approx(np.std([0.1, 0.3, 0.6]))
    (alone,) = clustering.combine([first], ScoringSettings())
    assert (alone.main_score, alone.n_runs, alone.sub_scores) == (0.2, 2, None)
    scores: Any = {
        ("test", name): ({"main_score": s}, []) for name, s in (("en", 0.1234567), ("de", np.nan))
    }
    test, none = MtebTask("STS12").combine([scores], ScoringSettings())
    assert (test.main_score, test.score_low, test.n_runs) == (0.123457, None, 1)
    assert (none.subset, none.main_score) == ("de", None) and none.why


def test_a_class_by_its_name_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of docs/your-tasks.md: its keys, its scores, and what scores it anew."""
    page = (ROOT / "docs" / "your-tasks.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CustomTask" in b)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("lengths.py").write_text(code)
    Path("texts.txt").write_text("\n".join(tiny.texts(12)))

    def planned(**keys: Any) -> Plan:
        studies = {"scores": {"kind": "score_by_depth"}}
        entry = {"task": "lengths.Length", "file": "texts.txt", **keys}
        return Plan(Config.of({"models": MODELS, "tasks": {"length": entry}, "studies": studies}))

    with refused("unknown_key"):
        planned(fil="texts.txt")
    plan = planned()
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path / "m")), "main", device="cpu")
    taken: list[TaskScores] = []
    setup = set_up(loaded, ExtractSettings(), ScoringSettings())
    score_tasks(setup, {"length": task_of(plan, "length")}, taken.append)
    assert taken[0].task_type == "Length" and len(taken[0].scores) == loaded.anatomy.n_layers
    keys = {plan.key("task", task="length")}
    for changed in ("texts.txt", "lengths.py"):
        with Path(changed).open("a") as file:
            file.write("\nadded = 1\n")
        keys.add(planned().key("task", task="length"))
    assert plan.task_files("length") == ["texts.txt"] and len(keys) == 3


@pytest.mark.parametrize("kind", get_args(MtebType))
def test_a_users_task_may_have_each_type_that_the_config_names(kind: str, tmp_path: Path) -> None:
    (tmp_path / "test.parquet").touch()
    assert catalog.get_task("Own", tmp_path, kind).metadata.type == kind
