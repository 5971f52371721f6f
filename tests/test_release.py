"""The shipped results, the import of a release, and the comparison of a run with them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from refused import refused
from typer.testing import CliRunner

from layerwise import data
from layerwise.association import compare, release
from layerwise.association.published import published_metrics, published_scores, read_table
from layerwise.cli import app
from layerwise.errors import Code, LayerwiseError
from layerwise.io import tables

MODEL = "Pythia/70m/step1000"
SCORES = {"STS12": 0.25, "STS17": 0.5}


def test_shipped_tables_are_small_and_complete() -> None:
    folder = data.PUBLISHED
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    metrics = published_metrics(read_table(data.published("metrics")))
    assert metrics["model"].nunique() == 4
    assert metrics["corpus"].nunique() == 30
    assert np.isfinite(metrics["value"]).all()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A made-up folder of the release's shape: two tasks, two layers, two metrics."""
    results = tmp_path / "checkout/experiments/results" / MODEL
    for layer in (0, 1):
        folder = results / f"mteb/layer_{layer}"
        folder.mkdir(parents=True)
        for task, score in SCORES.items():
            entry = {"main_score": score + layer / 10, "languages": ["eng-Latn"]}
            both = [entry | {"hf_subset": "en-en"}]
            both.append(entry | {"hf_subset": "en-de", "languages": ["eng-Latn", "deu-Latn"]})
            found = {"scores": {"test": both, "validation": both[:1]}, "task_name": task}
            (folder / f"{task}.json").write_text(json.dumps(found))
        (folder / "NotOfThePaper.json").write_text("{}")
        (folder / "model_meta.json").write_text("{}")
    for name, values in {
        "metrics/wikitext/curvature.pkl": {"raw": np.array([0.5, np.nan])},
        "metrics/mteb/biosses-sts/test/entropy_sentence.pkl": {"raw": [1.0, 2.0], "logN": [3, 4]},
    }.items():
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(values))
    return tmp_path / "checkout"


def test_a_release_is_imported(checkout: Path, tmp_path: Path) -> None:
    script = ROOT / "scripts/import_release.py"
    subprocess.run([sys.executable, script, checkout, tmp_path / "out"], check=True)
    scores = published_scores(read_table(tmp_path / "out/scores.parquet"))
    assert set(scores["model"]) == {"Pythia-70m"}
    assert set(scores["revision"]) == {"step1000"}
    by_layer = scores.pivot(index="task", columns="layer", values="main_score")
    assert by_layer.loc["STS12"].tolist() == [0.25, 0.35]
    assert set(scores["task_type"]) == {"STS"}
    metrics = published_metrics(read_table(tmp_path / "out/metrics.parquet"))
    assert len(metrics) == 5
    entropy = metrics[metrics["metric"] == "prompt_entropy"]
    assert set(entropy["corpus"]) == {"mteb/biosses-sts"}
    assert entropy[entropy["normalization"] == "logN"]["value"].tolist() == [3, 4]


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run by a pickle",)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (pickle.dumps({"raw": Harmful()}), "unsafe"),
        (pickle.dumps({"raw": np.array([Harmful()])}), "unsafe"),
        (pickle.dumps({"raw": np.zeros(3)})[:-9], "unreadable"),
        (pickle.dumps({"raw": "text"}), "unreadable"),
        (pickle.dumps({"raw": [[1.0, 2.0]]}), "unreadable"),
        (pickle.dumps([1.0]), "unreadable"),
        (bytes(release.LARGEST_PICKLE + 1), "unreadable"),
    ],
)
def test_a_pickle_of_anything_else_is_refused(
    checkout: Path, content: bytes, code: Code, capsys: pytest.CaptureFixture[str]
) -> None:
    results = checkout / "experiments/results"
    (results / MODEL / "metrics/wikitext/curvature.pkl").write_bytes(content)
    with refused(code):
        release.read_metrics(results)
    assert "run by a pickle" not in capsys.readouterr().out


def test_a_run_is_compared_with_the_published_numbers(tmp_path: Path) -> None:
    scores = published_scores(read_table(data.published("scores")))
    own = scores[scores["model"] == "Pythia-410m"].assign(model="pythia-410m")
    off = (own["task"] == "STS12") & (own["layer"] == 3)
    own.loc[off, "main_score"] += 0.02
    residual = own.assign(readout="residual", main_score=0.1)
    tables.write(tmp_path / "scores/pythia-410m/main.parquet", pd.concat([own, residual]))
    found = compare.differences(
        compare.read_scores(str(tmp_path), "pythia-410m"),
        compare.read_scores("published", "pythia-410m"),
    )
    assert len(found) == 32 * 25
    assert found.set_index(["task", "layer"])["difference"].abs().nlargest(2).round(
        6
    ).tolist() == [
        2.0,
        0.0,
    ]
    command = ["compare", str(tmp_path), "published", "pythia-410m"]
    ran = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "d.csv")])
    assert ran.exit_code == 0, ran.output
    assert "largest 2.00 (STS12, layer 3)" in ran.output
    assert "best layer 17 at 51.9, layer 24 at 46.8" in ran.output
    assert len(pd.read_csv(tmp_path / "d.csv")) == 800
    with pytest.raises(LayerwiseError, match="did you mean 'Pythia-410m'"):
        compare.read_scores("published", "pythia-411m")
