"""Helpers of the scripts: options, a log to file and stderr, one-line errors."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError, printable
from layerwise.extras import require
from layerwise.io.files import DISK_REMEDY, disk_fault, memory_fault, write_text
from layerwise.names import decode

if TYPE_CHECKING:
    from layerwise.activations.store import Activations
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


Arguments = argparse.Namespace
"""The options of a script; `config` is read, and `plan` is its plan."""


def parser(
    description: str | None, *names: str, stage: str = "", **files: str
) -> argparse.ArgumentParser:
    """An argument parser with the options of every script.

    Parameters
    ----------
    description : str
        What ``--help`` shows.
    stage : str
        The method of `layerwise.run.keys.Keys` that gives the key of the output for `names`.
    *names : str
        Wildcards of the rule (model, revision, corpus, study): options that take a name of the
        config, plain or encoded for paths.
    **files : str
        Input and output files, with their help.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in names:
        about = f"name of the {name} in the config"
        options.add_argument(f"--{name}", required=True, type=decode, help=about)
    for name, about in files.items():
        options.add_argument(f"--{name}", required=True, type=Path, help=about)
    about = "the config (default config.yaml)"
    options.add_argument("--config", type=Path, default=Path("config.yaml"), help=about)
    about = "key of the output (default: computed); another than the config's is refused"
    options.add_argument("--key", default="", help=about)
    options.set_defaults(stage=stage, names=names)
    options.add_argument("--log", type=Path, help="also write the log to this file")
    options.add_argument("--threads", type=int, default=1, help="CPU threads to use (default 1)")
    return options


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
    from layerwise.config.tasks import ChoiceEntry, LabelledEntry, MtebEntry
    from layerwise.tasks.choice import ChoiceTask
    from layerwise.tasks.labelled import LabelledTask

    entry = plan.config.tasks.get(name)
    if isinstance(entry, ChoiceEntry):
        return ChoiceTask(entry)
    if isinstance(entry, LabelledEntry):
        corpus = entry.corpus and plan.path("texts", corpus=entry.corpus)
        return LabelledTask(entry, Path(corpus) if corpus else None)
    require("mteb", "tasks")
    from layerwise.tasks.mteb_task import MtebTask

    entry = entry or MtebEntry()
    return MtebTask(name, entry.folder, entry.type)


def run(main: Callable[[Arguments], None], options: argparse.ArgumentParser) -> None:
    """Parse arguments, set up logging, run `main`; a user's mistake becomes one line and status 1.

    Parameters
    ----------
    main : function of the parsed arguments
    options : ArgumentParser
        From `parser`.
    """
    from layerwise.config import read_config
    from layerwise.run.plan import Plan

    def job() -> None:
        arguments.config = read_config(arguments.config)
        arguments.plan = Plan(arguments.config)
        if arguments.stage:
            arguments.key = _checked_key(arguments)
        main(arguments)

    arguments = options.parse_args()
    if arguments.log:
        os.environ["TQDM_DISABLE"] = "1"
    guarded(job, arguments.log)


def _checked_key(arguments: Arguments) -> str:
    """The key of the output.

    Raises
    ------
    LayerwiseError
        If the job was made for another key: it would store values of one config under the key of
        another.
    """
    names = {name: getattr(arguments, name) for name in arguments.names}
    key: str = getattr(arguments.plan.keys, arguments.stage)(**names)
    if arguments.key not in ("", key):
        raise LayerwiseError(
            f"This job was planned with the key {arguments.key}, and its config now gives {key}: "
            "the config, a file that it names or the library has changed since; start the run "
            "again.",
            code="mismatch",
        )
    return key


def check_activations(plan: Plan, found: Activations) -> None:
    """Check that activations have the key of the config.

    Raises
    ------
    LayerwiseError
        If they were extracted for another config.
    """
    key = plan.keys.extract(found.model, found.revision, found.corpus)
    if found.attributes.get("key") != key:
        raise LayerwiseError(
            f"The activations of {found.model} at {found.revision} on {found.corpus} were "
            "extracted for another config; run again with -R extract.",
            code="mismatch",
        )


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
