"""`layerwise choose`: a layer from texts alone, or from labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
from typer.testing import CliRunner

from layerwise.app import _texts, app
from layerwise.association.choice import CONSENSUS
from layerwise.association.regret import LAST
from layerwise.choosing import by_labels
from layerwise.choosing import choose as choosing
from layerwise.choosing.described import described_labels
from layerwise.errors import LayerwiseError
from layerwise.models.load import load
from layerwise.models.weights import likeness, sample_of
from layerwise.tasks import labelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("models") / "llama")


def run(caplog: pytest.LogCaptureFixture, *given: object) -> tuple[int, str]:
    """Exit status, and what it printed or logged as an error."""
    caplog.clear()
    result = CliRunner().invoke(app, ["choose", *map(str, given), "--threads", "1"])
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    return result.exit_code, "\n".join([result.output, *errors])


def test_from_texts(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.txt").write_text("\n".join(tiny.texts(120)))
    status, said = run(caplog, folder, tmp_path / "t.txt", "--sample", "110")
    assert status == 0, said
    assert "110 of 120 texts" in said
    assert "Advice: the model's own output" in said
    assert "The evidence for another layer is weak" in said
    assert "could not be told to lose less than the output" in said


def test_the_record_leaves_the_model_out() -> None:
    known = pd.read_csv(choosing.RECORD, dtype=str, keep_default_na=False)
    some = known[known["model"] == "minilm-l6"]["weights"].iloc[0]
    whole = choosing.record_without("0" * 64, "new").set_index("rule")
    less = choosing.record_without(some + "0" * 52, "new").set_index("rule")
    assert whole.loc[LAST, "n_models"] == less.loc[LAST, "n_models"] + 1
    others = known[(known["rule"] == LAST) & (known["model"] != "minilm-l6")]
    assert less.loc[LAST, "regret"] == pytest.approx(others["regret"].astype(float).mean())
    named = choosing.record_without("0" * 64, "EleutherAI/pythia-70m").set_index("rule")
    assert named.loc[LAST, "n_models"] == whole.loc[LAST, "n_models"] - 1
    # What is printed beside a metric is of such a consensus as is computed here.
    assert CONSENSUS in whole.index


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_is_known_in_another_dtype(folder: Path, tmp_path: Path, dtype: str) -> None:
    one = load("m", tiny.entry(folder), "main", device="cpu")
    same = load("m", tiny.entry(folder), "main", device="cpu", dtype=dtype)
    other = load("m", tiny.entry(tiny.save("llama", tmp_path / "o", seed=1)), "main", device="cpu")
    assert one.weights != same.weights
    samples = [sample_of(loaded.model) for loaded in (one, same, other)]
    assert likeness(samples[0], samples[1]) > 0.99 > choosing.ALIKE > 0.5
    assert abs(likeness(samples[0], samples[2])) < 0.5
    assert likeness(samples[0], []) == 0 and likeness([0.0], [1.0]) == 0


def test_a_models_relatives_are_left_out_of_the_record() -> None:
    """Weights of another hash and name, and embeddings that rounding or tuning moved a little."""
    known = json.loads(choosing.SAMPLES.read_text())
    models = set(pd.read_csv(choosing.RECORD)["model"])
    assert set(known) <= models
    sample = np.array(known["minilm-l6"])
    moved = sample * (1 + 0.05 * np.random.default_rng(0).normal(size=len(sample)))
    whole, less = (
        choosing.record_without("0" * 64, "x", s).set_index("rule").loc[LAST, "n_models"]
        for s in ((), moved.tolist())
    )
    assert less == whole - 1


def test_advice_follows_the_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a record of many models in which the consensus wins, and texts that agree, it is it."""
    rows = [
        {"rule": rule, "n_models": 12, "regret": lost, "low": 0.0, "high": 5.0,
         f"less_{LAST}": 4.0 - lost, f"corrected_{LAST}": 0.001}
        for rule, lost in ((LAST, 4.0), (CONSENSUS, 0.5))
    ]  # fmt: skip
    record = pd.DataFrame(rows)
    assert choosing._against(0.9, 0.9, record, 400) == ""
    assert "few" in choosing._against(0.9, 0.9, record, 50)
    assert "30% of the metrics" in choosing._against(0.3, 0.9, record, 400)
    assert "10% of random halves" in choosing._against(0.9, 0.1, record, 400)
    weak = record.assign(**{f"corrected_{LAST}": 0.2})
    assert "in 12 models" in choosing._against(0.9, 0.9, weak, 400)


