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
EXPECTED: dict[int, tuple[str, float]] = {}
"""Rule and seconds, relative to others, of each job by its number; the Snakefile writes it."""
EVERY = 60.0  # seconds between the lines of a long job
PROGRESS = " layerwise.progress: "
ENOUGH = 0.1
"""Part of a run after which its pace is known."""


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
    """Write a line for each finished job, with its seconds and the time left."""

    writes_to_stream, writes_to_file = True, False
    has_filter = has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.plain = DefaultFormatter(show_failed_logs=self.common_settings.show_failed_logs)
        self.running: dict[int, Job] = {}
        self.n = self.total = 0
        self.waiting: dict[int, tuple[str, float]] = {}  # jobs that have not ended, as EXPECTED
        self.ended: list[tuple[str, float, float]] = []  # rule, expected and real seconds
        self.start = time.monotonic()
        self.closed = threading.Event()
        self.bar: Any = tqdm(disable=True)

    def emit(self, record: Any) -> None:
        """Handle an event of Snakemake."""
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_ERROR:
            job = self.running.pop(record.jobid)
            self._write(f"Failed: {job.name} (log: {', '.join(record.log)})")
        elif record.levelno >= logging.WARNING:
            if not record.getMessage().startswith("RuleException"):
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
            if not self.ended and not self.waiting:
                self.waiting = dict(EXPECTED)
            job = Job(name, time.monotonic(), tuple(record.log))
            self.running[record.jobid] = job
            self._show_running()
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self._finish(record.job_id)

    def _finish(self, number: int) -> None:
        job = self.running.pop(number)
        now, self.n = time.monotonic(), self.n + 1
        took = f"[{self.n} of {self.total}] {job.name}: {tqdm.format_interval(now - job.start)}"
        left = ""
        if number in self.waiting:
            self.ended.append((*self.waiting.pop(number), now - job.start))
            ended = sum(expected for _, expected, _ in self.ended)
            if ended >= ENOUGH * (ended + sum(expected for _, expected in self.waiting.values())):
                left = f"{tqdm.format_interval(self.seconds_left(now))} left"
        self._write(f"{took}, {left}" if self.bar.disable and left else took)
        self.bar.update()
        self._show_running(left)

    def seconds_left(self, now: float) -> float:
        """The time until the last job ends, from how long those that ended took."""
        spent = sum(took for _, _, took in self.ended)
        pace = spent / sum(expected for _, expected, _ in self.ended)
        rules: dict[str, tuple[float, float]] = {}
        for rule, expected, took in self.ended:
            before = rules.get(rule, (0.0, 0.0))
            rules[rule] = before[0] + expected, before[1] + took
        paces = {rule: took / expected for rule, (expected, took) in rules.items()}
        left = {n: s * paces.get(rule, pace) for n, (rule, s) in self.waiting.items()}
        begun = {n: now - job.start for n, job in self.running.items()}
        rest = sum(left.values()) - sum(min(s, left.get(n, 0.0)) for n, s in begun.items())
        at_once = max(1.0, (spent + sum(begun.values())) / max(now - self.start, 1e-9))
        return rest / at_once

    def _watch(self) -> None:
        """Write the progress of long jobs, a line a minute."""
        shown: dict[str, str] = {}
        while not self.closed.wait(EVERY):
            for job in tuple(self.running.values()):
                line = job.progress()
                if line and shown.get(job.name) != line:
                    shown[job.name] = line
                    self._write(f"{job.name}: {line}")

    def _show_running(self, left: str = "") -> None:
        names = "; ".join(job.name for job in self.running.values())
        self.bar.set_postfix_str(f"{left} {names}".strip())

    def _write(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
        self.closed.set()
        self.bar.close()
        super().close()
