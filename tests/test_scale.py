"""Sweeps: what they cost, what they will cost, how many jobs they are, what is fetched ahead."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT

from layerwise import cli
from layerwise.config import Config, read_config
from layerwise.errors import DiskError, LayerwiseError
from layerwise.workflow import targets
from layerwise.workflow.account import account, estimate, on_disk, past_jobs
from layerwise.workflow.plan import Bundle, Plan
from layerwise.workflow.targets import Job

SWEEP = ROOT / "presets" / "pythia_sweep.yaml"
HEAD = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def benchmark(results: Path, job: str, wall: float, cpu: float, peak: float | str = 100.0) -> None:
    """A benchmark file as Snakemake writes it."""
    path = results / "benchmarks" / f"{job}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEAD}{wall}\t0:00:01\t{peak}\t1\t1\t1\t0.1\t0.2\t50\t{cpu}\n")


def made(results: Path, job: str, *, gpu: bool) -> None:
    """What a job of several leaves behind."""
    path = results / "jobs" / f"{job}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"made": {"x.h5": 1000, "y.h5": 500}, "gpu": gpu}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    benchmark(folder, "run_model/a%2Fb/step1/0", 3600, 1800, 2000)
    benchmark(folder, "run_model/a%2Fb/step2/0", 7200, 900, 3000)
    benchmark(folder, "run_model/small/main/0", 360, 360)
    benchmark(folder, "compute_metrics/a%2Fb/step1/0", 60, 60)
    benchmark(folder, "make_corpus/wiki", 0.4, 0.3, "NA")
    made(folder, "run_model/a%2Fb/step1/0", gpu=True)
    made(folder, "run_model/a%2Fb/step2/0", gpu=True)
    made(folder, "run_model/small/main/0", gpu=False)
    return folder


def row(table: pd.DataFrame, stage: str, model: str = "") -> pd.Series[Any]:
    found = table[(table["rule"] == stage) & (table["model"] == model)]
    assert len(found) == 1, table
    return found.iloc[0]


def test_hours_are_summed_and_memory_is_the_largest(results: Path) -> None:
    table = account(past_jobs(results))
    extract = row(table, "run_model", "a/b")
    assert extract["jobs"] == 2
    assert extract["wall_hours"] == pytest.approx(3)
    assert extract["cpu_hours"] == pytest.approx(0.75)
    assert extract["longest_minutes"] == pytest.approx(120)
    assert extract["peak_memory_gb"] == pytest.approx(3)
    assert extract["gigabytes"] == pytest.approx(2 * 1500 / 1e9)


def test_gpu_hours_are_those_of_jobs_that_found_a_gpu(results: Path) -> None:
    table = account(past_jobs(results))
    assert row(table, "run_model", "a/b")["gpu_hours"] == pytest.approx(3)
    assert row(table, "run_model", "small")["gpu_hours"] == 0
    assert row(table, "compute_metrics", "a/b")["gpu_hours"] == 0


def test_the_total_comes_last_and_counts_every_job_once(results: Path) -> None:
    table = account(past_jobs(results))
    assert table["rule"].iloc[-1] == "all"
    for column in ("jobs", "wall_hours", "cpu_hours", "gpu_hours", "gigabytes"):
        assert table[column].iloc[-1] == pytest.approx(table[column].iloc[:-1].sum())
    assert table["jobs"].iloc[-1] == 5


def test_a_job_too_short_to_measure_has_no_memory_and_spoils_no_sum(results: Path) -> None:
    table = account(past_jobs(results))
    assert np.isnan(row(table, "make_corpus")["peak_memory_gb"])
    assert row(table, "all")["peak_memory_gb"] == pytest.approx(3)


def test_no_run_yet_is_an_empty_table(tmp_path: Path) -> None:
    assert account(past_jobs(tmp_path)).empty


def test_a_strange_benchmark_file_is_named(results: Path) -> None:
    strange = results / "benchmarks" / "make_corpus" / "x.tsv"
    strange.write_text("not\ta\ttable\n1\t2\t3\n")
    with pytest.raises(LayerwiseError, match=r"x\.tsv is no benchmark file.*delete it"):
        past_jobs(results)


def test_estimates_go_by_the_model_at_hand_and_by_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(Config.of(SCORES_ONLY))
    results = tmp_path / "results"
    # STS12 has 326,094 characters by mteb's statistics, STS13 143,748: four to a token.
    benchmark(results, "run_model/p/step1/0", 3600, 1800, 2000)
    path = results / "jobs/run_model/p/step1/0.json"
    path.parent.mkdir(parents=True)
    files = {"results/embeddings/p/step1/STS12.h5": 1000, "elsewhere/p/step1/STS13.h5": 1}
    path.write_text(json.dumps({"made": files, "gpu": True}))
    benchmark(results, "score_tasks/p/step1/0", 60, 50)
    benchmark(results, "list_task_texts/STS12", 30, 30)
    jobs = [
        Bundle("run_model", "p", "step1", "0"), Bundle("run_model", "one", "main", "0"),
        Bundle("score_tasks", "p", "step2", "0"), Bundle("score_tasks", "one", "main", "0"),
        Job("list_task_texts", ("STS13",)),
    ]  # fmt: skip
    table = estimate(plan, jobs, past_jobs(results))
    same = row(table, "run_model", "p")
    assert (
        same["wall_hours"]
        == same["gpu_hours"]
        == pytest.approx((326_094 + 143_748) / 326_094, rel=1e-5)
    )
    assert same["by"] == "22.6 tokens a second"
    other = row(table, "run_model", "one")
    assert (other["by"], other["unknown"]) == ("not known: one has not run yet", 1)
    assert row(table, "score_tasks", "p")["wall_hours"] == pytest.approx(1 / 60)
    assert row(table, "score_tasks", "one")["by"] == "not known: no such job has run"
    assert row(table, "list_task_texts")["by"] == "earlier runs"
    total = row(table, "all")
    assert (total["jobs"], total["unknown"]) == (5, 2)


def test_bytes_go_by_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "p"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"num_hidden_layers": 24, "hidden_size": 1024}')
    models = {"p": {"source": {"folder": "models/p"}, "tokens": ["all"]}}
    plan = Plan(Config.of({**SCORES_ONLY, "models": models, "tasks": ["BIOSSES", "STS13"]}))
    # 25 layers of the stream and the output, in float32: 189 and 2,669 texts.
    size = 26 * 1024 * 4 * (189 + 2669)
    run = Bundle("run_model", "p", "main", "0")
    table = estimate(plan, [run], past_jobs(tmp_path))
    assert row(table, "run_model", "p")["gigabytes"] == pytest.approx(size / 1e9)
    said = " ".join(on_disk(plan))
    assert f"Until it is read: {size / 1e9:.3g} GB" in said
    assert "all of it at one time" in said
    halved = {**SCORES_ONLY, "models": models, "jobs": {"half_from": 2000, "disk": 0.01}}
    said = " ".join(on_disk(Plan(Config.of(halved))))
    assert f"at most {26 * (2048 + 4) * (5033 + 2669) / 1e9:.3g} GB of it at one time" in said


def test_what_is_not_known_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    plan = Plan(Config.of({**SCORES_ONLY, "jobs": {"disk": 1}}))
    (told,) = [line for line in on_disk(plan) if line.startswith("Not in these sums")]
    assert {"p", "one"} <= set(told.partition(": ")[2].replace(",", "").split())
    assert not [line for line in on_disk(plan) if line.startswith("For good")]
    table = estimate(plan, [Bundle("run_model", "p", "main", "0")], past_jobs(tmp_path))
    assert table["gigabytes"].isna().all()
    assert "the shape of p, one is not known" in " ".join(plan.sizes.unknown())
    assert not list(Plan(Config.of(SCORES_ONLY)).sizes.unknown())


@pytest.mark.parametrize(
    ("source", "folder"),
    [({"source": {"file": "mine.txt"}}, "corpora"), ({"images": {"package": "digits"}}, "images")],
)
def test_a_corpus_counts_as_many_prompts_as_its_file_has(
    source: dict[str, Any], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the config takes all that there are."""
    monkeypatch.chdir(tmp_path)
    config = Config.of(
        {
            "models": {
                "n": {
                    "source": {"folder": "results/nano/n/{revision}"},
                    "revisions": ["step0"],
                    "max_length": 32,
                }
            },
            "nano": {"n": {"architecture": "gpt_neox", "layers": 2, "hidden": 32}},
            "corpora": {"mine": {**source, "views": {"n": 2}}},
            "studies": {"s": {"kind": "metrics_by_depth"}},
            "jobs": {"gigabytes": 1},
        }
    )
    extract = Job("extract_activations", ("n", "step0", "mine"))
    assert Plan(config).sizes.bytes_of(extract) is None
    (told,) = Plan(config).sizes.unknown()
    assert "how many prompts mine will have, or how long" in told
    path = tmp_path / "results" / folder / "mine.parquet"
    path.parent.mkdir(parents=True)
    sizes = {}
    for n in (10, 20):
        pd.DataFrame({"text": ["words"] * n}).to_parquet(path)
        plan = Plan(config)
        assert not plan.sizes.unknown()
        sizes[n] = plan.sizes.bytes_of(extract)
    assert sizes[20] == 2 * sizes[10] > 0


