"""Progress of a run, a line a job: `snakemake --logger layerwise`.

A terminal also shows a bar with the running jobs. Dry runs, warnings and errors are as Snakemake
writes them, except for jobs that fail: they wrote what is wrong themselves.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

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


class LogHandler(LogHandlerBase):  # type: ignore[misc]
    """Write a line for each finished job, with its seconds and the time left."""

    writes_to_stream, writes_to_file = True, False
    has_filter = has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.plain = DefaultFormatter(show_failed_logs=self.common_settings.show_failed_logs)
        self.running: dict[int, tuple[str, float]] = {}
        self.n = self.total = 0
        self.start = time.monotonic()
        self.bar: Any = tqdm(disable=True)

    def emit(self, record: Any) -> None:
        """Handle an event of Snakemake."""
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_ERROR:
            name, _ = self.running.pop(record.jobid)
            self._write(f"Failed: {name} (log: {', '.join(record.log)})")
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
            form = "{n} of {total} jobs |{bar:20}| {remaining} left{postfix}"
            self.bar = tqdm(total=self.total, bar_format=form, leave=False, disable=None)
        elif event == LogEvent.JOB_INFO and record.rule_name != "all":
            self.running[record.jobid] = record.rule_msg or record.rule_name, time.monotonic()
            self._show_running()
        elif event == LogEvent.JOB_FINISHED and record.job_id in self.running:
            self._finish(*self.running.pop(record.job_id))

    def _finish(self, name: str, start: float) -> None:
        now, self.n = time.monotonic(), self.n + 1
        left = (now - self.start) / self.n * (self.total - self.n)
        took = f"[{self.n} of {self.total}] {name}: {tqdm.format_interval(now - start)}"
        self._write(f"{took}, {tqdm.format_interval(left)} left" if self.bar.disable else took)
        self.bar.update()
        self._show_running()

    def _show_running(self) -> None:
        self.bar.set_postfix_str("; ".join(name for name, _ in self.running.values()))

    def _write(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()
        super().close()
