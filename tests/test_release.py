"""The shipped results, the import of a release, and the comparison of a run with them."""

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.refused import refused
from typer.testing import CliRunner

from layerwise import data
from layerwise.cli import app
from layerwise.errors import Code, LayerwiseError
from layerwise.io import tables
from layerwise.io.tables import read_table
from papers import losses, published, release
from papers.published import published_metrics, published_scores

MODEL = "Pythia/70m/step1000"
SCORES = {"STS12": 0.25, "STS17": 0.5}


@pytest.mark.parametrize(
    ("name", "protocol", "n_models", "value"),
    [("released", "reference", 28, 3.165), ("released_2024", "reference_2024", 15, 3.4)],
)
def test_shipped_tables_are_small_and_complete(
    name: str, protocol: str, n_models: int, value: float
) -> None:
    assert sum(path.stat().st_size for path in data.PUBLISHED.iterdir()) < 1_000_000
    metrics = published_metrics(read_table(data.published("metrics", name)))
    assert metrics["model"].nunique() == n_models
    assert set(metrics["protocol"]) == {protocol}
    assert set(metrics["corpus"]) >= {"wikitext", "mteb/sts12-sts"}
    assert np.isfinite(metrics["value"]).all()
    keys = ["model", "revision", "corpus", "metric", "alpha", "normalization", "layer", "sublayer"]
    assert not metrics.duplicated(keys).any()
    scores = published_scores(read_table(data.published("scores", name)))
    assert scores[scores["depth"] == 1]["model"].nunique() >= 8
    assert set(scores["pooling"]) == {"mean", "cls"} if name == "released" else {"mean"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A made-up folder of the release's shape: two tasks, two layers, two metrics."""
    results = tmp_path / "checkout/experiments/results"
    for folder, score in (
        ("layer_0", 0.25),
        ("layer_1", 0.35),
        ("layer_1_last", 0.95),  # repeats layer_1, which is read
        ("layer_2_last", 0.45),  # alone, it is layer 2
    ):
        mteb = results / MODEL / "mteb" / folder
        mteb.mkdir(parents=True)
        for task, more in SCORES.items():
            entry = {"main_score": score + more, "languages": ["eng-Latn"]}
            both = [entry | {"hf_subset": "en-en"}]
            both.append(entry | {"hf_subset": "en-de", "languages": ["eng-Latn", "deu-Latn"]})
            found = {"scores": {"test": both, "validation": both[:1]}, "task_name": task}
            (mteb / f"{task}.json").write_text(json.dumps(found))
        (mteb / "NotOfThePaper.json").write_text("{}")
        (mteb / "model_meta.json").write_text("{}")
    first = results / "bert_CLS/base/main/mteb/layer_0/STS12.json"
    first.parent.mkdir(parents=True)
    entries = [{"main_score": s, "hf_subset": "default"} for s in (0.1, float("nan"))]
    first.write_text(json.dumps({"scores": {"test": entries}}))
    probe = {"val_acc1": 40.0, "train_loss": 1.0}
    for name, content in {
        f"{MODEL}/metrics/wikitext/train/curvature.pkl": {"raw": np.array([0.5, np.nan, 1.0])},
        f"{MODEL}/metrics/wikitext/test/curvature.pkl": {"raw": np.array([7.0])},
        f"{MODEL}/metrics/wikitext/train/infonce.pkl": {"raw": [3], "mi-lower-bound": [1]},
        f"{MODEL}/metrics/wikitext/test/infonce.pkl": {"raw": [4]},
        "Pythia/70m/step2000/metrics/wikitext/train/infonce.pkl": {"raw": [5]},
        f"{MODEL}/metrics/mteb/biosses-sts/test/entropy_prompt.pkl": {"raw": [1, 2, 9]},
        "Pythia/70m/step2000/metrics/wikitext/train/curvature.pkl": {"raw": [0.5, 0.6, 1.0]},
        "Pythia/70m/main/metrics/wikitext/entropy_sentence.pkl": {"raw": [1, 2, 9]},
        "Pythia/70m/main/metrics/wikitext/lidar.pkl": {"raw": [1, 2, 9]},
        "mamba/1m/main/metrics/wikitext/train/lidar.pkl": {"raw": [3, 4, 5]},
        "aim/1B/main/metrics/imagenet/val/lidar.pkl": {"raw": [3, 4]},
        "aim/1B/imagenet/layer_0.pkl": probe,
        "aim/1B/imagenet/layer_-1.pkl": probe,
        "vision_results/vit/large/imagenet100/attention_probe/layers-2-to-2.json": probe,
        "vision_results/vit/large/imagenet100/attention_probe/layers-1-to-2.json": probe,
    }.items():
        path = results / name
        path.parent.mkdir(parents=True, exist_ok=True)
        of_json = path.suffix == ".json"
        path.write_bytes(json.dumps(content).encode() if of_json else pickle.dumps(content))
    return tmp_path / "checkout"


def test_a_release_is_imported(checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "papers", "import", checkout, tmp_path / "out"]
    subprocess.run(command, check=True)
    scores = published_scores(read_table(tmp_path / "out/scores.parquet"))
    by_layer = scores.groupby(["model", "pooling", "task"])["main_score"].agg(list)
    assert by_layer["Pythia-70m", "mean", "STS12"] == pytest.approx([0.5, 0.6, 0.7])
    assert by_layer["bert-base", "cls", "STS12"] == [0.1], "a missing score is left out"
    vision = scores[scores["task_type"] == "ImageClassification"]
    assert vision.groupby("model")["layer"].agg(list).to_dict() == {
        "aim-1B": [1, 2],
        "vit-large": [1],
    }
    metrics = published_metrics(read_table(tmp_path / "out/metrics.parquet"))
    curves = metrics.groupby(["model", "revision", "metric", "protocol"])["value"].agg(list)
    assert curves["Pythia-70m", "step1000", "curvature", "reference"] == [0.5, 1.0], "train split"
    assert curves["Pythia-70m", "step1000", "infonce", "reference"] == [4], "two-way, as most"
    assert curves["Pythia-70m", "main", "lidar", "reference_2024"] == [1, 2, 9]
    assert curves["Pythia-70m", "main", "prompt_entropy", "reference_2024"] == [1, 2, 9]
    assert curves["Pythia-70m", "step1000", "prompt_entropy", "reference"] == [1, 2, 9]
    alphas = metrics[metrics["metric"] == "prompt_entropy"].groupby("protocol")["alpha"].first()
    assert alphas.to_dict() == {"reference": 1.0, "reference_2024": 2.0}
    last = metrics[metrics["metric"] == "lidar"].groupby("model")[["layer", "normed"]].agg(list)
    assert last.loc["mamba-1m"].tolist() == [[1, 2], [False, False]]
    assert last.loc["aim-1B"].tolist() == [[1, 2], [False, False]]
    assert last.loc["Pythia-70m"].tolist() == [[0, 1, 2], [False, False, True]]


def test_evidence_of_selection_rules_by_kind_of_model() -> None:
    found = losses.shipped().set_index(["model", "rule"])["loss"].groupby(level=[0, 1]).first()
    large = read_table(data.published("scores"))
    large = large[(large["size"] == "410m") & (large["revision"] == "main")]
    mean = large.groupby(["task", "layer"])["main_score"].mean().unstack().mean()
    for rule, layer in (("model output", 24), ("middle layer", 12)):
        lost = 100 * (mean.max() - mean[layer])
        assert found["Pythia-410m", rule] == pytest.approx(lost, abs=1e-4)
    assert (losses.shipped()["loss"] >= 0).all()
    again = pd.read_csv(io.StringIO(losses.losses().to_csv(index=False)))
    pd.testing.assert_frame_equal(again, losses.shipped())  # `python -m papers losses`
    assert losses.kind_of("berta-base") is None


@pytest.mark.parametrize("name", ["scores", "metrics"])
def test_categories_change_nothing(name: str, tmp_path: Path) -> None:
    table = read_table(data.published(name)).head(50)
    convert = published_scores if name == "scores" else published_metrics
    table.astype(dict.fromkeys(("family", "revision", "layer"), "category")).to_parquet(
        tmp_path / "t.parquet"
    )
    pd.testing.assert_frame_equal(convert(read_table(tmp_path / "t.parquet")), convert(table))


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
    (results / MODEL / "metrics/wikitext/train/curvature.pkl").write_bytes(content)
    with refused(code):
        release.read_metrics(results)
    assert "run by a pickle" not in capsys.readouterr().out


def test_a_run_is_compared_with_the_published_numbers(tmp_path: Path) -> None:
    scores = published_scores(read_table(data.published("scores")))
    own = scores[(scores["model"] == "Pythia-410m") & (scores["revision"] == "main")]
    own = own.assign(model="pythia-410m")
    off = (own["task"] == "STS12") & (own["layer"] == 3)
    own.loc[off, "main_score"] += 0.02
    residual = own.assign(readout="residual", main_score=0.1)
    tables.write(tmp_path / "scores/pythia-410m/main.parquet", pd.concat([own, residual]))
    found = published.differences(
        published.read_scores(str(tmp_path), "pythia-410m"),
        published.read_scores("published", "pythia-410m"),
    )
    assert len(found) == 32 * 25
    assert found.set_index(["task", "layer"])["difference"].abs().nlargest(2).round(
        6
    ).tolist() == [2.0, 0.0]
    command = ["compare", str(tmp_path), "published", "pythia-410m"]
    ran = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "d.csv")])
    assert ran.exit_code == 0, ran.output
    assert "largest 2.00 (STS12, layer 3)" in ran.output
    assert "best layer 17 at 51.9, layer 24 at 46.8" in ran.output
    assert len(pd.read_csv(tmp_path / "d.csv")) == 800
    early = own.assign(revision="step1", main_score=0.25)
    tables.write(tmp_path / "scores/pythia-410m/step1.parquet", early)
    for revision, says in (("main", "layer 17 at 51.9"), ("step1", "layer 24 at 25.0")):
        ran = CliRunner().invoke(app, [*command, "--revision", revision])
        assert ran.exit_code == 0 and says in ran.output, ran.output
    tables.write(tmp_path / "scores/pythia-410m/early.parquet", early.assign(revision="early"))
    usual = published.read_scores(str(tmp_path), "pythia-410m")
    pd.testing.assert_frame_equal(
        usual, published.read_scores(str(tmp_path), "pythia-410m", "main")
    )
    with pytest.raises(LayerwiseError, match="did you mean 'Pythia-410m'"):
        published.read_scores("published", "pythia-411m")


