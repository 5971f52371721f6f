"""Kinds of studies: what each reads and requires, and how it shows dimensions.

A kind is registered by the decorator `kind` of the function that draws it, in
`layerwise.figures.kinds` or in an add-on (group ``layerwise.kinds``, `layerwise.addons`).

A *role* is a way in which a figure shows the values of a dimension: ``row`` and ``column`` of
panels, ``colour`` and ``dashes`` of lines, which a study may give other dimensions if its kind
``takes`` them. ``x_axis`` and ``y_axis`` are fixed by the kind; the dimension ``y`` is what is
drawn, a score or a metric (a study's key ``y`` names the tables that these are read from). A
dimension without a role must have one value: a figure averages over tasks only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from layerwise import addons
from layerwise.vocabulary import LABELS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    # Of a `layerwise.figures.select.Data`, and with a `layerwise.figures.panels.Look`.
    MakeTable: TypeAlias = Callable[[Any], pd.DataFrame]
    Plot: TypeAlias = Callable[[pd.DataFrame, Any], Figure]

# The dimensions of the tidy tables. `y` is the score or a metric; `representation` is the token
# selection and the pooling, with the readout.
DIMENSIONS = (
    "y",
    "model",
    "revision",
    "corpus",
    "task",
    "task_type",
    "representation",
    "tokens",
    "pooling",
    "sublayer",
    "protocol",
    "alpha",
    "normalization",
)
# Keys of a study that name the values of a dimension, where they have other names than it.
_KEYS = {
    "model": "models",
    "revision": "revisions",
    "corpus": "corpora",
    "sublayer": "sublayers",
    "y": "metrics",
    "representation": "tokens",
    "task": "tasks",
    "task_type": "task_types",
}
# Dimensions whose values determine those of others, and the other way round: a figure that shows
# tokens and pooling shows the representation.
DETERMINES = {"representation": ("tokens", "pooling"), "task": ("task_type",), "corpus": LABELS}
POOLED = ("task", "task_type")  # the mean over tasks is what "the score" means

ROLES = ("row", "column", "colour", "dashes")
MOST_COLOURS = 7  # models that colours distinguish on one axis

Table = Literal[
    "metrics",
    "prompts",
    "positions",
    "scores",
    "associations",
    "selections",
    "similarities",
    "texts",
]
Roles = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Declaration of a kind of study.

    Attributes
    ----------
    name : str
        Name of the kind, as `kind` of a study.
    table : callable
        Makes the table of every number drawn, of a `layerwise.figures.select.Data`.
    plot : callable
        Draws that table.
    about : str
        One line for the docs and the schema.
    title : str
        Title of the figure, at most eight words, whatever the data.
    caption : str
        Template of the caption, filled with what `layerwise.figures.render.caption` counts.
    reads : tuple of str
        The tables it reads, and the texts of a corpus.
    published : tuple of str
        The published tables it reads, if they differ.
    roles : mapping of role to dimensions
    takes : tuple of str
        The roles that a study may change.
    roles_of_checkpoints : mapping of role to dimensions, optional
        The roles if a model is shown at several checkpoints, if they differ. Without a role for
        `revision`, a study with several is refused unless it gives it one.
    roles_of_many_models : mapping of role to dimensions, optional
        The roles, if others, for more models than `MOST_COLOURS`, or where the study assigns the
        colours.
    revisions : ``last`` or ``all``
        The checkpoints of a study that names none.
    metrics : tuple of str or None
        The metrics of a study that names none; None for all.
    single : tuple of str
        Keys of which a study may name one value at most.
    needs_checkpoints : bool
        True if it shows only models with two or more checkpoints.
    only_probes : bool
        True if it shows only tasks of own labels that a probe is trained for.
    needs_orders : bool
        True if its metrics must have an order alpha.
    """

    name: str
    about: str
    title: str
    caption: str
    table: MakeTable
    plot: Plot
    reads: tuple[Table, ...] = ()
    published: tuple[Table, ...] = ()
    roles: Roles = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    roles_of_checkpoints: Roles | None = None
    roles_of_many_models: Roles | None = None
    revisions: Literal["last", "all"] = "last"
    metrics: tuple[str, ...] | None = ("prompt_entropy",)
    single: tuple[str, ...] = ()
    needs_checkpoints: bool = False
    only_probes: bool = False
    needs_orders: bool = False


_KINDS: dict[str, Kind] = {}


def kind(name: str, **declaration: Any) -> Callable[[Plot], Plot]:
    """Register a kind of study that the decorated function draws.

    Parameters
    ----------
    name : str
        Name of the kind, as `kind` of a study.
    **declaration
        The attributes of `Kind`, ``plot`` excepted.
    """

    def register(plot: Plot) -> Plot:
        _KINDS[name] = Kind(name=name, plot=plot, **declaration)
        return plot

    return register


def all_kinds() -> dict[str, Kind]:
    """Every kind by name, in alphabetical order."""
    importlib.import_module("layerwise.figures.kinds")
    addons.load("kinds")
    return dict(sorted(_KINDS.items()))


def key_of(dimension: str) -> str:
    """The key of a study that names the values of a dimension."""
    return _KEYS.get(dimension, dimension)


def placed(roles: Roles) -> list[str]:
    """The dimensions that have a role."""
    return [dimension for dimensions in roles.values() for dimension in dimensions]


def without_role(values: Mapping[str, int], roles: Roles) -> list[str]:
    """The dimensions that have several values and no role.

    Parameters
    ----------
    values : mapping of dimension to number of values
    """
    shown = set(placed(roles))
    for whole, determined in DETERMINES.items():
        if whole in shown:
            shown.update(determined)
        elif shown.issuperset(determined):
            shown.add(whole)
    return [d for d, n in values.items() if n > 1 and d not in shown and d not in POOLED]
