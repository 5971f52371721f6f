"""Tasks of one's own labels: from a file to scores by layer."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoding import store
from scipy import stats

from layerwise import probes, tables
from layerwise.config.tasks import LabelledTask
from layerwise.errors import LayerwiseError
from layerwise.section import parse
from layerwise.tasks import labelled
from layerwise.tasks.layout import Reading

WORDS = [f"word{k}" for k in range(400)]


def entry(file: Path, **given: Any) -> LabelledTask:
    return parse(LabelledTask, {"file": str(file), **given})


def write(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    return path


def scored(
    tmp_path: Path, task: LabelledTask, vectors: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables, from embeddings of shape (layers, distinct texts, D)."""
    texts = labelled.texts_of("mine", task).texts
    path = store(tmp_path / "e.h5", "mine", texts, vectors[None], [Reading()])
    found = {name: tmp_path / f"{name}.parquet" for name in ("scores", "probes")}
    labelled.score_labelled(path, "mine", task, found, threads=1)
    return tables.read(found["scores"], "scores"), tables.read(found["probes"], "probes")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_classes_are_found_at_the_layer_that_holds_them(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    label = np.arange(400) % 2
    names = np.array(["no", "yes"])[label]
    frame = pd.DataFrame({"text": WORDS, "label": names})
    task = entry(write(tmp_path / f"d{suffix}", frame), kind="classification")
    vectors = rng.normal(size=(3, 400, 6)).astype(np.float32)
    vectors[1, :, 2] += 6 * label
    scores, probed = scored(tmp_path, task, vectors)
    assert scores["main_score"][1] > 0.95
    assert scores["main_score"][[0, 2]].max() < 0.65
    assert (scores["score_low"] < scores["main_score"]).all()
    assert set(scores["chance"]) == {0.5} and set(scores["task_type"]) == {"Classification"}
    np.testing.assert_allclose(probed["linear"], scores["main_score"])
    np.testing.assert_allclose(probed["selectivity"], probed["linear"] - probed["control"])
    assert list(probed["layer"]) == [0, 1, 2]


def test_a_score_of_pairs_is_spearmans(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(2, 400, 5)).astype(np.float32)
    first, second = vectors[1, :200], vectors[1, 200:]
    cosine = (
        (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    )
    judged = cosine + 0.3 * rng.normal(size=200)
    frame = pd.DataFrame({"a": WORDS[:200], "b": WORDS[200:], "how": judged})
    task = entry(write(tmp_path / "d.parquet", frame), kind="pairs", texts=["a", "b"], label="how")
    scores, probed = scored(tmp_path, task, vectors)
    assert scores["main_score"][1] == pytest.approx(stats.spearmanr(cosine, judged).statistic)
    assert scores["score_low"][1] > 0.5 > scores["score_high"][0]
    assert len(probed) == 0 and set(scores["task_type"]) == {"STS"}
    data = labelled.read(task)
    found = labelled.layer_score(data, [first, second])
    assert found.parts is not None and len(found.parts) == 200
    assert found.parts.sum() == pytest.approx(found.score)


def test_numbers_and_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(2, 400, 4)).astype(np.float32)
    unit = vectors[1] / np.linalg.norm(vectors[1], axis=1, keepdims=True)
    frame = pd.DataFrame(
        {
            "text": WORDS,
            "label": unit[:, 0] + 0.1 * rng.normal(size=400),
            "by": np.arange(400) % 40,
        }
    )
    task = entry(write(tmp_path / "d.parquet", frame), kind="regression", group="by")
    scores, probed = scored(tmp_path, task, vectors)
    assert scores["main_score"][1] > 0.9 and scores["main_score"][0] < 0.1
    assert scores["chance"].isna().all() and set(probed["n_test"]) == {400}


@pytest.mark.parametrize("group", [None, "by"])
def test_a_text_is_never_on_both_sides(tmp_path: Path, group: str | None) -> None:
    """All six pairs of four answers to each of 40 prompts; of each pair, one of two authors."""
    pairs = [
        (4 * k + a, 4 * k + b) for k in range(40) for a, b in itertools.combinations(range(4), 2)
    ]
    frame = pd.DataFrame(
        {
            "chosen": [WORDS[a] for a, _ in pairs],
            "rejected": [WORDS[b] for _, b in pairs],
            "by": [f"{a // 4} {b % 2}" for a, b in pairs],
        }
    )
    path = write(tmp_path / "d.parquet", frame)
    data = labelled.read(entry(path, kind="preference", group=group))
    assert len(set(data.groups)) == 40
    for split in probes.splits(data.labels, data.groups):
        train, test = (
            {column[row] for column in data.texts for row in rows}
            for rows in (split.fitted, split.test)
        )
        assert test and not train & test


def test_a_group_links_rows_of_other_texts_and_a_text_rows_of_other_groups(tmp_path: Path) -> None:
    texts = [f"text {k // 2}" for k in range(200)]
    frame = pd.DataFrame({"text": texts, "label": ["a", "b"] * 100, "by": np.arange(200) % 200})
    path = write(tmp_path / "d.parquet", frame)
    given: dict[str, Any] = {"kind": "classification", "group": "by"}
    assert len(set(labelled.read(entry(path, **given)).groups)) == 100
    write(path, frame.assign(by=np.arange(200) // 4))
    assert len(set(labelled.read(entry(path, **given)).groups)) == 50


GOOD = pd.DataFrame({"text": WORDS[:40], "label": ["a", "b"] * 20})


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ({"label": ["a"] * 40}, {}, "All 40 labels are 'a'; a probe needs two classes"),
        ({"label": [None] + ["a"] * 39}, {}, "1 of 40 rows have no label"),
        ({"label": [float("nan"), *range(39)]}, {"kind": "regression"}, "have no label"),
        ({}, {"label": "lable"}, "has no column 'lable' (did you mean 'label'?); there are text"),
        ({"text": ["", *WORDS[:39]]}, {}, "column 'text', row 0 (from 0): '' came where a text"),
        ({"text": [None, *WORDS[:39]]}, {}, "where a text should be"),
        ({"text": ["same"] * 40}, {}, "are 1 different ones"),
        ({}, {"kind": "regression"}, "'a' is no number"),
        ({}, {"kind": "pairs", "texts": ["text", "other"]}, "has no column 'other'"),
        ({"chosen": WORDS[:40], "rejected": WORDS[:40]}, {"kind": "preference"},
         "40 of 40 rows have the same text chosen and rejected"),
    ],
)  # fmt: skip
def test_bad_rows_are_told_in_one_sentence(
    tmp_path: Path, change: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "d.parquet", GOOD.assign(**change))
    with pytest.raises(LayerwiseError) as caught:
        labelled.read(entry(path, **{"kind": "classification", **given}))
    assert said in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"\x00\xff\x9c" * 50, "cannot be read"), (None, "There is no file")],
)
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_bad_files(tmp_path: Path, suffix: str, content: bytes | None, said: str) -> None:
    path = tmp_path / f"d{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LayerwiseError, match=said):
        labelled.read(entry(path, kind="classification"))


def test_a_process_that_is_killed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other tasks of the job go on."""
    task = entry(write(tmp_path / "d.parquet", GOOD), kind="classification")
    texts = labelled.texts_of("mine", task).texts
    values = np.random.default_rng(0).normal(size=(1, 2, len(texts), 4)).astype(np.float32)
    path = store(tmp_path / "e.h5", "mine", texts, values, [Reading()])
    monkeypatch.setattr(labelled, "_score", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(LayerwiseError, match=r"A process that scored mine was killed, most"):
        labelled.score_labelled(path, "mine", task, {}, threads=2)
