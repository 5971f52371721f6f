"""The metrics, one file each (or a few that share their work); every file here is found."""

import importlib
import pkgutil


def load() -> None:
    """Import every file of this folder, so that its metrics register themselves."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


# The config takes in all metrics' settings as it is imported. If a metric's file were the first to
# import it, that file would be half read then, and its settings missing.
import layerwise.config.base  # noqa: E402, F401
