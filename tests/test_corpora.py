"""Texts: Wikipedia without its markup, sources, filters, samples and the corpus' file."""

from __future__ import annotations

import bz2
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerwise.section import parse
from layerwise.config.corpora import CorpusSettings, Filters, HubTexts, Sample
from layerwise.corpora import local, packages, wikipedia
from layerwise.corpora.filters import count_tokens, cut, is_heading, mend, select
from layerwise.corpora.sources import of_texts, open_source
from layerwise.corpora.table import (
    Corpus,
    read_corpus,
    read_prompts,
    write_corpus,
    write_views,
)
from layerwise.corpora.wikimarkup import paragraphs
from layerwise.errors import LayerwiseError

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
WIKITEXT = SHARED / "texts" / "wikitext-103-validation.parquet"


# Wikipedia's markup


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Oak''' is a ''tree''.", "Oak is a tree."),
        ("An [[oak (tree)|oak]] is a [[tree]]s.", "An oak is a trees."),
        ("A planet, [[Mercury (planet)|]].", "A planet, Mercury."),
        ("See [[:Category:Trees]] now.", "See Category:Trees now."),
        ("Oaks grow.<ref name=a>{{cite book|title=[[X]]}}</ref><ref name=a/> Slowly.",
         "Oaks grow. Slowly."),
        ("[[File:Oak.jpg|thumb|left|200px|An [[oak]], ''old''.]]\nOaks grow.", "Oaks grow."),
        ("Oaks grow. [[Category:Trees]] [[de:Eiche]]", "Oaks grow."),
        ("Oak <!-- not\n\n an --> tree.", "Oak tree."),
        ("It weighs {{convert|30|kg|lb}} or {{convert|3|-|4|sqmi|km2}}.",
         "It weighs 30 kg or 3–4 square miles."),
        ("It has {{convert|1481321.50|sqmi}}.", "It has 1,481,321.50 square miles."),
        ("It is so.{{citation needed|date=May 2015}} And so{{sfn|Lee|2001|p=3}} on.",
         "It is so. And so on."),
        ("Athens ({{lang-el|Αθήνα}}; [[help]]) is a city.", "Athens is a city."),
        ("The ''{{lang|la|albedo}}'' is white.", "The albedo is white."),
        ("Oak ( {{nbsp}}, or ) grows (slowly ; ).", "Oak grows (slowly)."),
        ("Salt&nbsp;water&mdash;2 &times; 3 litres.", "Salt water—2 × 3 litres."),
        ("About 10<sup>6</sup> on the 4<sup>th</sup> of H<sub>2</sub>O.",
         "About 10^6 on the 4th of H2O."),
        ("See [http://example.org the page] now [http://example.org].", "See the page now."),
        ("__NOTOC__\nOaks grow.", "Oaks grow."),
        ("{{Infobox\n| a = [[b]]\n}}\nOaks grow.", "Oaks grow."),
        ("Oaks\ngrow.", "Oaks grow."),
        ("* in woods\n* in parks\nOaks grow.\n* in towns", "Oaks grow."),
        ("Since {{as of|2014|lc=y}} it is. {{As of|2015}} too.",
         "Since as of 2014 it is. As of 2015 too."),
    ],
)  # fmt: skip
def test_markup_reads_as_on_the_page(markup: str, text: str) -> None:
    assert paragraphs(markup) == [text]


@pytest.mark.parametrize(
    "markup",
    [
        "== Oaks grow. ==",
        "* Oaks grow.\n* And fall.",
        "# Oaks grow.",
        ": Oaks grow.",
        "; Oaks grow.",
        '{| class="wikitable"\n! Oaks\n|-\n| Oaks grow.\n|}',
        "<gallery>\nFile:Oak.jpg|Oaks grow.\n</gallery>",
        "The energy is <math>mc^2</math> there.",
        "The energy is\n<math>mc^2</math>\nthere, he said.",
        "The age is {{age|1950|1|1}} years.",
        "A {{convert|67|in|cm|adj=on}} probe.",
        "Oaks grow at https://example.org today.",
        "The following oaks grow:",
        "an unfinished quotation goes on.",
        "#REDIRECT [[Oak]]",
    ],
)
def test_what_is_no_whole_prose_is_left_out(markup: str) -> None:
    assert paragraphs(f"{markup}\n\nTrees grow.") == ["Trees grow."]


def test_end_matter_is_left_out_with_its_subsections() -> None:
    markup = (
        "One here.\n==References==\nTwo here.\n===Printed===\nThree here.\n"
        "== History ==\nFour here.\n=== Notes ===\nFive here.\n=== Later ===\nSix here."
    )
    assert paragraphs(markup) == ["One here.", "Four here.", "Six here."]


@pytest.fixture(scope="session")
def wikipedia_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not packages.find_spec("gensim"):
        pytest.skip("gensim, whose test data hold the Wikipedia slice, is not installed")
    path = tmp_path_factory.mktemp("texts") / "wikipedia.parquet"
    wikipedia.unpack(path)
    return path


def test_wikipedia_slice_reads_as_clean_prose(wikipedia_table: Path) -> None:
    rows = pq.read_table(wikipedia_table).to_pydict()
    texts = rows["text"]
    assert len(set(rows["article_id"])) > 95
    assert len(texts) > 4000
    assert len(set(zip(rows["article_id"], rows["paragraph"], strict=True))) == len(texts)
    for pattern in (
        r"[{}\[\]|<>\\]", r"''", r"==", r"__", r"&\w+;", r"thumb\|", r"\d+px", r"https?:",
        r"\n", r"  ", r"\(\s*\)", r"\( ", r" \)", r" [,;:]", r"\b(File|Image|Category):",
        r"[\ue000-\uf8ff\ufffd]", r"^[a-z*#:;]", r"[^.!?\"”’')]$",
    ):  # fmt: skip
        found = [t for t in texts if re.search(pattern, t)]
        assert not found, (pattern, found[0])
    by_title: dict[str, list[str]] = {}
    for title, text in zip(rows["title"], texts, strict=True):
        by_title.setdefault(title, []).append(text)
    assert by_title["Albedo"][0] == (
        'Albedo or reflection coefficient, derived from Latin albedo "whiteness" (or reflected '
        'sunlight) in turn from albus "white", is the diffuse reflectivity or reflecting power of '
        "a surface."
    )
    assert (
        "At 481,321 square miles, Angola is the world's twenty-third largest country. It is "
        "comparable in size to Mali, or twice the size of France or Texas. It lies mostly between "
        "latitudes 4° and 18°S, and longitudes 12° and 24°E."
    ) in by_title["Angola"]


def export(*pages: str) -> bytes:
    body = "".join(pages)
    return bz2.compress(
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{body}</mediawiki>'.encode()
    )


def page(number: int, text: str, ns: int = 0, more: str = "") -> str:
    return (
        f"<page><title>T{number}</title><ns>{ns}</ns><id>{number}</id>{more}"
        f"<revision><id>{number + 100}</id><text>{text}</text></revision></page>"
    )


def test_redirects_and_other_namespaces_are_no_articles(tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml.bz2"
    dump.write_bytes(
        export(
            page(1, "One here."),
            page(2, "Two here.", more='<redirect title="T1"/>'),
            page(3, "Three here.", ns=4),
            page(4, "Four here.\n\nFive here."),
        )
    )
    assert wikipedia.unpack(tmp_path / "out.parquet", dump) == 3
    rows = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert rows["article_id"] == [1, 4, 4]
    assert rows["paragraph"] == [0, 0, 1]
    assert rows["title"] == ["T1", "T4", "T4"]


@pytest.mark.parametrize("content", [b"", b"no bzip2", export(page(1, "One here."))[:-20]])
def test_damaged_dump_is_named(tmp_path: Path, content: bytes) -> None:
    dump = tmp_path / "dump.xml.bz2"
    dump.write_bytes(content)
    with pytest.raises(LayerwiseError, match=r"dump\.xml\.bz2"):
        wikipedia.unpack(tmp_path / "out.parquet", dump)
    assert not (tmp_path / "out.parquet").exists()


# Filters and samples


def chosen(texts: list[str], n: int | None = None, seed: int = 0, **given: object) -> list[str]:
    keep = Filters(**{"min_tokens": 1, **given})  # type: ignore[arg-type]
    pairs = ((str(i), t) for i, t in enumerate(texts))
    return select(pairs, keep, Sample(n=n, seed=seed)).texts


@pytest.mark.parametrize(
    ("text", "n"),
    [("", 0), (" \n\t", 0), ("one", 1), ("Two words.", 3), ("don't", 3), ("3.5 km", 4),
     ("漢字かな", 4), ("漢字 and 字", 4), ("مرحبا بالعالم", 2), ("🙂🙂", 2), ("a\0b", 3)],
)  # fmt: skip
def test_token_count(text: str, n: int) -> None:
    assert count_tokens(text) == n


@pytest.mark.parametrize(
    ("text", "heading"),
    [(" = Robert Boulter = \n", True), (" = = Career = = ", True), ("== Career ==", True),
     (" = = = 2000 – 2005 = = = \n", True), ("=A=", True), (" = a = b = ", True),
     ("= Career", False), ("= = Career =", False), ("x = 3 = y", False), ("=====", False),
     ("= a\nb =", False), ("The end = here", False)],
)  # fmt: skip
def test_headings(text: str, heading: bool) -> None:
    assert is_heading(text) is heading


def test_heading_test_takes_no_time_on_hostile_text() -> None:
    assert not is_heading("= " * 200_000 + "a" * 200_000)


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
    made = select(
        zip("abcdefg", texts, strict=True), Filters(min_tokens=4, max_tokens=9), Sample()
    )
    assert made.counts == {
        "read": 7, "blank": 1, "heading": 1, "short": 1, "long": 1, "duplicate": 1,
        "not_sampled": 0, "kept": 2, "cut": 0, "mended": 1,
    }  # fmt: skip
    assert dict(zip(made.prompt_ids, made.texts, strict=True)) == {
        "d": "Exactly four words here",
        "g": "Half a \ufffd character here",
    }
    assert sorted(made.n_tokens) == [4, 5]


def test_longer_texts_are_left_out_or_cut_after_so_many_tokens() -> None:
    assert chosen(["One two three.", "One two three four."], max_tokens=4) == ["One two three."]
    assert chosen(["One two, three four."], max_tokens=3, longer="cut") == ["One two,"]
    assert cut("one", 3) == "one"


@given(st.text(), st.integers(1, 20))
def test_cut_is_a_beginning_of_no_more_tokens(text: str, n: int) -> None:
    made = cut(text, n)
    assert text.startswith(made)
    assert count_tokens(made) == min(n, count_tokens(text))


def test_cut_texts_that_become_equal_are_duplicates() -> None:
    texts = ["same start one", "same start two"]
    assert chosen(texts, max_tokens=2, longer="cut") == ["same start"]


def test_headings_and_duplicates_stay_when_asked() -> None:
    texts = ["= a =", "b c d", "b c d"]
    assert Counter(chosen(texts, drop_headings=False, drop_duplicates=False)) == Counter(texts)


def test_filters_left_nothing_says_why() -> None:
    with pytest.raises(LayerwiseError, match=r"2 texts.*1 heading, 1 short.*min_tokens"):
        chosen(["= a =", "b"], min_tokens=5)


words = st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=1, max_size=30)


@given(words, st.integers(1, 10), st.integers(0, 3))
def test_larger_samples_begin_with_the_smaller(texts: list[str], n: int, seed: int) -> None:
    everything = chosen(texts, None, seed)
    assert chosen(texts, n, seed) == everything[:n]
    assert Counter(everything) == Counter({t.strip() for t in texts})


@given(words, st.integers(1, 10), st.randoms(use_true_random=False), st.booleans())
def test_sample_is_independent_of_the_sources_order(
    texts: list[str], n: int, shuffler: object, drop: bool
) -> None:
    other = texts.copy()
    shuffler.shuffle(other)  # type: ignore[attr-defined]
    assert chosen(texts, n, drop_duplicates=drop) == chosen(other, n, drop_duplicates=drop)


def test_sample_depends_on_the_seed_and_is_no_fixed_part_of_the_source() -> None:
    texts = [f"text number {i}" for i in range(1000)]
    first, second = set(chosen(texts, 100, 0)), set(chosen(texts, 100, 1))
    assert len(first & second) < 30
    numbers = [texts.index(t) for t in first]
    assert 400 < sum(numbers) / 100 < 600


def test_adding_texts_displaces_few_of_a_sample() -> None:
    texts = [f"text number {i}" for i in range(1000)]
    assert len({*chosen(texts, 100)} & {*chosen(texts[:900], 100)}) > 80


def test_the_same_prompt_a_thousand_times() -> None:
    same = ["the same prompt"] * 1000
    assert chosen(same) == ["the same prompt"]
    assert len(chosen(same, drop_duplicates=False)) == 1000
    # Copies have keys of their own: they neither come all together nor crowd the others out.
    mixed = same + [f"another {i}" for i in range(1000)]
    copies = chosen(mixed, 200, drop_duplicates=False).count("the same prompt")
    assert 60 < copies < 140


@pytest.mark.parametrize(
    "text",
    [
        "a\0b c",
        "مرحبا بالعالم",
        "🙂 👩‍👩‍👧 ok",
        "one",
        "e\u0301te\u0301",
        "a\u2028b",
        "word " * 200_000,
    ],
    ids=["nul", "right-to-left", "emoji", "one token", "combining", "line separator", "megabyte"],
)
def test_odd_texts_come_through_unchanged(tmp_path: Path, text: str) -> None:
    made = select([("x", text)], Filters(min_tokens=1), Sample())
    path = tmp_path / "c.parquet"
    write_corpus(path, Corpus("c", made.prompt_ids, made.texts, made.n_tokens))
    assert read_corpus(path).texts == [text.strip()]


@given(st.text(st.characters(), max_size=20))
def test_mended_text_has_utf8_and_differs_only_in_surrogates(text: str) -> None:
    made = mend(text)
    made.encode()
    assert [a for a, b in zip(text, made, strict=True) if a != b] == [
        c for c in text if "\ud800" <= c <= "\udfff"
    ]


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"filters": {"min_token": 3}}, "unknown key 'min_token' (did you mean 'min_tokens'?)"),
        ({"filters": {"min_tokens": -1}}, "corpora.c.filters.min_tokens: -1 came"),
        ({"filters": {"min_tokens": True}}, "min_tokens: true came"),
        ({"filters": {"max_tokens": 10}}, "at least min_tokens, which is 30"),
        ({"filters": {"longer": "cuts"}}, "did you mean 'cut'?"),
        ({"filters": {"drop_headings": "yes"}}, 'drop_headings: "yes" came'),
        ({"sample": {"n": 0}}, "sample.n: 0 came"),
        ({"sample": {"seed": 1.5}}, "sample.seed: 1.5 came"),
        ({"views": {"sed": 3}}, "did you mean 'seed'?"),
        ({"views": {"n": -1}}, "views.n: -1 came"),
        ({"views": {"n": 2.0}}, "views.n: 2.0 came"),
        ({"views": {"p": 0}}, "views.p: 0 came"),
        ({"views": {"p": 1.1}}, "views.p: 1.1 came"),
        ({"views": {"cap": 0}}, "views.cap: 0 came"),
        ({"views": {"actions": []}}, "at least 1 is needed"),
        ({"views": {"actions": "swap"}}, "accepted is array"),
        ({"views": {"actions": ["swop"]}}, "did you mean 'swap'?"),
        ({"views": {"on_failure": "skip"}}, 'accepted are "error", "drop"'),
        ({"source": {}}, "one of the keys hub, file, package, task"),
        ({"source": {"fil": "a.txt"}}, "(did you mean 'file'?)"),
        ({"source": {"file": "a.txt", "hub": "a/b"}}, "unknown key 'file'"),
        ({"source": {"file": "a.txt", "colum": "x"}}, "(did you mean 'column'?)"),
        ({"source": {"file": "a.csv"}}, "files that end in .parquet, .jsonl, .ndjson, .txt"),
        ({"source": {"file": 3}}, "source.file: 3 came"),
        ({"source": {"task": ""}}, "at least 1 character"),
        ({"source": {"package": "lees"}}, "did you mean 'lee'?"),
    ],
)
def test_wrong_settings_are_named(given_: dict[str, object], said: str) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        parse(CorpusSettings, {"source": {"package": "lee"}} | given_, "corpora.c")


def test_defaults_are_the_papers_and_the_librarys() -> None:
    made = parse(CorpusSettings, {"source": {"package": "lee"}})
    assert made.filters.min_tokens == 30
    # nlpaug's own, which the paper says it uses.
    assert (made.views.cap, made.views.p, made.views.actions) == (10, 0.3, ("substitute",))
    assert parse(CorpusSettings, made.plain()) == made


# Sources


def read(spec: dict[str, str], path: Path | None = None) -> list[tuple[str, str]]:
    return list(open_source(parse(CorpusSettings, {"source": spec}).source, path))


def test_text_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffOne é\r\n\nThree\u2028here\n".encode())
    assert read({"file": str(path)}) == [("0", "One é"), ("1", ""), ("2", "Three\u2028here")]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"q": "One", "n": 7}\n\n{"q": null, "n": "b"}\n')
    assert read({"file": str(path), "column": "q", "id": "n"}) == [("7", "One"), ("b", "")]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"text": ["One", None], "id": [5, 6]}), path)
    assert read({"file": str(path)}) == [("0", "One"), ("1", "")]
    assert read({"file": str(path), "id": "id"}) == [("5", "One"), ("6", "")]
    assert local.read_file(path).total == 2


@pytest.mark.parametrize(
    ("name", "content", "spec", "said"),
    [
        ("p.txt", b"", {}, "p.txt is empty"),
        ("p.txt", b"One\nTw\xe9o\n", {}, "line 2 has the byte 0xe9 in place 3"),
        ("p.txt", b"One", {"column": "text2"}, "plain text and has no columns"),
        ("p.jsonl", b'{"text": "One"}\n{"text": ', {}, "line 2: not JSON"),
        ("p.jsonl", b'["One"]', {}, "line 1: a list, not an object"),
        ("p.jsonl", b'{"txt": "One", "n": 1}', {},
         "no column 'text' (did you mean 'txt'?); there are 'txt', 'n'"),
        ("p.jsonl", b'{"text": 3}', {}, "'text' holds int '3', not text"),
        ("p.jsonl", b'{"text": "One", "id": 1.5}', {"id": "id"}, "the id in 'id' is 1.5"),
        ("p.parquet", b"no parquet", {}, "cut off or no parquet file"),
    ],
)  # fmt: skip
def test_broken_files_are_named(
    tmp_path: Path, name: str, content: bytes, spec: dict[str, str], said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        read({"file": str(path), **spec})


def test_parquet_without_the_column_names_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"sentence": ["One"], "label": [5]}), path)
    with pytest.raises(LayerwiseError, match=r"did you mean 'sentence'.*'sentence', 'label'"):
        read({"file": str(path), "column": "sentences"})
    with pytest.raises(LayerwiseError, match="'label' holds int '5', not text"):
        read({"file": str(path), "column": "label"})


def test_missing_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("One")
    with pytest.raises(LayerwiseError, match=r"no file .*prompt\.txt.*did you mean 'prompts.txt'"):
        read({"file": str(tmp_path / "prompt.txt")})
    with pytest.raises(LayerwiseError, match="is a folder"):
        local.read_file(tmp_path)


def test_sources_made_of_a_file_need_its_path() -> None:
    for spec in ({"task": "STS12"}, {"package": "wikipedia"}):
        with pytest.raises(LayerwiseError, match="give its path"):
            read(spec)
    with pytest.raises(LayerwiseError, match=r"no table of paragraphs nowhere\.parquet"):
        read({"package": "wikipedia"}, Path("nowhere.parquet"))


def test_packages(wikipedia_table: Path) -> None:
    news = read({"package": "lee"})
    assert len(news) == 50
    assert news[0][0] == "lee-0"
    assert sum("£3,000" in text for _, text in news) == 1
    assert len(read({"package": "lee_background"})) == 300
    found = read({"package": "wikipedia"}, wikipedia_table)
    assert len({prompt_id for prompt_id, _ in found}) == len(found)
    assert dict(found)["39-1"].startswith("It is the ratio of reflected radiation")


def test_missing_gensim_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    with pytest.raises(LayerwiseError, match="pip install"):
        packages.news("lee")


def test_texts_of_a_task_are_distinct_and_keep_their_ids(tmp_path: Path) -> None:
    assert [text for _, text in of_texts(["a", "b", "a"])] == ["a", "b"]
    first = dict(of_texts(["a", "b", "a"]))
    second = dict(of_texts(["c", "b", "a"]))
    assert first.items() <= second.items()
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"key": ["k1", "k2"], "text": ["a", "b"]}), path)
    assert dict(read({"task": "STS12"}, path)) == first


# The hub, from a folder and from the cache of one


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


def test_hub_serves_from_the_cache_offline(hub_cache: Path) -> None:
    rows = open_source(HubTexts(hub="acme/quotes", split="test", column="quote"))
    assert rows.total == 3
    assert rows.facts["commit"] == "a" * 40
    assert list(rows) == [("0", "One"), ("1", "Two"), ("2", "")]


def test_hub_reads_a_local_folder(hub_cache: Path) -> None:
    rows = open_source(HubTexts(hub=str(hub_cache), split="train[:2]", column="quote"))
    assert [text for _, text in rows] == ["One", "Two"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"hub": "acme/nothing"}, "Could not reach the hub for the data set 'acme/nothing'"),
        ({"hub": "acme/quotes", "column": "quotes"}, "did you mean 'quote'?"),
        ({"hub": "acme/quotes", "column": "likes"}, "'likes' holds int '1'"),
        ({"hub": "acme/quotes", "column": "quote", "split": "tests"},
         "no split 'tests' (did you mean 'test'?)"),
        ({"hub": "acme/quotes", "column": "quote", "name": "defaults"},
         "no configuration 'defaults' (did you mean 'default'?)"),
        ({"hub": "acme/quotes", "column": "quote", "revision": "b" * 40},
         f"The cache holds commit {'a' * 40}"),
        ({"hub": "./nowhere/at/all"}, "check the name"),
    ],
)  # fmt: skip
def test_hub_says_what_is_missing(hub_cache: Path, spec: dict[str, str], said: str) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        read(spec)


# The file


def some_corpus(n: int = 3, name: str = "c") -> Corpus:
    return Corpus(name, [f"p{i}" for i in range(n)], [f"text {i}" for i in range(n)], [2] * n)


identifiers = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
)
unicode = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=30)
@given(st.dictionaries(identifiers, unicode, min_size=1, max_size=8))
def test_corpus_round_trip(
    tmp_path_factory: pytest.TempPathFactory, given_: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("c") / "c.parquet"
    texts = list(given_.values())
    corpus = Corpus("wiki/text", list(given_), texts, [count_tokens(t) for t in texts])
    write_corpus(path, corpus, sample={"n": 3}, key="abc")
    back = read_corpus(path)
    assert (back.name, back.prompt_ids, back.texts, back.n_tokens, back.hash) == (
        "wiki/text", corpus.prompt_ids, texts, corpus.n_tokens, corpus.hash,
    )  # fmt: skip
    assert json.loads(back.attributes["sample"]) == {"n": 3}
    assert back.attributes["key"] == "abc"
    assert "versions" in back.attributes


def test_hash_tells_ids_texts_and_their_order_apart() -> None:
    base = Corpus("c", ["a", "b"], ["x", "y"], [1, 1])
    others = [
        Corpus("c", ["b", "a"], ["x", "y"], [1, 1]),
        Corpus("c", ["a", "b"], ["y", "x"], [1, 1]),
        Corpus("c", ["a", "b"], ["xy", ""], [1, 1]),
        Corpus("c", ["ab", "c"], ["x", "y"], [1, 1]),
    ]
    assert len({base.hash, *(o.hash for o in others)}) == 5
    assert Corpus("d", ["a", "b"], ["x", "y"], [1, 1]).hash == base.hash


@pytest.mark.parametrize(
    ("ids", "texts", "said"),
    [
        ([], [], "has no prompt"),
        (["a", "a"], ["x", "y"], "'a' occurs 2 times"),
        (["a"], ["x", "y"], "1 ids, 2 texts"),
        (["a\0"], ["x"], "cannot be a prompt id"),
        ([""], ["x"], "cannot be a prompt id"),
        (["a"], ["\ud800"], "lone surrogate"),
    ],
)
def test_what_is_no_corpus(ids: list[str], texts: list[str], said: str) -> None:
    with pytest.raises(LayerwiseError, match=re.escape(said)):
        Corpus("c", ids, texts, [1] * len(texts))


def test_foreign_edited_and_outdated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    with pytest.raises(LayerwiseError, match="no table of prompts"):
        read_corpus(path)
    pq.write_table(pa.table({"prompt_id": ["a"], "text": ["x"], "n_tokens": [1]}), path)
    with pytest.raises(LayerwiseError, match=r"not written by layerwise as layerwise\.corpus"):
        read_corpus(path)
    write_corpus(path, some_corpus())
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata
    pq.write_table(table.slice(1).replace_schema_metadata(metadata), path)
    with pytest.raises(LayerwiseError, match="not those that were written"):
        read_corpus(path)
    outdated = {**metadata, b"schema_version": b"1"}
    del outdated[b"seal"]
    pq.write_table(table.replace_schema_metadata(outdated), path)
    with pytest.raises(LayerwiseError, match=r"version 1 .* reads version 2"):
        read_corpus(path)


def test_views_round_trip_in_the_corpus_order(tmp_path: Path) -> None:
    whole, path, corpus = tmp_path / "c.parquet", tmp_path / "v.parquet", some_corpus()
    write_corpus(whole, corpus)
    write_views(path, corpus, [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]], 2, key="abc")
    back, views = read_prompts(whole, path)
    assert back == read_corpus(whole) == read_prompts(whole)[0]
    assert views == [["a1", "b1", "c1"], ["a2", "b2", "c2"]]
    rows = pq.read_table(path).to_pydict()
    assert rows["prompt_id"] == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert rows["view"] == [1, 2] * 3
    write_views(path, corpus, [[], [], []], 0)
    assert read_prompts(whole, path)[1] == read_prompts(whole)[1] == []


def test_views_of_another_corpus_are_refused(tmp_path: Path) -> None:
    whole, path = tmp_path / "c.parquet", tmp_path / "v.parquet"
    write_corpus(whole, some_corpus(2))
    write_views(path, some_corpus(3), [["a"], ["b"], ["c"]], 1)
    with pytest.raises(LayerwiseError, match="holds views of other prompts"):
        read_prompts(whole, path)
    with pytest.raises(LayerwiseError, match=r"not written by layerwise as layerwise\.views"):
        read_prompts(whole, whole)


def test_dropped_prompts_are_left_out_on_both_sides(tmp_path: Path) -> None:
    corpus = some_corpus(3)
    write_corpus(tmp_path / "c.parquet", corpus)
    write_views(tmp_path / "v.parquet", corpus, [["a1", "a2"], None, ["c1", "c2"]], 2)
    left, views = read_prompts(tmp_path / "c.parquet", tmp_path / "v.parquet")
    assert left.prompt_ids == ["p0", "p2"]
    assert views == [["a1", "c1"], ["a2", "c2"]]
    assert left.hash != corpus.hash
    with pytest.raises(LayerwiseError, match="Not one prompt"):
        write_views(tmp_path / "v.parquet", corpus, [None, None, None], 2)
    with pytest.raises(LayerwiseError, match="'p0' has 1 views, 2 were wanted"):
        write_views(tmp_path / "v.parquet", corpus, [["a"], None, None], 2)


# Real text


@pytest.mark.skipif(not WIKITEXT.is_file(), reason=f"{WIKITEXT} is not there")
def test_wikitext_loses_its_headings() -> None:
    source = local.read_file(WIKITEXT)
    made = select(source, Filters(), Sample())
    # 3,760 rows, of which the blank ones and those like " = = Title = = " are no prompts.
    assert made.counts["read"] == 3760
    assert made.counts["blank"] == 1299
    assert not [t for t in made.texts if t.startswith("=")]
    assert 400 < made.counts["heading"] < 1000
    assert made.counts["kept"] == len(made.texts) > 1500
    assert min(made.n_tokens) >= 30


def test_importing_the_corpus_modules_is_light() -> None:
    """A consumer of the files must not pay for nlpaug, torch or datasets."""
    code = (
        "import sys, layerwise.corpora.table, layerwise.corpora.sources,"
        " layerwise.corpora.augment, layerwise.corpora.wikipedia, layerwise.corpora.perturb;"
        "print([m for m in ('torch', 'nlpaug', 'transformers', 'datasets', 'gensim', 'pandas',"
        " 'mwparserfromhell', 'pyarrow') if m in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
