"""Packages that only some users need: the extras of ``pip install 'layerwise[tasks]'``."""

from __future__ import annotations

import importlib.util
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
