"""Registry of metrics: inputs, results and direction of each.

A metric is one file in `layerwise.metrics.catalog` that decorates a function with `metric`;
nothing else needs to change. The tables, the config's schema, the figures' axes, the selection of
layers and the docs read it. CONTRIBUTING.md has an example.
"""

from __future__ import annotations

import ast
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pydantic.dataclasses

from layerwise.activations.store import ARRAYS
from layerwise.errors import LayerwiseError
from layerwise.io.files import cached, sha256_bytes, sha256_text
from layerwise.metrics.formulas import Array, UndefinedMetricError
from layerwise.section import Section
from layerwise.vocabulary import Normalization, Protocol, Tokens

if TYPE_CHECKING:
    from layerwise.metrics.layer import Layer

# Keywords of `metric(...)` that describe a value without changing it.
DESCRIPTIVE = frozenset(
    {"bounds", "direction", "label", "note", "orders", "per_prompt", "range", "source", "unit"}
)


def normalised(source: str) -> str:
    """Rewrite a module without comments, docstrings, type hints, formatting and error messages.

    >>> normalised('def f(x: int) -> int:  # add one\\n    "Add one."\\n    return x+1')
    'def f(x):\\n    return x + 1'
    """
    return ast.unparse(_Essence().visit(ast.parse(source)))


