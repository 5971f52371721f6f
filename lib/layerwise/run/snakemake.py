"""The workflow's side of Snakemake: the config that jobs read, and stale results.

Snakemake's own ``params`` trigger compares keys with the records in ``.snakemake``. Where there
are none, as in a copied results folder, the key in the file itself decides. The times of results
mean nothing then: they are in the order of copying, or of a touch.

Snakemake's manual does not promise the names in `PRIVATE`. No other file uses them but the
Snakefile, and tests/test_snakemake_names.py fails when a release of Snakemake changes one.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from layerwise.config import Config
from layerwise.errors import ConfigError, LayerwiseError
from layerwise.io import tables
from layerwise.io.files import is_file, is_running, versions, write_text
from layerwise.run.plan import TABLE_KEYS, Plan
from layerwise.run.validate import local_files

PRIVATE = {
    "configfiles": "A key that is given twice in a file is refused.",
    "current_basedir": "The library is next to the rules, also in a module.",
    "dag.forcefiles": "The public --forcerun takes files before the keys in files can be read.",
    "iocache.mtime": "Results have one time, so that keys alone decide; no option says so.",
    "is_main_process": "A job reads the config of its run, since the user may edit theirs.",
    "modifier.parent_modifier": "There is one in a module, of which Snakemake calls no onstart.",
    "output_settings.dryrun": "A dry run writes nothing.",
    "overwrite_configfiles": "It tells if --configfile replaces the quickstart's config.",
    "persistence.cleanup_metadata": "A failed job's record does not count where the file stayed.",
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


def write_config(config: Mapping[str, Any]) -> Path:
    """Write the config of a run, in the order of its keys, which decides colours."""
    path = config_file(config)
    write_text(path, json.dumps(config, indent=1) + "\n")
    return path


def config_of_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that the run of this job was started with; it may have been edited since.

    A job that sees no file of the run writes the config that it was given.
    """
    path = config_file(config)
    if not path.is_file():
        write_config(config)
    return dict(json.loads(path.read_text(encoding="utf-8")))


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
    file, warning = results / RUNNING, ""
    if file.is_file():
        other = json.loads(file.read_text(encoding="utf-8"))
        if other["host"] != platform.node() or is_running(other["pid"]):
            raise LayerwiseError(
                f"Process {other['pid']} of {other['host']} writes {results}; wait until it ends, "
                f"or delete {file} if it no longer runs.",
                code="conflict",
            )
        if other["pid"] != os.getpid():
            warning = (
                f"The last run on {results} was killed. Its jobs on a cluster may still run, and "
                "would run twice; look for them (squeue)."
            )
    write_text(file, json.dumps({"host": platform.node(), "pid": os.getpid()}))
    atexit.register(file.unlink, missing_ok=True)
    return warning


class Stale:
    """The results of a run that are stale, and what Snakemake is told of them.

    Parameters
    ----------
    workflow : snakemake.workflow.Workflow

    Attributes
    ----------
    other_versions : Counter of tuple of str
        Files that other versions of libraries made, by stage and version.
    """

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow
        self._keys_decide = False
        self._stale: list[str] = []
        self.other_versions: Counter[tuple[str, str]] = Counter()

    def prepare(self, config: Mapping[str, Any], plan: Plan) -> None:
        """Of a module write what `start` writes, since Snakemake calls no `onstart` of one."""
        is_module = self._workflow.modifier.parent_modifier is not None
        if is_module and not self._workflow.output_settings.dryrun:
            self.start(config, plan)

    def start(self, config: Mapping[str, Any], plan: Plan) -> None:
        """Write the config and the keys of tables of a run with jobs."""
        write_config(config)
        # A key that cannot be had is of a table that this run does not make.
        with suppress(LayerwiseError):
            keys = json.dumps(plan.table_keys()) + "\n"
            write_text(Path(plan.config.results, TABLE_KEYS), keys)

    def force_if_other_key(self, stage: str, output: str, key: str) -> None:
        """Let Snakemake run a job again if its output was made for another key.

        This covers results that were copied without `.snakemake`.
        """
        facts = facts_of(Path(output)) if Path(output).is_file() else None
        if facts is None:  # an absent output is made anyway
            return
        if facts.get("key") != key:
            self._workflow.dag.forcefiles.add(output)
            self._stale.append(output)
            return
        made_with = json.loads(facts.get("versions", "{}"))
        for library, here in versions().items():
            if made_with.get(library, here) != here:
                self.other_versions[stage, f"{library} {made_with[library]}"] += 1

    def warning(self, results: str) -> str:
        """One sentence, given once, about files that other versions of libraries made.

        Forced, a job that scores joins the tables of finished tasks again.
        """
        counts = [f"{n} of {stage}: {made}" for (stage, made), n in self.other_versions.items()]
        stages = dict.fromkeys(stage for stage, _ in self.other_versions)
        rules = " ".join(stages).replace("published", "import_published")
        joins = "evaluate" in rules
        self.other_versions.clear()
        return ", ".join(counts) and (
            f"Files of other versions are kept ({', '.join(counts)}); if their values should be "
            f"made anew, {f'delete {results}/scores and ' * joins}run with -R {rules}."
        )

    def forget_failed(self) -> None:
        """Drop Snakemake's records of files that were to be made again.

        It records a failed job under its new key, and would run the job of the file that stayed
        once more when the old key is asked for.
        """
        from snakemake.io import IOFile

        for output in self._stale:
            self._workflow.persistence.cleanup_metadata(IOFile(output))

    def let_keys_decide(self, *folders: str) -> None:
        """Give all results one time in Snakemake's cache, so that none is newer than another.

        A touched or copied file reruns nothing, and none needs a checksum.
        """
        from snakemake_interface_storage_plugins.io import Mtime

        if not self._keys_decide:
            # A second ago, so that what this run makes is newer, however coarse the file times.
            before = Mtime(local=time.time() - 1)
            for parent, inner, files in chain.from_iterable(map(os.walk, folders)):
                paths = (f"{parent}/{name}" for name in (*inner, *files))
                self._workflow.iocache.mtime.update(dict.fromkeys(paths, before))
            self._keys_decide = True

    def check(self, config: Config, workflow_folder: str) -> None:
        """Refuse braces in a path, and files of the future.

        Parameters
        ----------
        config : Config
        workflow_folder : str
            Folder of the rules.

        Raises
        ------
        ConfigError, LayerwiseError
        """
        for folder in (workflow_folder, str(Path.cwd())):
            if re.search("[{}]", folder):
                raise LayerwiseError(
                    f"{folder}: Snakemake takes braces in a path for a wildcard; rename the "
                    "folder.",
                    code="bad_name",
                )
        for where, path in local_files(config):
            if is_file(path) and Path(path).stat().st_mtime > time.time() + SKEW_S:
                problem = (
                    f"{path} is dated in the future, and Snakemake removes what is made from such "
                    f"a file; run: touch {path}."
                )
                raise ConfigError(where, problem, code="conflict")


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
