"""A copy of the project with a small config, for tests that run Snakemake."""

from __future__ import annotations

import atexit
import compileall
import contextlib
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from conftest import ROOT

import layerwise as lw
from helpers import tiny
from layerwise.config import Config
from layerwise.io.tables import write_csv
from layerwise.names import encode
from layerwise.run.plan import Plan
from layerwise.run.snakemake import Survey

CONFIG: dict[str, Any] = {
    "models": {
        "first": {"source": {"folder": "models/llama"}},
        "second": {"source": {"folder": "models/{revision}"}, "revisions": ["step0", "step1"]},
    },
    "corpora": {
        "mine": {"source": {"file": "mine.txt"}, "sample": {"n": 40}, "views": {"n": 2}},
    },
    "tasks": {"topic": {"file": "topic.csv", "kind": "classification"}},
    "extract": {"device": "cpu", "threads": 1},
    "metrics": {"metrics": ["prompt_entropy", "curvature", "infonce"]},
    "scoring": {"threads": 1},
    "studies": {
        "both": {"kind": "metric_vs_score", "models": ["first", "second"]},
        "sweep": {"kind": "metrics_over_checkpoints", "models": ["second"]},
        "law": {"kind": "power_law"},
    },
}


@cache
def _preloaded() -> subprocess.Popen[str]:
    """A process that has imported Snakemake, which takes as long as a small dry run."""
    code = Path(__file__).with_name("preloaded.py")
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, code], stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process


def snakemake(folder: Path, *arguments: str, check: bool = True, **environment: Any) -> str:
    """Run Snakemake in a project's folder and return all that it prints."""
    process = _preloaded()
    assert process.stdin and process.stdout
    with tempfile.NamedTemporaryFile("r") as output:
        asked = {
            "arguments": ["--cores", "2", *arguments],
            "folder": str(folder),
            "environment": {
                **os.environ,
                "PYTHONPATH": str(folder / "lib"),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            "output": output.name,
        }
        print(json.dumps(asked, default=str), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        printed = output.read()
    if check:
        assert status == 0, printed[-4000:]
    return printed


@cache
def _files() -> Path:
    """The project's own files and tiny models, for copies; the library's modules are compiled."""
    root = Path(tempfile.mkdtemp(prefix="project-"))
    atexit.register(shutil.rmtree, root)
    for part in ("lib", "workflow", "scripts", "envs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / part, root / part, ignore=ignored)
    assert compileall.compile_dir(root / "lib", quiet=1)
    for seed, name in enumerate(["llama", "step0", "step1", "step2"]):
        family = "llama" if name == "llama" else "gpt_neox"
        tiny.save(family, root / "models" / name, seed=seed)
    return root


def assert_drawn_alike(results: Path) -> None:
    """Every study's table in Python is, byte for byte, the one that the workflow wrote."""
    run = lw.open(results)
    for study in run.studies:
        again = results / "again.csv"
        write_csv(again, run.draw(study).table)
        name = encode(study)
        assert again.read_bytes() == (results / "tables" / f"{name}.csv").read_bytes(), study
        again.unlink()


class Project:
    """A copy of the project in a separate folder.

    Parameters
    ----------
    folder : Path
        Empty or not there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(_files(), folder, dirs_exist_ok=True)
        texts = tiny.texts(60, seed=1, shortest=8)
        (folder / "mine.txt").write_text("\n".join(texts))
        labels = [f"{'fox' in text}" for text in texts]
        pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "topic.csv", index=False)
        self.config = copy.deepcopy(CONFIG)
        self.write()

    def write(self) -> None:
        """Write the config."""
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def snakemake(self, *arguments: str, check: bool = True) -> str:
        """Run Snakemake and return all that it prints."""
        return snakemake(self.folder, *arguments, check=check)

    def jobs(self, *arguments: str) -> dict[str, int]:
        """The jobs of a dry run, by rule; empty if there is nothing to be done."""
        printed = self.snakemake("--dry-run", *arguments)
        _, found, table = printed.partition("Job stats:")
        if not found:
            assert "Nothing to be done" in printed, printed[-2000:]
            return {}
        rows = re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)
        return {rule: int(n) for rule, n in rows if rule not in ("total", "all")}

    def stale(self, *arguments: str) -> dict[str, int]:
        """As `jobs`, with the files that `layerwise run` finds to carry another key."""
        with contextlib.chdir(self.folder):
            stale = Survey(Plan(Config.of(self.config))).stale
        return self.jobs(*arguments, *(["--forcerun", *stale] if stale else []))

    def touch(self) -> None:
        """Give every result the present time."""
        for path in (self.folder / "results").rglob("*"):
            path.touch()

    def forget(self) -> None:
        """Remove Snakemake's records, as a copied results folder lacks them."""
        shutil.rmtree(self.folder / ".snakemake", ignore_errors=True)
