"""From a study of the config and its tables to a figure with its table and caption."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import yaml

from layerwise.association.order import Order
from layerwise.association.table import ALL_MODELS
from layerwise.config.kinds import needs
from layerwise.config.studies import Study
from layerwise.errors import LayerwiseError, printable
from layerwise.figures import theme
from layerwise.figures.labels import span
from layerwise.figures.registry import Look, find
from layerwise.figures.select import Data
from layerwise.io.files import replacing
from layerwise.io.tables import write_csv
from layerwise.metrics.registry import directions as declared
from layerwise.stats import FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.config import Config

# Characters of markup, and of addresses.
MARKUP = re.compile(r"[\\*`_|<>\[\]@]|:(?=\S)")
# Start of a text that is no list, directive, comment or rule.
ORDINARY = re.compile(r"\w+(?![.)\w])")


OPTIONAL = frozenset({"texts"})  # images have none


@dataclass(frozen=True)
class Drawn:
    """A figure with what stands behind it.

    Attributes
    ----------
    figure : matplotlib Figure
    table : DataFrame
        Every number drawn, with its interval and n.
    title : str
        Empty if the study wants none.
    caption : str
        What is shown, on how much data, and what the intervals are.
    """

    figure: Figure
    table: pd.DataFrame
    title: str
    caption: str

    def rst(self) -> str:
        """Title and caption as reStructuredText, in which no name is markup."""
        head = f"**{plain(self.title)}**\n\n" if self.title else ""
        return f"{head}{plain(self.caption)}\n"

    def write(
        self,
        png: Path,
        pdf: Path,
        table: Path,
        caption: Path,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Write the four files of a figure, each atomically."""
        write_csv(table, self.table)
        with replacing(caption) as partial:
            partial.write_text(self.rst(), encoding="utf-8")
        theme.save(self.figure, png, pdf, metadata)


