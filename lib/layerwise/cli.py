"""What every script shares: its job, a log to file and stderr, one-line errors."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.errors import DiskError, LayerwiseError, printable
from layerwise.files import DISK_REMEDY, disk_fault, memory_fault, replacing

if TYPE_CHECKING:
    from layerwise.association.order import Order
    from layerwise.config import Config
    from layerwise.config.models import Model
    from layerwise.workflow.plan import Plan
    from layerwise.workflow.stamps import Stamp
    from layerwise.workflow.targets import Job

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
    """One job of a stage, as a script sees it."""

    plan: Plan
    job: Job
    threads: int

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def names(self) -> dict[str, str]:
        """What the job is about: ``model``, ``revision``, ``corpus``, …"""
        from layerwise.workflow.stages import STAGES

        return dict(zip(STAGES[self.job.stage].names, self.job.names, strict=True))

    @property
    def inputs(self) -> dict[str, list[Path]]:
        """The files of other jobs that it reads, by role."""
        return {
            role: [Path(p) for p in paths] for role, paths in self.plan.inputs(self.job).items()
        }

    @property
    def files(self) -> dict[str, Path]:
        """The files that it writes, by role."""
        return {role: Path(path) for role, path in self.plan.paths(self.job).items()}

    @cached_property
    def stamp(self) -> Stamp:
        """Goes into those files."""
        return self.plan.stamp(self.job)

    def input(self, role: str) -> Path:
        """The one file of a role."""
        (path,) = self.inputs[role]
        return path

    def release_activations(self) -> None:
        """Remove the activations that were read, unless they are kept or others have still to
        read them: to be called when the job's own files are there."""
        if not self.config.extract.keep_activations:
            for path in self.plan.read_by_all(self.job, "activations"):
                path.unlink(missing_ok=True)

    def loadable(self) -> Model:
        """The entry of the job's model with the source that it is loaded from."""
        from layerwise.workflow.stages import loadable

        return loadable(self.config, self.names["model"], self.names["revision"])

    def folders(self, task: str) -> dict[str, str]:
        """The local folder of a task's data, if it has one, by the task's name."""
        from layerwise.workflow.stages import task_folder

        folder = task_folder(self.config, task)
        return {task: folder} if folder else {}

    def own_texts(self) -> dict[str, str]:
        """Corpora that are a task's own texts, with the task."""
        return self.config.own_texts

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
    from layerwise.workflow.targets import Job

    names = STAGES[stage].names
    options = _of_a_plan(description)
    for name in names:
        options.add_argument(f"--{name}", required=True, help=f"name of the {name} in the config")

    def start(given: argparse.Namespace) -> None:
        plan = _open(given)
        plan.check({name: getattr(given, name) for name in names})
        job = Job(stage, tuple(getattr(given, name) for name in names))
        _check_key(plan.key(job), given.key)
        main(Run(plan, job, given.threads))

    run(start, options.parse_args())


def run_bundle(rule: str, main: Callable[[list[Run]], None], description: str | None) -> None:
    """Run the jobs of a model at its checkpoints that a rule does together.

    Of those that are due; or of one corpus or task, due or not.

    Parameters
    ----------
    rule : str
        The `rule` of one or more stages.
    main : function of a list of `Run`
    description : str
        What ``--help`` says.
    """
    from layerwise.workflow.plan import Bundle
    from layerwise.workflow.stages import STAGES

    options = _of_a_plan(description)
    options.add_argument("--model", required=True, help="name of the model in the config")
    options.add_argument("--revision", help="checkpoint (default: the model's last one)")
    kinds = {stage.names[-1] for stage in STAGES.values() if stage.rule == rule}
    for kind in sorted(kinds):
        options.add_argument(f"--{kind}", help=f"this {kind} alone, whether it is due or not")
    options.add_argument("--part", help="a job of the workflow's: all that it does together")

    def start(given: argparse.Namespace) -> None:
        plan = _open(given)
        plan.check({"model": given.model})
        revision = given.revision or plan.config.models[given.model].revisions[-1]
        about = {"model": given.model, "revision": revision}
        asked = {kind: name for kind in kinds if (name := getattr(given, kind))}
        plan.check(about | asked)
        if given.part is not None:
            bundle = Bundle(rule, given.model, revision, given.part)
            _check_key(plan.bundle_key(bundle), given.key)
            jobs = [job for job in plan.members(bundle) if plan.needed(job)]
        else:
            stages = [s for s in STAGES.values() if s.rule == rule]
            jobs = [
                job for stage in stages for job in plan.jobs_of(stage.name)
                if job.names[:2] == (given.model, revision)
                and (asked.get(stage.names[-1]) == job.names[2] if asked else plan.needed(job))
            ]  # fmt: skip
        if not jobs:
            log.info("Nothing to be done of %s at %s", given.model, revision)
        else:
            main([Run(plan, job, given.threads) for job in jobs])
        if given.part is not None:
            marker = Path(plan.marker(bundle))
            files = [Path(p) for job in jobs for p in plan.paths(job).values()]
            made = {str(f): f.stat().st_size for f in files if f.is_file()}
            with replacing(marker) as partial:
                document = {"made": made, "gpu": "cuda" in _devices(files)}
                partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    run(start, options.parse_args())


def _devices(files: Iterable[Path]) -> set[str]:
    """The kinds of devices that HDF5 files say they were computed on."""
    import h5py

    found = set()
    for path in files:
        if path.suffix == ".h5" and path.is_file():
            with h5py.File(path, "r") as file:
                found.add(str(file.attrs.get("device", "")).split(":")[0])
    return found


def each(runs: Iterable[Run], do: Callable[[Run], None]) -> None:
    """Do several jobs one after the other; one that fails does not stop the others.

    Raises
    ------
    DiskError
        At once, if a file could not be written.
    LayerwiseError
        At the end, if any failed: the first sentence.
    """
    runs = list(runs)
    failures = Failures()
    for one in runs:
        with failures.of([one]):
            do(one)
    failures.tell(len(runs))


class Failures:
    """Which of several jobs have failed; one that fails does not stop the others."""

    def __init__(self) -> None:
        self.told: list[str] = []

    @contextmanager
    def of(self, runs: Sequence[Run]) -> Iterator[None]:
        """Note a `LayerwiseError` as a failure of some jobs. A full disk is one of all jobs, and
        not held back."""
        try:
            yield
        except DiskError:
            raise
        except LayerwiseError as error:
            for one in runs:
                log.error("%s: %s", " ".join(one.job.names), error)
            self.told += [str(error)] * len(runs)

    def tell(self, n_jobs: int) -> None:
        """Raise the first failure, if there was any.

        Raises
        ------
        LayerwiseError
            Its sentence, and how many of the jobs failed.
        """
        if self.told:
            more = f" ({len(self.told)} of {n_jobs} jobs failed)" if n_jobs > 1 else ""
            raise LayerwiseError(f"{self.told[0]}{more}")


def _of_a_plan(description: str | None) -> argparse.ArgumentParser:
    options = parser(description)
    options.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="the config (default config.yaml)"
    )
    options.add_argument("--key", help="refuse to run if the job's key is another one by now")
    return options


def _open(given: argparse.Namespace) -> Plan:
    from layerwise.workflow.plan import Plan

    return Plan.open(given.config)


def _check_key(key: str, planned: str | None) -> None:
    if planned and key != planned:
        raise LayerwiseError(
            "What this job reads has changed since the run was planned (the config, the code, or "
            "a model or text from outside); start the run again."
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
    # It tells of every table of a font that goes into a PDF.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
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
