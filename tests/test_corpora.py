"""Corpora of texts: sources, templates, filters, samples and the files."""

import gzip
import hashlib
import json
import logging
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.refused import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from layerwise.config.corpora import CorpusSettings, FileTexts, Filters, HubTexts, Sample
from layerwise.corpora import prompts
from layerwise.corpora.prompts import make_corpus, make_views
from layerwise.corpora.sources import (
    count_tokens,
    cut,
    is_heading,
    of_texts,
    open_texts,
    prompt_of,
    select,
)
from layerwise.errors import Code
from layerwise.io.tables import read_table
from layerwise.section import parse
from quickstart import wikipedia


def read(texts: Path | list[str] | None = None, **spec: Any) -> list[tuple[str, str]]:
    settings = parse(CorpusSettings, {"source": spec}, "corpora.c")
    return list(open_texts(settings.source, texts)[0])


# Files

ROWS = [
    {"question": "What is two and two?", "answer": "Four.", "id": "a"},
    {"question": "Why {so}, é?", "answer": "Because,\nit is.", "id": "b"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    frame = pd.DataFrame(rows)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), "utf-8")
    else:
        path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "csv", "tsv"])
def test_columns_templates_and_ids_of_any_kind_of_table(tmp_path: Path, kind: str) -> None:
    file = str(write(tmp_path / f"t.{kind}", ROWS))
    template = "Q: {question}\nA: {answer} {{as it is}}"
    assert read(file=file, column="answer") == [("0", "Four."), ("1", "Because,\nit is.")]
    found = read(file=file, template=template, id="id")
    assert found == [(row["id"], template.format(**row)) for row in ROWS]


def test_text_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffOne é\r\n\nThree\u2028here\n".encode())
    assert read(file=str(path)) == [("0", "One é"), ("1", ""), ("2", "Three\u2028here")]


def test_cells_of_csv_are_text_and_only_empty_ones_are_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,n\nNA,08\n,2\n3.50,x\n")
    file = str(tmp_path / "t.csv")
    assert [text for _, text in read(file=file)] == ["NA", "", "3.50"]
    assert [text for _, text in read(file=file, template="{text}/{n}")] == ["NA/08", "", "3.50/x"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "jsonl"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_the_file_says(tmp_path: Path, kind: str, end: str) -> None:
    """A lone carriage return ends a line only where no other does."""
    lone = "" if end == "\r" or kind == "jsonl" else "\r"
    texts = [f"good{lone} hotel", "bad"]
    rows = {"txt": texts, "jsonl": [json.dumps({"text": text}) for text in texts]}
    separator = "\t" if kind == "tsv" else ","
    table = [separator.join(row) for row in [("n", "text"), *zip("01", texts, strict=True)]]
    lines = rows.get(kind, table)
    (tmp_path / f"p.{kind}").write_bytes("".join(line + end for line in lines).encode())
    found = read(file=str(tmp_path / f"p.{kind}"))
    assert [text for _, text in found] == texts


def test_parquet_with_two_columns_of_a_name_is_refused(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["b"])]
    table = pa.Table.from_arrays(columns, names=["text", "text"])
    pq.write_table(table, tmp_path / "t.parquet")
    with refused("duplicate"):
        read(file=str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        ('text,n\n"a\nb",1\n\nOh, no,2\n', "wrong_shape", 5),
        ("text;n\na;b;1\n", "wrong_shape", 2),
        ("text\nOne\nTwo, three\n", "wrong_shape", 3),
        ('text,n\na,1\n"He said "so",2\n', "unreadable", 3),
        ('text,n\na,1\n"open,2\nb,3\n', "unreadable", 3),
        ("text,text\na,b\n", "duplicate", None),
        ("text,n\n", "too_few", None),
    ],
)
def test_a_row_that_does_not_fit_the_header_is_named_by_its_line(
    tmp_path: Path, content: str, code: Code, line: int | None
) -> None:
    for name in ("t.csv", "t.csv.gz"):
        path = tmp_path / name
        raw = content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
        if name == "t.csv":
            with refused(code) as caught:
                read(file=str(path))
        elif code != "too_few":
            with refused(code) as caught:
                read_table(path)
        assert line is None or f"line {line}:" in str(caught.value)