class _Essence(ast.NodeTransformer):
    """Drops code that cannot change a value."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        # Docstrings, also those of settings.
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [word for word in node.keywords if word.arg not in DESCRIPTIVE]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=raised, cause=None)


def source_hash(*places: Path) -> str:
    """Hash of files, and of all Python files in folders.

    Comments, docstrings, type hints, labels, formatting and error messages do not count.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    files = [f for p in places for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
    # Read once: a file may be edited in between.
    rules, *texts = [file.read_text(encoding="utf-8") for file in (Path(__file__), *files)]
    # Normalising takes as long as many a job does; Python's versions write code differently.
    name = sha256_text("code", sys.version, rules, *texts)
    return cached(name, lambda: sha256_bytes("\n".join(map(normalised, texts)).encode()))[:16]


def formula_hash(metric_file: Path) -> str:
    """Hash of the code behind the metrics of a file: the file, and all formulas."""
    return source_hash(metric_file, Path(__file__).with_name("formulas.py"))


OF_VECTORS = ("pooled", "pair", "views", "ends")
INPUTS = (*OF_VECTORS, "spectra", "norms", "curvature")
"""Inputs of metrics that every file has."""

NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
RAW: tuple[Normalization, ...] = ("raw",)


class OnParts(NamedTuple):
    """Values on each part of the prompts, and the prompts behind them, both of shape (PARTS,).

    The parts are those of `layerwise.metrics.layer.Parts`.
    """

    values: Array
    n: npt.NDArray[np.intp]


@dataclass(frozen=True)
class PerPrompt:
    """A metric with a value for each prompt; the layer's value is their mean.

    Attributes
    ----------
    values : array, shape (N,)
        NaN where a prompt has no value; those are left out and counted. Or of the M prompts of
        `Layer.pooled`.
    alpha : float, optional
        Order of the entropy.
    parts : OnParts, optional
        As of `Overall`, for values that depend on the other prompts. Others are independent, and
        their standard deviation gives the standard error.
    """

    values: Array
    alpha: float | None = None
    parts: OnParts | None = None


@dataclass(frozen=True)
class Overall:
    """A metric of all prompts together.

    Attributes
    ----------
    value : float
    n : int
        Prompts behind the value, N of the normalisations by log N; the table counts the others as
        left out.
    alpha : float, optional
        Order of the entropy.
    parts : OnParts, optional
        The values on parts of the prompts, if the metric has them for less than it costs to
        compute it again on each. There is no standard error if there are no parts.
    """

    value: float
    n: int
    alpha: float | None = None
    parts: OnParts | None = None


Result: TypeAlias = PerPrompt | Overall
Compute: TypeAlias = Callable[..., Iterable[Any]]


@pydantic.dataclasses.dataclass(frozen=True)
class Metric:
    """Declaration of a metric.

    Attributes
    ----------
    label : str
        Axis text, without the unit.
    range : str
        The values it can take, as text.
    source : str
        Reference of the formula.
    inputs : tuple of str
        All inputs that it reads: ``pooled`` (N x D), ``pair`` (two views),
        ``views`` (all augmented views), ``spectra`` (of each prompt's token Gram matrix),
        ``norms`` (of each token), ``curvature``, ``ends`` (pooled embeddings of the first and the
        last layer), or names of arrays (`layerwise.activations.store.array`).
    compute : callable
        Function of a `layerwise.metrics.layer.Layer`, and of the metric's settings if there are
        any, to results.
    function : callable
        The formula on plain arrays; ``layerwise.metrics`` offers it by the function's name.
    name : str
        Its name in tables and configs; by default that of `function`.
    per_prompt : bool
        True if it yields `PerPrompt`.
    orders : bool
        True if it has an order alpha.
    unit : str
        ``nats``, ``rad``, or empty for a plain number.
    direction : int or None
        +1 if higher is better, -1 if lower is better, None if neither, according to the metric's
        source and not to scores. Layer selection without labels uses it.
    protocols : tuple of str
        Protocols for which it is defined.
    tokens : tuple of str
        Token selections for which it is defined.
    normalizations : mapping from protocol to tuple of str
        Normalisations that are defined for it, in addition to ``raw``.
    variants : mapping from protocol to str
        Formula of each protocol, for a metric with several; the column ``variant`` of its tables.
    bounds : callable, optional
        From the number of prompts and the variant to its raw value at chance and its best one,
        for metrics that have both; see `at_chance`.
    min_prompts, min_views : int
        Fewest prompts and augmented views on which it is defined.
    max_prompts : mapping from protocol to int
        Most prompts that are affordable; of more, a random sample is taken.
    settings : subclass of Section, optional
        Its settings, the second argument of `compute`.
    section : str
        Their key in the config's ``metrics.settings``; by default the metric's name. Metrics can
        share a section.
    note : str
        Differences from the paper.
    """

    label: str
    range: str
    source: str
    inputs: tuple[str, ...]
    compute: Compute
    function: Callable[..., float]
    name: str = ""
    per_prompt: bool = False
    orders: bool = False
    unit: str = ""
    direction: Literal[1, -1] | None = None
    protocols: tuple[Protocol, ...] = get_args(Protocol)
    tokens: tuple[Tokens, ...] = get_args(Tokens)
    normalizations: Mapping[str, tuple[Normalization, ...]] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    bounds: Callable[[float, str], tuple[float, float]] | None = None
    min_prompts: int = 1
    min_views: int = 0
    max_prompts: Mapping[str, int] = field(default_factory=dict)
    settings: type[Section] | None = None
    section: str = ""
    note: str = ""

    @property
    def axis(self) -> str:
        """Axis text with the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def arrays(self) -> list[str]:
        """Arrays among its inputs that only some files have."""
        return [name for name in self.inputs if name not in INPUTS]

    @property
    def lacks_of(self) -> set[str]:
        """What a file of given states may lack for it: ``tokens``, and arrays."""
        return {*self.arrays, *(["tokens"] if {*self.inputs} - {*OF_VECTORS} else [])}

    def on(self, layer: Layer) -> Iterator[Result]:
        """The metric's results at a layer.

        Raises
        ------
        UndefinedMetricError
            If the metric is not defined for the protocol, the number of prompts or views, or these
            values.
        LayerwiseError
            If `compute` yields something else than `PerPrompt` with one number a prompt, or
            `Overall`.
        """
        if layer.protocol not in self.protocols:
            protocols = " or ".join(self.protocols)
            raise UndefinedMetricError(
                f"it is defined under the protocol {protocols}, not under {layer.protocol}."
            )
        if not layer.lacks.isdisjoint(self.lacks_of):
            raise UndefinedMetricError(
                "it needs the states of tokens, the activations hold one vector of each prompt."
            )
        for least, n, what in (
            (self.min_views, layer.n_views, "augmented views of each prompt"),
            (self.min_prompts, len(layer.prompts), "prompts"),
        ):
            if n < least:
                raise UndefinedMetricError(f"it needs {least} {what}, the activations hold {n}.")
        if not layer.arrays.issuperset(self.arrays):
            return
        settings = self.settings and layer.settings.of(self.section, self.settings)
        for result in self.compute(layer, settings) if settings else self.compute(layer):
            yield self._checked(result, layer)

    def _checked(self, result: Any, layer: Layer) -> Result:
        """A result whose values are an array with a number for each prompt."""
        if not isinstance(result, PerPrompt if self.per_prompt else Overall):
            raise LayerwiseError(
                f"The metric {self.name} yields {type(result).__name__}; yield PerPrompt(values) "
                "and declare per_prompt=True, or yield Overall(value, n).",
                code="wrong_type",
            )
        if isinstance(result, Overall):
            return result
        n, n_with_tokens = len(layer.prompts), int(layer.has_tokens.sum())
        with suppress(TypeError, ValueError):
            numbers = np.array(result.values, dtype=np.float64)
            if numbers.shape in ((n,), (n_with_tokens,)):
                values = np.full(n, np.nan)
                values[slice(None) if len(numbers) == n else layer.has_tokens] = numbers
                return replace(result, values=values)
        raise LayerwiseError(
            f"The metric {self.name} yields values that are not {n} numbers, one for each prompt, "
            f"nor {n_with_tokens}, one for each prompt with tokens that count.",
            code="wrong_shape",
        )


_METRICS: dict[str, Metric] = {}


def metric(**declared: Any) -> Callable[[Compute], Compute]:
    """Register the decorated function as a metric; the arguments are those of `Metric`.

    Raises
    ------
    ValueError
        If a declaration is unknown or the name is taken: a mistake of the metric's author, raised
        at import.
    """

    def register(compute: Compute) -> Compute:
        name = declared.get("name", declared["function"].__name__)
        made = Metric(compute=compute, **{"name": name, "section": name, **declared})
        for name in made.arrays:
            if name not in ARRAYS:
                raise ValueError(f"{made.name}: {name} is neither an input nor an array")
        taken = _METRICS.get(made.name)
        if taken is not None and taken.compute.__module__ != compute.__module__:
            raise ValueError(f"{made.name} is already the name of a metric in {taken.compute}")
        _METRICS[made.name] = made
        return compute

    return register


def all_metrics() -> dict[str, Metric]:
    """Every metric by name, in alphabetical order."""
    importlib.import_module("layerwise.metrics.catalog")  # registers those that are shipped
    return dict(sorted(_METRICS.items()))


INFORMATIVE = 0.1
"""Share of the way from chance to the best value below which a metric tells nothing."""


def bounds_of(name: str, n: float, protocol: str, variant: str = "") -> tuple[float, float]:
    """A metric's raw value at chance on n prompts and its best; NaN if it has none, or n is.

    Without a variant, as in tables made elsewhere, that of the protocol.
    """
    declared = all_metrics().get(name)
    if declared is None or declared.bounds is None or not n > 1:
        return math.nan, math.nan
    return declared.bounds(n, variant or declared.variants.get(protocol, ""))


def at_chance(
    name: str, values: npt.ArrayLike, n: float, protocol: str, variant: str = ""
) -> bool:
    """True if a metric's raw values are near chance at every layer; it cannot select one then."""
    chance, best = bounds_of(name, n, protocol, variant)
    shares = (np.asarray(values) - chance) / (best - chance)
    return bool((shares < INFORMATIVE).any() and not (shares >= INFORMATIVE).any())


def arrays_for(names: Iterable[str] | None) -> set[str]:
    """The arrays that metrics or quantities need; None for all metrics without costly ones."""
    metrics = all_metrics()
    if names is None:
        return {n for m in metrics.values() for n in m.arrays if not ARRAYS[n].costly}
    needed = {n for name in names if name in metrics for n in metrics[name].arrays}
    return needed | ({*names} & {"prefix_entropy"} and {"prefix_spectrum"})


def functions() -> dict[str, Callable[..., float]]:
    """The formulas on plain arrays, by name."""
    return {m.function.__name__: m.function for m in all_metrics().values()}


def sections() -> dict[str, type[Section]]:
    """The settings of single metrics, by their key in the config's ``metrics.settings``."""
    by_section: dict[str, type[Section]] = {}
    for each in all_metrics().values():
        if each.settings is None:
            continue
        if by_section.setdefault(each.section, each.settings) is not each.settings:
            raise ValueError(f"{each.name}: the section {each.section!r} is another metric's")
    return by_section


def directions() -> dict[str, int]:
    """+1 or -1 for every metric with a direction."""
    return {n: m.direction for n, m in all_metrics().items() if m.direction is not None}


# Quantities along the sequence (`layerwise.metrics.table`), and columns of all tables.


class Quantity(NamedTuple):
    """Declaration of a quantity: axis text, unit."""

    label: str
    unit: str
    normalizations: tuple[Normalization, ...] = ("raw",)


QUANTITIES: Mapping[str, Quantity] = {
    "prefix_entropy": Quantity(
        "Entropy of the first t tokens", "nats", ("raw", "logN", "maxEntropy")
    ),
    "token_norm": Quantity("Norm of the t-th token", ""),
}

# Columns and their types; ``alpha`` and ``stderr`` are null where there is none.
PLACE = {
    "model": "str",
    "revision": "str",
    "corpus": "str",
    "sublayer": "str",
    "layer": "int64",
    "depth": "float64",
    "metric": "str",
    "protocol": "str",
    "tokens": "str",
    "alpha": "float64",
}
