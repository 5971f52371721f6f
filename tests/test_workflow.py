"""The real workflow on a small config: whole, incremental, and unharmed by a kill -9.

Runs on a copy of the project, so that the computation can be edited.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import psutil
import pytest
import tiny
import yaml
from conftest import ROOT

CONFIG: dict[str, Any] = {
    "models": {
        "first": {"source": {"folder": "models/llama"}},
        "second": {"source": {"folder": "models/{revision}"}, "revisions": ["step0", "step1"]},
    },
    "corpora": {
        "mine": {
            "source": {"file": "mine.txt"},
            "filters": {"min_tokens": 5},
            "views": {"n": 2},
        }
    },
    "tasks": ["LeeNewsSimilarity"],
    "extract": {"device": "cpu", "threads": 1},
    "metrics": {"metrics": ["prompt_entropy", "curvature", "infonce"]},
    "scoring": {"threads": 1},
    "studies": {
        "both": {"kind": "metric_vs_score", "models": ["first", "second"]},
        "sweep": {"kind": "metrics_over_checkpoints", "models": ["second"]},
    },
}


class Project:
    """A copy of the project with a config of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("lib", "workflow", "scripts", "envs"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        for seed, name in enumerate(["llama", "step0", "step1", "step2"]):
            family = "llama" if name == "llama" else "gpt_neox"
            tiny.save(family, folder / "models" / name, seed=seed)
        lines = tiny.texts(300, seed=1, shortest=8)
        (folder / "mine.txt").write_text("\n".join(lines))
        self.write(CONFIG)

    def write(self, config: dict[str, Any]) -> None:
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ, "PYTHONPATH": str(self.folder / "lib"), "PATH": path,
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def snakemake(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-5000:]
        return output

    def jobs(self) -> dict[str, int]:
        """What a run would do: number of jobs by rule."""
        output = self.snakemake("--dry-run")
        if "Job stats:" not in output:
            assert "Nothing to be done" in output
            return {}
        table = output.split("Job stats:")[1].split("total")[0]
        counts = re.findall(r"^(\w+) +(\d+)$", table, flags=re.MULTILINE)
        return {rule: int(count) for rule, count in counts if rule not in ("all", "account_run")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    made.snakemake()
    return made


def changed(**parts: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    for path, value in parts.items():
        *parents, last = path.split("__")
        place = config
        for parent in parents:
            place = place[parent]
        place[last] = value
    return config


def test_every_result_is_there_and_whole(project: Project) -> None:
    results = project.folder / "results"
    for study in ("both", "sweep"):
        assert (results / "figures" / f"{study}.png").stat().st_size > 10_000
        assert (results / "figures" / f"{study}.pdf").read_bytes().startswith(b"%PDF")
        assert len(pd.read_csv(results / "tables" / f"{study}.csv")) > 3
    metrics = pd.read_parquet(results / "metrics" / "second" / "step1" / "mine.parquet")
    assert set(metrics["metric"]) == {"prompt_entropy", "curvature", "infonce"}
    assert set(metrics["tokens"]) == {"all", "drop_first"}
    assert set(metrics["layer"]) == {0, 1, 2, 3}
    assert metrics["value"].notna().all()
    scores = pd.read_parquet(results / "scores" / "first" / "main" / "LeeNewsSimilarity.parquet")
    assert scores["main_score"].between(-1, 1).all()
    assert len(scores) == 2 * 2 * 4  # two readouts, two choices of tokens, four layers
    associations = pd.read_parquet(results / "associations" / "both.parquet")
    assert {"dcor", "spearman", "kendall"} <= set(associations["measure"])
    assert "prompt_entropy" in (results / "explore.html").read_text(encoding="utf-8")
    assert not list(results.rglob("*.partial"))


def test_a_second_run_does_nothing_and_says_so_in_seconds(project: Project) -> None:
    project.write(CONFIG)
    start = time.monotonic()
    assert "Nothing to be done" in project.snakemake()
    assert time.monotonic() - start < 30


def test_touching_and_reformatting_rerun_nothing(project: Project) -> None:
    project.write(CONFIG)
    for part in ("lib", "workflow", "scripts", "results", "models", "mine.txt"):
        for path in (project.folder / part).rglob("*") if part != "mine.txt" else ():
            path.touch()
    (project.folder / "mine.txt").touch()
    curvature = project.folder / "lib" / "layerwise" / "metrics" / "catalog" / "curvature.py"
    before = curvature.read_text()
    curvature.write_text("# A comment.\n\n\n" + before)
    assert project.jobs() == {}
    curvature.write_text(before)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            changed(models__second__revisions=["step0", "step1", "step2"]),
            # The study of both models takes the last checkpoint, which is the new one.
            {"run_model": 1, "compute_metrics": 1, "score_tasks": 1,
             "associate_metrics": 1, "draw_study": 2, "find_best_layers": 1, "compare_weights": 1,
             "build_explorer": 1},
            id="a checkpoint",
        ),
        pytest.param(
            changed(
                models__third={"source": {"folder": "models/step2"}},
                studies__both__models=["first", "second", "third"],
            ),
            {"run_model": 1, "compute_metrics": 1, "score_tasks": 1,
             "associate_metrics": 1, "draw_study": 1, "find_best_layers": 1,
             "build_explorer": 1},
            id="a model",
        ),
        pytest.param(
            changed(tasks=["LeeNewsSimilarity", "PangLeePolarity"]),
            {"list_task_texts": 1, "run_model": 2, "score_tasks": 2, "associate_metrics": 1,
             "draw_study": 1, "find_best_layers": 1, "build_explorer": 1},
            id="a task",
        ),
        pytest.param(
            changed(metrics__metrics=["prompt_entropy", "curvature", "infonce", "lidar"]),
            {"compute_metrics": 3, "associate_metrics": 1, "draw_study": 2, "compare_weights": 1,
             "build_explorer": 1},
            id="a metric",
        ),
        pytest.param(
            changed(corpora__mine__views={"n": 3}),
            {"make_views": 1, "run_model": 3, "compute_metrics": 3,
             "associate_metrics": 1, "draw_study": 2, "compare_weights": 1,
             "build_explorer": 1},
            id="a view",
        ),
        pytest.param(
            changed(extract__threads=2, extract__batch_tokens=64), {}, id="another batch size"
        ),
    ],
)  # fmt: skip
def test_a_change_reruns_what_needs_it(
    project: Project, config: dict[str, Any], expected: dict[str, int]
) -> None:
    project.write(config)
    assert project.jobs() == expected


