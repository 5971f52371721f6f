"""The start of a run: what is due and why, and whose results folder it is."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from layerwise.config import Config
from layerwise.config.reading import read_yaml
from layerwise.errors import LayerwiseError
from layerwise.files import check_writable, replacing
from layerwise.workflow.plan import MISSING, Bundle, Plan, explain
from layerwise.workflow.targets import Job
from layerwise.workflow.validate import validate

SNAPSHOT = "config.json"
LOCK = ".lock"
MARK = Path(".snakemake") / "layerwise.due"

Due = Mapping[Job, str]


def hand_on(library: str) -> None:
    """Have the jobs of this process import the library from a folder.

    Parameters
    ----------
    library : str
        Its path, without a colon, which PYTHONPATH cannot hold.
    """
    paths = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


class Start:
    """What a run starts from.

    Parameters
    ----------
    config : mapping
        As Snakemake merged it from files and the command line.
    files : sequence of paths
        Those files.
    checked : bool
        Whether that has been checked already, by the process that started this one.

    Raises
    ------
    LayerwiseError
        If the config is wrong, or names something that isn't there.
    """

    def __init__(
        self, config: Mapping[str, Any], files: Iterable[str | Path], *, checked: bool = False
    ) -> None:
        paths = [Path(file) for file in files]
        self.source = " ".join(map(os.path.relpath, paths))
        # Snakemake takes the last of two equal keys; we don't.
        read_yaml(paths)
        read = Config.of(config)
        self.results = Path(read.results)
        self.snapshot = self.results / SNAPSHOT
        # A job of a run groups the work as the run does.
        self.plan = Plan(read, sizes=self._snapshot().get("sizes") if checked else None)
        if not checked:
            validate(self.plan.config)
        self._lock = FileLock(self.results / LOCK)

    def due(self) -> Due:
        """The jobs that a run of everything has to do, with the reason of each.

        Raises
        ------
        LayerwiseError
            If another config's files would be made again.
        """
        found = self.plan.jobs_due()
        self._check_owner(found)
        return found

    def files_of(self, jobs: Iterable[Job]) -> list[str]:
        """All files of some jobs."""
        return [path for job in jobs for path in self.plan.paths(job).values()]

    def mark(self, due: Due) -> None:
        """Write the file that every due job has among its inputs, newer than any file of theirs
        and any marker of their bundles.

        Snakemake runs a job again for nothing but a newer input, and fails one whose input is from
        the future: so files that a clock ahead has left are given a time of today.

        Raises
        ------
        LayerwiseError
            If it cannot be written.
        """
        now = time.time()
        times = [now]
        runs = self.plan.runs(due)
        bundles = [self.plan.marker(run) for run in runs if isinstance(run, Bundle)]
        for path in [*self.files_of(due), *bundles]:
            with contextlib.suppress(OSError):
                when = Path(path).stat().st_mtime
                if when > now - 2:
                    try:
                        os.utime(path, (now - 2, now - 2))
                    except OSError:  # not ours to write, so this is a look at it, and no run
                        times.append(when + 1)
        with replacing(MARK) as partial:
            # Snakemake also compares contents.
            partial.write_text(f"{time.time_ns()}\n")
            os.utime(partial, (max(times), max(times)))

    def reasons(self, due: Due) -> Iterator[str]:
        """Why jobs run, a line a stage; nothing about what was never made. And what of the limits
        in `jobs` cannot be kept, and what of the config no study draws on."""
        yield from explain({job: reason for job, reason in due.items() if reason != MISSING})
        if due:
            yield from self.plan.sizes.unknown()
            yield from self._idle()

    def _idle(self) -> Iterator[str]:
        named = {name for job in self.plan.wanted for name in job.names}
        for what in ("models", "corpora", "tasks"):
            idle = [name for name in getattr(self.plan.config, what) if name not in named]
            if idle:
                yield f"{what}: no study draws on {', '.join(idle)}; nothing is computed there."

    def take_hold(self) -> None:
        """Make the results folder this run's own, until the process ends.

        Raises
        ------
        LayerwiseError
            If it cannot be written, or another run has it.
        """
        check_writable(self.results)
        self.results.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise LayerwiseError(
                f"Another run is at work in {self.results}; wait for it, or give this one a "
                "folder of its own by the key 'results'."
            ) from None
        self.plan.save(self.snapshot, self.source)

    def _check_owner(self, due: Due) -> None:
        """Refuse to make another config's files again."""
        stale = [job for job, reason in due.items() if reason != MISSING]
        owner = self._owner()
        if stale and owner is not None and owner != self.source:
            raise LayerwiseError(
                f"{self.results} holds the results of {owner}, and {len(stale)} of its files "
                f"would be made again by {self.source}; give one of them another folder by the "
                f"key 'results', or delete {self.snapshot} to hand the folder over."
            )

    def _owner(self) -> str | None:
        source = self._snapshot().get("source")
        return None if source is None else str(source)

    def _snapshot(self) -> dict[str, Any]:
        """What the last run wrote for its jobs; empty if there is none, or none that is whole."""
        try:
            found = json.loads(self.snapshot.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