def test_halves_are_asked_for_their_consensus() -> None:
    depth = np.arange(9)
    halves = pd.DataFrame(
        [
            {"repeat": repeat, "metric": metric, "layer": layer, "value": sign * abs(layer - hill)}
            for repeat, hill in enumerate([2, 2, 2, 6])
            for metric, sign in (("curvature", 1.0), ("dataset_entropy", -1.0))
            for layer in depth
        ]
    )
    ends = {"curvature": -1, "dataset_entropy": 1}
    shares = [choosing.steadiness(halves, ends, layer, 8) for layer in depth]
    assert shares == [0, 0, 0.75, 0, 0, 0, 0.25, 0, 0]
    # A single metric makes no consensus.
    alone = halves[halves["metric"] == "curvature"]
    assert choosing.steadiness(alone, ends, 2, 8) == 0


def test_from_labels(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is printed is what probes of the same vectors give."""
    texts = list(dict.fromkeys(tiny.texts(90)))[:80]
    frame = pd.DataFrame({"text": texts, "label": [str(len(t) > 80) for t in texts]})
    frame.to_csv(tmp_path / "l.csv", index=False)
    status, said = run(caplog, folder, "--labels", tmp_path / "l.csv", "--tokens", "all")
    assert status == 0, said
    assert "accuracy of a linear probe, 80 rows" in said and "Advice" in said
    loaded = load("m", tiny.entry(folder), "main", device="cpu")
    data, n = by_labels.read_labels(tmp_path / "l.csv", 1000)
    found = by_labels.choose_by_labels(loaded, data, tokens="all")
    assert n == 80 and len(found.found) == loaded.anatomy.n_layers
    import torch

    with torch.no_grad():
        states = [
            loaded.model(
                torch.tensor([loaded.tokenizer(t)["input_ids"]]), output_hidden_states=True
            ).hidden_states[1][0].mean(0)
            for t in texts
        ]  # fmt: skip
    vectors = torch.stack(states).numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found.found[1].score == pytest.approx(labelled.layer_score(data, [unit]).score)


def test_pairs_are_told_by_their_columns(folder: Path, tmp_path: Path) -> None:
    texts = tiny.texts(60)
    pairs = pd.DataFrame({"first": texts[:30], "second": texts[30:], "score": np.arange(30.0)})
    pairs.to_parquet(tmp_path / "p.parquet")
    data, _ = by_labels.read_labels(tmp_path / "p.parquet", 25)
    assert data.kind == "pairs" and len(data.labels) == 25
    numbers = pd.DataFrame({"text": texts, "label": np.arange(60.0)})
    assert by_labels.kind_of(numbers, "x") == "regression"
    assert by_labels.kind_of(numbers.assign(label=[0, 1] * 30), "x") == "classification"


def test_words_and_tags_are_told_by_their_file(tmp_path: Path) -> None:
    lines = [f"w{k % 97} {'N' if k % 7 > 3 else 'V'}\n" + "\n" * (k % 5 == 4) for k in range(300)]
    (tmp_path / "d.conll").write_text("".join(lines))
    data, n = by_labels.read_labels(tmp_path / "d.conll", 100)
    assert data.kind == "tags" and len(data.labels) <= 100 and n == 300
    assert by_labels.SCORES[data.kind] and len(data.types or ()) == len(data.labels)


def test_a_rare_class_is_in_the_sample(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": [f"text {k}" for k in range(3000)], "label": "common"})
    frame.loc[:299, "label"] = "other"
    frame.loc[1000:1004, "label"] = "rare"
    frame.to_parquet(tmp_path / "l.parquet")
    for seed in range(5):
        data, n = by_labels.read_labels(tmp_path / "l.parquet", 100, seed)
        counts = np.bincount(data.labels)
        assert n == 3000 and counts.sum() == 100 and counts[2] == 5 and 5 <= counts[1] < 25
    with pytest.raises(LayerwiseError, match="--sample 12 is too few for 3 classes; give 15"):
        by_labels.read_labels(tmp_path / "l.parquet", 12)
    with pytest.raises(LayerwiseError, match=r"16 of 3000 rows drawn.*20 or more"):
        by_labels.read_labels(tmp_path / "l.parquet", 16)


def test_labels_that_tell_nothing() -> None:
    none = labelled.Found(None, None, None, 30, None, None, "the similarities are alike")
    choice = by_labels.LabelledChoice([none, none], none, 30, "x")
    with pytest.raises(LayerwiseError, match="No layer has a score on these labels: the simil"):
        _ = choice.layer


def test_equal_layers_are_not_advised() -> None:
    """Of layers that are all alike, the best by luck leads the output, and is not advised."""
    rng = np.random.default_rng(0)
    told = []
    for _ in range(30):
        right = rng.normal(size=120) + rng.normal(size=(32, 120)) > -0.5
        found = [of_rows(one) for one in right]
        told.append(by_labels.LabelledChoice(found[:-1], found[-1], 120, "x").layer)
    assert sum(layer is not None for layer in told) <= 3


def test_a_layer_that_leads_is_advised_by_pairs_of_rows() -> None:
    """Two layers whose intervals overlap: what counts is the rows that only one has right."""
    output = np.arange(200) < 120
    found = [of_rows(output), of_rows(output | (np.arange(200) > 188))]
    assert found[1].low is not None and found[1].low < 0.6
    choice = by_labels.LabelledChoice(found, found[0], 200, "x")
    assert choice.layer == 1 and choice.lead is not None
    assert choice.lead.value == pytest.approx(11 / 200) and 0 < choice.lead.low < 11 / 200
    said = described_labels(choice)
    assert "layer 1 leads the output by 0.055, at least 0.0" in said[-2]
    assert "corrected for the choice among 2 layers" in said[-2]


def of_rows(right: np.ndarray) -> labelled.Found:
    """What is found of a layer that has some rows right."""
    p, n = float(right.mean()), len(right)
    margin = 1.96 * np.sqrt(p * (1 - p) / n)
    return labelled.Found(p, p - margin, p + margin, n, 0.5, None, parts=right / n)


def test_a_sample_is_stated_and_the_same_every_time(tmp_path: Path) -> None:
    texts = [f"text {k}" for k in range(100_000)]
    drawn = choosing.sample(texts, 1000)
    assert len(drawn) == 1000 and drawn == choosing.sample(texts, 1000)
    assert drawn != choosing.sample(texts, 1000, seed=1)
    assert choosing.sample([*texts[:30], " ", *texts[:30]], 1000) == texts[:30]
    with pytest.raises(LayerwiseError, match="1 different texts came"):
        choosing.sample(["one text"] * 50, 1000)
    (tmp_path / "many.txt").write_text("\n".join(texts))
    assert _texts(tmp_path / "many.txt") == texts


BAD = {
    "binary.txt": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 40, "is not UTF-8"),
    "binary.parquet": (b"\x00\xff" * 99, "no parquet file"),
    "empty.txt": (b"", "is empty"),
    "one.txt": (b"only one text\n", "1 different texts came"),
    "blank.txt": (b" \n\n \n", "no text but blank ones"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_texts(
    name: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, told = BAD[name]
    (tmp_path / name).write_bytes(content)
    status, said = run(caplog, folder, tmp_path / name)
    assert status == 1 and told in said
    assert "Traceback" not in said


TEXTS = [f"text number {k}" for k in range(40)]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"text": TEXTS, "label": ["a"] * 40}, "All 40 labels are 'a'"),
        ({"text": TEXTS, "label": [None, *"ab" * 19, "a"]}, "1 of 40 rows have no label"),
        ({"text": TEXTS, "label": [np.nan, *range(39)]}, "1 of 40 rows have no label"),
        ({"text": TEXTS, "lable": ["a", "b"] * 20}, "has the columns text, lable; accepted are"),
        ({"text": [None, *TEXTS[1:]], "label": ["a", "b"] * 20}, "where a text should be"),
    ],
)
def test_bad_labels(
    columns: dict[str, list[object]], told: str, folder: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    pd.DataFrame(columns).to_parquet(tmp_path / "l.parquet")
    status, said = run(caplog, folder, "--labels", tmp_path / "l.parquet")
    assert status == 1 and told in said


def test_one_of_texts_and_labels(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "Give either a file of texts, or labelled rows" in run(caplog, folder)[1]
