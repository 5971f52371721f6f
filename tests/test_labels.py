"""What labels stand for: classes or numbers, one class however it is written, rows in files."""

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused

from layerwise import choosing
from layerwise.analysis import labels_of
from layerwise.corpora.sources import read_rows
from layerwise.errors import Code
from layerwise.io import tables
from layerwise.run.report import shown
from layerwise.tasks import probes
from layerwise.tasks.labels import class_names, describe_labels, kind_of_labels, read_tagged

IDS = list(range(30)) * 8
ROWS = np.arange(150)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (IDS, "classification"),
        ([float(label) for label in IDS], "classification"),
        (pd.Series(IDS, dtype="Int64"), "classification"),
        (pd.Series([*IDS, None], dtype="Int64"), "classification"),
        (pd.Series(np.arange(60), dtype="category"), "classification"),
        (pd.Categorical(np.linspace(0, 1, 60), ordered=True), "classification"),
        (pd.CategoricalIndex(range(60)), "classification"),
        (np.array(IDS, dtype=np.uint8), "classification"),
        (np.arange(60, dtype=np.int16), "regression"),
        (np.array([True, False] * 30), "classification"),
        ([datetime.date(2020, 1, k) for k in range(1, 31)], "classification"),
        ([f"{label:04}" for label in range(60)], "classification"),
        (range(60), "regression"),
        (np.linspace(0, 1, 60), "regression"),
        ([Decimal(k) / 7 for k in range(60)], "regression"),
        ([k / 7 for k in range(30)] * 8, "regression"),
    ],
)
def test_whole_numbers_that_repeat_are_classes(labels: Any, kind: str) -> None:
    assert kind_of_labels(labels) == kind


def test_files_of_class_ids_and_codes_are_classes(tmp_path: Path) -> None:
    path, shuffled = tmp_path / "l.csv", random.Random(0).sample(IDS, len(IDS))
    texts = [f"text {k}" for k in range(len(IDS))]
    for labels in (shuffled, [f"{label:04}" for label in shuffled]):
        pd.DataFrame({"text": texts, "label": labels}).to_csv(path, index=False)
        data, n = choosing.read_labels(choosing.task_of(path), 1000)
        assert data.kind == "classification" and len(data.names) == 30
        assert "240 of 240 labelled rows, classification: 30 classes (" in data.described(n)
        assert "': 8, '" in data.described(n)
    pd.DataFrame({"text": texts, "label": shuffled}).to_csv(path, index=False)
    data, n = choosing.read_labels(choosing.task_of(path, kind="regression"), 100)
    wanted = "100 of 240 labelled rows (140 left out), regression: numbers from 0 to 29"
    assert data.described(n) == wanted
    with refused("unknown_name"):
        choosing.task_of(path, kind="classes")
    assert labels_of(texts, shuffled).kind == "classification"
    assert labels_of(texts, shuffled, "regression").kind == "regression"


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (pd.Categorical(ROWS % 30 / 4, ordered=True), "classification", "30 classes ('0': 5"),
        (pd.Categorical([f"c{k % 3}" for k in ROWS]), "classification", "3 classes ('c0': 50"),
        (ROWS.astype(np.uint8), "regression", "numbers from 0 to 149"),
        (ROWS % 30, "classification", "30 classes ('0': 5"),
        (ROWS % 2 == 0, "classification", "2 classes ('True': 75, 'False': 75)"),
    ],
)
def test_parquet_says_what_its_columns_are(
    labels: Any, kind: str, said: str, tmp_path: Path
) -> None:
    """And frames in memory are read alike."""
    path, texts = tmp_path / "l.parquet", [f"text {k}" for k in ROWS]
    frame = pd.DataFrame({"text": pd.Categorical(texts), "label": labels})
    frame.to_parquet(path)
    data, n = choosing.read_labels(choosing.task_of(path), 1000)
    assert f"150 of 150 labelled rows, {kind}: {said}" in data.described(n)
    in_memory = labels_of(texts, frame["label"])
    assert in_memory.kind == kind and in_memory.labels.tolist() == data.labels.tolist()


