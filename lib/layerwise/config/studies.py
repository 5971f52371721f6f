"""The section ``studies``: figures with their tables.

Kinds of studies: what each reads and requires, and how it shows dimensions.

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
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from layerwise import addons
from layerwise.config.settings import OWN_TEXTS, Measure, Over
from layerwise.errors import LayerwiseError, check_name
from layerwise.section import Alpha, Name, Section, SomeOf
from layerwise.vocabulary import LABELS, USUAL, Normalization, PublishedProtocol, Sublayer, Tokens

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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


def _known(name: str) -> str:
    """Refuse a name that is no kind; the message names those that exist."""
    if name not in all_kinds():
        names = ", ".join(map(repr, all_kinds()))
        raise PydanticKnownError("literal_error", {"expected": names})
    return name


def _describe(schema: dict[str, Any]) -> None:
    """Add the kinds to the schema of the key."""
    kinds = all_kinds()
    words = "; ".join(f"{name} ({kind.about})" for name, kind in kinds.items())
    schema.update(enum=[*kinds], description=f"Kind of figure: {words}.")


KindName = Annotated[str, AfterValidator(_known), Field(json_schema_extra=_describe)]
Role = str | SomeOf[str] | None


VARIANT = ("protocol", "normalization", "alpha")  # dimensions of a metric's variant


class MetricChoice(Section):
    """One metric in one variant."""

    metric: str
    """Name of the metric."""
    protocol: PublishedProtocol | None = None
    """Formulas as in the paper, or as in the released code (reference); reference_2024 of
    published tables."""
    alpha: Alpha | None = None
    """Order of the entropy; inf for infinity."""
    normalization: Normalization | None = None
    """Normalisation of the entropy."""


class Study(Section):
    """A figure with its table. Only what studies need is computed."""

    kind: KindName
    title: str | None = ""
    """Title of the figure; empty for the kind's own, null for none."""
    note: str = ""
    """Sentences that end the caption, such as why something is left out."""
    published: Name | None = None
    """Published tables to draw in place of the config's models."""
    models: SomeOf[Name] | None = None
    """Models, in the order of the panels; null for all."""
    revisions: Literal["last", "all"] | SomeOf[Name] | None = None
    """Checkpoints: last, all, or a list; null for the last of each model, or all in studies of
    checkpoints."""
    corpora: SomeOf[Name] | None = None
    """Corpora of the metrics; null for all. 'task texts' compares each task with the metrics on
    its own texts."""
    tasks: SomeOf[Name] | None = None
    """Tasks of the mean score; null for all."""
    task_types: SomeOf[str] | None = None
    """Task types of the mean score, such as STS; null for all."""
    tokens: SomeOf[Tokens] | None = None
    """Token selections; null for all that are extracted."""
    pooling: str | SomeOf[str] = "mean"
    """Pooling of the scores, as in scoring.poolings; 'mean, residual' is without the final norm,
    where both readouts are scored."""
    sublayers: SomeOf[Literal["block", Sublayer]] | None = None
    """Sub-layers to show; block is the layer itself. null for the layers, or for all sub-layers
    where sublayer has a role."""
    y: SomeOf[Literal["scores", "metrics"]] | None = None
    """Tables that the kind curves draws; null for the metrics."""
    metrics: Annotated[tuple[str | MetricChoice, ...], Field(min_length=1)] | None = None
    """Metrics to draw, by name or as a mapping that also names the variant; null for the kind's
    default."""
    protocol: PublishedProtocol | SomeOf[PublishedProtocol] | None = None
    """Protocol of metrics given by name only; null for paper, or the only one that is computed. A
    list needs a role, here and below."""
    alpha: Alpha | SomeOf[Alpha] | None = None
    """Alpha of metrics given by name only; null for 1, or the only one that is computed. Metrics
    without an alpha ignore it."""
    normalization: Normalization | SomeOf[Normalization] | None = None
    """Normalisation of metrics given by name only; null for raw."""
    measure: Measure | Literal["all"] | SomeOf[Measure] | None = None
    """Associations of metric_vs_score, which writes the first into its panels, and of
    association_strength, which has a panel for each; 'all' for every one, null for r, the partial
    correlation given depth."""
    over: Over = "layers"
    """layers: association of a metric's curve with the mean score. tasks: association over tasks
    within each layer, averaged over layers; needs the corpus 'task texts'."""
    row: Role = None
    """Dimensions of the rows of panels."""
    column: Role = None
    """Dimensions of the columns of panels."""
    colour: Role = None
    """Dimensions that colours show."""
    dashes: Role = None
    """Dimensions that dashes show."""
    ordered: bool = False
    """Use a sequential colour scale, as for models of increasing size; checkpoints and alphas
    always have one."""
    sizes: dict[Name, Annotated[float, Field(gt=0)]] | None = None
    """Numbers of parameters by model, for size_scaling; null to read them from the models' names
    (pythia-410m)."""

    @property
    def declaration(self) -> Kind:
        """The declaration of the study's kind."""
        return all_kinds()[self.kind]

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables that the study reads: those of `y`, if it has one, or of its kind."""
        return self.y or (self.published and self.declaration.published) or self.declaration.reads

    @property
    def assigned_roles(self) -> dict[str, tuple[str, ...]]:
        """The roles that the study assigns, each with its dimensions."""
        assigned = {role: several(getattr(self, role)) for role in ROLES}
        return {role: dimensions for role, dimensions in assigned.items() if dimensions}

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        """Refuse keys that the kind does not use, and several values where it takes one."""
        problem = ""
        if self.y is not None and self.kind != "curves":
            problem = f"{self.kind} has no y; remove it"
        for key in self.declaration.single:
            if len(several(getattr(self, key))) > 1:
                problem = f"{self.kind} takes one value of {key}; name one"
        if self.over == "tasks" and OWN_TEXTS not in (self.corpora or ()):
            problem = f"over: tasks needs metrics of each task's texts; add corpora: [{OWN_TEXTS}]"
        if problem:
            raise PydanticCustomError("unsupported", "{problem}", {"problem": problem})
        return self

    @model_validator(mode="after")
    def _takes_roles(self) -> Self:
        """Refuse a role that the kind lacks, and scores and metrics on one axis."""
        takes = self.declaration.takes
        for role, dimensions in self.assigned_roles.items():
            problem = ""
            if role not in takes:
                problem = f"cannot choose its {role}; it takes {', '.join(takes) or 'no roles'}"
            elif role in ("colour", "dashes") and "y" in dimensions:
                problem = (
                    f"cannot have y as {role}, as units differ; make it the row or the column"
                )
            if problem:
                words = {"problem": f"{self.kind} {problem}"}
                raise PydanticCustomError("unsupported", "{problem}", words)
        return self

    def roles_for(
        self, *, several_checkpoints: bool, n_models: int = 1
    ) -> dict[str, tuple[str, ...]]:
        """The dimensions of each role: those that the study assigns, else the kind's.

        A dimension that the study moves to another role leaves the one it has by default.

        Parameters
        ----------
        several_checkpoints : bool
            True if a model is shown at several checkpoints.
        n_models : int
            Number of models shown.

        Raises
        ------
        LayerwiseError
            If there is no role for several checkpoints.
        """
        kind, assigned = self.declaration, set(placed(self.assigned_roles))
        if assigned.issuperset(DETERMINES["representation"]):
            assigned.add("representation")
        default = kind.roles
        if several_checkpoints and "revision" not in assigned:
            default = kind.roles_of_checkpoints or kind.roles
            if "revision" not in placed(default):
                others = [
                    name
                    for name, other in all_kinds().items()
                    if "revision" in placed(other.roles_of_checkpoints or other.roles)
                ]
                hint = " or give revision a role" if kind.takes else ""
                raise LayerwiseError(
                    f"A study of kind {self.kind} shows one checkpoint of a model, and this one "
                    f"has several; name one under `revisions`{hint}, or use one of the kinds "
                    f"{', '.join(others)}.",
                    code="ambiguous",
                )
        elif kind.roles_of_many_models and (n_models > MOST_COLOURS or self.colour):
            # The models need panels, as the colours are too few or the study's own.
            default = kind.roles_of_many_models
        rest = {
            role: tuple(d for d in dimensions if d not in assigned)
            for role, dimensions in default.items()
        }
        return rest | self.assigned_roles

    def ambiguity(self, dimension: str, values: object) -> LayerwiseError:
        """The error for a dimension with several values and no role, to be raised."""
        takes = self.declaration.takes
        hint = f", or give {dimension} a role ({', '.join(takes)})" if takes else ""
        return LayerwiseError(
            f"A study of kind {self.kind} would average over several values of {dimension}: "
            f"{values}; name one under `{key_of(dimension)}`{hint}.",
            code="ambiguous",
        )

    @property
    def metric_choices(self) -> tuple[MetricChoice, ...] | None:
        """The metrics shown, one for each protocol, alpha and normalisation; None for all."""
        names = self.declaration.metrics if self.metrics is None else self.metrics
        return None if names is None else self.variants(names)

    def variants(self, names: Iterable[str | MetricChoice]) -> tuple[MetricChoice, ...]:
        """Metrics in the study's protocols, alphas and normalisations where they name none."""
        variants = []
        for name in names:
            metric = MetricChoice(metric=name) if isinstance(name, str) else name
            options = [several(getattr(metric, k) or getattr(self, k)) or (None,) for k in VARIANT]
            variants += [
                metric.model_copy(update=dict(zip(VARIANT, values, strict=True)))
                for values in itertools.product(*options)
            ]
        return tuple(variants)


