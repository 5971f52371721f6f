"""A tag a word: from a CoNLL-style file to the probes of every layer."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from encoding import minilm

from layerwise import probes, tables
from layerwise.activations import embed, words
from layerwise.activations.words import Word
from layerwise.section import parse
from layerwise.config.tasks import LabelledTask
from layerwise.errors import LayerwiseError
from layerwise.models.load import load
from layerwise.tasks import conll, labelled, layout, prompts
from layerwise.tasks.layout import Reading
from layerwise.tasks.texts import read_texts, write_texts

TAGS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "sings": "VERB", "sees": "VERB"}


def sentences(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    nouns = [f"noun{k}" for k in range(30)]
    return [
        [str(rng.choice(["the", "a"])), str(rng.choice(nouns)), "sees", "the", f"thing{k}"]
        for k in range(n)
    ]


def tag(word: str) -> str:
    return TAGS.get(word, "NOUN")


def write(path: Path, rows: list[list[str]]) -> Path:
    """As CoNLL-2003 has them, or CoNLL-U with its comments, ranges and empty nodes."""
    blocks = []
    for words_ in rows:
        if path.suffix == ".conll":
            blocks.append("\n".join(f"{w} x {tag(w)}" for w in words_))
            continue
        lines = ["# sent_id = 1", "1-2\tthedog" + "\t_" * 8]
        lines += [f"{k}\t{w}\tlemma\t{tag(w)}" + "\t_" * 6 for k, w in enumerate(words_, 1)]
        blocks.append("\n".join([*lines, "5.1\tghost" + "\t_" * 8]))
    path.write_text("-DOCSTART- x x\n\n" * (path.suffix == ".conll") + "\n\n".join(blocks) + "\n")
    return path


def entry(file: Path, **given: Any) -> LabelledTask:
    return parse(LabelledTask, {"file": str(file), "kind": "tags", **given})


@pytest.mark.parametrize("name", ["d.conll", "d.conllu"])
def test_both_forms_are_read(tmp_path: Path, name: str) -> None:
    rows = sentences(4)
    found = conll.read(write(tmp_path / name, rows))
    assert [list(s.words) for s in found] == rows
    assert [list(s.tags) for s in found] == [[tag(w) for w in row] for row in rows]


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "d.conll"
    path.write_text("1 The DT B-NP\r\n2 dog NN I-NP\r\n\r\n1 # NN B-NP\n")
    found = conll.read(path, word=2, tag=3)
    assert found == [(("The", "dog"), ("DT", "NN")), (("#",), ("NN",))]


BAD = [
    ("d.conll", b"", r"d\.conll is empty"),
    ("d.conll", b"\n \n-DOCSTART- -X- O\n\n", r"d\.conll is empty"),
    ("d.conll", b"The DT\ndog\n", r"line 2: 1 columns came, and the first line has 2: 'dog'"),
    ("d.conll", b"The\ndog\n", r"line 1: 1 column came, and word and tag are wanted"),
    ("d.conll", b"# text = a\na DT\nb NN\n", r"line 2: 2 columns.*named \.conllu"),
    ("d.conll", b"The\tDT\n\ndog\t \n", r"line 3: the tag is empty"),
    ("d.conll", b"\tDT\n", r"line 1: the word is empty"),
    ("d.conllu", b"1\tThe\n", r"line 1: 2 columns came, and word and tag are wanted in columns 2"),
    ("d.conll", b"\xff\xfe\x00", r"no text in UTF-8 \(byte 0\)"),
    ("d.conll", b"a\0b DT\n", "null bytes"),
    ("d.conll", b"a DT\n" * 30, r"all 30 tags are 'DT'"),
    ("d.conll", b"\n\n".join([b"a DT\nb NN"] * 4), "0 of 2 tags are in 5 or more of 1 sentences"),
    ("d.conll", b"\n\n".join(b"w%d T%d" % (k, k) for k in range(40)), "0 of 40 tags are in 5"),
]


@pytest.mark.parametrize(("name", "content", "said"), BAD)
def test_damaged_files_are_one_sentence(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LayerwiseError, match=said) as told:
        labelled.read(entry(path))
    assert "\n" not in str(told.value) and name in str(told.value)


def test_a_missing_file_and_odd_entries(tmp_path: Path) -> None:
    write(tmp_path / "data.conll", sentences(3))
    with pytest.raises(LayerwiseError, match=r"no file .*dta\.conll.*did you mean 'data\.conll'"):
        labelled.read(entry(tmp_path / "dta.conll"))
    for given, said in (
        ({"file": "d.csv"}, r"files that end in \.conll, \.conllu"),
        ({"kind": "classification", "file": "d.conll"}, r"files that end in \.parquet"),
        ({"label": "tag"}, "label came, which kind tags does not have"),
        ({"kind": "regression", "file": "d.csv", "word": 1}, "word came"),
        ({"word": 2, "tag": 2}, "both column 2"),
        ({"word": 0}, "word"),
    ):
        with pytest.raises(LayerwiseError, match=said):
            parse(LabelledTask, {"file": "d.conll", "kind": "tags", **given})


def test_sentences_are_drawn_whole_and_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "d.conll", sentences(200))
    some, more = (labelled.read(entry(path, sample=n)) for n in (200, 400))
    assert len(some.labels) == 200 and len(more.labels) == 400
    assert more.texts[0][:200] == some.texts[0]
    assert {str(word) for word in some.texts[0]} == set(some.types or ())
    for split in probes.splits(some.labels, some.groups):
        train, test = ({some.groups[row] for row in rows} for rows in (split.fitted, split.test))
        assert test and not train & test


def test_rare_tags_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "d.conll", sentences(50))
    path.write_text(path.read_text() + "\nwow x INTJ\nthe x DET\n")
    with caplog.at_level(logging.WARNING):
        data = labelled.read(entry(path))
    assert len(data.labels) == 251 and "wow" not in (data.types or ())
    assert "1 words are left out, as their tags (INTJ)" in caplog.text


def test_a_rare_class_is_in_every_part() -> None:
    """Twenty sentences of four words; one tag is in five of them, never as the first word."""
    labels = np.zeros(80, int)
    labels[[3, 19, 35, 51, 67]] = 1
    groups = np.arange(80) // 4
    for seed in range(20):
        for split in probes.splits(labels, groups.tolist(), seed):
            assert all(labels[part].sum() for part in (split.train, split.test))


# Vectors of words


def wanted_words(model: Any, tokenizer: Any, rows: list[list[str]], how: str) -> list[Any]:
    """By transformers' own ``word_ids``, sentence by sentence: shape (layers, D) a word."""
    found = []
    for words_ in rows:
        given = tokenizer(words_, is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            states = torch.stack(model(**given, output_hidden_states=True).hidden_states)[:, 0]
        of = given.word_ids()
        for k in range(len(words_)):
            own = states[:, [place for place, word in enumerate(of) if word == k]]
            found.append({"mean": own.mean(1), "cls": own[:, 0], "last_token": own[:, -1]}[how])
    return found


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """An untrained MiniLM, as a folder that is loaded: WordPiece, words of several tokens."""
    model, tokenizer = minilm(trained=False)
    folder = tmp_path_factory.mktemp("minilm")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load("m", tiny.entry(folder), "main", device="cpu"), model, tokenizer


def embedded(loaded: Any, rows: list[Word], readings: list[Reading], **more: Any) -> Any:
    slabs: list[Any] = []
    embed.embed(loaded, rows, lambda _a, _b, s: slabs.append(s), readings=readings, **more)
    return [np.concatenate(own, axis=1) for own in zip(*slabs, strict=True)]


ROWS = [
    ["The", "unbelievably", "tall", "giraffes", "zigzagged", "."],
    ["Yes", "!"],
    ["Électroencéphalographes", "'re", "here", "10", "000", "#"],
]


@pytest.mark.parametrize("budget", [1, 1000])
def test_vectors_are_those_of_a_words_tokens(encoder: Any, budget: int) -> None:
    loaded, model, tokenizer = encoder
    given = [word for row in ROWS for word in words.words_of(row)]
    poolings = ["mean", "cls", "last_token"]
    found = embedded(loaded, given, [Reading("all", p) for p in poolings], budget=budget)
    for pooling, slab in zip(poolings, found, strict=True):
        wanted = torch.stack(wanted_words(model, tokenizer, ROWS, pooling), dim=1)
        np.testing.assert_allclose(slab, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "mamba2"])
