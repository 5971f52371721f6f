"""What is written and marked on panels: names, small print, best layers, outputs, legends."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import ColorType

from layerwise.figures.style import GREY, INK, LINE, text_width
from layerwise.names import step_of


def best_mark(colour: ColorType) -> dict[str, Any]:
    """How the best layer is marked: a filled circle."""
    return {
        "marker": "o", "markersize": 6, "color": colour, "markeredgecolor": "white",
        "markeredgewidth": 0.9, "linestyle": "none", "zorder": 5, "clip_on": False,
    }  # fmt: skip


def last_mark(colour: ColorType) -> dict[str, Any]:
    """How the model's output, or the last layer of a metric, is marked: an open circle."""
    return {
        "marker": "o", "markersize": 5, "color": "white", "markeredgecolor": colour,
        "markeredgewidth": 1.2, "linestyle": "none", "zorder": 4, "clip_on": False,
    }  # fmt: skip


def mark_handles() -> list[Line2D]:
    """Legend entries for the two marks."""
    return [
        Line2D([], [], label="best layer", **best_mark(INK)),
        Line2D([], [], label="the model's output", **last_mark(INK)),
    ]


def pick_handles() -> list[Line2D]:
    """Legend entries where no score says which layer is best, so that the metric has to."""
    return [
        Line2D([], [], label="layer that the metric picks", **best_mark(INK)),
        Line2D([], [], label="last layer", **last_mark(INK)),
    ]


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """One legend below all panels, in as many columns as the figure's width has room for."""
    # Key and gaps of an entry take 46 points.
    widest = max(46 + text_width(str(h.get_label()), 8) for h in handles)
    width, height = figure.get_size_inches()
    columns = max(1, min(len(handles), int(72 * width // widest)))
    # Two rows fit below panels of any figure; more would take from the panels.
    more = -(-len(handles) // columns) - 2
    if more > 0:
        figure.set_size_inches(width, height + 0.18 * more)
    figure.legend(handles=list(handles), loc="outside lower left", ncols=columns)


def broken(name: str, width: int) -> str:
    """A long name in lines of at most `width` characters, broken at its own joints if possible:
    within a word only if the word is longer than a line."""
    words = re.findall(r"[^/_\-. ]*[/_\-. ]|[^/_\-. ]+", name)
    pieces = [
        piece
        for word in words
        for piece in (re.split(r"(?<=[a-z])(?=[A-Z])", word) if len(word) > width else [word])
    ]
    lines = [""]
    for piece in pieces:
        for part in textwrap.wrap(piece, width, drop_whitespace=False) or [""]:
            if len(lines[-1]) + len(part) > width and lines[-1]:
                lines.append("")
            lines[-1] += part
    return "\n".join(lines)


def panel_title(axis: Axes, name: str, lines: Sequence[str], colour: str = INK) -> None:
    """A panel's name in its colour, with small grey lines of numbers below it."""
    axis.set_title(broken(name, 24), color=colour, pad=5 + 10 * len(lines), linespacing=1.0)
    for i, line in enumerate(reversed(lines)):
        note = axis.annotate(
            line, (0, 1), (0, 4 + 10 * i), xycoords="axes fraction",
            textcoords="offset points", fontsize=7, color=GREY, va="bottom",
        )  # fmt: skip
        # The title's pad has made the room; a long line must not push the panels apart.
        note.set_in_layout(False)


def row_label(axis: Axes, text: str, colour: str = INK) -> None:
    """Say in the left margin, beyond the axis' own label, what a row of panels has in common."""
    beyond = 44 + 12 * axis.get_ylabel().count("\n")
    axis.annotate(
        broken(text, 24), (0, 0.5), (-beyond, 0), xycoords="axes fraction",
        textcoords="offset points", rotation=90, va="center", ha="right", fontsize=8.5,
        fontweight="bold", color=colour,
    )  # fmt: skip


def block_label(axis: Axes, text: str, below: int = 1) -> None:
    """Say above the first of several panels what they have in common.

    Parameters
    ----------
    below : int
        Lines that the panel's own title has.
    """
    axis.annotate(
        text, (0, 1), (0, 8 + 10 * below), xycoords="axes fraction", textcoords="offset points",
        va="bottom", ha="left", fontsize=9, fontweight="bold",
    )  # fmt: skip


def either_handles() -> list[Line2D]:
    """Legend entries where scores and metrics are drawn, each with marks of its own."""
    return [
        Line2D([], [], label="best layer, or the one the metric picks", **best_mark(INK)),
        Line2D([], [], label="the model's output, or the metric's last layer", **last_mark(INK)),
    ]


def best_line() -> Line2D:
    """Legend entry for the vertical line at the best layer."""
    return Line2D([], [], color=GREY, linewidth=0.7, label="layer with the best score")


def mean_handle() -> Line2D:
    """Legend entry for a mean over prompts."""
    return Line2D([], [], color=INK, linewidth=1, label="mean over prompts")


def split_mark() -> dict[str, Any]:
    """How a layer whose prompts fall into two humps is marked."""
    return {"marker": "v", "markersize": 4, "color": INK, "linestyle": "none", "zorder": 5}


def split_handle() -> Line2D:
    """Legend entry for that mark."""
    return Line2D([], [], label="more than one hump (dip test, p < .05)", **split_mark())


def end_labels(axis: Axes, x: float, ends: Sequence[tuple[float, str, Any]]) -> None:
    """Write each line's name at its right end, pushed apart no more than they would overlap.

    Parameters
    ----------
    ends : sequence of (y, name, colour)
    """
    low, high = axis.get_ylim()
    figure = axis.get_figure(root=True)
    # The axes are about three quarters of the figure's height.
    points = 72 * 0.75 * (figure.get_size_inches()[1] if figure else 4.0) / (high - low)
    ordered = sorted(ends, key=lambda e: e[0])
    places = spread([y * points for y, _, _ in ordered], LINE, low * points + LINE / 2)
    for (y, name, colour), place in zip(ordered, places, strict=True):
        axis.annotate(
            name, (x, y), (6, place - y * points), textcoords="offset points", va="center",
            fontsize=8, color=colour, annotation_clip=False,
        )  # fmt: skip


def spread(places: Sequence[float], gap: float, floor: float = -np.inf) -> list[float]:
    """Ascending places moved as little as may be, `gap` apart or more and none below `floor`.

    Places that would touch become a group around their own mean, until no two groups touch.
    """

    def first(group: Sequence[float]) -> float:
        return max(sum(group) / len(group) - gap * (len(group) - 1) / 2, floor)

    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and first(groups[-1]) < first(groups[-2]) + gap * len(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    return [first(g) + i * gap for g in groups for i in range(len(g))]


def checkpoint_labels(names: Sequence[str], room: float) -> tuple[list[int], list[str]]:
    """Which of many checkpoints, evenly spaced, are named on an axis, and how.

    The first and the last always are; between them as many as have room: round steps (1, 10, 100;
    then 2 and 5 times those; then those of few digits) before others, and without steps those in
    the middle of a gap.

    Parameters
    ----------
    names : sequence of str
        In order.
    room : float
        Width of the axis in points.

    Returns
    -------
    places, words : lists
    """
    steps = [step_of(name) for name in names]
    known = None not in steps
    words = [
        broken(name, 9) if step is None or not known else _short(step)
        for name, step in zip(names, steps, strict=True)
    ]
    wide = [max(text_width(line, 7.5) for line in word.split("\n")) / 2 for word in words]
    apart, last = room / len(names), len(names) - 1
    ranks = [_roundness(step) if known else 0 for step in steps]
    halves = _halves(0, last)
    shown = sorted({0, last})
    for place in sorted(range(1, last), key=lambda i: (ranks[i], halves[i])):
        if all(abs(place - o) * apart >= wide[place] + wide[o] + 6 for o in shown):
            shown.append(place)
    shown.sort()
    return shown, [words[place] for place in shown]


def _short(step: int) -> str:
    return f"{step // 1000}k" if step >= 1000 and step % 1000 == 0 else f"{step:,}"


def _roundness(step: int | None) -> float:
    digits = str(step).rstrip("0")
    return {"1": 0, "2": 1, "5": 1}.get(digits, 1 + len(digits) - 0.5 * digits.endswith("5"))


def _halves(first: int, last: int) -> dict[int, int]:
    """The depth at which halving a range comes upon each place."""
    found = {first: 0, last: 0}
    gaps = [(first, last, 1)]
    while gaps:
        low, high, depth = gaps.pop()
        middle = (low + high) // 2
        if middle not in found:
            found[middle] = depth
        if high - low > 1:
            gaps += [(low, middle, depth + 1), (middle, high, depth + 1)]
    return found
