"""Functions that draw each kind of study: a table of every number drawn, and a plot of it.

``layerwise/config/kinds.yaml`` declares the kinds. The table of a kind is made by the function of
its name, and drawn by ``plot_`` and its name, in one of the modules here.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from layerwise.config.kinds import KINDS
from layerwise.figures.kinds import association, by_depth, compare, prompts, valley
from layerwise.figures.panels import Look
from layerwise.figures.select import Data

Table = Callable[[Data], pd.DataFrame]
Plot = Callable[[pd.DataFrame, Look], Figure]

MODULES = (association, by_depth, compare, prompts, valley)


def drawing(kind: str) -> tuple[Table, Plot]:
    """The functions that draw a kind of study, by its name."""
    name = KINDS[kind].preset_of or kind
    module = next(module for module in MODULES if hasattr(module, f"plot_{name}"))
    return getattr(module, name), getattr(module, f"plot_{name}")