def test_nothing_pending_is_an_empty_estimate(results: Path) -> None:
    assert estimate(Plan(Config.of(SCORES_ONLY)), [], past_jobs(results)).empty


@pytest.mark.slow
def test_a_plan_of_a_config_with_its_own_results_folder_goes_by_its_costs(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**SCORES_ONLY, "results": "out/own"}))
    benchmark(tmp_path / "out" / "own", "score_tasks/p/step1/0", 3600, 3600)
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "plan_run.py"), "--output", "plan.csv",
         "--config", "own.yaml"],
        capture_output=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
    )  # fmt: skip
    table = pd.read_csv(tmp_path / "plan.csv", keep_default_na=False)
    scores = row(table, "score_tasks", "p")
    # Three checkpoints, each with its two tasks at once.
    assert (scores["jobs"], scores["unknown"], float(scores["wall_hours"])) == (3, 0, 3)
    assert scores["by"] == "same model and data"
    assert row(table, "run_model", "p")["jobs"] == 3
    assert row(table, "compare_weights")["jobs"] == 1


# Which files tell the weights of checkpoints

SCORES_ONLY: dict[str, Any] = {
    "models": {
        "p": {"source": {"hub": "owner/p"}, "revisions": ["step0", "step1", "step2"]},
        "one": {"source": {"hub": "owner/one"}},
    },
    "corpora": {"mine": {"source": {"file": "mine.txt"}}},
    "tasks": ["STS12", "STS13"],
    "studies": {"s": {"kind": "score_by_depth", "revisions": "all"}},
}