def test_class_labels_of_datasets_are_classes_by_their_names(tmp_path: Path) -> None:
    path, texts = tmp_path / "l.parquet", [f"text {k}" for k in ROWS]
    names = [f"{k} stars" for k in range(75)]
    feature = datasets.ClassLabel(names=names)
    features = datasets.Features({"text": datasets.Value("string"), "label": feature})
    columns = {"text": texts, "label": ROWS % 75}
    data = datasets.Dataset.from_dict(columns, features)
    data.to_parquet(path)
    assert choosing.task_of(path).kind == "classification"
    # A class has too few rows; so few show that they are not told apart by their counts.
    with refused("too_few") as caught:
        choosing.read_labels(choosing.task_of(path), 1000)
    assert "75 of 75 classes" in str(caught.value) and "'0 stars'" in str(caught.value)
    data = datasets.Dataset.from_dict(columns | {"label": ROWS % 3}, features)
    data.to_parquet(path)
    read, n = choosing.read_labels(choosing.task_of(path), 1000)
    said = "150 of 150 labelled rows, classification: 3 classes ('0 stars': 50, '1 stars': 50"
    assert said in read.described(n)
    forms = data, data.with_format("numpy"), data.to_iterable_dataset()
    for column in (form["label"] for form in forms):
        in_memory = labels_of(texts, column)
        assert (in_memory.kind, in_memory.names) == (read.kind, read.names)
        assert in_memory.labels.tolist() == read.labels.tolist()
    # Their numbers are a scale if someone says so, and -1 is no class.
    scale, n = choosing.read_labels(choosing.task_of(path, kind="regression"), 1000)
    assert "regression: numbers from 0 to 2" in scale.described(n)
    assert labels_of(texts, data["label"], "regression").labels.tolist() == scale.labels.tolist()
    gaps = datasets.Dataset.from_dict(columns | {"label": [None, *ROWS[:148] % 3, -1]}, features)
    with refused("missing"):
        labels_of(texts, gaps.with_format("numpy")["label"])
    gaps.select(range(1, 150)).to_parquet(path)
    with refused("missing") as caught:
        choosing.read_labels(choosing.task_of(path), 1000)
    assert "row 149" in str(caught.value)


@pytest.mark.parametrize(
    "labels",
    [[1, 1.0, True, "1"], [np.int64(1), np.float32(1), Decimal("1.0")], ["1", "1.0", "1e0"]],
)
def test_equal_numbers_are_one_class(labels: list[Any]) -> None:
    assert len(set(class_names(labels))) == 1


def test_truth_values_are_one_class_however_they_are_written() -> None:
    names = class_names([True, "true", "TRUE", 1, False, "False", 0, 0.0])
    assert names == ["True"] * 4 + ["False"] * 4
    assert class_names(["true", "yes"]) == ["true", "yes"]


SPELT_ALIKE = [("pos", "pos "), ("a b", "a  b"), ("7", "007"), ("1.1", "1.10"), ("é", "e\u0301")]
NO_NAMES = (["a"], {"a": 1}, ("a",), np.array([1, 2]), b"a")
MISSING = (None, float("nan"), pd.NA, pd.NaT, "", "  ")


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        *((labels, "duplicate") for labels in SPELT_ALIKE),
        *((("b", label), "wrong_type") for label in NO_NAMES),
        *((("a", "b", label), "missing") for label in MISSING),
    ],
)
def test_labels_that_name_no_classes(labels: tuple[Any, ...], code: Code) -> None:
    with refused(code):
        probes.classes([*labels] * 20)


def test_names_that_differ_in_case_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert len(set(probes.classes(["Cat", "cat", "dog"] * 20))) == 3
    assert "'Cat' and 'cat'" in caplog.text


