"""Paths of the workflow's files: next to the library in a checkout, inside it once installed."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_project"

ROOT = _INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1]
"""The folder of ``workflow``, ``scripts``, ``presets`` and ``config.yaml``."""

SNAKEFILE = ROOT / "workflow" / "Snakefile"


def export_library() -> None:
    """Let the jobs of this process import this library, whatever is installed.

    The path is relative, since PYTHONPATH cannot hold a colon.
    """
    library = os.path.relpath(_HERE.parent)
    paths = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
