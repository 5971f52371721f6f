"""Every metric, by name: what it needs, what it yields, which end is the better one.

A metric is one file in this folder that decorates a function with `metric`; nothing else needs
to change. The tables, the figures' axes, the layer choice and the docs read what is declared
here. ``docs/adding-a-metric.md`` shows how.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError, closest

if TYPE_CHECKING:
    from layerwise.metrics.inputs import LayerInputs

Array: TypeAlias = npt.NDArray[np.float64]

PROTOCOLS = ("paper", "reference")
INPUTS = ("pooled", "pair", "views", "spectra", "curvature", "ends")
NORMALIZATIONS = ("raw", "logN", "logD", "logNlogD", "maxEntropy")
RAW = ("raw",)

# Modules of this folder that define no metric; discovery does not import them.
HELPERS = frozenset(
    {"registry", "inputs", "settings", "table", "entropy", "spectra", "uncertainty",
     "sample_size", "powerlaw", "storage"}
)  # fmt: skip


class UndefinedMetricError(LayerwiseError):
    """The metric has no value on these data; the message says why.

    The tables leave such a row out and log the reason; a notebook user sees the sentence.
    """


@dataclass(frozen=True)
class PerPrompt:
    """A metric with a value for each prompt; the layer's value is their mean.

    Attributes
    ----------
    values : array, shape (N,)
        NaN where a prompt has no value; those are left out and counted.
    sizes : array, shape (N,), optional
        Number of rows behind each value (tokens), for the normalisations by log N.
    alpha : float, optional
        Order of the entropy.
    stderr : float, optional
        Standard error of the mean, where the prompts' values depend on one another; by default
        the standard deviation over prompts divided by the root of their number.
    """

    values: Array
    sizes: Array | None = None
    alpha: float | None = None
    stderr: float | None = None


@dataclass(frozen=True)
class Overall:
    """A metric of all prompts together.

    Attributes
    ----------
    value, stderr : float
        ``stderr`` is NaN where none can be given (a single prompt).
    n : int
        Prompts behind the value; the table counts the others as left out.
    size : int, optional
        Number of rows of the matrix whose entropy it is, for the normalisations by log N.
    alpha : float, optional
        Order of the entropy.
    """

    value: float
    stderr: float
    n: int
    size: int | None = None
    alpha: float | None = None


Result: TypeAlias = PerPrompt | Overall
Compute: TypeAlias = "Callable[[LayerInputs], Iterable[Result]]"


@dataclass(frozen=True)
class Metric:
    """What is declared of a metric.

    Attributes
    ----------
    name : str
        Its name in tables and configs.
    label : str
        Axis text, without the unit.
    unit : str
        ``nats``, ``rad``, or empty for a plain number.
    direction : int or None
        +1 if higher is better, -1 if lower is, None if neither end is: what the metric's own
        source says, before any look at scores. The choice of a layer without labels uses it.
    range : str
        The values it can take, for people.
    source : str
        Where the formula comes from.
    inputs : tuple of str
        Of `INPUTS`: ``pooled`` (N x D), ``pair`` (two views), ``views`` (all augmented views),
        ``spectra`` (of each prompt's token Gram matrix), ``curvature``, ``ends`` (pooled
        embeddings of the first and the last layer).
    compute : callable
        From `layerwise.metrics.inputs.LayerInputs` to results.
    protocols : tuple of str
        Under which it is defined.
    normalizations : mapping from protocol to tuple of str
        Those that make sense for it, beside ``raw``.
    min_prompts, min_views : int
        Fewest prompts and augmented views on which it is defined.
    note : str
        What a reader should know before comparing it with a paper.
    """

    name: str
    label: str
    unit: str
    direction: int | None
    range: str
    source: str
    inputs: tuple[str, ...]
    compute: Compute
    protocols: tuple[str, ...] = PROTOCOLS
    normalizations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_prompts: int = 1
    min_views: int = 0
    note: str = ""

    @property
    def axis(self) -> str:
        """Axis text with the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


_METRICS: dict[str, Metric] = {}


def metric(
    *,
    name: str,
    label: str,
    unit: str,
    direction: int | None,
    range: str,  # noqa: A002
    source: str,
    inputs: tuple[str, ...],
    **more: Any,
) -> Callable[[Compute], Compute]:
    """Register the decorated function as a metric. The arguments are those of `Metric`.

    Raises
    ------
    ValueError
        If a declaration is not among what is known, or the name is taken: a mistake of the
        metric's author, seen at import.
    """

    def register(compute: Compute) -> Compute:
        made = Metric(name, label, unit, direction, range, source, inputs, compute, **more)
        normalizations = {n for names in made.normalizations.values() for n in names}
        for what, given, known in (
            ("input", set(made.inputs), INPUTS),
            ("protocol", {*made.protocols, *made.normalizations}, PROTOCOLS),
            ("normalization", normalizations, NORMALIZATIONS),
            ("direction", {made.direction}, (1, -1, None)),
        ):
            if not given <= set(known):
                raise ValueError(f"{name}: {what} {given - set(known)} is none of {known}")
        taken = _METRICS.get(name)
        if taken is not None and taken.compute.__module__ != compute.__module__:
            raise ValueError(f"{name} is already the name of a metric in {taken.compute}")
        _METRICS[name] = made
        return compute

    return register


@cache
def _discover() -> None:
    package = importlib.import_module(__package__ or "layerwise.metrics")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in HELPERS:
            importlib.import_module(f"{package.__name__}.{module.name}")


def all_metrics() -> dict[str, Metric]:
    """Every metric by name, in alphabetical order."""
    _discover()
    return dict(sorted(_METRICS.items()))


def get(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    LayerwiseError
        If there is none; the message names the closest.
    """
    known = all_metrics()
    if name not in known:
        raise LayerwiseError(
            f"There is no metric {name!r}{closest(name, known)}; known are {', '.join(known)}."
        )
    return known[name]


def directions() -> dict[str, int]:
    """+1 or -1 for every metric that has a better end."""
    return {n: m.direction for n, m in all_metrics().items() if m.direction is not None}


def markdown_table() -> str:
    """All metrics as a Markdown table, for the docs."""
    arrow = {1: "higher", -1: "lower", None: "–"}
    rows = [
        f"| `{m.name}` | {m.axis} | {arrow[m.direction]} | {m.range} | {', '.join(m.inputs)} "
        f"| {m.source} |"
        for m in all_metrics().values()
    ]
    head = "| name | what | better | range | needs | source |\n|---|---|---|---|---|---|"
    return "\n".join([head, *rows])
