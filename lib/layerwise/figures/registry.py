"""The register of drawings: a table and a plot for each kind of study.

`layerwise.config.kinds` has the kinds themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from layerwise.config.kinds import Kind
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


class Drawing(NamedTuple):
    """The functions that draw a kind of study.

    Attributes
    ----------
    table : callable
        Computes every number that is drawn.
    plot : callable
        Draws the table.
    """

    table: Table
    plot: Plot


_DRAWINGS: dict[str, Drawing] = {}


def draws(kind: Kind, table: Table) -> Callable[[Plot], Plot]:
    """Register the decorated plot, with its table, as what draws a kind of study."""

    def register(plot: Plot) -> Plot:
        _DRAWINGS[kind.name] = Drawing(table, plot)
        return plot

    return register


def drawing(kind: str) -> Drawing:
    """The functions that draw a kind of study, by its name."""
    import layerwise.figures.kinds  # noqa: F401  importing the kinds registers their drawings

    return _DRAWINGS[kind]
