"""The metrics: one file each, or one for a few that share computations."""

import importlib
import pkgutil


def load() -> None:
    """Import every file of this folder, which registers its metrics."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
