"""layerwise: what each layer of a model represents, and which layer to use.

>>> import layerwise as lw
>>> [name for name in lw.__all__ if name.islower()]
['analyse', 'choose', 'embed', 'extract', 'metrics', 'open', 'plot']
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    from layerwise import metrics
    from layerwise.api import Results, analyse, embed, extract, open, plot  # noqa: A004
    from layerwise.callback import LayerMetrics
    from layerwise.choosing import choose
    from layerwise.models.states import States

__all__ = [
    "LayerMetrics",
    "LayerwiseError",
    "Results",
    "States",
    "analyse",
    "choose",
    "embed",
    "extract",
    "metrics",
    "open",
    "plot",
]
HOMES = {
    "LayerMetrics": "callback",
    "States": "models.states",
    "choose": "choosing",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: torch and pandas take seconds.
    if name == "__version__":
        return version("layerwise")
    if name == "metrics":
        return import_module("layerwise.metrics")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
