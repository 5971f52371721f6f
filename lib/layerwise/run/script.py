"""Helpers of the scripts: the job, a log to file and stderr, one-line errors."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError, printable
from layerwise.io.files import DISK_REMEDY, disk_fault, memory_fault, write_text
from layerwise.names import decode
from layerwise.project import require

if TYPE_CHECKING:
    from layerwise.config.models import Model
    from layerwise.config.settings import ExtractSettings
    from layerwise.models.load import LoadedModel
    from layerwise.run.plan import Plan

log = logging.getLogger("layerwise")

# Bars would fill a log with half lines; ours write a line a minute.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")

# Figures need no screen and hold no date, but matplotlib stumbles over odd values of these.
os.environ.pop("SOURCE_DATE_EPOCH", None)
os.environ["MPLBACKEND"] = "agg"

# Torch's idle threads would spin for milliseconds on cores that other threads want next. This is
# read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Importing torch and transformers makes half a million objects that stay. At the usual threshold
# of 700, a sixth of that time goes into looking for cycles among them.
gc.set_threshold(20_000)


class Plain(logging.Formatter):
    """Writes control characters out and indents further lines: names and texts may hold any, and
    must neither steer a terminal nor look like entries of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(printable, super().format(record).splitlines()))


class Job:
    """A job of the workflow, from the object that Snakemake gives to its script.

    Parameters
    ----------
    snakemake : snakemake.iocontainers.Snakemake

    Attributes
    ----------
    config : Config
    plan : Plan
    names : dict of str to str
        The config's names for the wildcards: model, revision, corpus, study.
    input, output : named lists of str
        Files of the rule.
    key : str
        The key of the output.
    threads : int
    """

    def __init__(self, snakemake: Any) -> None:
        from layerwise.config import Config
        from layerwise.run.plan import Plan
        from layerwise.run.snakemake import config_file, config_of_run, start

        self.input, self.output = snakemake.input, snakemake.output
        self.threads: int = snakemake.threads
        self.names = {name: decode(value) for name, value in snakemake.wildcards.items()}
        self.config = Config.of(snakemake.config)
        self.plan = Plan(self.config)
        # Of a module Snakemake calls no onstart, which writes the config of a run.
        if not config_file(snakemake.config).is_file() or (
            config_of_run(snakemake.config) != snakemake.config
        ):
            start(snakemake.config, self.plan)
        self.key: str = snakemake.params.key
        self._check_key()
        for path in self.input:
            check_input(self.plan, Path(path))

    def files(self, name: str) -> list[Path]:
        """The input files of one name; Snakemake has a text for a single one."""
        paths = getattr(self.input, name)
        return [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]

    def _check_key(self) -> None:
        """Refuse to store values of one config under the key of another."""
        expected = self.plan.expected(self.output[0])
        if expected is not None and expected[1] != self.key:
            raise LayerwiseError(
                f"This job was planned with the key {self.key}, and its config now gives "
                f"{expected[1]}: the config, a file that it names or the library has changed "
                "since; start the run again.",
                code="mismatch",
            )


def check_input(plan: Plan, path: Path) -> None:
    """Refuse a result of another config, as one copied without Snakemake's records may be.

    Raises
    ------
    LayerwiseError
        If the file carries another key than the config's; it names the rule that makes it.
    """
    from layerwise.run.snakemake import facts_of

    if (expected := plan.expected(path)) is None:
        return
    # Snakemake fails a job whose input is dated in the future; here keys decide, not times.
    if path.stat().st_mtime > time.time():
        os.utime(path)
    rule, key = expected
    stored = facts_of(path / "layerwise.json" if path.is_dir() else path).get("key")
    # Recipes of the user need not store keys.
    if stored != key and (rule or stored):
        raise LayerwiseError(
            f"{path} was made for another config, or is damaged; run again with "
            f"{f'-R {rule}' if rule else '--forcerun ' + str(path)}.",
            code="mismatch",
        )


