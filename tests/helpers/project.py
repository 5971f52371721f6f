"""A copy of the project with a small config, for tests that run Snakemake."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from conftest import ROOT

import layerwise as lw
from helpers import forked, tiny
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
def python() -> Path:
    """The ``python`` of Snakemake and its jobs, whose libraries are imported once."""
    if forked.SHARED in os.environ:
        return Path(os.environ[forked.SHARED])
    folder = Path(tempfile.mkdtemp(prefix="python-"))
    atexit.register(shutil.rmtree, folder)
    atexit.register(forked.command(folder).kill)
    return folder / "python"


def call(
    words: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these words in a folder."""
    given = dict(environment)
    if "PATH" not in given:
        path = [python().parent, Path(sys.executable).parent, os.environ["PATH"]]
        given["PATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(
        [str(shutil.which("python", path=given["PATH"])), *words],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **given},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def snakemake(folder: Path, *arguments: str, check: bool = True, **environment: str) -> str:
    """Run Snakemake in a project's folder and return all that it prints."""
    words = [*forked.SNAKEMAKE, "--cores", "2", *arguments]
    ended = call(words, folder, {"PYTHONPATH": str(folder / "lib"), **environment})
    printed = ended.stdout + ended.stderr
    if check:
        assert ended.returncode == 0, printed[-4000:]
    return printed


def layerwise(
    *arguments: object, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command ``layerwise``."""
    return call([*forked.LAYERWISE, *map(str, arguments)], folder, environment)


@cache
def _models() -> Path:
    """Tiny models, for copies."""
    root = Path(tempfile.mkdtemp(prefix="models-"))
    atexit.register(shutil.rmtree, root)
    for seed, name in enumerate(["llama", "step0", "step1", "step2"]):
        family = "llama" if name == "llama" else "gpt_neox"
        tiny.save(family, root / name, seed=seed)
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
        shutil.copytree(_models(), folder / "models")
        for part in ("workflow", "scripts", "envs"):
            shutil.copytree(ROOT / part, folder / part)
        (folder / "lib").symlink_to(ROOT / "lib")
        texts = tiny.texts(60, seed=1, shortest=8)
        (folder / "mine.txt").write_text("\n".join(texts))
        labels = [f"{'fox' in text}" for text in texts]
        pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / "topic.csv", index=False)
        self.config = copy.deepcopy(CONFIG)
        self.write()

    def own_library(self) -> Path:
        """A copy of the library, which the project's jobs import from here on."""
        library = self.folder / "lib"
        library.unlink()
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        return Path(shutil.copytree(ROOT / "lib", library, ignore=ignored))

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
