"""The workflow on a real SLURM, through the profile: GPUs, lost nodes, limits, nothing done twice;
and a sweep from training to figures whose jobs are killed.

Needs the cluster of `start_cluster.sh`; `make test-slurm` starts it. Every fault is a real one: a
node's daemon and its job are killed, a job is stopped until its time is up, a job gets less memory
than it needs, a job's process is killed at a random moment.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import pytest
from same_values import assert_same
from test_scores_formats import scored_pairs
from test_workflow import CONFIG, Project

CONF = Path("/etc/slurm/slurm.conf")
STATE = Path("/var/lib/layerwise-slurm")
ON_GPU = {"rule_run_model"}


def our_cluster() -> bool:
    if not CONF.is_file() or "layerwise's tests/slurm" not in CONF.read_text():
        return False
    return subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not our_cluster(), reason="start one with tests/slurm/start_cluster.sh"),
]


class OnCluster(Project):
    """A copy of the project whose runs go through the profile."""

    earlier: set[str]  # ids of jobs that others left behind
    config: dict[str, Any]

    def command(self, *arguments: str) -> list[str]:
        profile = str(self.folder / "workflow" / "profiles" / "slurm")
        quick = ["--slurm-init-seconds-before-status-checks", "3"]
        quick += ["--seconds-between-status-checks", "3", "--latency-wait", "20"]
        usual = super().command()[:-2]
        return [*usual, "--workflow-profile", profile, "--slurm-no-account", *quick, *arguments]

    def environment(self) -> dict[str, str]:
        # The profile has to see to it that jobs leave the hub alone.
        return {k: v for k, v in super().environment().items() if k != "HF_HUB_OFFLINE"}

    def start(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as handle:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=self.environment(),
                stdout=handle, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def values(self) -> dict[str, Any]:
        return values(self)


def values(project: Project) -> dict[str, Any]:
    """All final values of a project: every array, every table."""
    found: dict[str, Any] = {}
    results = project.folder / "results"
    for path in sorted((results / "activations").rglob("*.h5")):
        with h5py.File(path) as file:
            found[str(path.relative_to(results))] = file["pooled"][()]
    for part in ("metrics", "scores", "associations"):
        for path in sorted((results / part).rglob("*.parquet")):
            found[str(path.relative_to(results))] = pd.read_parquet(path)
    return found


def slurm_jobs() -> list[dict[str, str]]:
    """Every job that SLURM remembers, as scontrol tells it."""
    done = subprocess.run(
        ["scontrol", "--oneliner", "show", "job"], capture_output=True, text=True, check=True
    )
    return [
        dict(re.findall(r"(\S+?)=(\S*)", line))
        for line in done.stdout.splitlines()
        if line.startswith("JobId=")
    ]


def rule_of(job: dict[str, str]) -> str:
    return job.get("Comment", "").partition("_wildcards_")[0]


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def processes(job: str, holding: str = "") -> list[int]:
    """Ids of a job's processes whose command line holds a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        mine = f"SLURM_JOB_ID={job}".encode() in environment or f"slurmstepd: [{job}." in command
        if mine and holding in command:
            found.append(int(folder.name))
    return found


def kill(*pids: int, by: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, by)
        except ProcessLookupError:
            continue


def at_work(rule: str, script: str) -> tuple[dict[str, str], list[int]] | None:
    """A running job of a rule, once its script runs."""
    for job in slurm_jobs():
        if job["JobState"] == "RUNNING" and rule_of(job) == rule:
            pids = processes(job["JobId"], script)
            if pids:
                return job, pids
    return None


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnCluster]:
    made = OnCluster(tmp_path_factory.mktemp("cluster"))
    made.earlier = {job["JobId"] for job in slurm_jobs()}
    config = copy.deepcopy(CONFIG)
    del config["models"]["first"]
    # 'auto' asks SLURM for a GPU; what it declares is none, so the job computes on the CPU.
    config["extract"]["device"] = "auto"
    config["studies"]["both"]["models"] = ["second"]
    # Scores of every checkpoint, so that each has its corpus and its task.
    config["studies"]["scores"] = {"kind": "scores_over_checkpoints", "models": ["second"]}
    made.config = config
    made.write(config)
    yield made
    subprocess.run(["scancel", "--user", "root"], check=False)