def test_the_score_of_a_task_with_two_subsets_is_their_mean() -> None:
    """Of the subsets that both have; the layers stay apart."""

    def scores(rows: list[tuple[str, int, float]]) -> pd.DataFrame:
        frame = pd.DataFrame(rows, columns=["subset", "layer", "main_score"])
        return frame.assign(task="Counterfactual")

    first = scores([("en", 0, 0.5), ("en-ext", 0, 0.7), ("en", 1, 0.6), ("en-ext", 1, 0.9)])
    second = scores([("en", 0, 0.4), ("en-ext", 0, 0.5), ("en", 1, 0.6), ("de", 1, 0.1)])
    table = published.differences(first, second)
    assert table["layer"].tolist() == [0, 1]
    assert table["first"].tolist() == pytest.approx([60, 60])
    assert table["difference"].tolist() == pytest.approx([15, 0])


def test_differences_are_described_in_points() -> None:
    rows = [("A", 0, 0.50, 0.40), ("A", 1, 0.60, 0.605), ("B", 0, 0.30, 0.30), ("B", 1, 0.2, 0.4)]
    rows += [("C", 1, 0.9, 0.9)]
    frame = pd.DataFrame(rows, columns=["task", "layer", "first", "second"]).assign(subset="x")
    first, second = (
        frame.rename(columns={name: "main_score"})[["task", "subset", "layer", "main_score"]]
        for name in ("first", "second")
    )
    table = published.differences(first, second)
    assert table["difference"].tolist() == pytest.approx([10, -0.5, 0, -20, 0])
    assert table["second"].tolist() == pytest.approx([40, 60.5, 30, 40, 90])
    summary, ours, theirs = published.described(table)
    assert summary == (
        "5 scores of 3 tasks, in percentage points: mean difference -2.10, mean absolute 6.10, "
        "largest -20.00 (B, layer 1); 60% within 1 point."
    )
    # Layer 1 alone has all tasks.
    assert ours == "Mean of all tasks, first: best layer 1 at 56.7, layer 1 at 56.7."
    assert theirs == "Mean of all tasks, second: best layer 1 at 63.5, layer 1 at 63.5."
    lines = published.by_task_and_layer(table).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["A", "10.0", "-0.5"],
        ["B", "0.0", "-20.0"],
        ["C", "0.0"],
    ]
    best = published.described(table[table["task"] != "C"])
    assert best[1].endswith("best layer 0 at 40.0, layer 1 at 40.0.")
    assert best[2].endswith("best layer 1 at 50.2, layer 1 at 50.2.")
