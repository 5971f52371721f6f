"""The register of figure kinds: each has a name, a title, a table and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from layerwise.vocabulary import LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.figures.select import Data

Table = Callable[["Data"], pd.DataFrame]
Plot = Callable[[pd.DataFrame, "Look"], "Figure"]


@dataclass(frozen=True)
class Look:
    """Roles and colours that a plot needs in addition to its table.

    Attributes
    ----------
    roles : mapping of role to dimensions
        Dimensions of rows and columns of panels, of colours and of dashes.
    models : sequence of str
        All models of the config, which fixes their colours.
    ordered : bool
        True if the colours are steps of one quantity.
    ax : Axes, optional
        Axes to draw a single panel on, in place of a new figure.
    """

    roles: Mapping[str, Sequence[str]]
    models: Sequence[str]
    ordered: bool = False
    ax: Axes | None = None

    def only(self, ordered: bool = False, **roles: Sequence[str]) -> Look:
        """The same look with these roles."""
        return replace(self, roles=roles, ordered=ordered)

    @property
    def sequential(self) -> bool:
        """True if the values of the role ``colour`` have an order."""
        return self.ordered or bool(
            {*self.roles.get("colour", ())} & {"revision", "alpha", *LABELS}
        )


@dataclass(frozen=True)
class FigureKind:
    """Title, table and plot of one kind of study.

    Attributes
    ----------
    title : str
        At most eight words, whatever the data.
    table : callable
        Computes every number that is drawn.
    plot : callable
        Draws the table.
    """

    title: str
    table: Table
    plot: Plot


REGISTRY: dict[str, FigureKind] = {}


def kind(name: str, title: str, table: Table) -> Callable[[Plot], Plot]:
    """Register the decorated plot, with its table and title, as a kind of figure."""

    def register(plot: Plot) -> Plot:
        REGISTRY[name] = FigureKind(title, table, plot)
        return plot

    return register


def find(name: str) -> FigureKind:
    """A kind of figure by its name."""
    import layerwise.figures.kinds  # noqa: F401  importing the kinds registers them

    return REGISTRY[name]