@pytest.fixture(scope="module")
def unbroken(project: OnCluster) -> dict[str, Any]:
    project.snakemake()
    found = project.values()
    assert len([name for name in found if name.startswith("activations")]) == 2
    assert len([name for name in found if name.startswith("scores")]) == 2
    return found


RESULTS = ("associations", "figures", "tables", "report")


def forget(project: OnCluster, *more: str) -> None:
    """Delete the results, and some of the files that they are made of: by default all that the
    GPU jobs and those after them have made.

    A file that nothing is to be made of is not missed.
    """
    for part in (*RESULTS, *(more or ("activations", "metrics", "scores"))):
        path = project.folder / "results" / part
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def on_gpu(job: dict[str, str]) -> bool:
    return "gpu" in job.get("TresPerJob", "") + job.get("TresPerNode", "")


def since(before: set[str]) -> list[dict[str, str]]:
    return [job for job in slurm_jobs() if job["JobId"] not in before]


def made_by(project: OnCluster, rule: str, revision: str) -> set[str]:
    """The files that a bundle says it made."""
    path = project.folder / "results" / "jobs" / rule / "second" / revision / "0.json"
    return set(json.loads(path.read_text())["made"])


def test_gpu_jobs_ask_for_a_gpu_and_no_others_do(
    project: OnCluster, unbroken: dict[str, Any]
) -> None:
    jobs = since(project.earlier)
    rules = Counter(map(rule_of, jobs))
    # One job a checkpoint, which takes its corpus and its task.
    for rule in ("rule_run_model", "rule_score_tasks", "rule_compute_metrics"):
        assert rules[rule] == 2, rules
    assert rules["rule_make_views"] == 1
    for job in jobs:
        assert on_gpu(job) == (rule_of(job) in ON_GPU), job
        assert job["JobState"] == "COMPLETED", job
    for revision in ("step0", "step1"):
        assert made_by(project, "run_model", revision) == {
            f"results/activations/second/{revision}/mine.h5",
            f"results/embeddings/second/{revision}/LeeNewsSimilarity.h5",
        }
    assert not list((project.folder / "results" / "embeddings").rglob("*.h5"))
    # Plots and the account are made where snakemake runs.
    assert "rule_account_run" not in rules


def test_a_job_does_what_is_missing_and_nothing_else(
    project: OnCluster, unbroken: dict[str, Any]
) -> None:
    """A job's own Snakemake reads the Snakefile anew, and must find the same work in it."""
    forget(
        project,
        "activations/second/step1/mine.h5",
        "metrics/second/step1/mine.parquet",
        "scores/second/step0/LeeNewsSimilarity.parquet",
    )
    before = {job["JobId"] for job in slurm_jobs()}
    project.snakemake()
    rules = Counter(map(rule_of, since(before)))
    assert rules["rule_run_model"] == 2
    assert rules["rule_score_tasks"] == rules["rule_compute_metrics"] == 1
    assert made_by(project, "run_model", "step0") == {
        "results/embeddings/second/step0/LeeNewsSimilarity.h5"
    }
    assert made_by(project, "run_model", "step1") == {"results/activations/second/step1/mine.h5"}
    assert_same(project.values(), unbroken)


def test_a_job_can_take_several_checkpoints(project: OnCluster, unbroken: dict[str, Any]) -> None:
    forget(project)
    project.write({**project.config, "jobs": {"items": 1}})
    assert project.jobs()["run_model"] == 4, "two checkpoints, a corpus and a task each"
    project.write({**project.config, "jobs": {"checkpoints": 2}})
    before = {job["JobId"] for job in slurm_jobs()}
    project.snakemake()
    jobs = since(before)
    assert [on_gpu(j) for j in jobs].count(True) == 1, "two checkpoints, one after the other"
    assert len([j for j in jobs if rule_of(j) == "rule_score_tasks"]) == 1
    assert len(made_by(project, "run_model", "step0")) == 4
    assert_same(project.values(), unbroken)
    # How much a job does decides nothing of what is due.
    project.write(project.config)
    assert project.jobs() == {}


