"""Progress bars: rate and time left on a terminal, a line a minute in a log."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)

LOG_EVERY_S = 60.0


class Progress:
    """Count work done: a bar on a terminal or in a notebook, else a logged line a minute."""

    def __init__(self, total: int, what: str, unit: str = "it") -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        self.start = self.last = time.monotonic()
        self.bar: Any = (
            tqdm(total=total, desc=what, unit=unit, unit_scale=True)
            if (sys.stderr.isatty() or "ipykernel" in sys.modules)
            and "TQDM_DISABLE" not in os.environ
            else None
        )

    def update(self, n: int = 1) -> None:
        """Count `n` more units as done."""
        self.done += n
        if self.bar is not None:
            self.bar.update(n)
            return
        now = time.monotonic()
        if now - self.last >= LOG_EVERY_S:
            self.last = now
            rate = self.done / (now - self.start)
            left = (self.total - self.done) / rate if rate else float("inf")
            done = f"{self.what}: {self.done} of {self.total} {self.unit}"
            log.info("%s, %.1f %s/s, %.0f s left", done, rate, self.unit, left)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
