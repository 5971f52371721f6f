"""Packages that only some users need: the extras of ``pip install 'layerwise[tasks]'``."""

from __future__ import annotations

import importlib
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
        raise missing(top, extra) from error


def missing(package: str, extra: str) -> LayerwiseError:
    """The error for a package that is not installed."""
    return LayerwiseError(
        f"The package {package!r} is not installed; run: pip install 'layerwise[{extra}]'.",
        code="missing_extra",
    )
