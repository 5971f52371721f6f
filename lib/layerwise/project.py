"""Where the workflow's files are: beside the library in a checkout, in it once installed."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_project"

ROOT = _INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1]
"""The folder of ``workflow``, ``scripts``, ``presets`` and ``config.yaml``."""

SNAKEFILE = ROOT / "workflow" / "Snakefile"
