"""Files from elsewhere, damaged in every way: the right values, or one sentence."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from attack import Tally, tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layerwise.tasks.texts import distinct_texts

from layerwise.association.published import published_metrics, published_scores, read_table
from layerwise.config.corpora import FileTexts, HubTexts
from layerwise.corpora.sources import open_texts
from layerwise.tasks import catalog

__all__ = ["tally"]

AREA = "damaged inputs"
VALUES = "wrong values"
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
N = 40


def texts_of(path: Path, **columns: Any) -> list[tuple[str, str]]:
    return list(open_texts(FileTexts(file=str(path), **columns)))


def damaged(content: bytes, n: int, seed: int = 0) -> list[bytes]:
    """A file cut short, with bits flipped, bytes left out, zeroed, doubled, and another's end."""
    places = random.Random(seed)
    made = []
    for k in range(n):
        at = places.randrange(max(len(content), 1))
        length = places.choice([1, 4, 64, 1000])
        altered = bytearray(content)
        if k % 6 == 0:
            altered = altered[:at]
        elif k % 6 == 1:
            altered[at] ^= 1 << places.randrange(8)
        elif k % 6 == 2:
            del altered[at : at + length]
        elif k % 6 == 3:
            altered[at : at + length] = bytes(len(altered[at : at + length]))
        elif k % 6 == 4:
            altered[at:at] = altered[at : at + length]
        else:
            altered[-1 - at % 200] ^= 1 << places.randrange(8)
        made.append(bytes(altered))
    return made


# Texts

TEXTS = [f"The fox number {k} jumps over {k * 7} lazy dogs." for k in range(200)]


def as_parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


TEXT_FILES: dict[str, bytes] = {
    "t.txt": "\n".join(TEXTS).encode(),
    "t.jsonl": "\n".join(json.dumps({"text": t, "id": k}) for k, t in enumerate(TEXTS)).encode(),
    "t.parquet": as_parquet(pd.DataFrame({"text": TEXTS, "id": range(len(TEXTS))})),
}


