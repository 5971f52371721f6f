"""A small project that goes through every stage, and what is asked of it after a fault."""

from __future__ import annotations

import atexit
import base64
import copy
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from test_workflow import CONFIG, Project

TABLES = ("metrics", "scores", "associations", "choices", "corpora", "texts")


def config(*, keep_embeddings: bool = True) -> dict[str, Any]:
    """The config of the workflow's tests, with a model that is trained on the spot, and the picks
    of its metrics."""
    made = copy.deepcopy(CONFIG)
    made["jobs"] = {"keep_embeddings": keep_embeddings}
    # A second corpus, so that a job that is killed has others to keep.
    made["corpora"]["few"] = made["corpora"]["mine"] | {"sample": {"n": 20}}
    studies = made["studies"]
    studies["choice"] = {"kind": "layer_choice", "models": ["first", "second"]}
    for study in studies.values():
        study["corpora"] = ["mine"]
    studies["few"] = studies["sweep"] | {"corpora": ["few"]}
    steps = ["step0", "step2"]
    made["models"]["second"] = {
        "source": {"folder": "results/nano/second/{revision}"},
        "revisions": steps,
    }
    made["nano"] = {
        "second": {
            "architecture": "gpt_neox", "layers": 2, "hidden": 32, "vocabulary": 300,
            "context": 32, "batch": 2, "train_steps": 2,
        }
    }  # fmt: skip
    return made


class Faulty(Project):
    """The project, with eyes for what is finished, half finished, and at work."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(config())

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def start(self) -> subprocess.Popen[bytes]:
        """Start a run in a process group of its own."""
        with (self.folder / "run.txt").open("ab") as log:
            return subprocess.Popen(
                self.command(), cwd=self.folder, env=self.environment(),
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def try_snakemake(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run to the end, whatever that is; exit status and all that was said."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment() | environment,
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def at_work(self) -> set[str]:
        """Names of the scripts that run now."""
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                here = (entry / "cwd").readlink() == self.folder
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it has ended meanwhile
                continue
            if here and "python" in words[0]:
                found |= {Path(w).stem for w in words[1:3] if "scripts/" in w and w[-3:] == ".py"}
        return found

    def finished(self) -> dict[str, tuple[int, int]]:
        """Inode and time of every file that no later run may touch: of a job that Snakemake has
        recorded as done, and, of jobs that do several things, of each thing that is done.

        Embeddings whose scores are there have served.
        """
        records, open_jobs = {}, set()
        for path in (self.folder / ".snakemake" / "metadata").iterdir():
            try:
                record = json.loads(path.read_text())
            except ValueError:  # the record itself was being written
                continue
            records[base64.b64decode(path.name).decode()] = str(record["log"])
        for path in (self.folder / ".snakemake" / "incomplete").iterdir():
            name = base64.b64decode(path.name).decode()
            open_jobs.add(records.get(name, name))
        done = {name for name, job in records.items() if job not in open_jobs}
        done |= {str(path.relative_to(self.folder)) for path in self.of_bundles()}
        stamps = {}
        for name in done:
            file = self.folder / name
            if file.is_file():
                stamps[name] = (file.stat().st_ino, file.stat().st_mtime_ns)
        return stamps

    def served(self, name: str) -> bool:
        """Whether a file is embeddings that a job has scored, and so removed."""
        path = Path(name)
        if path.parts[1] != "embeddings":
            return False
        scores = self.results / "scores" / Path(*path.parts[2:])
        return scores.with_suffix(".parquet").is_file()

    def of_bundles(self) -> Iterator[Path]:
        """The files of the corpora and tasks that are done of a model."""
        for path in self.results.glob("activations/*/*/*.h5"):
            yield path
        for path in self.results.glob("embeddings/*/*/*.h5"):
            if not self.served(str(path.relative_to(self.folder))):
                yield path
        for path in self.results.glob("scores/*/*/*.parquet"):
            yield path
        for path in self.results.glob("metrics/*/*/*.prompts.parquet"):
            table = path.with_name(path.name.replace(".prompts.", "."))
            if table.is_file():
                yield from (path, table)

    def half_files(self) -> list[str]:
        """Files at their final place that cannot be read as what they are."""
        broken = []
        for path in self.results.rglob("*"):
            if not path.is_file() or path.name.endswith(".partial") or "logs" in path.parts:
                continue
            try:
                if path.suffix == ".h5":
                    with h5py.File(path) as file:
                        whole = bool(file.attrs["complete"])
                elif path.suffix == ".parquet":
                    whole = pd.read_parquet(path) is not None
                elif path.suffix == ".csv":
                    whole = len(pd.read_csv(path)) > 0
                else:
                    continue
            except Exception as error:  # whatever a reader would stumble over
                broken.append(f"{path}: {error!r}")
            else:
                broken += [] if whole else [f"{path}: incomplete"]
        return broken

    def values(self) -> dict[str, Any]:
        """All final values: every array, every table, every study's table."""
        found: dict[str, Any] = {}
        for path in sorted(self.results.rglob("*.h5")):
            with h5py.File(path) as file:
                for name, array in file.items():
                    if isinstance(array, h5py.Dataset):
                        found[f"{path.relative_to(self.results)}/{name}"] = array[()]
        for part in TABLES:
            for path in sorted((self.results / part).rglob("*.parquet")):
                found[str(path.relative_to(self.results))] = pd.read_parquet(path)
        for path in sorted((self.results / "tables").glob("*.csv")):
            found[str(path.relative_to(self.results))] = pd.read_csv(path)
        for path in sorted((self.results / "nano").rglob("*.safetensors")):
            found[str(path.relative_to(self.results))] = np.frombuffer(path.read_bytes(), "u1")
        return found


@cache
def whole() -> Faulty:
    """A project after a run in which nothing went wrong. Don't change it: copy it."""
    folder = Path(tempfile.mkdtemp(prefix="layerwise-whole-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Faulty(folder)
    made.snakemake()
    return made


def copy_to(folder: Path) -> Faulty:
    """A copy of that project, with its results and Snakemake's notes on them."""
    shutil.copytree(whole().folder, folder, symlinks=True)
    made = Faulty.__new__(Faulty)
    made.folder = folder
    return made


@cache
def unbroken() -> dict[str, Any]:
    """All values of that run."""
    return whole().values()


def kill_group(running: subprocess.Popen[bytes]) -> None:
    """Kill -9 a run and all of its jobs."""
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def sentences(output: str) -> list[str]:
    """What our scripts said as errors, without time and place."""
    said = [line.partition("ERROR layerwise: ")[2] for line in output.splitlines()]
    return list(dict.fromkeys(line for line in said if line))