def test_words_of_decoders(family: str, tmp_path: Path) -> None:
    """Bytes in pairs: a word's tokens are those whose text is in it, the space before aside."""
    loaded = load("m", tiny.entry(tiny.save(family, tmp_path / family)), "main", device="cpu")
    rows = [text.split() for text in tiny.texts(3)]
    given = [word for row in rows for word in words.words_of(row)]
    _, places = words.spans(loaded, given)
    for word, (number, start, stop) in zip(given, places, strict=True):
        ids = loaded.tokenizer(" ".join(rows[number]))["input_ids"]
        assert loaded.tokenizer.decode(ids[start:stop]).strip() == str(word)
    (all_, without) = embedded(loaded, given, [Reading("all"), Reading("drop_first")])
    first = [k for k, word in enumerate(given) if word.start == 0]
    others = np.setdiff1d(np.arange(len(given)), first)
    np.testing.assert_array_equal(all_[:, others], without[:, others])
    assert not np.allclose(all_[:, first], without[:, first])


def test_a_prompt_moves_the_words(encoder: Any) -> None:
    loaded, model, tokenizer = encoder
    given = words.words_of(ROWS[0])
    (found,) = embedded(loaded, given, [Reading()], prompts=["tag this : "] * 6)
    wanted = wanted_words(model, tokenizer, [["tag", "this", ":", *ROWS[0]]], "mean")[3:]
    np.testing.assert_allclose(found, torch.stack(wanted, dim=1), rtol=1e-4, atol=1e-5)


