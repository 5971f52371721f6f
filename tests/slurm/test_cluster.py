"""The workflow on a real SLURM through the profile: GPU requests, groups, and a killed job.

`make test-slurm` starts the cluster. Its GPUs are declared ones, so jobs compute on the CPU.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from helpers.project import Project
from helpers.same_values import assert_same

from layerwise.config import Config
from layerwise.run.plan import Plan
from layerwise.run.resources import Requests

CONF = Path("/etc/slurm/slurm.conf")
CONTROLLER = Path("/var/lib/layerwise-slurm/slurmctld.pid")


def cluster_runs() -> bool:
    if not CONF.is_file() or "layerwise's tests/slurm" not in CONF.read_text():
        return False
    return subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cluster_runs(), reason="start one with tests/slurm/start_cluster.sh"),
]

QUICK = [
    "--workflow-profile=workflow/profiles/slurm",
    "--slurm-no-account",
    # A node has two CPUs.
    "--set-threads=evaluate=2",
    "--slurm-status-command=squeue",
    "--slurm-init-seconds-before-status-checks=3",
    "--seconds-between-status-checks=3",
    "--max-status-checks-per-second=1",
    "--latency-wait=20",
]


CHECKPOINTS = ("step0", "step8", "step32")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "project")
    # 'auto' asks SLURM for a GPU.
    made.config["extract"]["device"] = "auto"
    made.write()
    yield made
    subprocess.run(["scancel", "--user", "root"], check=False)


def quickstart(project: Project) -> None:
    """Give a project the quickstart's config: two of its models, three tasks, and one study."""
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    del config["models"]["smollm2-135m"]
    config["models"]["pythia-nano"]["revisions"] = [*CHECKPOINTS]
    tasks = ("LeeNewsSimilarity", "PangLeePolarity", "WikipediaArticlePairs")
    config["tasks"] = {task: config["tasks"][task] for task in tasks}
    del config["association"]
    config["extract"]["device"] = "auto"
    config["studies"] = {"both": {"kind": "metric_vs_score", "tokens": ["all"]}}
    project.config = config
    project.write()


def slurm_jobs() -> list[dict[str, str]]:
    """Every job that SLURM remembers."""
    done = subprocess.run(
        ["scontrol", "--oneliner", "show", "job"], capture_output=True, text=True, check=True
    )
    return [
        dict(re.findall(r"(\S+?)=(\S*)", line))
        for line in done.stdout.splitlines()
        if line.startswith("JobId=")
    ]


def rule_of(job: dict[str, str]) -> str:
    return job.get("Comment", "").partition("_wildcards_")[0].removeprefix("rule_")


def asks_for_gpu(job: dict[str, str]) -> bool:
    return "gpu" in job.get("TresPerJob", "") + job.get("TresPerNode", "")


def values(project: Project) -> dict[str, Any]:
    """All final values of a project."""
    found: dict[str, Any] = {}
    results = project.folder / "results"
    for path in sorted((results / "activations").rglob("*.h5")):
        with h5py.File(path) as file:
            found[str(path.relative_to(results))] = file["pooled"][()]
    for part in ("metrics", "scores", "associations"):
        for path in sorted((results / part).rglob("*.parquet")):
            found[str(path.relative_to(results))] = pd.read_parquet(path)
    return found