def test_long_fields_and_short_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"n;text\n1;{'a,' * 100_000}\n2\n")
    assert [len(text) for _, text in read(file=str(tmp_path / "t.csv"))] == [200_000, 0]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
def test_ids_are_exact_and_none_is_missing(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [{"text": "a", "id": 2**53 + k, "group": None} for k in (0, 1)]
    file = str(write(tmp_path / f"t.{kind}", rows))
    assert [name for name, _ in read(file=file, id="id")] == [str(2**53), str(2**53 + 1)]
    rows[1]["id"] = None
    path = tmp_path / f"n.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, rows)
    with refused("missing") as caught:
        read(file=str(path), id="id")
    assert f"{'line' if kind == 'jsonl' else 'row'} 2 " in str(caught.value)


def test_changed_rows_of_a_local_data_set_are_read_anew(tmp_path: Path) -> None:
    readme = "---\nconfigs: [{config_name: default, data_files: train.jsonl}]\n---\n"
    for folder in ("a/data", "b/data"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "README.md").write_text(readme)
    file = tmp_path / "a/data/train.jsonl"
    for text in ("one", "two"):
        file.write_text(json.dumps({"text": text}))
        os.utime(file, (1e9, 1e9))
        assert [t for _, t in read(hub=str(file.parent))] == [text]
    (tmp_path / "b/data/train.jsonl").write_text('{"text": "three"}')
    assert [t for _, t in read(hub=str(tmp_path / "b/data"))] == ["three"]


def test_rows_that_lack_a_column_are_blank_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS, {"question": "Alone?", "answer": None}, {"question": " ", "answer": ""}]
    path = write(tmp_path / "q.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        texts = [text for _, text in read(file=str(path), template="{question} {answer}")]
    assert texts[2:] == ["", ""]
    assert "left out 1 rows in which a column is null" in caplog.text


names = st.text(st.characters(exclude_characters="{}[]!:.", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names, st.text(min_size=1), min_size=1, max_size=4), st.text())
def test_texts_come_whole_into_the_prompt(row: dict[str, str], between: str) -> None:
    literal = between.replace("{", "{{").replace("}", "}}")
    source = FileTexts(file="t.csv", template=literal.join(f"{{{name}}}" for name in row))
    blank = not any(text.strip() for text in row.values())
    assert prompt_of(row, source) == ("" if blank else between.join(row.values()))


def test_what_is_no_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for name in ("none.txt", "folder.txt", "loop.txt", "x" * 300 + ".txt"):
        with refused("missing_file"):
            read(file=str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content", "spec", "code"),
    [
        ("p.txt", b"", {}, "too_few"),
        ("p.txt", b"One\nTw\xe9o\n", {}, "unreadable"),
        ("p.txt", b"One", {"column": "text2"}, "unknown_name"),
        ("p.jsonl", b'{"text": "One"}\n{"text": ', {}, "unreadable"),
        ("p.jsonl", b'{"txt": "One", "n": 1}', {}, "unknown_name"),
        ("p.jsonl", b'{"text": 3}', {}, "wrong_type"),
        ("p.jsonl", b'{"text": ["a"]}', {}, "wrong_type"),
        ("p.jsonl", b'{"text": "One", "id": 1}', {"id": "ids"}, "unknown_name"),
        ("p.jsonl", b'{"a": "One"}', {"template": "{a} {b}"}, "unknown_name"),
        ("p.jsonl", b"null", {}, "unknown_name"),
        ("p.jsonl", b"[" * 100_000, {}, "unreadable"),
        ("p.jsonl", b'{"text": "One", "text": "Two"}', {}, "unreadable"),
        ("p.json", b'[{"text": "One", "n": {"a": 1, "a": 2}}]', {}, "unreadable"),
        ("p.parquet", b"no parquet", {}, "unreadable"),
    ],
)
def test_broken_files_are_named(
    tmp_path: Path, name: str, content: bytes, spec: dict[str, str], code: Code
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refused(code) as error:
        read(file=str(path), **spec)
    assert name in str(error.value)


# Packages, tasks and the hub


def test_texts_of_a_task() -> None:
    assert read(["a", "b"], task="STS12") == list(of_texts(["a", "b", "a"]))
    # A text keeps its id when the list changes.
    assert dict(of_texts(["a", "b"])).items() <= dict(of_texts(["c", "b", "a"])).items()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as an earlier, online run leaves it in the cache."""
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "quotes"
    folder.mkdir()
    table = pa.table({"quote": ["One", "Two", None], "likes": [1, 2, 3]})
    pq.write_table(table, folder / "train.parquet")
    pq.write_table(table, folder / "test.parquet")
    datasets.load_dataset(str(folder))
    (made,) = [p for p in (cache / "quotes/default/0.0.0").iterdir() if p.is_dir()]
    (cache / "acme___quotes/default/0.0.0").mkdir(parents=True)
    made.rename(cache / "acme___quotes/default/0.0.0" / ("a" * 40))
    return folder


def test_hub_serves_from_the_cache_offline_and_from_a_folder(hub_cache: Path) -> None:
    texts, facts = open_texts(HubTexts(hub="acme/quotes", split="test", column="quote"))
    assert facts["commit"] == "a" * 40
    assert list(texts) == [("0", "One"), ("1", "Two"), ("2", "")]
    folder = HubTexts(hub=str(hub_cache), split="train[:2]", column="quote")
    assert [text for _, text in open_texts(folder)[0]] == ["One", "Two"]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"hub": "acme/nothing"}, "missing_file"),
        ({"column": "quotes"}, "unknown_name"),
        ({"column": "likes"}, "wrong_type"),
        ({"split": "tests"}, "missing_file"),
        ({"name": "defaults"}, "missing_file"),
        ({"revision": "b" * 40}, "mismatch"),
    ],
)
def test_hub_says_what_is_missing(hub_cache: Path, spec: dict[str, str], code: Code) -> None:
    with refused(code):
        read(**{"hub": "acme/quotes", "column": "quote", **spec})


# Filters and samples


def chosen(texts: list[str], n: int | None = None, seed: int = 0, **given: object) -> list[str]:
    filters = Filters(**{"min_tokens": 1, **given})  # type: ignore[arg-type]
    pairs = ((str(i), t) for i, t in enumerate(texts))
    return select(pairs, filters, Sample(n=n, seed=seed))[0]["text"].to_list()


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("", 0),
        (" \n\t", 0),
        ("one", 1),
        ("Two words.", 3),
        ("don't", 3),
        ("3.5 km", 4),
        ("漢字かな", 4),
        ("漢字 and 字", 4),
        ("مرحبا بالعالم", 2),
        ("🙂🙂", 2),
        ("a\0b", 3),
    ],
)
def test_token_count(text: str, n: int) -> None:
    assert count_tokens(text) == n


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        (" = Robert Boulter = \n", True),
        (" = = Career = = ", True),
        ("== Career ==", True),
        (" = a = b = ", True),
        ("= Career", False),
        ("= = Career =", False),
        ("x = 3 = y", False),
        ("=====", False),
        ("= a\nb =", False),
        ("= " * 200_000 + "a" * 200_000, False),
    ],
    ids=lambda value: str(value)[:12],
)
def test_headings(text: str, heading: bool) -> None:
    assert is_heading(text) is heading


def test_filters_and_their_counts() -> None:
    texts = [
        " = Title = ",
        "   ",
        "Two words .",
        "Exactly four words here",
        "Exactly four words here \n",
        "This text has quite a few more words than the others",
        "Half a \ud83d character here",
    ]
    filters = Filters(min_tokens=4, max_tokens=9)
    found, counts = select(zip("abcdefg", texts, strict=True), filters, Sample())
    assert counts == {
        "read": 7,
        "blank": 1,
        "heading": 1,
        "short": 1,
        "long": 1,
        "duplicate": 1,
        "not_sampled": 0,
        "kept": 2,
        "cut": 0,
    }
    assert dict(zip(found["prompt_id"], found["text"], strict=True)) == {
        "d": "Exactly four words here",
        "g": "Half a \ufffd character here",
    }
    assert sorted(found["n_tokens"]) == [4, 5]


def test_longer_texts_are_left_out_or_cut() -> None:
    assert chosen(["One two three.", "One two three four."], max_tokens=4) == ["One two three."]
    assert chosen(["One two, three four."], max_tokens=3, longer="cut") == ["One two,"]
    # Cut texts that become equal are duplicates.
    assert chosen(["a b one", "a b two"], max_tokens=2, longer="cut") == ["a b"]


@given(st.text(), st.integers(1, 20))
def test_cut_is_a_beginning_of_no_more_tokens(text: str, n: int) -> None:
    made = cut(text, n)
    assert text.startswith(made)
    assert count_tokens(made) == min(n, count_tokens(text))


def test_filters_that_leave_nothing_say_why() -> None:
    with refused("too_few"):
        chosen(["= a =", "b"], min_tokens=5)


lists = st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=1, max_size=30)


@given(lists, st.integers(1, 10), st.randoms(use_true_random=False), st.booleans())
def test_samples_grow_and_ignore_the_order_of_the_source(
    texts: list[str], n: int, shuffler: Any, drop: bool
) -> None:
    everything = chosen(texts, drop_duplicates=drop)
    shuffled = texts.copy()
    shuffler.shuffle(shuffled)
    assert chosen(shuffled, n, drop_duplicates=drop) == everything[:n]
    stripped = [text.strip() for text in texts]
    assert Counter(everything) == Counter(set(stripped) if drop else stripped)


def test_a_sample_of_fewer_texts_than_asked_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    texts = [(str(n), f"text number {n}") for n in range(5)]
    for n, said in ((5, False), (None, False), (6, True)):
        caplog.clear()
        select(texts, Filters(min_tokens=0), Sample(n=n))
        warned = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
        assert warned == ["Only 5 prompts are left; sample.n asks for 6"] * said


def test_a_sample_is_random_and_moves_little_when_texts_are_added() -> None:
    texts = [f"text number {i}" for i in range(1000)]
    first, second = set(chosen(texts, 100, 0)), set(chosen(texts, 100, 1))
    assert len(first & second) < 30
    assert 400 < sum(texts.index(text) for text in first) / 100 < 600
    assert len(first & set(chosen(texts[:900], 100))) > 80
    # Copies have keys of their own: they neither come all together nor crowd the others out.
    mixed = ["the same prompt"] * 1000 + texts
    assert 60 < chosen(mixed, 200, drop_duplicates=False).count("the same prompt") < 140


# The files


def corpus_of(folder: Path, texts: list[str], n_views: int = 2, **views: Any) -> tuple[Path, Path]:
    """Files of a corpus and its views, made as the workflow does."""
    (folder / "texts.txt").write_text("\n".join(texts), "utf-8")
    settings = parse(
        CorpusSettings,
        {
            "source": {"file": str(folder / "texts.txt")},
            "filters": {"min_tokens": 1},
            "views": {"n": n_views, "on_failure": "drop", **views},
        },
    )
    corpus, views_path = folder / "c.parquet", folder / "c.views.parquet"
    make_corpus(corpus, "wiki/text", settings, key="abc")
    make_views(views_path, corpus, settings.views, key="def")
    return corpus, views_path


TEXTS = ["several sailors watched it from the harbour", "a b", "rivers carry sand to the ocean"]


def test_files_there_and_back_without_the_prompts_that_have_no_views(tmp_path: Path) -> None:
    corpus, views = corpus_of(tmp_path, TEXTS)
    table, found = prompts.read_corpus(corpus), prompts.read(corpus, views)
    assert sorted(table["text"]) == sorted(TEXTS)
    assert found.name == "wiki/text"
    assert found.ids == [i for i in table["prompt_id"] if i != "1"]
    assert list(found.views[0]) == [text for text in table["text"] if text != "a b"]
    made = pd.read_parquet(views).set_index(["prompt_id", "view"])["text"]
    assert [list(view) for view in found.views[1:]] == [
        [made[prompt_id, number] for prompt_id in found.ids] for number in (1, 2)
    ]
    whole = prompts.read(corpus)
    assert len(whole.ids) == 3
    assert whole.hash != found.hash
    metadata = pq.read_metadata(corpus).metadata
    assert metadata[b"key"] == b"abc"
    assert json.loads(metadata[b"counts"])["kept"] == 3
    source = (tmp_path / "texts.txt").read_bytes()
    assert metadata[b"source_sha256"].decode() == hashlib.sha256(source).hexdigest()


def test_no_views(tmp_path: Path) -> None:
    corpus, views = corpus_of(tmp_path, TEXTS, 0)
    found = prompts.read(corpus, views)
    assert len(found.views) == 1
    assert len(found.ids) == 3


def test_views_of_other_prompts_are_refused(tmp_path: Path) -> None:
    for name, texts in (("one", TEXTS), ("two", TEXTS[:2])):
        (tmp_path / name).mkdir()
        corpus_of(tmp_path / name, texts)
    with refused("mismatch"):
        prompts.read(tmp_path / "one" / "c.parquet", tmp_path / "two" / "c.views.parquet")
    (tmp_path / "three").mkdir()
    with refused("too_few"):
        corpus_of(tmp_path / "three", ["a b"])


@pytest.mark.parametrize("ids", [["a", "a"], ["a\0", "b"], ["", "b"]])
def test_ids_that_cannot_be_stored(tmp_path: Path, ids: list[str]) -> None:
    table = pd.DataFrame({"prompt_id": ids, "text": ["x", "y"], "n_tokens": [1, 1]})
    with refused("duplicate"):
        prompts.write_corpus(tmp_path / "c.parquet", "c", table)


def test_hash_tells_ids_texts_and_their_order_apart() -> None:
    cases = [("ab", "xy"), ("ba", "xy"), ("ab", "yx"), (["ab", "c"], "xy"), ("ab", ["xy", ""])]
    tables = [pd.DataFrame({"prompt_id": list(i), "text": list(t)}) for i, t in cases]
    assert len({prompts.hash_of(table) for table in tables}) == 5


@settings(max_examples=10)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=6))
def test_odd_texts_are_stored_unchanged(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("c") / "c.parquet"
    ids = [str(i) for i in range(len(texts))]
    prompts.write_corpus(path, "c", pd.DataFrame({"prompt_id": ids, "text": texts}))
    assert prompts.read(path).views[0] == texts


# Real texts


def test_wikipedia_reads_as_clean_prose(tmp_path: Path) -> None:
    if not find_spec("gensim"):
        pytest.skip("gensim, whose test data hold the Wikipedia slice, is not installed")
    path = tmp_path / "wikipedia.parquet"
    wikipedia.unpack(path)
    rows = pd.read_parquet(path)
    assert rows["title"].nunique() > 95
    assert len(rows) > 4000
    assert rows["id"].is_unique
    for pattern in (
        r"[{}\[\]|<>\\]",
        r"''",
        r"==",
        r"__",
        r"thumb\|",
        r"\d+px",
        r"https?:",
        r"\n",
        r"  ",
        r"\(\s*\)",
        r"\( ",
        r" \)",
        r" [,;:]",
        r"\b(?:File|Image|Category):",
        r"^[a-z*#:;]",
        r"[^.!?\"”’')]$",
    ):
        found = rows["text"][rows["text"].str.contains(pattern)]
        assert found.empty, (pattern, found.iloc[0])
    albedo = rows[rows["title"] == "Albedo"]["text"].iloc[0]
    assert "is the diffuse reflectivity or reflecting power of a surface." in albedo
    pairs = read(file=str(path), id="id")
    assert len(dict(pairs)) == len(rows)
    assert dict(pairs)["39-0"] == albedo
