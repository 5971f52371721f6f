"""Paths of the workflow's files: next to the library in a checkout, inside it once installed."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

from layerwise.errors import LayerwiseError


def require(module: str, extra: str) -> ModuleType:
    """Import a module that an extra of layerwise brings.

    Parameters
    ----------
    module : str
        Such as ``mteb``.
    extra : str
        Such as ``tasks``.

    Raises
    ------
    LayerwiseError
        If it is not installed; the message has the command.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise LayerwiseError(
            f"The package {top!r} is not installed; run: pip install 'layerwise[{extra}]'.",
            code="missing_extra",
        ) from error


def package_folder(module: str) -> Path:
    """The folder of an installed Python package, or of a package in it, without importing it.

    Raises
    ------
    LayerwiseError
        If it is not installed.
    """
    top, *inner = module.split(".")
    try:
        # For a dotted name, find_spec would import all but the last part.
        spec = importlib.util.find_spec(top)
    except ValueError:  # of __main__
        spec = None
    for parent in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(parent, *inner)
        if folder.is_dir():
            return folder
    raise LayerwiseError(
        f"The Python package {module!r} is not installed; "
        f"check its name, or run: pip install --no-deps {top.replace('_', '-')}",
        code="missing_extra",
    )


_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "_project"

ROOT = _INSTALLED if _INSTALLED.is_dir() else _HERE.parents[1]
"""The folder of ``workflow``, ``scripts``, ``presets`` and ``config.yaml``."""

SNAKEFILE = ROOT / "workflow" / "Snakefile"
SCHEMA = "config.schema.json"
"""Every key of a config, for editors; made by ``python -m tools.schema``."""


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