def test_an_edited_metric_reruns_the_metrics_and_what_follows(project: Project) -> None:
    project.write(CONFIG)
    curvature = project.folder / "lib" / "layerwise" / "metrics" / "catalog" / "curvature.py"
    before = curvature.read_text()
    curvature.write_text(before.replace("layer.curvature", "2 * layer.curvature"))
    try:
        assert project.jobs() == {
            "compute_metrics": 3, "associate_metrics": 1, "draw_study": 2, "compare_weights": 1,
            "build_explorer": 1,
        }  # fmt: skip
        assert "compute_metrics: 3 to do: layerwise.metrics.catalog.curvature changed (3)" in (
            project.snakemake("--dry-run")
        )
    finally:
        curvature.write_text(before)


def test_without_snakemakes_records_nothing_stale_passes(project: Project) -> None:
    """`make clean`, or another machine: the files themselves say what made them."""
    project.write(CONFIG)
    records = project.folder / ".snakemake"
    records.rename(project.folder / "kept")
    try:
        assert project.jobs() == {}
        project.write(changed(corpora__mine__sample={"n": 20}))
        jobs = project.jobs()
        assert jobs["make_corpus"] == 1
        assert jobs["run_model"] == jobs["compute_metrics"] == 3
        assert "score_tasks" not in jobs
    finally:
        shutil.rmtree(records)
        (project.folder / "kept").rename(records)


def test_jobs_that_snakemake_runs_are_those_that_are_planned(project: Project) -> None:
    project.write(changed(metrics__alphas=[1, 2]))
    planned = subprocess.run(
        [sys.executable, "scripts/plan_run.py", "--output", "plan.csv"], cwd=project.folder,
        env=project.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "metrics.alphas" in planned.stdout or "alphas:" in planned.stdout
    table = pd.read_csv(project.folder / "plan.csv")
    by_rule = table[table["rule"] != "all"].groupby("rule")["jobs"].sum().to_dict()
    assert by_rule == project.jobs()


def test_a_wrong_config_is_one_line(project: Project) -> None:
    project.write(changed(models__first={"sorce": {"folder": "models/llama"}}))
    done = subprocess.run(
        project.command("--dry-run"), cwd=project.folder, env=project.environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    project.write(CONFIG)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert "models.first: unknown key 'sorce' (did you mean 'source'?)" in output
    assert "Traceback" not in output


def values(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][()] for name in ("pooled", "spectrum", "curvature", "n_tokens")}


def test_a_killed_extraction_resumes_to_the_same_values(project: Project) -> None:
    project.write(CONFIG)
    results = project.folder / "results"
    folder = results / "activations" / "second"
    unbroken = {r: values(folder / r / "mine.h5") for r in ("step0", "step1")}
    # Snakemake makes a missing file again only if a missing target needs it.
    for gone in (folder, results / "metrics" / "second", results / "figures"):
        shutil.rmtree(gone)
    running = subprocess.Popen(
        project.command(), cwd=project.folder, env=project.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (partials := list(folder.rglob("*.partial"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    # The writer's process id is in the name of its unfinished file.
    os.kill(int(partials[0].name.split(".")[-2]), signal.SIGKILL)
    for process in [*psutil.Process(running.pid).children(recursive=True), running]:
        process.kill()
    running.wait()
    assert list(folder.rglob("*.partial")), "the kill came before or after the extraction"
    project.snakemake("--unlock")
    project.snakemake()
    for revision, expected in unbroken.items():
        found = values(folder / revision / "mine.h5")
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert not list(folder.rglob("*.partial"))
    assert project.jobs() == {}
