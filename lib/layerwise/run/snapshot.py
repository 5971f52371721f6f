"""The config of a run, as a file that its jobs read.

A snapshot is named by the hash of its content and never changed. So a job that waited in a queue,
or a second run in the same folder, cannot store values of one config under the key of another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerwise.io.files import replacing, sha256_text

LATEST = "config.json"
"""Config of the last run, below the results folder; for people and `layerwise.open`."""


class Snapshot:
    """A config as Snakemake merged it, and the file that holds it.

    Parameters
    ----------
    given : mapping
        The whole config, in the order of its keys, which decides colours.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.results = Path(str(given.get("results", "results")))
        self.text = json.dumps(given, indent=1) + "\n"
        self.path = self.results / ".config" / f"{sha256_text(self.text)[:16]}.json"

    @property
    def variable(self) -> str:
        """The environment variable that tells the jobs of a run the snapshot."""
        return f"LAYERWISE_CONFIG_{sha256_text(str(self.results))[:8].upper()}"

    def announce(self) -> None:
        """Let the jobs that this process starts find the snapshot."""
        os.environ[self.variable] = str(self.path)

    def of_run(self) -> Snapshot:
        """The snapshot that the run of this job was started with; this one if it is not known."""
        path = Path(os.environ.get(self.variable, self.path))
        return Snapshot(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else self

    def write(self) -> None:
        """Write the file, unless it is there."""
        if not self.path.is_file():
            _write(self.path, self.text)

    def write_latest(self) -> Path:
        """Write the copy for people and return its path."""
        path = self.results / LATEST
        _write(path, self.text)
        return path


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
