"""The start of a run: what is due and why, and whose results folder it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from layerwise.config import Config
from layerwise.config.reading import read_yaml
from layerwise.errors import LayerwiseError
from layerwise.files import check_writable
from layerwise.workflow import targets
from layerwise.workflow.plan import MISSING, Plan, explain
from layerwise.workflow.sources import check_sources
from layerwise.workflow.stages import STAGES, Job

SNAPSHOT = "config.json"
LOCK = ".lock"

Due = Mapping[Job, str]


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
        files = [Path(file) for file in files]
        self.source = " ".join(os.path.relpath(file) for file in files)
        # Snakemake takes the last of two equal keys; we don't.
        read_yaml(files)
        self.plan = Plan(Config.of(config, checked=checked))
        self.results = Path(self.plan.config.results)
        self.snapshot = self.results / SNAPSHOT
        if not checked:
            check_sources(self.plan.config)
        self._lock = FileLock(self.results / LOCK)

    def due(self, asked: Iterable[str]) -> Due:
        """The jobs that a run has to do.

        Parameters
        ----------
        asked : iterable of str
            Files or rules that were asked for by hand; all that the studies want if there are none.

        Raises
        ------
        LayerwiseError
            If another config's files would be made again.
        """
        asked = list(asked)
        wanted = [job for name in asked for job in self._asked(name)]
        found = self.plan.jobs_due(wanted if asked else None)
        self._check_owner(found)
        return found

    def _asked(self, name: str) -> Iterator[Job]:
        if name == "fetch":
            yield from targets.fetched(self.plan.config)
        elif name in STAGES and not STAGES[name].names:
            yield Job(name)
        elif (job := self.plan.maker_of(name)) is not None:
            yield job
        elif name == "all":
            yield from targets.targets(self.plan.config)

    def files_of(self, jobs: Iterable[Job]) -> list[str]:
        """All files of some jobs."""
        return [path for job in jobs for path in self.plan.paths(job).values()]

    def forced(self, due: Due) -> list[str]:
        """The files of due jobs of which some are there, which Snakemake would leave alone."""
        files = (self.files_of([job]) for job in due)
        return [p for paths in files if any(Path(f).is_file() for f in paths) for p in paths]

    def reasons(self, due: Due) -> Iterator[str]:
        """Why jobs run, a line a stage; nothing about what was never made."""
        return explain({job: reason for job, reason in due.items() if reason != MISSING})

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
                f"{self.results} holds the results of {owner}, and {len(stale)} of its files would "
                f"be made again by {self.source}; give one of them another folder by the key "
                f"'results', or delete {self.snapshot} to hand the folder over."
            )

    def _owner(self) -> str | None:
        try:
            return str(json.loads(self.snapshot.read_text(encoding="utf-8"))["source"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