def told(**studies: Any) -> list[Job]:
    """The tables that tell the weights of checkpoints."""
    given = {**SCORES_ONLY, "studies": {**SCORES_ONLY["studies"], **studies}}
    return targets.swept(Config.of(given))


def scored(*steps: str) -> list[Job]:
    return [Job("score_task", ("p", step, "STS12")) for step in steps]


def measured(*steps: str) -> list[Job]:
    return [Job("compute_metrics", ("p", step, "mine")) for step in steps]


def test_checkpoints_that_are_only_scored_are_told_by_a_table_of_scores_each() -> None:
    assert told() == scored("step0", "step1", "step2")
    assert Job("compare_weights") in targets.targets(Config.of(SCORES_ONLY))


@pytest.mark.parametrize("kind", ["metrics_by_depth", "value_distribution"])
def test_checkpoints_with_metrics_need_no_table_of_scores(kind: str) -> None:
    last = {"kind": kind, "metrics": ["prompt_entropy"]}
    assert told(last=last) == [*scored("step0", "step1"), *measured("step2")]


def test_checkpoints_stand_in_the_order_of_training() -> None:
    """Whatever the order of studies: the first wants the last checkpoint, the next one all."""
    last, every = ({"kind": "metrics_by_depth", "revisions": r} for r in ("last", "all"))
    config = Config.of({**SCORES_ONLY, "studies": {"last": last, "every": every}})
    assert targets.swept(config) == measured("step0", "step1", "step2")


# The sweep


def sweep() -> Config:
    return read_config([SWEEP])


def test_the_sweep_is_all_checkpoints_and_the_papers_tasks() -> None:
    config = sweep()
    revisions = config.models["pythia-410m"].revisions
    assert len(revisions) == len(set(revisions)) == 154
    assert (revisions[0], revisions[-1]) == ("step0", "step143000")
    assert len(config.tasks) == 32
    assert len(targets.scored(config)) == 154 * 32


def test_the_sweeps_tasks_are_the_published_ones(shared: Path) -> None:
    published = pd.read_csv(shared / "published" / "TASKS.csv")
    assert sorted(sweep().tasks) == sorted(published["task"])


