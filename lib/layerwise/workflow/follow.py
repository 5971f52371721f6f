"""What a run is doing and what is left, in plain lines, from what Snakemake says of it."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

TOTAL = re.compile(r"total +(\d+)")
STARTED = re.compile(r"Job (\d+): (.+)")
FINISHED = re.compile(r"Finished jobid: (\d+)")
# From such a line on all is shown, as it came.
TROUBLE = re.compile(
    r"Error|Traceback|\w+(Error|Exception)\b|Exiting because|.* (ERROR|CRITICAL) "
    r"|Nothing to be done|Directory cannot be locked|usage:"
)
QUIET_S = 30.0
"""Seconds without news after which a line says what is still at work."""


class Follower:
    """Turns Snakemake's lines into ours.

    Parameters
    ----------
    clock : function without arguments
        Seconds since whenever.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start = clock()
        self.total = self.begun = self.done = 0
        self.trouble = False
        self.running: dict[str, tuple[str, float]] = {}

    def read(self, line: str) -> Iterator[str]:
        """What is to be shown on a line of Snakemake's."""
        if self.trouble or TROUBLE.match(line):
            self.trouble = True
            yield line
        elif found := TOTAL.fullmatch(line.strip()):
            # One of them is the rule `all`, which does nothing.
            self.total = int(found[1]) - 1
        elif found := STARTED.match(line):
            self.begun += 1
            self.running[found[1]] = found[2], self.clock()
            yield self._say(f"job {self.begun} of {self.total}: {found[2]}")
        elif (found := FINISHED.match(line)) and found[1] in self.running:
            self.done += 1
            name, since = self.running.pop(found[1])
            yield self._say(
                f"     {self.done} of {self.total} done: {name} ({self.clock() - since:.0f} s)"
            )

    def still(self) -> Iterator[str]:
        """What is to be shown where nothing came for a while."""
        if self.running and not self.trouble:
            now = self.clock()
            at = ", ".join(
                f"{name} ({now - since:.0f} s)" for name, since in self.running.values()
            )
            yield self._say(f"     still at: {at}; {self.total - self.done} jobs left")

    def _say(self, what: str) -> str:
        minutes, seconds = divmod(round(self.clock() - self.start), 60)
        return f"{minutes:3d}:{seconds:02d}  {what}"


def follow(command: Sequence[str], out: IO[str] = sys.stdout) -> int:
    """Run a command of Snakemake's, and say in plain lines what it is doing.

    Returns
    -------
    int
        Its exit status.
    """
    follower = Follower()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=QUIET_S)
        except queue.Empty:
            shown = follower.still()
        except KeyboardInterrupt:
            # It was told as well, and stops its jobs.
            return process.wait() or 130
        else:
            if line is None:
                return process.wait()
            shown = follower.read(line.rstrip("\n"))
        for text in shown:
            out.write(text + "\n")
            out.flush()
