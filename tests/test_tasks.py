"""The quickstart's tasks, tasks by name, and the texts that a task needs."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from articles import wikipedia

from layerwise.errors import LayerwiseError
from layerwise.files import sha256_file
from layerwise.tasks import catalog, eager, evaluation, names, passages, quickstart, texts

pytest_plugins = ["task_fixtures"]


@pytest.fixture(scope="module")
def chosen() -> list[passages.Passage]:
    return passages.passages(wikipedia())


# Passages


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("Aa bb cc ddd. Ee ff ggg. Hh ii jjj.", "Aa bb cc ddd. Ee ff ggg."),
        ("Dr. Ward met J. R. Smith, once. Then he left us.", "Dr. Ward met J. R. Smith, once."),
        ("Too short. But this sentence goes on and on and on for far too long.", None),
        ("This one sentence has very many more words than may be taken here.", None),
        ("It ends without a stop and so is no sentence", None),
        ("", None),
    ],
)  # fmt: skip
def test_opening_takes_whole_sentences(paragraph: str, expected: str | None) -> None:
    assert passages.opening(paragraph, words=(3, 9)) == expected


def test_passages_are_short_distinct_and_as_many_as_said(chosen: list[passages.Passage]) -> None:
    assert len(chosen) == passages.ARTICLES * passages.PASSAGES_PER_ARTICLE
    assert len({p.text for p in chosen}) == len({p.id for p in chosen}) == len(chosen)
    lengths = [len(p.text.split()) for p in chosen]
    assert min(lengths) >= passages.WORDS[0]
    assert max(lengths) <= passages.WORDS[1]


def test_passages_do_not_depend_on_the_order_of_rows(chosen: list[passages.Passage]) -> None:
    shuffled = random.Random(1).sample(wikipedia(), k=len(wikipedia()))
    assert passages.passages(shuffled) == chosen


def test_too_few_articles_is_an_error_that_counts_them() -> None:
    with pytest.raises(LayerwiseError, match="have 3 articles"):
        passages.passages(wikipedia(articles=3))


def test_pairs_are_labelled_by_article(chosen: list[passages.Passage]) -> None:
    article = {p.text: p.article for p in chosen}
    table = passages.pairs(chosen)
    same = [
        article[a] == article[b] for a, b in zip(table.sentence1, table.sentence2, strict=True)
    ]
    assert (table["labels"] == np.array(same, dtype=int)).all()
    assert (table["sentence1"] != table["sentence2"]).all()
    unordered = {frozenset(pair) for pair in zip(table.sentence1, table.sentence2, strict=True)}
    assert len(unordered) == len(table)
    assert table["labels"].mean() == pytest.approx(1 / 3, abs=0.02)
    # A classifier must not be able to read the label off the row's place.
    assert set(table["labels"].head(30)) == {0, 1}


def test_clustering_sets_differ_and_hold_whole_articles(chosen: list[passages.Passage]) -> None:
    article = {p.text: p.article for p in chosen}
    table = passages.clustering(chosen)
    assert len(table) == passages.CLUSTERING_SETS
    for row in table.itertuples():
        assert [article[text] for text in row.sentences] == row.labels
        counts = pd.Series(row.labels).value_counts()
        assert (len(counts), set(counts)) == (passages.ARTICLES_PER_SET, {8})
    assert len({frozenset(labels) for labels in table["labels"]}) > 1


def test_reranking_has_relevant_and_other_candidates(chosen: list[passages.Passage]) -> None:
    article = {p.id: p.article for p in chosen}
    tables = passages.reranking(chosen)
    judged = {(q, c): s for q, c, s in tables["default"].itertuples(index=False)}
    places = []
    for query, candidates in tables["top_ranked"].itertuples(index=False):
        own = query.removeprefix("q-")
        assert own not in candidates
        assert len(set(candidates)) == passages.CANDIDATES
        relevant = [c for c in candidates if article[c] == article[own]]
        assert len(relevant) == passages.POSITIVE_CANDIDATES
        assert [judged[query, c] for c in candidates] == [int(c in relevant) for c in candidates]
        places.append(candidates.index(relevant[0]))
    assert len(set(places)) > 3  # not always in front, where ties would be won
    assert set(tables["queries"]["_id"]) == set(tables["top_ranked"]["query-id"])
    assert set(tables["corpus"]["_id"]) == set(article)


# Data from packages


def test_polarity_is_balanced_and_says_nothing_of_its_label() -> None:
    pytest.importorskip("gensim")
    table = quickstart.polarity()
    assert table["label"].value_counts().to_dict() == {0: 100, 1: 100}
    assert not table["text"].str.contains("__label__").any()
    assert table["text"].nunique() == 200
    praise = table[table["text"].str.startswith("i enjoyed time of favor")]
    assert praise["label"].tolist() == [1]


def test_news_similarity_is_each_pair_once() -> None:
    pytest.importorskip("gensim")
    table = quickstart.news_similarity()
    assert len(table) == 50 * 49 // 2
    assert table["score"].between(0, 1).all()
    assert table["score"].std() > 0.1
    assert len(set(table["sentence1"]) | set(table["sentence2"])) == 50
    # The file is Windows-1252: a wrong decoding shows in the currency signs.
    assert any("£" in text for text in table["sentence1"])


def test_made_twice_the_files_are_the_same(folders: dict[str, str], tmp_path: Path) -> None:
    quickstart.make_tasks(wikipedia(), list(names.QUICKSTART), tmp_path)
    for task, folder in folders.items():
        first = {p.relative_to(folder): sha256_file(p) for p in Path(folder).rglob("*.*")}
        again = {
            p.relative_to(tmp_path / task): sha256_file(p) for p in (tmp_path / task).rglob("*.*")
        }
        assert first == again


def test_a_task_that_is_not_made_here_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LayerwiseError, match="did you mean 'LeeNewsSimilarity'"):
        quickstart.make_tasks(wikipedia(), ["LeeNewsSimilarty"], tmp_path)


# Tasks by name


def test_the_papers_tasks_are_those_of_the_published_table(shared: Path) -> None:
    preset = Path(__file__).parents[1] / "presets" / "paper_figures.yaml"
    wanted = yaml.safe_load(preset.read_text(encoding="utf-8"))["tasks"]
    with (shared / "published" / "TASKS.csv").open() as file:
        rows = {row["task"]: row for row in csv.DictReader(file)}
    assert set(wanted) == set(rows)
    assert len(wanted) == 32
    for name in wanted:
        task = catalog.get_task(name)
        assert task.metadata.type == rows[name]["task_type"]
        assert list(task.eval_splits) == ["test"]
        expected = set(rows[name]["subsets"].replace("en/default", "en").split())
        assert {"en" if s == "default" else s for s in task.hf_subsets} == expected


def test_names_here_are_not_taken_in_mteb() -> None:
    import mteb

    for name in names.QUICKSTART:
        with pytest.raises(KeyError):
            mteb.get_task(name)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("STSBenchmrk", {}, "did you mean 'STSBenchmark'"),
        ("LeeNewsSimilarty", {}, "did you mean 'LeeNewsSimilarity'"),
        ("BornholmBitextMining", {}, "type BitextMining .* accepted are .*Reranking, Retr"),
        ("LeeNewsSimilarity", {}, "make_tasks"),
        ("STS12", {"STS12": "/nowhere/at/all"}, r"task_folders\.STS12: there is no folder"),
    ],
)
def test_what_cannot_be_scored_is_said_in_a_sentence(
    name: str, given: dict[str, str], said: str
) -> None:
    with pytest.raises(LayerwiseError, match=said):
        catalog.get_task(name, given)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayerwiseError, match="is empty"):
        catalog.get_task("STS12", {"STS12": str(tmp_path)})


def test_data_without_their_columns_are_said_with_what_to_do(tmp_path: Path) -> None:
    given = {"SICK-R": str(tmp_path)}
    pq.write_table(pa.table({"sentence1": ["a"], "score": [1.0]}), tmp_path / "test.parquet")
    with pytest.raises(LayerwiseError, match=r"SICK-R cannot use .*sentence2.* must hold"):
        texts.distinct_texts(loaded("SICK-R", given))
    (tmp_path / "test.parquet").rename(tmp_path / "train.parquet")
    with pytest.raises(LayerwiseError, match=r"SICK-R cannot use .*test.* must hold"):
        texts.distinct_texts(loaded("SICK-R", given))
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(LayerwiseError, match=r"SICK-R could not be loaded from .* must hold"):
        loaded("SICK-R", given)


def test_identity_of_data_follows_their_content(folders: dict[str, str], tmp_path: Path) -> None:
    task = "LeeNewsSimilarity"

    def identity(folder: str | Path) -> str:
        return catalog.data_identity(catalog.get_task(task, {task: folder}))

    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "test.parquet").write_bytes(Path(folders[task], "test.parquet").read_bytes())
    assert identity(copy) == identity(folders[task])
    table = pd.read_parquet(copy / "test.parquet")
    table.loc[0, "score"] += 0.001
    table.to_parquet(copy / "test.parquet")
    assert identity(copy) != identity(folders[task])


def test_data_that_were_replaced_are_loaded_anew(folders: dict[str, str], tmp_path: Path) -> None:
    # datasets' own cache knows a folder with a README of configs by its name alone.
    task = "WikipediaArticleReranking"
    for seed in (1, 2):
        table = wikipedia(seed=seed)
        quickstart.make_tasks(table, [task], tmp_path)
        expected = {p.text for p in passages.passages(table)}
        corpus = loaded(task, {task: str(tmp_path / task)}).dataset["default"]["test"]["corpus"]
        assert set(corpus["text"]) == expected


# The texts of a task


def loaded(name: str, folders: dict[str, str]) -> Any:
    return catalog.load(catalog.get_task(name, folders))


def test_three_tasks_share_the_same_passages(
    folders: dict[str, str], chosen: list[passages.Passage]
) -> None:
    wanted = {p.text for p in chosen}
    for name in ("WikipediaArticlePairs", "WikipediaArticleReranking"):
        assert set(texts.distinct_texts(loaded(name, folders)).texts) == wanted
    # A set may leave an article out, and so may all sets.
    assert set(texts.distinct_texts(loaded("WikipediaArticleClustering", folders)).texts) <= wanted


def test_texts_are_those_that_the_evaluators_ask_for(folders: dict[str, str]) -> None:
    from layerwise.tasks.encoders import TextRecorder

    class Slow(TextRecorder):
        """Goes through the loader batch by batch, as an encoder of mteb's does."""

        def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> Any:
            asked = [text for batch in inputs for text in batch["text"]]
            own = prompt_type.value if prompt_type else ""
            self.texts.update(dict.fromkeys((own, text) for text in asked))
            return self._noise.normal(size=(len(asked), 2)).astype(np.float32)

    for name in names.QUICKSTART:
        task = loaded(name, folders)
        seeds = evaluation.Seeds(task)
        listed = texts.distinct_texts(task)
        seeds.restore()
        slow = Slow()
        task.evaluate(slow, "test", encode_kwargs={})
        assert list(zip(listed.prompt_types, listed.texts, strict=True)) == list(slow.texts)
        types = {"query", "document"} if listed.task_type == "Reranking" else {""}
        assert set(listed.prompt_types) == types == set(listed.instructions)


