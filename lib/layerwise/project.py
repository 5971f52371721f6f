"""Paths of the workflow's files: next to the library in a checkout, inside it once installed."""

from __future__ import annotations

import os
from pathlib import Path

from layerwise.errors import LayerwiseError
from layerwise.extras import package_folder

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_project"

ROOT = _INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1]
"""The folder of ``workflow``, ``scripts``, ``presets`` and ``config.yaml``."""

SNAKEFILE = ROOT / "workflow" / "Snakefile"
SCHEMA = "config.schema.json"
"""Every key of a config, for editors; made by ``python -m layerwise.config.schema``."""


def rules_of(recipe: str) -> Path:
    """The rules of a recipe of the config: a file, or ``rules.smk`` of a Python package.

    Raises
    ------
    LayerwiseError
        If there is no such file.
    """
    path = Path(recipe) if recipe.endswith(".smk") else package_folder(recipe) / "rules.smk"
    if not path.is_file():
        raise LayerwiseError(f"There is no file of rules {path}.", code="missing_file")
    return path.absolute()


def export_library() -> None:
    """Let the jobs of this process import this library, whatever is installed.

    The path is relative, since PYTHONPATH cannot hold a colon.
    """
    library = os.path.relpath(_HERE.parent)
    paths = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