def test_fetching_ahead_names_all_that_comes_from_the_hub_once() -> None:
    wanted = targets.fetched(sweep())
    assert len(wanted) == len(set(wanted)) == 154 + 1 + 32
    files = Plan(sweep()).paths(Job("fetch_model", ("pythia-410m", "step143000")))
    assert files == {"fetched": "results/fetched/models/pythia-410m/step143000.json"}
    assert targets.fetched(read_config([ROOT / "config.yaml"])) == []


def dry_run(config: dict[str, Any], folder: Path) -> tuple[dict[str, int], float]:
    """Number of jobs by rule, and CPU seconds (other work on the machine does not count)."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--dry-run", "--snakefile",
         str(ROOT / "workflow" / "Snakefile"), "--directory", str(folder),
         "--configfile", str(file),
         "--workflow-profile", str(ROOT / "workflow" / "profiles" / "default")],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    table = done.stdout.split("Job stats:")[1].split("\n\n")[0]
    counts = {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return counts, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


PYTHIA = {
    "14m": (6, 128), "70m": (6, 512), "160m": (12, 768), "410m": (24, 1024), "1b": (16, 2048),
    "1.4b": (24, 2048), "2.8b": (32, 2560), "6.9b": (32, 4096), "12b": (36, 5120),
}  # fmt: skip


@pytest.fixture
def pythia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache with Pythia's configurations in it; nothing else."""
    for name, (layers, width) in PYTHIA.items():
        told = {"num_hidden_layers": layers, "hidden_size": width}
        files = {"config.json": json.dumps(told).encode()}
        cached(tmp_path / "hf", f"EleutherAI/pythia-{name}", COMMIT, files)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    return tmp_path


@pytest.mark.slow
def test_a_plan_of_the_sweep_takes_at_most_a_minute(pythia: Path) -> None:
    counts, seconds = dry_run(yaml.safe_load(SWEEP.read_text()), pythia)
    assert counts["compute_metrics"] == 39  # four checkpoints each
    assert counts["run_model"] == 3 * 39
    assert counts["total"] <= 1500
    assert seconds < 60


def test_the_sweep_keeps_to_its_disk(pythia: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pythia)
    plan = Plan(sweep())
    queue = list(plan.queue())
    # Four checkpoints in a job, but the last of each part, which has two.
    assert max(size for _, size, _ in queue) <= 4 * 40e9
    assert sum(size for _, size, _ in queue) > 10e12
    assert "at most 1.6e+03 GB of it at one time" in " ".join(on_disk(plan))
    stays: dict[str, int] = {}
    for job in plan.wanted:
        if job.stage in ("compute_metrics", "score_task"):
            stays[job.names[1]] = stays.get(job.names[1], 0) + plan.sizes.stays(job)
    assert max(stays.values()) <= 200e6


@pytest.mark.slow
def test_a_plan_of_the_whole_suite_takes_at_most_three_minutes(pythia: Path) -> None:
    suite = yaml.safe_load((ROOT / "presets" / "pythia_suite.yaml").read_text())
    counts, seconds = dry_run(suite, pythia)
    assert counts["compute_metrics"] == 9 * 154
    assert counts["total"] < 10_000
    assert seconds < 180
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4e6


@pytest.mark.slow
def test_without_tasks_the_sweep_is_a_few_hundred_jobs(tmp_path: Path) -> None:
    config = yaml.safe_load(SWEEP.read_text())
    config["tasks"] = []
    kinds = ("metrics_over_checkpoints", "checkpoint_heatmap")
    config["studies"] = {n: s for n, s in config["studies"].items() if s["kind"] in kinds}
    counts, seconds = dry_run(config, tmp_path)
    assert counts["total"] <= 1500
    assert seconds < 60


# Fetching


CONFIG: dict[str, Any] = {
    "models": {"m": {"source": {"hub": "owner/model"}, "revisions": ["step1", "step2"]}},
    "corpora": {"texts": {"source": {"hub": "owner/texts"}}},
    "tasks": ["STS12"],
    "studies": {"s": {"kind": "score_by_depth"}},
}
RECORD = Path("results") / "fetched" / "models" / "m" / "step1.json"


