"""A chosen layer, its sentence, the command that exports it, and its picture."""

from __future__ import annotations

import html
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Choice:
    """A chosen layer.

    Attributes
    ----------
    layer : int
        The last layer is the model's output.
    advice : str
        The layer to use, in one sentence.
    reason : str
        Its score and its difference from the output, with 95% intervals, and what it saves.
    score : str
        Name of the score.
    table : DataFrame
        A row per layer: layer, score, low, high, difference (from the output), difference_low,
        difference_high, n, compute_saved (share of the model's blocks after the layer; all count
        the same). The 95% intervals of scores and of differences hold for all layers together,
        which corrects for selecting one (`layerwise.choosing.compare.compare`).
    rows : str
        The labelled rows that were read: their number, kind, and classes with their rows.
    tokens : str
        Token selection that the layers were read with.
    pooling : str
        Pooling that the layers were read with.
    takes : {'text', 'image', 'recording'}
        What the model takes.
    """

    layer: int
    advice: str
    reason: str
    score: str
    table: pd.DataFrame = field(repr=False)
    rows: str = ""
    tokens: str = "all"
    pooling: str = "mean"
    takes: str = "text"

    @property
    def sentence(self) -> str:
        """The advice and its reason."""
        return f"{self.advice} {self.reason}"

    def _repr_html_(self) -> str:
        """The rows read, the advice, its reason and the table, for notebooks."""
        table = self.table.round(3).to_html(index=False, na_rep="–")
        rows, advice, reason = map(html.escape, (self.rows, self.advice, self.reason))
        return f"<p>{rows} <b>{advice}</b> {reason}</p>{table}"

    def export_command(self, model: str, **options: object) -> str:
        """The shell command that saves a model that gives the vectors that were scored.

        Parameters
        ----------
        **options
            Further options of ``layerwise export``, such as ``revision``.
        """
        name = short_name(model)
        settings = {
            "layer": self.layer,
            "tokens": self.tokens,
            "pooling": self.pooling,
            **options,
        }
        folder = f"{name}-{self.layer}"
        words = ["layerwise", "export", model, folder]
        words += [
            str(x)
            for key, value in settings.items()
            for x in (f"--{key.replace('_', '-')}", value)
        ]
        return shlex.join(words)


def short_name(model: str) -> str:
    """Name of a model for folders and figures: of its package, or the last part."""
    package = re.fullmatch(r"package:([^/#]+)[^#]*", model)
    last = re.split(r"[/#]", model.rstrip("/"))[-1].removesuffix(".gguf")
    return package[1] if package else last


def plot(choice: Choice, path: Path, model: str = "model") -> Figure:
    """Draw the score of every layer as a workflow does.

    The band is the interval of the difference to the output, whose score is the dotted line.
    """
    from layerwise.config.studies import Study
    from layerwise.figures import theme
    from layerwise.figures.render import draw

    table = choice.table
    depth = table["layer"] / max(len(table) - 1, 1)
    output = table["score"].iloc[-1]
    about: dict[str, Any] = {"model": model, "revision": "", "tokens": choice.tokens}
    about |= {"pooling": "mean", "task": choice.score, "task_type": "", "subset": "default"}
    about |= dict.fromkeys(("score_low", "score_high"), float("nan"))
    scores = table[["layer"]].assign(**about, depth=depth, main_score=table["score"])
    study = Study(kind="score_by_depth", title=choice.advice.rstrip("."))
    figure = draw(study, {"scores": scores}).figure
    (ax,) = figure.axes
    ax.set_ylabel(f"{choice.score[0].upper()}{choice.score[1:]}\n(× 100; 95% CI against output)")
    ends = 100 * (output + table["difference_low"]), 100 * (output + table["difference_high"])
    ax.fill_between(depth, *ends, color=theme.PALETTE[0], alpha=0.15, linewidth=0)
    ax.axhline(100 * output, color=theme.GREY, lw=0.8, linestyle="dotted")
    ax.axvline(depth[choice.layer], color=theme.GREY, lw=0.8)
    figure.savefig(path, dpi=theme.DPI)
    return figure