def draw(
    study: Study,
    tables: Mapping[str, pd.DataFrame],
    order: Order | None = None,
    *,
    directions: Mapping[str, int] | None = None,
    own_texts: Mapping[str, str] | None = None,
    labels: Mapping[str, Mapping[str, float]] | None = None,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Drawn:
    """Draw a study.

    Parameters
    ----------
    study : Study
    tables : mapping of name to DataFrame
        Those that `layerwise.config.kinds.needs` names; others are not read.
    order : Order, optional
        Models of the config, which fixes their colours, and the checkpoints of each. Other models
        follow, sorted.
    directions : mapping of metric to 1 or -1, optional
        ``association.directions`` of the config, in place of what metrics declare.
    own_texts : mapping of corpus to task, optional
        Corpora that ``task texts`` includes, with their tasks.
    labels : mapping of corpus to perturbation, optional
        Become columns of the tables.
    confidence : float
        ``scoring.confidence`` of the config, the level of intervals in scores.
    ax : matplotlib Axes, optional
        Axes to draw a single panel on, in place of a new figure.

    Raises
    ------
    LayerwiseError
        If a table is missing or lacks what the study asks for, or values of a dimension without a
        role would be mixed.
    """
    import matplotlib.pyplot as plt

    read = {}
    for name in needs(study):
        if tables.get(name) is None and name in OPTIONAL:
            continue
        if tables.get(name) is None:
            raise LayerwiseError(
                f"A study of kind {study.kind} needs tables of {name}; give them.",
                code="missing_file",
            )
        read[name] = _with_labels(tables[name], labels or {})
    order = order or Order()
    there = {str(m) for t in read.values() if "model" in t for m in t["model"].unique()}
    models = [*order.models, *sorted(there - {*order.models, ALL_MODELS})]
    better = {**declared(), **(directions or {})}
    data = Data(study, read, Order(models, order.revisions), better, own_texts or {}, confidence)
    kind = find(study.kind)
    table = kind.table(data)
    roles = data.roles(table) if "model" in table else data.kind.roles
    title = kind.title if study.title == "" else study.title
    with theme.theme():
        figure = kind.plot(table, Look(roles, models, study.ordered, ax))
        if ax is None and title:
            figure.suptitle(title, x=0.01, ha="left")
    if ax is None:
        plt.close(figure)  # out of pyplot's list; the figure itself can still be saved
    elif figure is not ax.get_figure(root=True):
        plt.close(figure)
        raise LayerwiseError(
            f"A study of kind {study.kind} does not fit on one ax; leave it out.", code="ambiguous"
        )
    return Drawn(figure, without_zero_p(table), title or "", caption(data, table))


def draw_as_configured(
    config: Config, study: Study, tables: Mapping[str, pd.DataFrame], ax: Axes | None = None
) -> Drawn:
    """Draw a study with the settings of a config; otherwise as `draw`."""
    return draw(
        study,
        tables,
        Order.of(config),
        directions=config.association.directions,
        own_texts=config.own_texts,
        labels=config.labels(),
        confidence=config.scoring.confidence,
        ax=ax,
    )


def without_zero_p(table: pd.DataFrame) -> pd.DataFrame:
    """The table with p-values that underflow to 0 as the smallest positive number."""
    names = [str(c) for c in table]
    p = [c for c in names if c == "p" or c.startswith("p_") or c.endswith("_p")]
    smallest = np.finfo(float).tiny
    return table.assign(**{c: table[c].mask(table[c] == 0, smallest) for c in p})


@cache
def templates() -> dict[str, str]:
    """Caption templates by kind."""
    text = files("layerwise.figures").joinpath("captions.yaml").read_text(encoding="utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


def caption(data: Data, table: pd.DataFrame) -> str:
    """The template of a kind, filled with how much data there is."""
    source = data.tables.get("prompts", table)
    n = table.loc[table["n"] > 0, "n"] if "n" in table else pd.Series(dtype=float)
    tasks = _names(table, "task")
    counts = {
        "n_prompts": span(n.tolist()) or "an unknown number of",
        "n_tasks": str(len(tasks)) if len(tasks) > 1 else _span_of(table, "n_tasks"),
        "n_clusters": _span_of(table, "n_clusters"),
        "n_checkpoints": str(table.groupby("model")["revision"].nunique().max())
        if {"model", "revision"} <= {*table}
        else "",
        "corpora": ", ".join(_names(table, "corpus") or _names(source, "corpus"))
        or "all data sets",
    }
    text = " ".join(templates()[data.study.kind].format(**counts).split())
    if "output_from" in table and (table["output_from"] == "last layer").any():
        text += " The output was not scored; the last layer replaces it."
    if len(n) and n.min() < FEW:
        text += f" Crosses: n < {FEW}, so intervals are rough."
    return text + (f" Not shown: {'; '.join(data.omitted)}." if data.omitted else "")


def _span_of(table: pd.DataFrame, column: str) -> str:
    return span(table[column].tolist()) if column in table else ""


def _names(table: pd.DataFrame, column: str) -> list[str]:
    return (
        [str(v) for v in table[column].dropna().unique() if v not in ("", "none")]
        if column in table
        else []
    )


def _with_labels(table: pd.DataFrame, labels: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """A table with a column for each way in which its corpora are perturbed."""
    if "corpus" not in table:
        return table
    own = {c: given for c, given in labels.items() if c in set(table["corpus"])}
    names = dict.fromkeys(name for given in own.values() for name in given)
    columns = {n: table["corpus"].map(lambda c, n=n: own.get(c, {}).get(n, "")) for n in names}
    return table.assign(**columns) if columns else table


def plain(text: str) -> str:
    """Text in one line in which reStructuredText finds no markup, directive or address."""
    one_line = " ".join(printable(text).split())
    # An escaped space is none.
    start = "" if not one_line or ORDINARY.match(one_line) else "\\ "
    return start + MARKUP.sub(r"\\\g<0>", one_line)