def several(value: Any) -> tuple[Any, ...]:
    """One value or several values as a tuple; empty for None."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str | float | int) else tuple(value)


def of_usual(table: pd.DataFrame, dimensions: Iterable[str]) -> pd.DataFrame:
    """The rows of the usual variant in some dimensions (`layerwise.vocabulary.USUAL`).

    A metric or task that does not have a dimension's usual value keeps all of its rows.
    """
    by = next((column for column in ("metric", "task") if column in table), None)
    for name in dimensions:
        if name in table:
            is_usual = table[name] == USUAL[name]
            has_usual = is_usual if by is None else is_usual.groupby(table[by]).transform("any")
            table = table[is_usual | table[name].isna() | ~has_usual]
    return table


def select(table: pd.DataFrame, **dimensions: Any) -> pd.DataFrame:
    """Rows of a table by the values of columns, and of the usual variant in the others.

    A metric or task that does not have a dimension's usual value keeps all of its rows.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame(
    ...     {"metric": "rankme", "tokens": ["all", "drop_first"], "value": [3, 2]}
    ... )
    >>> select(table)["value"].tolist(), select(table, tokens=None)["value"].tolist()
    ([3], [3, 2])

    Raises
    ------
    LayerwiseError
        If there is no such column or value; the message names those that exist.
    """
    for name, value in dimensions.items():
        check_name("column", name, table.columns)
        if value is not None:
            values = table[name].dropna().unique().tolist()
            for each in several(value):
                check_name(name, each, values)
            table = table[table[name].isin(several(value))]
    table = of_usual(table, [name for name in USUAL if name not in dimensions])
    return table.reset_index(drop=True)