def fetch(
    tmp_path: Path, what: str, *names: str, config: dict[str, Any] = CONFIG
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"fetch_{what}.py"), *names],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib"), "HF_HUB_OFFLINE": "1",
             "HF_HOME": str(tmp_path / "hf")},
    )  # fmt: skip


def cached(home: Path, name: str, commit: str, files: dict[str, bytes]) -> None:
    """A model in the cache, as the hub's client lays it out."""
    base = home / "hub" / f"models--{name.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "step1").write_text(commit)
    folder = base / "snapshots" / commit
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
STEP1 = ("--model", "m", "--revision", "step1")


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path: Path) -> None:
    cached(
        tmp_path / "hf",
        "owner/model",
        COMMIT,
        {"config.json": b"{}", "model.safetensors": b"12345"},
    )
    done = fetch(tmp_path, "model", *STEP1)
    assert done.returncode == 0, done.stderr
    record = yaml.safe_load((tmp_path / RECORD).read_text())
    expected = {"repository": "owner/model", "revision": "step1", "commit": COMMIT, "bytes": 7}
    assert record.items() >= expected.items()
    assert record["key"] == Plan(Config.of(CONFIG)).key(Job("fetch_model", ("m", "step1")))


def test_an_adapter_of_the_hub_is_fetched_for_a_local_model_too(tmp_path: Path) -> None:
    adapter = {"hub": "owner/adapter", "revision": "step1"}
    local = {"source": {"folder": "models/m"}, "adapters": [adapter], "revisions": ["step1"]}
    config = {**CONFIG, "models": {"m": local}}
    assert Job("fetch_model", ("m", "step1")) in targets.fetched(Config.of(config))
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"12345"}
    cached(tmp_path / "hf", "owner/adapter", COMMIT, files)
    done = fetch(tmp_path, "model", *STEP1, config=config)
    assert done.returncode == 0, done.stderr
    record = yaml.safe_load((tmp_path / RECORD).read_text())
    expected = {"repository": "owner/adapter", "revision": "step1", "commit": COMMIT, "bytes": 7}
    assert record["adapters"] == [expected]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("model", "--model", "m", "--revision", "step2"), "at 'step2' is not in the cache"),
        (("corpus", "--corpus", "texts"), "reach the hub for the data set 'owner/texts'"),
        (("task", "--task", "STS12"), "The data of STS12 could not be loaded"),
        (("task", "--task", "STS-12"), "There is no 'STS-12' under tasks in this config (did you"),
    ],
    ids=["model", "corpus", "task", "no task"],
)  # fmt: skip
@pytest.mark.slow
def test_what_cannot_be_fetched_is_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = fetch(tmp_path, *arguments)
    assert done.returncode == 1, done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert sentence in said
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_pickled_weights_are_no_weights(tmp_path: Path) -> None:
    cached(
        tmp_path / "hf", "owner/model", COMMIT, {"config.json": b"{}", "pytorch_model.bin": b"1"}
    )
    done = fetch(tmp_path, "model", *STEP1)
    assert done.returncode == 1
    assert "has no weights as safetensors" in done.stderr.strip().splitlines()[-1]


def test_one_failure_stops_no_other_job_but_a_full_disk_stops_all() -> None:
    class Faked:
        job = Job("embed_task", ("m", "main", "t"))

    for error, begun in ((LayerwiseError("no text."), 3), (DiskError("no room."), 1)):
        seen: list[object] = []

        def fail(run: object, error: Exception = error, seen: list[object] = seen) -> None:
            seen.append(run)
            raise error

        with pytest.raises(LayerwiseError, match=r"no (text|room)"):
            cli.each([Faked(), Faked(), Faked()], fail)  # type: ignore[list-item]
        assert len(seen) == begun


def test_a_model_that_does_not_load_fails_its_jobs_and_no_others() -> None:
    class Faked:
        job = Job("embed_task", ("m", "main", "t"))

    failures, done = cli.Failures(), []
    for loads in (False, True):
        with failures.of([Faked(), Faked()]):  # type: ignore[list-item]
            if not loads:
                raise LayerwiseError("There is no model.")
            for fails in (True, False):
                with failures.of([Faked()]):  # type: ignore[list-item]
                    if fails:
                        raise LayerwiseError("There is no text.")
                    done.append(loads)
    assert done == [True]
    with pytest.raises(LayerwiseError, match=r"^There is no model\. \(3 of 4 jobs failed\)$"):
        failures.tell(4)
    cli.Failures().tell(4)