def test_a_second_run_submits_nothing(project: OnCluster, unbroken: dict[str, Any]) -> None:
    before = {job["JobId"] for job in slurm_jobs()}
    assert "Nothing to be done" in project.snakemake()
    assert not since(before)


def test_a_node_lost_in_mid_job_costs_nothing_but_time(
    project: OnCluster, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    forget(project)
    running = project.start(tmp_path / "log")
    job, pids = wait_for("a model's run", lambda: at_work("rule_run_model", "run_model.py"))
    assert b"HF_HUB_OFFLINE=1" in Path(f"/proc/{pids[0]}/environ").read_bytes().split(b"\0")
    node = job["NodeList"]
    kill(int((STATE / f"{node}.pid").read_text()))
    kill(*processes(job["JobId"]))

    def noticed() -> bool:
        now = {j["JobId"]: j for j in slurm_jobs()}[job["JobId"]]
        return now["JobState"] != "RUNNING" or now.get("Restarts", "0") != "0"

    wait_for("SLURM to notice", noticed)
    subprocess.run(["slurmd", "-N", node], check=True)
    assert running.wait(900) == 0, (tmp_path / "log").read_text()[-5000:]
    lost = [
        j for j in slurm_jobs() if j.get("Restarts", "0") != "0" or j["JobState"] == "NODE_FAIL"
    ]
    assert job["JobId"] in {j["JobId"] for j in lost}
    assert_same(project.values(), unbroken)
    assert not list((project.folder / "results").rglob("*.partial"))


def test_jobs_over_their_limits_come_back_with_more(
    project: OnCluster, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    forget(project)
    before = {job["JobId"] for job in slurm_jobs()}
    running = project.start(
        tmp_path / "log",
        "--set-resources", "run_model:mem_mb=attempt*attempt*350",
        "compute_metrics:runtime=1 if attempt == 1 else 20",
    )  # fmt: skip
    _, pids = wait_for(
        "the metrics", lambda: at_work("rule_compute_metrics", "compute_metrics.py"), 900
    )
    kill(*pids, by=signal.SIGSTOP)
    assert running.wait(900) == 0, (tmp_path / "log").read_text()[-5000:]
    jobs = since(before)
    ended = {(rule_of(j), j["JobState"]) for j in jobs}
    assert ("rule_compute_metrics", "TIMEOUT") in ended
    hungry = {s for rule, s in ended if rule == "rule_run_model"}
    assert hungry > {"COMPLETED"}, ended
    memory = {j["MinMemoryNode"] for j in jobs if rule_of(j) == "rule_run_model"}
    assert len(memory) > 1, memory
    assert_same(project.values(), unbroken)


def test_a_job_over_its_time_goes_on_where_it_was(
    project: OnCluster, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    """Stopped once the first of its four files is there, until SLURM ends it."""
    forget(project)
    project.write({**project.config, "jobs": {"checkpoints": 2}})
    before = {job["JobId"] for job in slurm_jobs()}
    running = project.start(
        tmp_path / "log", "--set-resources", "run_model:runtime=1 if attempt == 1 else 20"
    )
    _, pids = wait_for("a model's run", lambda: at_work("rule_run_model", "run_model.py"))
    first = project.folder / "results" / "activations" / "second" / "step0" / "mine.h5"
    while not first.exists():
        assert running.poll() is None
        time.sleep(0.01)
    kill(*pids, by=signal.SIGSTOP)
    stamp = first.stat()
    assert running.wait(900) == 0, (tmp_path / "log").read_text()[-5000:]
    states = [j["JobState"] for j in since(before) if rule_of(j) == "rule_run_model"]
    assert sorted(states) == ["COMPLETED", "TIMEOUT"]
    assert "TIMEOUT" in (tmp_path / "log").read_text()
    assert first.stat().st_ino == stamp.st_ino
    assert first.stat().st_mtime_ns == stamp.st_mtime_ns
    assert_same(project.values(), unbroken)
    project.write(project.config)


STEPS = ["step0", "step1", "step2", "step4"]
SWEEP: dict[str, Any] = {
    "corpora": {"mine": {"source": {"file": "mine.txt"}, "filters": {"min_tokens": 5}}},
    "tasks": {"SICK-R": {"folder": "pairs"}},
    "extract": {"device": "auto", "threads": 1},
    "metrics": {"metrics": ["prompt_entropy", "curvature"]},
    "scoring": {"threads": 1},
    "models": {
        name: {"source": {"folder": f"results/nano/{name}/{{revision}}"}, "revisions": STEPS}
        for name in ("neox-nano", "mamba2-nano")
    },
    "nano": {
        name: {
            "architecture": architecture, "layers": 3, "hidden": 32, "vocabulary": 300,
            "context": 16, "batch": 2, "train_steps": 4, "corpus": "mine",
        }
        for name, architecture in (("neox-nano", "gpt_neox"), ("mamba2-nano", "mamba2"))
    },
    "studies": {
        "metrics": {
            "kind": "metrics_over_checkpoints", "models": ["neox-nano", "mamba2-nano"],
            "metrics": ["prompt_entropy", "curvature"],
        },
        "scores": {"kind": "scores_over_checkpoints", "models": ["neox-nano", "mamba2-nano"]},
    },
}  # fmt: skip
STRUCK = {"train_neox_nano", "list_task_texts", "run_model", "score_tasks", "compute_metrics"}
# What decides values; everything after it is made of that.
COMPARED = {
    "train_nano", "make_corpus", "make_views", "list_task_texts", "run_model", "compute_metrics",
    "score_tasks",
}  # fmt: skip

ONE_PROCESS = """
import importlib.util
from pathlib import Path
from layerwise.cli import Run
from layerwise.workflow.plan import Plan
from layerwise.workflow.stages import STAGES
plan = Plan.open(Path("config.yaml"))
for job in plan.jobs_due():
    rule = STAGES[job.stage].rule or job.stage
    if rule in {compared}:
        spec = importlib.util.spec_from_file_location(rule, f"scripts/{{rule}}.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        run = Run(plan, job, 1)
        script.main([run] if STAGES[job.stage].rule else run)
"""


def test_a_sweep_whose_jobs_are_killed_ends_as_one_in_one_process(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """From training to figures; a job of each of several rules is killed at a random moment.

    What it is compared with knows neither SLURM nor Snakemake: the same jobs, one after the other
    in one process.
    """
    here = Project(tmp_path_factory.mktemp("here"))
    there = OnCluster(tmp_path_factory.mktemp("there"))
    for project in (here, there):
        project.write(SWEEP)
        (project.folder / "pairs").mkdir()
        scored_pairs(project.folder / "pairs")
    code = ONE_PROCESS.format(compared=COMPARED)
    subprocess.run(
        [sys.executable, "-c", code], cwd=here.folder, env=here.environment(), check=True
    )
    expected = values(here)
    assert len([name for name in expected if name.startswith("activations")]) == 8
    assert len([name for name in expected if name.startswith("scores")]) == 8
    moments = random.Random(0)
    before = {job["JobId"] for job in slurm_jobs()}
    running = there.start(tmp_path / "log")
    struck: dict[str, str] = {}
    deadline = time.monotonic() + 2400
    while running.poll() is None:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-5000:]
        for rule in STRUCK - set(struck):
            if found := at_work(f"rule_{rule}", "scripts/"):
                time.sleep(moments.uniform(0, 3))
                kill(*processes(found[0]["JobId"], "scripts/"))
                struck[rule] = found[0]["JobId"]
        time.sleep(0.5)
    assert running.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    jobs = since(before)
    assert {j["NodeList"] for j in jobs} == {"n1", "n2"}
    failed = {j["JobId"] for j in jobs if j["JobState"] == "FAILED"}
    assert len(failed & set(struck.values())) >= 4, (struck, failed)
    assert_same(values(there), expected)
    for study in SWEEP["studies"]:
        assert (there.folder / "results" / "figures" / f"{study}.png").is_file()
    assert not list((there.folder / "results").rglob("*.partial"))
    assert there.jobs() == {}
