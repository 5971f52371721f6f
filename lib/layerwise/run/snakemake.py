"""The workflow's side of Snakemake: the config that jobs read, and the keys that files carry.

Snakemake's own ``params`` trigger compares keys with its records in ``.snakemake``. Where there
are none, as in a copied results folder, a job refuses inputs whose key is not the config's
(`layerwise.run.script`), and ``layerwise run`` finds stale files before the start.

Snakemake's manual does not promise the names in `PRIVATE`. Only the Snakefile and common.smk use
them, and tests/test_private_names.py fails when a release of Snakemake changes one.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerwise.config import Config
from layerwise.errors import ConfigError, LayerwiseError
from layerwise.io import tables
from layerwise.io.files import is_file, is_running, versions, write_text
from layerwise.run.plan import TABLE_KEYS, Plan
from layerwise.run.validate import local_files

PRIVATE = {
    "configfiles": "It tells if --configfile replaces the quickstart's, and is checked.",
    "is_main_process": "A job reads the config of its run, since the user may edit theirs.",
    "modifier.parent_modifier": "There is one in a module, of which Snakemake calls no onstart.",
}
"""Attributes of Snakemake's workflow that its manual does not promise, and why each is needed."""

HTML_KEY = '<meta name="layerwise-key" content="{key}">'
RUNNING = ".config/running.json"
"""The process that runs the workflow, below the results folder."""
SKEW_S = 60.0
"""Seconds by which clocks of a network may differ."""
CONFIG = "config.json"
"""The config of the last run, below the results folder; its jobs and `layerwise.open` read it."""


def config_file(config: Mapping[str, Any]) -> Path:
    """The file with the config of a run as Snakemake merged it."""
    return Path(str(config.get("results", "results")), CONFIG)


def config_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that the run of this job was started with; it may have been edited since."""
    path = config_file(config)
    return dict(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else config)


def start(config: Mapping[str, Any], plan: Plan) -> None:
    """Write the config of a run, in the order of its keys, which decides colours, and its keys."""
    write_text(config_file(config), json.dumps(config, indent=1) + "\n")
    # A key that cannot be had is of a table that this run does not make.
    with suppress(LayerwiseError):
        keys = json.dumps(plan.table_keys()) + "\n"
        write_text(Path(plan.config.results, TABLE_KEYS), keys)


def last_run_was_killed(results: Path) -> bool:
    """Whether the last run on results was killed on this machine.

    Raises
    ------
    LayerwiseError
        If another process writes them.
    """
    file = results / RUNNING
    if not file.is_file():
        return False
    other = json.loads(file.read_text(encoding="utf-8"))
    if other["host"] != platform.node() or is_running(other["pid"]):
        raise LayerwiseError(
            f"Process {other['pid']} of {other['host']} writes {results}; wait until it ends, "
            f"or delete {file} if it no longer runs.",
            code="conflict",
        )
    return bool(other["pid"] != os.getpid())


def claim(results: Path) -> str:
    """Note that this process writes results, until it ends.

    Returns
    -------
    str
        A warning if the last run was killed; empty otherwise.

    Raises
    ------
    LayerwiseError
        If another process writes them.
    """
    warning = last_run_was_killed(results) * (
        f"The last run on {results} was killed. Its jobs on a cluster may still run, and "
        "would run twice; look for them (squeue)."
    )
    file = results / RUNNING
    write_text(file, json.dumps({"host": platform.node(), "pid": os.getpid()}))
    atexit.register(file.unlink, missing_ok=True)
    return warning


def queued_jobs(folder: Path) -> list[str]:
    """Jobs that Snakemake submitted from a folder and that SLURM has not ended: number and name.

    Raises
    ------
    LayerwiseError
        If there is a SLURM that does not answer.
    """
    # Snakemake's plugin names the rule and its wildcards in a job's comment.
    command = ["squeue", "--me", "--noheader", "--format=%i\t%k\t%Z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        return []
    except subprocess.CalledProcessError as error:
        raise LayerwiseError(
            f"squeue does not tell which jobs of the killed run are left: {error.stderr.strip()}",
            code="unreadable",
        ) from None
    jobs = (line.split("\t") for line in listed.stdout.splitlines())
    return [
        f"{number} {comment}"
        for number, comment, started_in in jobs
        if comment.startswith("rule_") and Path(started_in) == folder
    ]


def check(config: Config, workflow_folder: str) -> None:
    """Refuse braces in a path, and files of the user that are dated in the future.

    Raises
    ------
    ConfigError, LayerwiseError
    """
    for folder in (workflow_folder, str(Path.cwd())):
        if re.search("[{}]", folder):
            raise LayerwiseError(
                f"{folder}: Snakemake takes braces in a path for a wildcard; rename the folder.",
                code="bad_name",
            )
    for where, path in local_files(config):
        if is_file(path) and Path(path).stat().st_mtime > time.time() + SKEW_S:
            problem = (
                f"{path} is dated in the future, and Snakemake removes what is made from such a "
                f"file; run: touch {path}."
            )
            raise ConfigError(where, problem, code="conflict")


# Keys in files


def facts_of(path: Path) -> dict[str, Any]:
    """The key that a file carries, and the versions that made it, as far as it has them.

    A damaged file is made again, so the error is not shown.
    """
    with suppress(Exception):  # libraries raise errors of all kinds on a damaged file
        if path.suffix == ".parquet":
            return dict(tables.facts(path))
        if path.suffix == ".csv":
            return dict(tables.csv_facts(path))
        if path.suffix == ".json":
            return dict(json.loads(path.read_text(encoding="utf-8")))
        if path.suffix == ".html":
            with path.open(encoding="utf-8") as page:
                match = re.search(HTML_KEY.format(key="(.+?)"), page.read(4096))
            return {"key": match[1]} if match else {}
        if path.suffix == ".png":
            from PIL import Image

            with Image.open(path) as image:
                return dict(getattr(image, "text", {}))
        from layerwise.io import hdf5

        with hdf5.opened(path) as file:
            return dict(hdf5.attributes(file))
    return {}


class Survey:
    """The results of a plan that are there: which are stale, and which other versions made.

    Attributes
    ----------
    stale : list of str
        Files that carry another key than the config's, or are damaged.
    other_versions : Counter of tuple of str
        Files with their key that other versions of libraries made, by rule and version.
    """

    def __init__(self, plan: Plan) -> None:
        self.stale: list[str] = []
        self.other_versions: Counter[tuple[str, str]] = Counter()
        self.results = plan.config.results
        here = versions()
        for path in sorted(Path(self.results).rglob("*")):
            # Recipes of the user need not store keys.
            if not path.is_file() or not (expected := plan.expected(path)) or not expected[0]:
                continue
            facts, (rule, key) = facts_of(path), expected
            if facts.get("key") != key:
                self.stale.append(str(path))
                continue
            for library, version in json.loads(facts.get("versions", "{}")).items():
                if here.get(library, version) != version:
                    self.other_versions[rule, f"{library} {version}"] += 1

    def warning(self) -> str:
        """A sentence about files that other versions of libraries made.

        Forced, a job that scores joins the tables of finished tasks again.
        """
        counts = [f"{n} of {rule}: {made}" for (rule, made), n in self.other_versions.items()]
        rules = " ".join(dict.fromkeys(rule for rule, _ in self.other_versions))
        delete = f"delete {self.results}/scores and " * ("evaluate" in rules)
        return ", ".join(counts) and (
            f"Files of other versions are kept ({', '.join(counts)}); if their values should be "
            f"made anew, {delete}run with -R {rules}."
        )