def test_words_that_are_cut_off_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.save("llama", tmp_path / "m")
    loaded = load("m", tiny.entry(folder, max_length=8), "main", device="cpu")
    given = words.words_of(tiny.SENTENCE.split())
    (found,) = embedded(loaded, given, [Reading()])
    n = int((~found.any(axis=(0, 2))).sum())
    assert n > 5 and f"{n} of {len(given)} words have no token" in caplog.text
    assert "1 of 1 texts are longer than 8 tokens" in caplog.text


def test_a_tokenizer_without_offsets_is_refused(
    encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = encoder[0]
    monkeypatch.setattr(type(loaded.tokenizer), "is_fast", False, raising=False)
    with pytest.raises(LayerwiseError, match=r"words cannot be told apart; take a model with"):
        embedded(loaded, words.words_of(ROWS[0]), [Reading()])


def test_a_model_of_images_is_refused(encoder: Any) -> None:
    seeing = replace(encoder[0], images=object(), tokenizer=None)
    with pytest.raises(LayerwiseError, match="takes images, and texts came"):
        embedded(seeing, words.words_of(ROWS[0]), [Reading()])


# Scores


def test_the_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = entry(write(tmp_path / "d.conll", sentences(30)))
    asked = labelled.texts_of("mine", task)
    write_texts(tmp_path / "t.parquet", asked)
    assert read_texts(tmp_path / "t.parquet") == asked
    assert len(prompts.pairs(asked, {})) == 150


def test_selectivity_is_of_word_types(tmp_path: Path) -> None:
    """Of vectors that only name the word, a random label a type is learned as well as the tag is.
    Of vectors that hold the tag alone, the control does no better than a guess."""
    rng = np.random.default_rng(0)
    rows = [
        [f"w{k}" for k in rng.integers(0, 40, size=6)] + [f"once{number}"] for number in range(150)
    ]
    path = tmp_path / "d.conll"
    path.write_text("\n\n".join("\n".join(f"{w} T{hash_of(w)}" for w in row) for row in rows))
    task = entry(path)
    data = labelled.read(task)
    types = np.unique(data.types or [], return_inverse=True)[1]
    names = rng.normal(size=(types.max() + 1, 64))[types]
    holds = np.eye(3)[data.labels] + 0.1 * rng.normal(size=(len(types), 3))
    vectors = np.zeros((2, len(types), 64), np.float32)
    vectors[0], vectors[1, :, :3] = names, holds
    keys = [prompts.key_of("", word) for word in data.texts[0]]
    path = tmp_path / "e.h5"
    with layout.create(
        path, readings=[Reading()], n_layers=2, texts_keys=keys, hidden=64,
        attributes={"model": "m", "revision": "main", "task": "mine"},
    ) as file:  # fmt: skip
        layout.fill(file, range(len(keys)), [vectors])
    found = {name: tmp_path / f"{name}.parquet" for name in ("scores", "probes")}
    labelled.score_labelled(path, "mine", task, found)
    scores, probed = (tables.read(found[name], name) for name in ("scores", "probes"))
    assert set(scores["task_type"]) == {"Tagging"} and scores["chance"].notna().all()
    by_heart, by_tag = probed["control"]
    assert by_heart > 0.7 and by_tag < 0.55
    assert probed["linear"][1] > 0.98 and probed["selectivity"][1] > 0.45
    assert probed["selectivity"][0] < 0.2
    assert (scores["score_low"] < scores["main_score"]).all()


def hash_of(word: str) -> int:
    return 0 if word.startswith("once") else int(word[1:]) % 3


def test_a_control_of_one_label_is_no_error() -> None:
    """Two types, a label that is nearly all: both types mostly draw the same."""
    rng = np.random.default_rng(0)
    labels = np.r_[np.ones(8, int), np.zeros(92, int)]
    types = ["a", "b"] * 50
    found = probes.probe(
        rng.normal(size=(100, 3)), labels, probes.splits(labels), types=types
    )  # fmt: skip
    assert 0.5 < found.control <= 1


def test_scores_go_through_the_commands_tables(encoder: Any, tmp_path: Path) -> None:
    """The words of a file, embedded by a model, scored: a row a layer, each with an interval."""
    loaded = encoder[0]
    task = entry(write(tmp_path / "d.conllu", sentences(25)))
    asked = labelled.texts_of("mine", task)
    (vectors,) = embedded(loaded, asked.texts, [Reading()])
    data = labelled.read(task)
    found = [labelled.layer_score(data, [layer]) for layer in vectors[[0, -1]]]
    assert all(one.score is not None and one.score > 0.6 for one in found)
    assert all(one.n == 125 and one.low < one.score <= one.high + 1e-9 for one in found)
