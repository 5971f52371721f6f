"""The metrics, one file each (or a few that share their work); every file here is found."""

import importlib
import pkgutil


def load() -> None:
    """Import every file of this folder, so that its metrics register themselves."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