def open_model(
    plan: Plan, model: str, revision: str, extraction: ExtractSettings
) -> AbstractContextManager[LoadedModel]:
    """Open a model of the config."""
    from layerwise.models import opening

    entry = entry_of(plan, model, revision)
    device, dtype = extraction.device, extraction.dtype
    return opening.open_model(entry, name=model, revision=revision, device=device, dtype=dtype)


def entry_of(plan: Plan, model: str, revision: str) -> Model:
    """The entry of a model; one that the workflow converts is read from its folder."""
    from layerwise.config.models import FolderSource
    from layerwise.run.plan import model_folder

    entry = plan.config.models[model]
    folder = model_folder(plan.config, model, revision)
    return entry.model_copy(update={"source": FolderSource(folder=folder)}) if folder else entry


def task_of(plan: Plan, name: str) -> Any:
    """A task of the config, or another of mteb, with its data in local folders; read later.

    Returns
    -------
    Task
    """
    from layerwise.config.tasks import CustomEntry, LabelledEntry, MtebEntry
    from layerwise.tasks.labelled import LabelledTask

    entry = plan.config.tasks.get(name)
    if isinstance(entry, CustomEntry):
        return entry
    if isinstance(entry, LabelledEntry):
        corpus = entry.corpus and plan.path("texts", corpus=entry.corpus)
        return LabelledTask(entry, Path(corpus) if corpus else None)
    require("mteb", "tasks")
    from layerwise.tasks.mteb_task import MtebTask

    entry = entry or MtebEntry()
    return MtebTask(name, entry.folder, entry.type)


def run(main: Callable[[Job], None], snakemake: Any) -> None:
    """Set up logging and run `main`; a user's mistake becomes one line and status 1.

    Parameters
    ----------
    main : function of the job
    snakemake : snakemake.iocontainers.Snakemake
        The object that Snakemake puts into a script.
    """
    os.environ["TQDM_DISABLE"] = "1"
    guarded(lambda: main(Job(snakemake)), Path(snakemake.log[0]))


def guarded(do: Callable[[], Any], log_file: Path | None = None, terse: bool = False) -> Any:
    """Do something with a log; a user's mistake becomes one line and exit status 1.

    Parameters
    ----------
    terse : bool
        True for warnings and errors alone, without time and origin.
    """
    try:
        _start_log(log_file, terse)
        return do()
    except LayerwiseError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception as error:  # libraries report a full disk in errors of all kinds
        if memory_fault(error):
            log.error("Out of memory; lower threads or batch_tokens, or ask the cluster for more.")
        elif fault := disk_fault(error):
            where = getattr(error, "filename", None) or "a result"
            log.error("Could not write %s: %s; %s", where, fault, DISK_REMEDY)
        else:
            log.exception("Unexpected failure; this is a bug in layerwise")
            sys.exit(2)
        sys.exit(1)


def _start_log(path: Path | None, terse: bool) -> None:
    # A log that the disk does not take must not cost the work.
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path:
        handlers[0].setLevel(logging.WARNING)
        # Warnings of libraries, hundreds from scikit-learn alone, are in the log.
        handlers[0].addFilter(lambda record: record.name != "py.warnings")
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, mode="w"))
    origin = "" if terse else "%(asctime)s %(levelname)s %(name)s: "
    for handler in handlers:
        handler.setFormatter(Plain(f"{origin}%(message)s"))
    level = logging.WARNING if terse else logging.INFO
    logging.basicConfig(level=level, handlers=handlers, force=True)
    logging.captureWarnings(True)
    # It reports every table of a font that goes into a PDF.
    logging.getLogger("fontTools").setLevel(logging.WARNING)


def write_marker(folder: Path, key: str) -> None:
    """Write the key of a folder that is complete, as the file layerwise.json in it."""
    write_text(folder / "layerwise.json", json.dumps({"key": key}) + "\n")