@pytest.mark.parametrize("name", TEXT_FILES)
def test_texts(tally: Tally, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in damaged(TEXT_FILES[name], 6 * N):
        path.write_bytes(content)
        _, found = tally.attack(AREA, lambda: texts_of(path))
        assert found is None or all(isinstance(t, str) for _, t in found)


ROWS: list[Any] = [
    None, 1, 1.5, True, [], {}, [1], {"text": None}, {"text": 3}, {"text": b"x".hex()},
    {"text": ["a"]}, {"text": {"a": 1}}, {"txt": "a"}, {"text": "a", "id": None},
    {"text": "a", "id": 1.5}, {"text": "a", "id": True}, {"text": "a", "id": []},
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=json.dumps)
@pytest.mark.parametrize("id_column", [None, "id"])
def test_rows_of_json(tally: Tally, tmp_path: Path, row: Any, id_column: str | None) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"text": "fine", "id": "a"}) + "\n" + json.dumps(row))
    tally.attack(AREA, lambda: texts_of(path, id=id_column))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000, b'{"text": ' * 50_000, b'{"text": "\\ud800"}', b'{"text": "a"} {"text": "b"}',
        b'{"text": NaN}', b"\xef\xbb\xbf" + b'{"text": "a"}', b"\xff\xfe{\x00", b'{"text": "\x00"}',
        b"9" * 10_000, b'{"text": 1e999}', b'{"text": "a", "text": 3}',
    ],
    ids=lambda c: ascii(c[:20]),
)  # fmt: skip
def test_odd_json(tally: Tally, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    tally.attack(AREA, lambda: texts_of(path))


COLUMNS: list[Any] = [
    [None, None], [1, 2], [1.5, np.nan], [True, False], [b"a", b"\xff"], [["a"], ["b"]],
    [{"a": 1}, {"a": 2}], pd.to_datetime(["2020-01-01", "2021-01-01"]),
    pd.Categorical(["a", "b"]), [],
]  # fmt: skip


@pytest.mark.parametrize("values", COLUMNS, ids=lambda v: str(v)[:30])
def test_columns_of_parquet(tally: Tally, tmp_path: Path, values: Any) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": values}).to_parquet(path)
    _, found = tally.attack(AREA, lambda: texts_of(path))
    assert found is None or all(isinstance(t, str) for _, t in found)


def test_text_of_parquet_that_is_not_utf_8(tally: Tally, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.array([b"caf\xe9", b"ok"], pa.binary()).view(pa.binary()).cast(pa.binary())
    column = pa.StringArray.from_buffers(2, bad.buffers()[1], bad.buffers()[2])
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": column}), path)
    message, _ = tally.attack(AREA, lambda: texts_of(path))
    assert message is not None


def test_a_table_of_many_columns_is_told_in_short(tally: Tally, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({f"column {k}": [k] for k in range(5000)}).to_parquet(path)
    message, _ = tally.attack("messages", lambda: texts_of(path))
    assert message is not None
    assert "4,988 more" in message
    assert "'column 3'" in message


@pytest.mark.parametrize("name", ["t.txt", "t.jsonl", "t.parquet"])
def test_paths_that_are_no_files(tally: Tally, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for odd in (name, "folder.parquet", "loop.txt", "x" * 300 + ".txt", "a\0b.txt"):
        message, _ = tally.attack(AREA, lambda odd=odd: texts_of(tmp_path / odd))
        assert message is not None


# Data sets in local folders, read by the library of the hub


def quietly_cached(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    datasets.disable_progress_bars()


READMES = [
    "",
    "---\n---\n",
    "---\nconfigs: 3\n---\n",
    "---\n[\n---",
    "---\nconfigs:\n- x\n---\n",
    "\xff",
]


def test_data_sets(tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quietly_cached(monkeypatch, tmp_path / "cache")
    contents = [("train.parquet", c) for c in damaged(TEXT_FILES["t.parquet"], 8)]
    contents += [("train.jsonl", c) for c in damaged(TEXT_FILES["t.jsonl"], 8)]
    contents += [("train.jsonl", b"[" * 10_000), ("train.jsonl", b'{"text": 3}\n{"text": [1]}')]
    for k, (name, content) in enumerate(contents):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / name).write_bytes(content)
        if k < len(READMES):
            (folder / "README.md").write_text(READMES[k], encoding="latin-1")
        tally.attack(AREA, lambda folder=folder: list(open_texts(HubTexts(hub=str(folder)))))


# Tasks in local folders

PAIRS = {
    "sentence1": [f"one {k}" for k in range(6)],
    "sentence2": [f"two {k}" for k in range(6)],
    "score": [0.0, 1, 2, 3, 4, 5],
}
TASKS: dict[str, Any] = {
    "good": {}, "null": {"sentence1": [None] * 6}, "numbers": {"sentence1": list(range(6))},
    "bytes": {"sentence1": [b"x"] * 6}, "lists": {"sentence1": [["a"]] * 6},
    "no column": {"sentence1": None}, "text as score": {"score": ["a"] * 6},
    "null scores": {"score": [None] * 6}, "one null": {"sentence1": ["a", None, *"bcde"]},
    "NaN scores": {"score": [float("nan")] * 6}, "no rows": {k: [] for k in PAIRS},
    "lone surrogate": {"sentence1": ["a"] * 5 + ["\\ud800"]},
}  # fmt: skip


@pytest.mark.parametrize("case", TASKS)
def test_task_folders(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    quietly_cached(monkeypatch, tmp_path / "cache")
    (tmp_path / "task").mkdir()
    columns = {k: v for k, v in (PAIRS | TASKS[case]).items() if v is not None}
    pd.DataFrame(columns).to_parquet(tmp_path / "task" / "test.parquet")

    def read() -> list[str]:
        task = catalog.load(catalog.get_task("STS12", {"STS12": tmp_path / "task"}))
        return distinct_texts(task).texts

    message, found = tally.attack(AREA, read)
    assert (message is None) == (case == "good" or found is not None)
    assert found is None or all(isinstance(t, str) for t in found)


# Published tables


def scores(**changes: Any) -> pd.DataFrame:
    rows = [
        {"family": "Pythia", "size": "14m", "revision": "main", "layer": layer, "task": task,
         "task_type": "STS", "hf_subset": "default", "languages": "eng-Latn", "split": "test",
         "main_score": 0.1 * layer}
        for layer in range(4) for task in ("STS12", "STS13")
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**changes)


def metrics(**changes: Any) -> pd.DataFrame:
    rows = [
        {"family": "Pythia", "size": "14m", "revision": "main", "dataset": "wikitext",
         "split": "train", "metric": "curvature", "normalization": "raw", "layer": layer,
         "value": 1.0 * layer}
        for layer in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**changes)


Convert = Callable[[pd.DataFrame], pd.DataFrame]
PUBLISHED: dict[str, tuple[Callable[..., pd.DataFrame], Convert]] = {
    "scores": (scores, published_scores), "metrics": (metrics, published_metrics)
}  # fmt: skip
NASTY = [
    "", " ", "a\nb", "x\n\n.. raw:: html\n\n   <script>alert(1)</script>", "\x1b[31mred",
    "=cmd|' /C calc'!A0", "../../x", "$\\frac{$", "-1", None, float("nan"), 3, "@SUM(A1)", "<b>",
    "|x|", "`x`_", "..", "a" * 5000, "http://x/y", "a\0b", "a/../b",
]  # fmt: skip


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("value", NASTY, ids=ascii)
def test_published_names(tally: Tally, kind: str, value: Any) -> None:
    make, convert = PUBLISHED[kind]
    named = {"scores": ("family", "size", "revision", "task", "task_type", "hf_subset"),
             "metrics": ("family", "size", "revision", "dataset", "metric", "normalization")}  # fmt: skip
    for column in named[kind]:
        _, found = tally.attack("injection", lambda c=column: convert(make(**{c: value})))
        if found is not None:
            for cell in found.select_dtypes(exclude="number").to_numpy().ravel():
                assert str(cell)[0].isalnum()
                assert str(cell).isprintable()


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("scores", "main_score", 71.6667), ("scores", "main_score", -1.5),
        ("scores", "main_score", float("nan")), ("scores", "main_score", float("inf")),
        ("scores", "main_score", "good"), ("scores", "layer", -1), ("scores", "layer", 1.5),
        ("scores", "layer", float("nan")), ("scores", "layer", "three"), ("scores", "layer", 1e30),
        ("scores", "layer", True and "True"), ("metrics", "layer", -1), ("metrics", "layer", 0.5),
        ("metrics", "layer", None), ("metrics", "value", "high"), ("metrics", "layer", float("inf")),
    ],
)  # fmt: skip
def test_published_values_out_of_range(tally: Tally, kind: str, column: str, value: Any) -> None:
    make, convert = PUBLISHED[kind]
    message, _ = tally.attack(VALUES, lambda: convert(make(**{column: value})))
    assert message is not None
    assert f"'{column}'" in message
    assert "accepted" in message


@FUZZ
@given(data=st.data(), kind=st.sampled_from(list(PUBLISHED)))
def test_published_cells(tally: Tally, data: Any, kind: str) -> None:
    make, convert = PUBLISHED[kind]
    table = make().astype(object)
    column = data.draw(st.sampled_from(list(table)))
    cell = st.none() | st.floats() | st.integers() | st.text() | st.booleans()
    table.loc[data.draw(st.integers(0, len(table) - 1)), column] = data.draw(cell)
    _, found = tally.attack(AREA, lambda: convert(table))
    if found is not None:
        assert found["layer"].ge(0).all()
        assert np.isfinite(found["main_score" if kind == "scores" else "value"]).all()


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("kind", PUBLISHED)
def test_damaged_published_tables(tally: Tally, tmp_path: Path, kind: str, suffix: str) -> None:
    make, convert = PUBLISHED[kind]
    csv = make().to_csv(index=False).encode()
    whole = {"csv": csv, "csv.gz": gzip.compress(csv), "parquet": as_parquet(make())}[suffix]
    path = tmp_path / f"table.{suffix}"
    for content in [b"", b"\0" * 100, *damaged(whole, N)]:
        path.write_bytes(content)
        tally.attack(AREA, lambda: convert(read_table(path)))