def test_training_texts_that_no_experiment_draws_are_not_listed(shared: Path) -> None:
    folder = shared / "tasks" / "EmotionClassification"
    listed = texts.distinct_texts(
        loaded("EmotionClassification", {"EmotionClassification": str(folder)})
    ).texts
    tests = set(pd.read_parquet(folder / "test.parquet")["text"])
    train = set(pd.read_parquet(folder / "train.parquet")["text"])
    drawn = set(listed) - tests
    assert tests <= set(listed)
    assert drawn <= train
    # Ten experiments of 16 texts for each of six labels draw 960 at most from 16,000.
    assert 800 < len(drawn) <= 10 * 16 * 6


def test_the_list_is_kept_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.texts.parquet"
    given = texts.TaskTexts(
        "STS12", "STS", ["one", "two", "ein Ölbild 🙂"], ["", "query", "document"],
        {"": "Find it.", "query": ""},
    )  # fmt: skip
    texts.write_texts(path, given)
    assert texts.read_texts(path, "STS12") == given
    with pytest.raises(LayerwiseError, match="'STS12', wanted was 'STS13'"):
        texts.read_texts(path, "STS13")
    with pytest.raises(LayerwiseError, match="no table of texts"):
        texts.read_texts(tmp_path / "none.parquet")
    pq.write_table(pa.table({"key": ["a"], "text": ["b"]}), path)
    with pytest.raises(LayerwiseError, match="not written by layerwise"):
        texts.read_texts(path)
    path.write_bytes(b"PAR1 cut off")
    with pytest.raises(LayerwiseError, match="no readable parquet table of texts"):
        texts.read_texts(path)


# Eager columns


def test_eager_columns_are_lists_of_the_same_values_and_end_with_the_block() -> None:
    from datasets import Dataset

    data = Dataset.from_dict({"label": [3, 1, 2], "text": ["a", "b", "c"]})
    picked = data.select([2, 0])
    columns, renamed = data.column_names, {"text": "words"}
    with pytest.raises(RuntimeError), eager.eager_columns():
        assert type(data["label"]) is list
        assert data["label"] == [3, 1, 2]
        assert picked["text"] == ["c", "a"]
        assert data[0] == {"label": 3, "text": "a"}
        data["label"].reverse()
        assert data["label"] == [3, 1, 2]
        derived = [data.select_columns(["text"]).rename_columns(renamed) for _ in range(2)]
        assert derived[0] is derived[1]
        assert derived[0]["words"] == ["a", "b", "c"]
        assert picked.select_columns(column_names=["label"])["label"] == [2, 3]
        assert data.column_names == columns
        raise RuntimeError
    assert type(data["label"]) is not list
    assert data.select_columns(["text"]) is not data.select_columns(["text"])