def test_descriptions_name_the_kind_and_what_is_left_out() -> None:
    said = describe_labels("classification", ["a"] * 3 + ["b"], 5)
    assert said == "4 of 5 rows (1 left out), classification: 2 classes ('a': 3, 'b': 1)"
    said = describe_labels("classification", [str(k) for k in range(12)], 12)
    assert said.endswith("'9': 1 and 2 more)")
    assert (
        describe_labels("pairs", [0.5, 4], 2) == "2 of 2 rows, pairs: similarities from 0.5 to 4"
    )


def stray(separator: str) -> str:
    """60 rows; one text begins with a double quote, another ends with one."""
    rows = [f"words of row {k}{separator}{'pos' if k % 2 else 'neg'}" for k in range(60)]
    rows[10] = f'"{rows[10]}'
    rows[25] = f"words of row 6'2\"{separator}pos"
    return "\n".join([f"text{separator}label", *rows, ""])


def test_a_stray_quote_in_tsv_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "l.tsv"
    path.write_text(stray("\t"))
    frame = tables.read_texts(path)
    assert len(frame) == 60 and frame["text"].iloc[10] == '"words of row 10'
    assert frame["text"].iloc[25].endswith("6'2\"")
    assert tables.read_any(path)["text"].tolist() == frame["text"].tolist()


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_quoted_texts_of_several_lines_are_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"l.{suffix}"
    texts = ["Dear Ann, hello\nwe met, once\nyours, Bob", 'a "word"', "a\ttab"]
    frame = pd.DataFrame({"text": texts, "label": ["a", "b", "a"]})
    frame.to_csv(path, sep="\t" if suffix == "tsv" else ",", index=False)
    assert tables.read_texts(path)["text"].tolist() == texts


def test_a_quoted_field_that_holds_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text(stray(","))
    with refused("unreadable") as caught:
        tables.read_texts(path)
    assert "line 12" in str(caught.value)


def test_names_are_text_in_tables_that_are_read_back(tmp_path: Path) -> None:
    """Models called 007 and null, and a revision with zeros in front, in the first table."""
    table = pd.DataFrame(
        {
            "model": ["007", "null", "1e3"],
            "revision": ["main", "0100", "NA"],
            "representation": "all",
            "best_layer": ["output", "2", "3 layers tie"],
            "last_layer": 4,
            **dict.fromkeys(("score", "output_score", "difference", "low", "high"), 0.5),
            "n_clusters": 5,
            "compute_saved": 0.25,
        }
    )
    table.to_csv(tmp_path / "best.csv", index=False)
    again = tables.read_any(tmp_path / "best.csv")
    pd.testing.assert_frame_equal(again, table, check_dtype=False)
    assert shown(again)["Model"].tolist() == ["007", "null (0100)", "1e3 (NA)"]
    weights = pd.DataFrame({"model": ["null", "007"], "same_as": ["", "0100 0200"]})
    weights = weights.assign(family=["NA", "1e3"], size=["", "2.50"])
    weights.to_csv(tmp_path / "weights.csv", index=False)
    same = tables.read_any(tmp_path / "weights.csv").dropna(subset=["same_as"])
    assert same.to_numpy().tolist() == [["007", "0100 0200", "1e3", "2.50"]]


@pytest.mark.parametrize("suffix", ["txt", "csv", "tsv", "jsonl", "json", "conll"])
def test_utf_16_without_a_mark_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"l.{suffix}"
    path.write_bytes("text,label\none,a\n".encode("utf-16-le"))
    with refused("unreadable") as caught:
        read_tagged(path) if suffix == "conll" else read_rows(path)
    assert "UTF-16" in str(caught.value)


def test_names_of_classes_change_nothing() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.choice(4, 200, p=[0.3, 0.3, 0.2, 0.2])
    x = (rng.normal(size=(200, 6)) + numbers[:, None] / 2).astype(np.float32)
    scores = []
    for names in ("abcd", "dcba", ("10", "9", "8", "11"), (1, 0, 3, 2), (2.0, 7.0, -1.0, 0.5)):
        labels = probes.classes([names[number] for number in numbers])
        scores.append(probes.probe(x, labels, probes.splits(labels), with_values=True))
    assert all(score == scores[0] for score in scores)
    assert all((score.values == scores[0].values).all() for score in scores)
