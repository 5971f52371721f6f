"""From a study of the config and its tables to a figure with its table and caption."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from layerwise.association.curves import FROM_LAST
from layerwise.association.table import ALL_MODELS
from layerwise.config.studies import Study
from layerwise.errors import printable
from layerwise.figures import panels
from layerwise.figures.panels import Look
from layerwise.figures.select import SCORE, Data, title_of
from layerwise.io.files import write_text
from layerwise.io.tables import write_csv
from layerwise.names import Order
from layerwise.stats import FEW, FEWEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from layerwise.config import Config

# Characters of markup, and of addresses.
MARKUP = re.compile(r"[\\*`_|<>\[\]@]|:(?=\S)")
# Start of a text that is no list, directive, comment or rule.
ORDINARY = re.compile(r"\w+(?![.)\w])")


SLOPES = " Lines: 95% CI over task clusters, of slopes."
OVER_MODELS = " Over models, filled: adjusted p ≤ .05."
OVER_LAYERS = (
    "a point per layer, joined in order of depth. Null 95%: the level that 95% of unrelated "
    "curves as smooth as the score's stay below; for a distance correlation, of random walks. The "
    "layers of a model are one curve, so there is no p-value."
)
OVER_TASKS = (
    "a point per task and layer. Associations are over tasks within each layer, averaged over "
    "layers. Null 95%: the level that 95% stay below when scores are dealt to other tasks."
)
BANDS = "Bands: 95% CI from standard errors over prompts."
LEADS = (
    " Bands of differences to the output: 95% CI over task clusters, simultaneous for all layers."
)
NO_LEADS = f" Scores are without intervals, which take {FEWEST} task clusters."


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
        self, png: Path, pdf: Path, table: Path, caption: Path, metadata: Mapping[str, str]
    ) -> None:
        """Write the four files of a figure, each atomically; metadata goes into the PNG."""
        write_csv(table, self.table, metadata.get("key", ""))
        write_text(caption, self.rst())
        panels.save(self.figure, png, pdf, metadata)


def draw(
    study: Study,
    tables: Mapping[str, pd.DataFrame],
    order: Order | None = None,
    config: Config | None = None,
    ax: Axes | None = None,
) -> Drawn:
    """Draw a study.

    Parameters
    ----------
    study : Study
    tables : mapping of name to DataFrame
        Those that the study reads; others are not read.
    order : Order, optional
        Models, which fixes their colours, and the checkpoints of each; by default the config's.
        Other models follow, sorted.
    config : Config, optional
        For the directions of metrics, corpora that are the texts of a task, and perturbed corpora.
    ax : matplotlib Axes, optional
        Axes to draw a single panel on, in place of a new figure.

    Raises
    ------
    LayerwiseError
        If a table is missing or lacks what the study asks for, or values of a dimension without a
        role would be mixed.
    """
    data = Data.of(study, tables, order, config)
    kind = study.declaration
    table = kind.table(data)
    title = title_of(study)
    import matplotlib.pyplot as plt

    with panels.theme():
        models, copies = data.order.models, data.order.copies
        figure = kind.plot(table, Look(data.roles(table), models, study.ordered, ax, copies))
        if ax is None:
            figure.suptitle(title, x=0.01, ha="left")
            plt.close(figure)  # out of pyplot's list; the figure itself can still be saved
    return Drawn(figure, without_zero_p(table), title, caption(data, table))


def without_zero_p(table: pd.DataFrame) -> pd.DataFrame:
    """The table with p-values that underflow to 0 as the smallest positive number."""
    p = table.filter(regex=r"^p$|^p_|_p$")
    return table.assign(**p.replace(0, np.finfo(float).tiny))


def caption(data: Data, table: pd.DataFrame) -> str:
    """The template of a kind, filled with how much data there is."""
    tasks = _names(table, "task")
    corpora = _names(table, "corpus") or _names(data.tables.get("prompts", table), "corpus")
    points = table.groupby("model")["revision"] if {"model", "revision"} <= {*table} else None
    is_metric = table["y"] != SCORE if "y" in table else slice(None)
    has_bands = "low" in table and table.loc[is_metric, "low"].notna().any()
    of_tasks = table[table["n_tasks"] > 1] if "n_tasks" in table else table[:0]
    has_leads = "low" in of_tasks and of_tasks["low"].notna().any()
    has_chance = "chance" in table and table["chance"].notna().any()
    counts = {
        "n_prompts": _span(table, "n") or "an unknown number of",
        "n_tasks": str(len(tasks)) if len(tasks) > 1 else _span(table, "n_tasks"),
        "n_clusters": _span(table, "n_clusters"),
        "n_checkpoints": "" if points is None else points.nunique().max(),
        "corpora": ", ".join(corpora) or "all data sets",
        "chance": " Dotted: chance." if has_chance else "",
        "slopes": SLOPES if "slope" in _names(table, "measure") else "",
        "over_models": OVER_MODELS if ALL_MODELS in _names(table, "model") else "",
        "points": OVER_TASKS if data.study.over == "tasks" else OVER_LAYERS,
        "leads": LEADS if has_leads else NO_LEADS if len(of_tasks) else "",
        "bands": BANDS if has_bands else "Without intervals, since these have no standard errors.",
    }
    text = data.study.declaration.caption.format(**counts)
    if data.study.published:  # see `by_depth.curves`
        text = re.sub(r"Filled: best layer by [^.]*\. ", "", text)
        text = re.sub(r"(best layer), or best by [^.]*", r"\1", text)
    text = text.replace("on an unknown number of prompts of", "on")
    text = text.replace(" 1 tasks (1 task clusters)", " 1 task")
    text = text.replace("(1 task clusters)", "(1 task cluster)")
    if "output_from" in table and (table["output_from"] == FROM_LAST).any():
        text += " The output was not scored; the last layer replaces it."
    if "n" in table and table["n"].between(1, FEW - 1).any():
        text += f" Crosses: n < {FEW}, so intervals are rough."
    text += f" Not shown: {'; '.join(data.omitted)}." if data.omitted else ""
    return f"{text} {data.study.note}".strip()


def _span(table: pd.DataFrame, column: str) -> str:
    """``120`` if all numbers of a column are equal, else ``60–120``; empty without a number."""
    counts = table.loc[table[column] > 0, column] if column in table else ()
    return "–".join(dict.fromkeys(f"{int(end(counts)):,}" for end in (min, max) if len(counts)))


def _names(table: pd.DataFrame, column: str) -> list[str]:
    names = table[column].dropna().unique() if column in table else ()
    return [str(name) for name in names if name not in ("", "none")]


def plain(text: str) -> str:
    """Text in one line in which reStructuredText finds no markup, directive or address."""
    one_line = " ".join(printable(text).split())
    # An escaped space is none.
    start = "" if not one_line or ORDINARY.match(one_line) else "\\ "
    return start + MARKUP.sub(r"\\\g<0>", one_line)