def process_of(script: str, folder: Path, model: str) -> tuple[int, str] | None:
    """The process of a SLURM job that runs a script of the project on a model or revision, and the
    job."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
            here = (entry / "cwd").resolve() == folder.resolve()
        except OSError:  # it ended meanwhile
            continue
        runs = len(command) > 1 and command[1].endswith(f"{script}.py".encode())
        number = re.search(rb"\0SLURM_JOB_ID=(\d+)", environment)
        if runs and here and number:
            job = number[1].decode()
            wildcards = next(known for known in slurm_jobs() if known["JobId"] == job)["Comment"]
            if model in wildcards:
                return int(entry.name), job
    return None


def test_killed_jobs_end_with_the_values_of_a_run_that_was_left_alone(project: Project) -> None:
    quickstart(project)
    table = "results/associations/both.parquet"
    earlier = {job["JobId"] for job in slurm_jobs()}
    command = [sys.executable, "-m", "snakemake", *QUICK, table]
    # The profile itself keeps jobs from asking the hub.
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    environment["PYTHONPATH"] = str(project.folder / "lib")
    scores = project.folder / "results/scores/minilm-l6/main"
    with (project.folder / "log").open("wb") as log:
        running = subprocess.Popen(
            command, cwd=project.folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        alive = {"extract_activations", "evaluate_model"}
        tasks: dict[Path, int] = {}
        while alive and running.poll() is None:
            time.sleep(0.1)
            for script in list(alive):
                found = process_of(script, project.folder, "minilm-l6")
                if found and script == "extract_activations":
                    subprocess.run(["scancel", found[1]], check=True)
                    alive.discard(script)
                elif found and any(scores.glob("*.parquet")):
                    os.kill(found[0], signal.SIGKILL)
                    tasks = {path: path.stat().st_mtime_ns for path in scores.glob("*.parquet")}
                    alive.discard(script)
        status = running.wait(1800)
    assert not alive
    assert status == 0, (project.folder / "log").read_text()[-4000:]
    assert 0 < len(tasks) < 3
    assert all(path.stat().st_mtime_ns == time for path, time in tasks.items())
    jobs = [job for job in slurm_jobs() if job["JobId"] not in earlier]
    ended = Counter((rule_of(job), job["JobState"]) for job in jobs)
    assert ended["extract", "COMPLETED"] == ended["evaluate", "COMPLETED"] == 2
    assert ended["evaluate", "FAILED"] == ended["extract", "CANCELLED"] == 1
    for job in jobs:
        assert asks_for_gpu(job) == (rule_of(job) in ("extract", "evaluate")), job
    on_cluster = values(project)

    assert "Nothing to be done" in project.snakemake(*QUICK, table)
    local = Project(project.folder.parent / "local")
    quickstart(local)
    local.snakemake(table)
    assert_same(on_cluster, values(local))


def test_checkpoints_outlive_a_kill_and_a_time_limit(project: Project) -> None:
    quickstart(project)
    tables = [f"results/metrics/pythia-nano/{step}/wikipedia.parquet" for step in CHECKPOINTS]
    tables += [f"results/scores/pythia-nano/{step}.parquet" for step in CHECKPOINTS]
    earlier = {job["JobId"] for job in slurm_jobs()}
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    environment["PYTHONPATH"] = str(project.folder / "lib")
    log_of_scoring = project.folder / "results/logs/evaluate/pythia-nano/step0.log"
    with (project.folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "snakemake", *QUICK, *tables],
            cwd=project.folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        to_stop = {"extract_activations": "step8", "evaluate_model": "step0"}
        while to_stop and running.poll() is None:
            time.sleep(0.1)
            for script, revision in list(to_stop.items()):
                process = process_of(script, project.folder, revision)
                if process and script == "extract_activations":
                    subprocess.run(["scancel", process[1]], check=True)
                    del to_stop[script]
                elif process and log_of_scoring.is_file() and log_of_scoring.stat().st_size:
                    # It has begun to load the model, and stands there until its minute is over.
                    os.kill(process[0], signal.SIGSTOP)
                    limit = ["scontrol", "update", f"JobId={process[1]}", "TimeLimit=1"]
                    subprocess.run(limit, check=True)
                    del to_stop[script]
        status = running.wait(1800)
    assert not to_stop
    assert status == 0, (project.folder / "log").read_text()[-4000:]
    jobs = [job for job in slurm_jobs() if job["JobId"] not in earlier]
    ended = Counter((rule_of(job), job["JobState"]) for job in jobs)
    assert ended["extract", "COMPLETED"] == ended["evaluate", "COMPLETED"] == 3
    assert ended["evaluate", "TIMEOUT"] == ended["extract", "CANCELLED"] == 1
    on_cluster = values(project)

    assert "Nothing to be done" in project.snakemake(*QUICK, *tables)
    local = Project(project.folder.parent / "local")
    quickstart(local)
    local.snakemake(*tables)
    assert_same(on_cluster, values(local))


def background(project: Project, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """A run in a project's folder that writes to its file `log`."""
    # The profile itself keeps jobs from asking the hub.
    inherited = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
    environment = {**inherited, "PYTHONPATH": str(project.folder / "lib"), **environment}
    with (project.folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=project.folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def wait_for(project: Project, script: str, model: str) -> tuple[int, str]:
    deadline = time.monotonic() + 300
    while not (running := process_of(script, project.folder, model)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return running


def test_a_restarted_controller_and_a_drained_node(project: Project, tmp_path: Path) -> None:
    quickstart(project)
    # The cluster has no accounting; this sacct fails while no controller answers.
    sacct = tmp_path / "bin/sacct"
    sacct.parent.mkdir()
    squeue = "squeue --noheader --states=all --format='%i|%T' --name"
    sacct.write_text(f'#!/bin/sh\nfor name; do :; done\nexec {squeue} "$name"\n')
    sacct.chmod(0o755)
    path = f"{sacct.parent}:{os.environ['PATH']}"
    options = [option for option in QUICK if "status-command" not in option]
    earlier = {job["JobId"] for job in slurm_jobs()}
    table = "results/associations/both.parquet"
    run = background(project, sys.executable, "-m", "snakemake", *options, table, PATH=path)
    wait_for(project, "extract_activations", "minilm-l6")
    drain = ["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test"]
    subprocess.run(drain, check=True)
    time.sleep(10)  # it saves the states of nodes now and then
    drained = time.strftime("%Y-%m-%dT%H:%M:%S")
    os.kill(int(CONTROLLER.read_text()), signal.SIGKILL)
    time.sleep(40)
    subprocess.run(["slurmctld"], check=True)
    try:
        assert run.wait(1800) == 0, (project.folder / "log").read_text()[-4000:]
    finally:
        resume = ["scontrol", "update", "NodeName=n2", "State=RESUME"]
        subprocess.run(resume, check=True)
    jobs = [job for job in slurm_jobs() if job["JobId"] not in earlier]
    assert {job["JobState"] for job in jobs} == {"COMPLETED"}
    assert max(Counter(job["Comment"] for job in jobs).values()) == 1, "nothing ran twice"
    assert {job["NodeList"] for job in jobs if job["StartTime"] > drained} == {"n1"}


def test_jobs_of_a_killed_run_are_not_submitted_again(project: Project) -> None:
    layerwise = [
        sys.executable,
        "-c",
        "from layerwise.cli import main; main()",
        "run",
        "--verbose",
    ]
    command = [*layerwise, *QUICK, "--until", "extract"]
    earlier = {job["JobId"] for job in slurm_jobs()}
    run = background(project, *command)
    process, job = wait_for(project, "extract_activations", "first")
    os.kill(process, signal.SIGSTOP)
    (snakemake,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    for stopped in (run.pid, int(snakemake)):
        os.kill(stopped, signal.SIGKILL)
    run.wait()
    assert background(project, *command).wait(300) == 1
    printed = (project.folder / "log").read_text()
    assert f"{job} rule_extract_wildcards_first_main_mine" in printed
    os.kill(process, signal.SIGCONT)
    while subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout:
        time.sleep(1)
    assert background(project, *command).wait(300) == 0, printed
    jobs = [job for job in slurm_jobs() if job["JobId"] not in earlier]
    assert max(Counter(job["Comment"] for job in jobs).values()) == 1, "nothing ran twice"


def test_small_jobs_run_in_groups_on_one_gpu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = project.folder / "workflow/profiles/slurm/profile.yaml"
    text = profile.read_text()
    start = text.index("# groups:")
    block = text[start : text.index("\n\n", start)]
    grouped = yaml.safe_load(re.sub(r"(?m)^# ?", "", block))
    profile.write_text(yaml.safe_dump({**yaml.safe_load(text), **grouped}))
    earlier = {job["JobId"] for job in slurm_jobs()}
    project.snakemake(*QUICK, "--until", "extract")
    jobs = [j for j in slurm_jobs() if j["JobId"] not in earlier and asks_for_gpu(j)]
    assert len(list((project.folder / "results/activations").rglob("*.h5"))) == 3
    assert len(jobs) == 1, "three extractions are one job"
    # They run in turn: what they hold is that of one, and their times add up.
    monkeypatch.chdir(project.folder)
    asked = Requests(Plan(Config.of(project.config)))
    (job,) = jobs
    assert job["NumCPUs"] == "1"
    assert f"mem={asked.memory_mb('first')}M" in job["TRES"]
    assert job["TimeLimit"] == "03:00:00", "thrice the profile's 60 minutes"
