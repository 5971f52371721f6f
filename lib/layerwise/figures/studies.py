"""From a study of the config to its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

import pandas as pd

from layerwise.association.order import Order
from layerwise.config.kinds import KINDS, needs
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError
from layerwise.figures import style
from layerwise.figures.drawn import Drawn
from layerwise.figures.given import Given
from layerwise.metrics.registry import directions as declared

__all__ = ["Order", "Tables", "draw"]


@dataclass(frozen=True)
class Tables:
    """The tidy tables a study can draw on; None where the caller has none."""

    metrics: pd.DataFrame | None = None
    prompts: pd.DataFrame | None = None
    positions: pd.DataFrame | None = None
    scores: pd.DataFrame | None = None
    associations: pd.DataFrame | None = None
    selections: pd.DataFrame | None = None
    similarities: pd.DataFrame | None = None
    texts: pd.DataFrame | None = None
    surprisals: pd.DataFrame | None = None
    paired: pd.DataFrame | None = None
    probes: pd.DataFrame | None = None


def draw(
    study: Study,
    tables: Tables,
    order: Order | None = None,
    *,
    directions: Mapping[str, int] | None = None,
    own_texts: Mapping[str, str] | None = None,
    labels: Mapping[str, Mapping[str, float]] | None = None,
) -> Drawn:
    """Draw a study.

    Parameters
    ----------
    study : Study
    tables : Tables
        Those that `layerwise.config.kinds.needs` names; others are not looked at.
    order : Order, optional
        The models of the config, which fixes their colours, and the checkpoints of each. Models
        that it does not name follow, sorted; their checkpoints are ordered by their steps.
    directions : mapping of metric to 1 or -1, optional
        `association.directions` of the config, in place of what the metrics declare. The study's
        own come before both.
    own_texts : mapping of corpus to task, optional
        What 'task texts' stands for.
    labels : mapping of corpus to what it is perturbed by, optional
        Become columns of the tables.

    Raises
    ------
    LayerwiseError
        If a table that this kind needs is missing or lacks what the study asks for, or values of
        a dimension without a role would be mixed.
    """
    needed: dict[str, pd.DataFrame] = {}
    for name in needs(study):
        table = getattr(tables, name)
        if table is None:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs tables of {name}; give them."
            )
        needed[name] = _with_labels(table, labels or {})
    order = order or Order()
    found = sorted({str(m) for name, t in needed.items() if name != "texts"
                    for m in t["model"].unique()})  # fmt: skip
    names = [*order.models, *(m for m in found if m not in order.models)]
    order = Order(names, order.revisions)
    better = {**declared(), **(directions or {}), **study.directions}
    module, name = KINDS[study.kind].draw.split(".")
    draw_it: Callable[[Given], Drawn] = getattr(import_module(f"layerwise.figures.{module}"), name)
    with style.theme():
        return draw_it(Given(study, needed, order, better, own_texts or {}))


def _with_labels(table: pd.DataFrame, labels: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A table of metrics with a column for each thing that its corpora are perturbed by."""
    if "corpus" not in table:
        return table
    own = {c: given for c, given in labels.items() if c in set(table["corpus"])}
    names = dict.fromkeys(name for given in own.values() for name in given)
    columns = {n: table["corpus"].map(lambda c, n=n: own.get(c, {}).get(n, "")) for n in names}
    return table.assign(**columns) if columns else table
