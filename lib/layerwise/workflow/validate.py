"""Checks across sections of a config, and of the files that it names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from layerwise.config import Config


def validate(config: Config, files: Iterable[str | Path] = ()) -> None:
    """Temporary."""
