"""Progress of a run, a line a job: `snakemake --logger layerwise`.

A long job adds a line a minute, the last of its log about its progress. A terminal also shows a
bar with the running jobs. Dry runs, warnings and errors are as Snakemake
writes them, except for jobs that fail: they wrote what is wrong themselves.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from snakemake.logging import DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from tqdm import tqdm

# Snakemake's notes on how it runs.
NOTES = (
    "Assuming ",
    "Building DAG",
    "Complete log",
    "Conda environments",
    "Execute ",
    "Provided ",
    "Rules claiming",
    "Select jobs",
    "Using ",
    "host:",
)
EVERY = 60.0  # seconds between the lines of a long job
PROGRESS = " layerwise.progress: "


class Job(NamedTuple):
    """A running job."""

    name: str
    start: float
    logs: tuple[str, ...]

    def progress(self) -> str:
        """The last line of its log about its progress; empty if there is none."""
        lines = [
            line
            for log in self.logs
            if Path(log).is_file()
            for line in Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
            if PROGRESS in line
        ]
        return lines[-1].split(PROGRESS)[1] if lines else ""


class LogHandler(LogHandlerBase):  # type: ignore[misc]
    """Write a line for each finished job, with its seconds."""

    writes_to_stream, writes_to_file = True, False
    has_filter = has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.plain = DefaultFormatter(show_failed_logs=self.common_settings.show_failed_logs)
        self.running: dict[int, Job] = {}
        self.n = self.total = 0
        self.closed = threading.Event()
        self.bar: Any = tqdm(disable=True)

    def emit(self, record: Any) -> None:
        """Handle an event of Snakemake."""
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_ERROR:
            job = self.running.pop(record.jobid)
            self._write(f"Failed: {job.name} (log: {', '.join(record.log)})")
        elif record.levelno >= logging.WARNING:
            if not record.getMessage().startswith(("RuleException", "Cannot restore")):
                self._write(self.plain.format(record))
        elif event is None:
            if not record.getMessage().startswith(NOTES):
                self._write(record.getMessage())
        elif self.common_settings.dryrun:
            if event in (LogEvent.RUN_INFO, LogEvent.JOB_INFO):
                self._write(self.plain.format(record))
        elif event == LogEvent.RUN_INFO:
            self.total = record.stats["total"] - record.stats.get("all", 0)
            threading.Thread(target=self._watch, daemon=True).start()
            form = "{n} of {total} jobs |{bar:20}| {postfix}"
            self.bar = tqdm(total=self.total, bar_format=form, leave=False, disable=None)
        elif event == LogEvent.JOB_INFO and record.rule_name != "all":
            name = record.rule_msg or record.rule_name
            job = Job(name, time.monotonic(), tuple(record.log))
            self.running[record.jobid] = job
            self._show_running()
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self._finish(record.job_id)

    def _finish(self, number: int) -> None:
        job = self.running.pop(number)
        now, self.n = time.monotonic(), self.n + 1
        took = tqdm.format_interval(now - job.start)
        self._write(f"[{self.n} of {self.total}] {job.name}: {took}")
        self.bar.update()
        self._show_running()

    def _watch(self) -> None:
        """Write the progress of long jobs, a line a minute."""
        shown: dict[str, str] = {}
        while not self.closed.wait(EVERY):
            for job in tuple(self.running.values()):
                line = job.progress()
                if line and shown.get(job.name) != line:
                    shown[job.name] = line
                    self._write(f"{job.name}: {line}")

    def _show_running(self) -> None:
        self.bar.set_postfix_str("; ".join(job.name for job in self.running.values()))

    def _write(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
        self.closed.set()
        self.bar.close()
        super().close()
