"""What every script shares: its job, a log to file and stderr, one-line errors."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.errors import LayerwiseError, printable
from layerwise.files import DISK_REMEDY, disk_fault, memory_fault

if TYPE_CHECKING:
    from layerwise.association.order import Order
    from layerwise.config import Config
    from layerwise.config.models import Model
    from layerwise.workflow.stamps import Stamp

log = logging.getLogger("layerwise")

# Bars of the libraries we call would fill a log with half lines; ours write a line a minute.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_DISABLE", "1")

# No file of ours holds a date and no figure of ours needs a screen, but matplotlib stumbles over
# odd values of these.
os.environ.pop("SOURCE_DATE_EPOCH", None)
os.environ["MPLBACKEND"] = "agg"

# Torch's idle threads would spin for milliseconds on the cores that our own threads want next.
# Read when torch is loaded, so set before.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@dataclass(frozen=True)
class Run:
    """One job of a stage, as the stage's script sees it.

    Attributes
    ----------
    config : Config
    names : dict
        What the job is about: ``model``, ``revision``, ``corpus``, …
    inputs : dict
        The files of other jobs that it reads, by role.
    files : dict
        The files that it writes, by role.
    stamp : Stamp
        Goes into those files.
    threads : int
    """

    config: Config
    names: dict[str, str]
    inputs: dict[str, list[Path]]
    files: dict[str, Path]
    stamp: Stamp
    threads: int

    def input(self, role: str) -> Path:
        """The one file of a role."""
        (path,) = self.inputs[role]
        return path

    def loadable(self, model: str) -> Model:
        """A model's entry with the source that it is loaded from."""
        from layerwise.workflow.stages import loadable

        return loadable(self.config, model)

    def folders(self, task: str) -> dict[str, str]:
        """The local folder of a task's data, if it has one, by the task's name."""
        from layerwise.workflow.stages import task_folder

        folder = task_folder(self.config, task)
        return {task: folder} if folder else {}

    def own_texts(self) -> dict[str, str]:
        """Corpora that are a task's own texts, with the task."""
        from layerwise.config.checks import own_texts_of

        return own_texts_of(self.config)

    def order(self) -> Order:
        """The order of models and checkpoints, which is the config's."""
        from layerwise.association.order import Order

        models = self.config.models
        return Order(tuple(models), {m: tuple(entry.revisions) for m, entry in models.items()})


class Plain(logging.Formatter):
    """Control characters written out, and further lines indented: names and texts may hold any,
    and must neither steer a terminal nor look like entries of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(printable, super().format(record).splitlines()))


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all scripts have (`--log`, `--threads`)."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--log", type=Path, help="also write the log to this file")
    made.add_argument("--threads", type=int, default=1, help="CPU threads to use (default 1)")
    return made


def run_job(stage: str, main: Callable[[Run], None], description: str | None) -> None:
    """Run one job of a stage from the command line.

    The command line says which config and which model, corpus, task or study; the table of stages
    says which files that means.

    Parameters
    ----------
    stage : str
        A key of `layerwise.workflow.stages.STAGES`.
    main : function of a `Run`
    description : str
        What ``--help`` says.
    """
    from layerwise.workflow.stages import STAGES

    options = parser(description)
    options.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="the config (default config.yaml)"
    )
    for name in STAGES[stage].names:
        optional = name == "revision"
        options.add_argument(
            f"--{name}", required=not optional,
            help="checkpoint (default: the model's last one)" if optional
            else f"name of the {name} in the config",
        )  # fmt: skip
    options.add_argument("--key", help="refuse to run if the job's key is another one by now")
    run(lambda given: main(_job(stage, given)), options.parse_args())


def _job(stage: str, given: argparse.Namespace) -> Run:
    from layerwise.workflow.plan import Plan
    from layerwise.workflow.stages import STAGES
    from layerwise.workflow.targets import Job

    plan = Plan.open(given.config)
    names = {name: getattr(given, name) for name in STAGES[stage].names}
    if "revision" in names and names["revision"] is None:
        plan.check({"model": names["model"]})
        names["revision"] = plan.config.models[names["model"]].revisions[-1]
    plan.check(names)
    job = Job(stage, tuple(names.values()))
    if given.key and plan.key(job) != given.key:
        raise LayerwiseError(
            f"What {stage} reads has changed since this run was planned (the config, the code, or "
            "a model or text from outside); start the run again."
        )
    return Run(
        config=plan.config,
        names=names,
        inputs={role: [Path(p) for p in paths] for role, paths in plan.inputs(job).items()},
        files={role: Path(path) for role, path in plan.paths(job).items()},
        stamp=plan.stamp(job),
        threads=given.threads,
    )


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Set up logging, run `main`, and turn a `LayerwiseError` into one line and exit status 1."""
    # A log that the disk does not take must not cost the work, nor fill the terminal.
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    unlogged = None
    if arguments.log:
        try:
            arguments.log.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(logging.FileHandler(arguments.log, mode="w"))
        except OSError as error:
            unlogged = error.strerror
    for handler in handlers:
        handler.setFormatter(Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.captureWarnings(True)
    if unlogged:
        log.warning("There will be no log file %s: %s", arguments.log, unlogged)
    try:
        main(arguments)
    except LayerwiseError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception as error:  # libraries tell of a full disk in errors of all kinds
        if memory_fault(error):
            log.error(
                "The memory did not suffice; close other programs, lower threads or batch_tokens, "
                "lift the limit (ulimit -v), or ask the cluster for more."
            )
            sys.exit(1)
        fault = disk_fault(error)
        if fault:
            given = vars(arguments)
            where = getattr(error, "filename", None) or given.get("output") or "a result"
            log.error("Could not write %s: %s; %s", where, fault, DISK_REMEDY)
            sys.exit(1)
        log.exception("Unexpected failure; this is a bug in layerwise")
        sys.exit(2)
