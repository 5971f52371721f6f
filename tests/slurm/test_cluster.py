"""The workflow on a real SLURM, through the profile: GPUs, lost nodes, limits, nothing done twice.

Needs the cluster of `start_cluster.sh`; `make test-slurm` starts it. Every fault is a real one: a
node's daemon and its job are killed, a job is stopped until its time is up, a job gets less memory
than it needs.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import pytest
from same_values import assert_same
from test_workflow import CONFIG, Project

CONF = Path("/etc/slurm/slurm.conf")
STATE = Path("/var/lib/layerwise-slurm")
ON_GPU = {"rule_extract_activations", "rule_embed_task"}


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
        """All final values: every array, every table."""
        found: dict[str, Any] = {}
        results = self.folder / "results"
        for part, array in (("activations", "pooled"), ("embeddings", "embedding")):
            for path in sorted((results / part).rglob("*.h5")):
                with h5py.File(path) as file:
                    found[str(path.relative_to(results))] = file[array][()]
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
    made.write(config)
    yield made
    subprocess.run(["scancel", "--user", "root"], check=False)


@pytest.fixture(scope="module")
def unbroken(project: OnCluster) -> dict[str, Any]:
    project.snakemake()
    found = project.values()
    assert len([name for name in found if name.startswith("activations")]) == 2
    assert len([name for name in found if name.startswith("scores")]) == 1
    return found


def forget(project: OnCluster) -> None:
    """Delete what the GPU jobs and all after them have made."""
    for part in ("activations", "metrics", "associations", "figures", "tables", "report"):
        shutil.rmtree(project.folder / "results" / part)


def test_gpu_jobs_ask_for_a_gpu_and_no_others_do(
    project: OnCluster, unbroken: dict[str, Any]
) -> None:
    jobs = [job for job in slurm_jobs() if job["JobId"] not in project.earlier]
    rules = {rule_of(job) for job in jobs}
    assert rules >= {*ON_GPU, "rule_compute_metrics", "rule_score_task", "rule_make_views"}
    for job in jobs:
        asked = "gpu" in job.get("TresPerJob", "") + job.get("TresPerNode", "")
        assert asked == (rule_of(job) in ON_GPU), job
        assert job["JobState"] == "COMPLETED", job
    # Plots and the account are made where snakemake runs.
    assert "rule_account_run" not in rules


def test_several_jobs_of_a_stage_can_be_one_of_slurms(
    project: OnCluster, unbroken: dict[str, Any]
) -> None:
    forget(project)
    before = {job["JobId"] for job in slurm_jobs()}
    # The lines that the profile has for it, as options.
    project.snakemake(
        "--groups", "extract_activations=extract", "--group-components", "extract=2",
        "--set-resource-scopes", "gpu=local", "--resources", "gpu=1",
    )  # fmt: skip
    jobs = [job for job in slurm_jobs() if job["JobId"] not in before]
    on_gpu = [j for j in jobs if "gpu" in j.get("TresPerJob", "") + j.get("TresPerNode", "")]
    assert len(on_gpu) == 1, "two extractions, one after the other on one GPU"
    assert "gpu:1" in on_gpu[0].get("TresPerJob", "") + on_gpu[0].get("TresPerNode", "")
    assert_same(project.values(), unbroken)


def test_a_second_run_submits_nothing(project: OnCluster, unbroken: dict[str, Any]) -> None:
    before = {job["JobId"] for job in slurm_jobs()}
    assert "Nothing to be done" in project.snakemake()
    assert {job["JobId"] for job in slurm_jobs()} == before


def test_a_node_lost_in_mid_job_costs_nothing_but_time(
    project: OnCluster, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    forget(project)
    running = project.start(tmp_path / "log")
    job, pids = wait_for(
        "an extraction",
        lambda: at_work("rule_extract_activations", "extract_activations.py"),
    )
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
        "--set-resources", "extract_activations:mem_mb=attempt*attempt*350",
        "compute_metrics:runtime=1 if attempt == 1 else 20",
    )  # fmt: skip
    _, pids = wait_for(
        "the metrics", lambda: at_work("rule_compute_metrics", "compute_metrics.py"), 900
    )
    kill(*pids, by=signal.SIGSTOP)
    assert running.wait(900) == 0, (tmp_path / "log").read_text()[-5000:]
    jobs = [j for j in slurm_jobs() if j["JobId"] not in before]
    ended = {(rule_of(j), j["JobState"]) for j in jobs}
    assert ("rule_compute_metrics", "TIMEOUT") in ended
    hungry = {s for rule, s in ended if rule == "rule_extract_activations"}
    assert hungry > {"COMPLETED"}, ended
    memory = {
        j["MinMemoryNode"] for j in jobs if rule_of(j) == "rule_extract_activations"
    }  # fmt: skip
    assert len(memory) > 1, memory
    assert_same(project.values(), unbroken)
