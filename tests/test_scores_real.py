"""Scores on real tasks and real models: numbers that others have published, and sense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoding import encode, minilm, store

from layerwise.tasks import catalog, names, quickstart, texts
from layerwise.tasks.score import score_task

ROOT = Path(__file__).parents[1]
pytest_plugins = ["task_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    return minilm()


def scored(
    folder: Path, name: str, data: Path, model: tuple[Any, Any], layers: list[int]
) -> pd.DataFrame:
    """Scores of the given layers of a model, encoded with transformers alone."""
    given = {name: str(data)}
    asked = texts.distinct_texts(catalog.load(catalog.get_task(name, given)))
    listed = list(dict.fromkeys(asked.texts))
    embeddings = store(folder / f"{name}.h5", name, listed, encode(*model, listed, layers))
    output = folder / f"{name}.parquet"
    score_task(embeddings, name, output, folder / name, folders=given)
    return pd.read_parquet(output)


@pytest.mark.parametrize(
    ("name", "subset", "expected"),
    [
        ("BIOSSES", "default", 81.64),
        ("STS17", "en-en", 87.59),
        pytest.param("STSBenchmark", "default", 82.03, marks=pytest.mark.slow),
        pytest.param("STS12", "default", 72.37, marks=pytest.mark.slow),
        pytest.param("EmotionClassification", "default", 40.83, marks=pytest.mark.slow),
        pytest.param("AmazonCounterfactualClassification", "en", 63.64, marks=pytest.mark.slow),
        pytest.param("TwentyNewsgroupsClustering", "default", 46.35, marks=pytest.mark.slow),
    ],
)
def test_minilm_has_its_published_score(
    tmp_path: Path, shared: Path, trained: tuple[Any, Any], name: str, subset: str, expected: float
) -> None:
    table = scored(tmp_path, name, shared / "tasks" / name, trained, [6])
    if name.startswith("Amazon"):
        assert set(table["subset"]) == {"en", "en-ext"}
    else:
        assert len(table) == 1
    row = table[table["subset"] == subset].iloc[0]
    assert 100 * row["main_score"] == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_minilm_has_its_score_on_a_mirrored_reranking_task(
    tmp_path: Path, shared: Path, trained: tuple[Any, Any]
) -> None:
    # The class of any reranking task evaluates data in the schema of such tasks.
    data = shared / "tasks" / "WikiQAReranking"
    table = scored(tmp_path, "AskUbuntuDupQuestions", data, trained, [6])
    assert table["main_score"].item() == pytest.approx(0.707, abs=0.0005)


@pytest.mark.slow
def test_a_trained_model_is_far_above_the_same_model_with_random_weights(
    tmp_path: Path, trained: tuple[Any, Any]
) -> None:
    pytest.importorskip("gensim")
    from layerwise.corpora.paragraphs import read_paragraphs
    from layerwise.corpora.wikipedia import unpack

    unpack(tmp_path / "wikipedia.parquet")
    paragraphs, _ = read_paragraphs(tmp_path / "wikipedia.parquet")
    quickstart.make_tasks(paragraphs, list(names.QUICKSTART), tmp_path)
    random = minilm(trained=False)
    best, noise = {}, {}
    for name in names.QUICKSTART:
        for found, model, label in ((best, trained, "trained"), (noise, random, "random")):
            folder = tmp_path / label
            table = scored(folder, name, tmp_path / name, model, [0, 3, 6])
            found[name] = table["main_score"].to_numpy()
    for name in names.QUICKSTART:
        assert best[name].max() > noise[name].max() + 0.15, name
        assert best[name].min() > noise[name].max(), name
    # Weights that know nothing cannot tell praise from blame.
    assert np.abs(noise["PangLeePolarity"] - 0.5).max() < 0.1


@pytest.mark.slow
def test_the_workflow_gives_the_published_scores(shared: Path) -> None:
    command = [
        sys.executable, str(ROOT / "benchmarks" / "check_scores.py"),
        "--tasks", str(shared / "tasks"), "--only", "BIOSSES", "STS17", "--threads", "2",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
