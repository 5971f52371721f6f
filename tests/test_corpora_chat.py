"""Prompts over several columns, and chats: from the table to the model's tokens."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from layerwise.activations.extract import extract
from layerwise.activations.store import Activations
from layerwise.config.base import parse
from layerwise.config.corpora import (
    CorpusSettings,
    FileTexts,
    Filters,
    HubTexts,
    Sample,
    ViewSettings,
)
from layerwise.config.extraction import ExtractSettings
from layerwise.corpora import chat
from layerwise.corpora.augment import augment
from layerwise.corpora.filters import count_tokens, select
from layerwise.corpora.rows import Prompts, parts_of
from layerwise.corpora.sources import open_source
from layerwise.corpora.table import Corpus, read_corpus, write_corpus
from layerwise.errors import LayerwiseError
from layerwise.models.load import load

ROWS = [
    {"question": "What is two and two?", "answer": "Four.", "n": 1},
    {"question": "Why {so}?", "answer": "Because.", "n": 2},
]
TALK = [
    {"role": "user", "content": "Hello over there"},
    {"role": "assistant", "content": "Good day"},
]


def json_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def read(path: Path, **how: Any) -> list[str]:
    settings = parse(CorpusSettings, {"source": {"file": str(path), **how}}, "corpora.c")
    return [text for _, text in open_source(settings.source)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
def test_template_is_filled_from_the_columns(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "Q: {question}\nA: {answer} {{as it is}}"
    if kind == "jsonl":
        found = read(json_lines(tmp_path / "q.jsonl", ROWS), template=template)
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "train.parquet")
        if kind == "parquet":
            found = read(tmp_path / "train.parquet", template=template)
        else:
            import datasets

            monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
            source = HubTexts(hub=str(tmp_path), template=template)
            found = [text for _, text in open_source(source)]
    assert found == [template.format(**row) for row in ROWS]
    assert found[1] == "Q: Why {so}?\nA: Because. {as it is}"


names = st.text(st.characters(exclude_characters="{}[]!:.", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names, st.text(min_size=1), min_size=1, max_size=4), st.text())
def test_texts_come_whole_into_the_prompt(row: dict[str, str], between: str) -> None:
    literal = between.replace("{", "{{").replace("}", "}}")
    prompts = Prompts(template=literal.join(f"{{{name}}}" for name in row))
    blank = not any(text.strip() for text in row.values())
    assert prompts.of(row, "here") == ("" if blank else between.join(row.values()))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"template": "no column"}, "it names no column; accepted is a text such as"),
        ({"template": "Q: {question"}, "accepted are columns in braces"),
        ({"template": "{}"}, "the name of a column and nothing else"),
        ({"template": "{a!r}"}, "the name of a column and nothing else"),
        ({"template": "{a:>9}"}, "the name of a column and nothing else"),
        ({"template": "{a}", "column": "b"}, "column and template came; accepted is one of them"),
        ({"template": "{a}", "chat": "b"}, "template and chat came; accepted is one of them"),
        ({"chat": [{"role": "usr", "content": "{a}"}]}, "(did you mean 'user'?)"),
        ({"chat": [{"role": "user", "content": "a"}]}, "it names no column"),
        ({"chat": []}, "no messages came in chat"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(source: dict[str, Any], said: str) -> None:
    with pytest.raises(LayerwiseError) as error:
        parse(CorpusSettings, {"source": {"file": "a.jsonl", **source}}, "corpora.c")
    assert said in str(error.value)
    assert "corpora.c.source" in str(error.value)


def test_chats_are_not_cut() -> None:
    given_ = {
        "source": {"hub": "a/b", "chat": "m"},
        "filters": {"max_tokens": 50, "longer": "cut"},
    }
    with pytest.raises(
        LayerwiseError, match="longer: cut came with a chat; accepted there is drop"
    ):
        parse(CorpusSettings, given_, "corpora.c")


@pytest.mark.parametrize(
    ("row", "how", "said"),
    [
        (
            ROWS[0],
            {"template": "{question} {anser}"},
            "no column 'anser' (did you mean 'answer'?)",
        ),
        (ROWS[0], {"template": "{question} {n}"}, "'n' holds int '1', not text"),
        (ROWS[0], {"chat": "answer"}, "'answer' holds str 'Four.', not messages"),
        ({"m": ["hi"]}, {"chat": "m"}, "a list of objects with the keys role and content"),
        ({"m": [{"from": "user"}]}, {"chat": "m"}, "the keys role and content"),
        ({"m": [{"role": "user", "content": 3}]}, {"chat": "m"}, "'m: content' holds int '3'"),
        (ROWS[0], {"chat": [{"role": "user", "content": "{quest}"}]}, "no column 'quest'"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_wrong_rows_are_named(
    tmp_path: Path, row: Any, how: dict[str, Any], said: str, kind: str
) -> None:
    path = tmp_path / f"q.{kind}"
    if kind == "jsonl":
        json_lines(path, [row])
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(LayerwiseError) as error:
        read(path, **how)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_rows_that_lack_something_are_blank_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS, {"question": "Alone?", "answer": None}, {"question": " ", "answer": ""}]
    path = json_lines(tmp_path / "q.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        found = read(path, template="Q: {question} A: {answer}")
    assert found[2:] == ["", ""]
    assert "1 rows without 'answer'" in caplog.text
    talks = [TALK, None, [], [{"role": "assistant", "content": None}]]
    path = json_lines(tmp_path / "m.jsonl", [{"m": talk} for talk in talks])
    assert read(path, chat="m") == [chat.dump(TALK), "", "", ""]


def test_plain_text_has_no_template(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("text\n")
    with pytest.raises(LayerwiseError, match="plain text and has no columns"):
        read(tmp_path / "p.txt", template="{text}")


def test_files_made_before_keep_their_key() -> None:
    plain = FileTexts(file="a.jsonl", column="b")
    assert not {"template", "chat"} & set(plain.keyed())
    assert plain.model_copy(update={"template": "{a}"}).keyed()["template"] == "{a}"


# Chats


def chats(tmp_path: Path, rows: list[Any], **how: Any) -> Corpus:
    """A corpus as the workflow makes it: through the file."""
    path = json_lines(tmp_path / "m.jsonl", rows)
    opened = open_source(parse(CorpusSettings, {"source": {"file": str(path), **how}}).source)
    chosen = select(opened, Filters(min_tokens=3), Sample(), words=opened.words)
    made = Corpus("talk", chosen.prompt_ids, chosen.texts, chosen.n_tokens)
    write_corpus(tmp_path / "talk.parquet", made, **opened.facts)
    return read_corpus(tmp_path / "talk.parquet")


def test_chat_is_the_same_from_messages_and_from_columns(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "{q}"}, {"role": "assistant", "content": "{a}"}]
    one = chats(tmp_path, [{"m": TALK}], chat="m")
    other = chats(tmp_path, [{"q": "Hello over there", "a": "Good day"}], chat=turns)
    assert one.texts == other.texts
    assert one.is_chat
    assert chat.load(one.texts[0]) == TALK
    # Roles and JSON are no words.
    assert one.n_tokens == [count_tokens("Hello over there Good day")]


def test_views_of_a_chat_change_contents_alone(tmp_path: Path) -> None:
    said = "several sailors watched another enormous vessel leaving harbour yesterday morning"
    talk = [
        {"role": "system", "content": ""},
        {"role": "user", "content": said},
        {"role": "assistant", "content": said.upper()},
    ]
    corpus = chats(tmp_path, [{"m": talk}], chat="m")
    (views,) = augment(corpus, ViewSettings(n=3))
    assert views is not None and len(set(views)) == 3
    for view in views:
        made = chat.load(view)
        assert [m["role"] for m in made] == ["system", "user", "assistant"]
        assert made[0]["content"] == ""
        assert all(a["content"] != b["content"] for a, b in zip(made[1:], talk[1:], strict=True))


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
)


def test_model_reads_what_its_chat_template_writes(tmp_path: Path) -> None:
    loaded = load("m", tiny.entry(tiny.save("llama", tmp_path / "m")), "main", device="cpu")
    corpus = chats(tmp_path, [{"m": TALK}, {"m": [*TALK, *TALK]}], chat="m")

    def run(texts: list[str]) -> dict[str, Any]:
        extract(
            loaded, corpus="talk", prompts=corpus.prompt_ids, views=[texts], target=path,
            settings=ExtractSettings(), attributes={}, is_chat=True,
        )  # fmt: skip
        with Activations(path) as file:
            return {**file.attributes, "pooled": file.pooled("paper", "all", 0)}

    path = tmp_path / "a.h5"
    with pytest.raises(LayerwiseError, match="'m' has no chat template, and the corpus holds"):
        run(corpus.texts)
    loaded.tokenizer.chat_template = TEMPLATE
    found = run(corpus.texts)
    assert found["special_tokens"] == "false"
    assert len(found["chat_template_sha256"]) == 64
    table = loaded.model.get_input_embeddings().weight
    for text, pooled in zip(corpus.texts, found["pooled"], strict=True):
        ids = loaded.tokenizer.apply_chat_template(chat.load(text), return_dict=False)
        assert len(ids) > 10
        assert pooled == pytest.approx(table[ids].mean(dim=0).numpy(), rel=1e-5, abs=1e-6)
    with pytest.raises(LayerwiseError, match=r"refuses .* \(no system here\)"):
        run([chat.dump([{"role": "system", "content": "x"}])])


def test_pieces_of_a_template() -> None:
    assert parts_of("a{b}c{d e}{{}}") == [("a", "b"), ("c", "d e"), ("{", None), ("}", None)]
