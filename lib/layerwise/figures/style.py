"""How all figures look: theme, colours, page header, and saving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import PercentFormatter

from layerwise.files import replacing

DPI = 200
LINE = 11  # points from one line of small print to the next
NO_BREAK = "\N{NO-BREAK SPACE}"
HINTING = 1.03  # letters fitted to a grid of pixels make a line up to this much wider
PANEL = 2.45  # width of a small panel in inches
COLUMNS = 4  # panels side by side
# Inches: of a row of points at least, of each point in it, and of all rows that points heighten.
ROW, POINT, TALL = 0.27, 0.06, 4.0

# Okabe & Ito (2008), without their yellow, which is too faint for a thin line on white, and with
# black last. Told apart under the common kinds of colour blindness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# The eighth model and on repeat the colours with another marker.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

Z95 = 1.959964  # normal 97.5 % point: bands are this many standard errors wide on either side

INK = "#222222"
GREY = "#666666"
FAINT = "#BBBBBB"

# Perceptually even, ordered by lightness, and readable in grey.
SEQUENTIAL = "viridis"
# Both ends dark, the middle white; told apart by every kind of colour vision.
DIVERGING = "PuOr_r"

DASHES: dict[str, Any] = {"all": "solid", "drop_first": (0, (4, 1.5)), "drop_sinks": (0, (1, 1.2))}
# The same strokes in words, for small print beside a name.
STROKES = {"all": "—", "drop_first": "- -", "drop_sinks": "···"}
# For readings other than the mean over a choice of tokens, in the order in which they come.
MORE_DASHES: tuple[Any, ...] = (
    (0, (6, 1.2, 1, 1.2)),
    (0, (1, 3)),
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (9, 2)),
)
MORE_STROKES = ("–·–", "· ·", "–··", "– –")


@contextmanager
def theme() -> Iterator[None]:
    """The look of all figures, for the length of a block; the caller's settings come back."""
    import seaborn as sns  # a second to load, and only drawing needs it

    with mpl.rc_context():
        sns.set_theme(context="paper", style="ticks", palette=list(PALETTE), font="DejaVu Sans")
        mpl.rcParams.update(
            {
                "axes.edgecolor": GREY,
                "axes.labelcolor": INK,
                "axes.labelsize": 8.5,
                "axes.linewidth": 0.8,
                "axes.spines.right": False,
                "axes.spines.top": False,
                "axes.titlelocation": "left",
                "axes.titlesize": 9,
                "axes.titleweight": "bold",
                "figure.dpi": 100,
                "font.size": 8.5,
                "grid.color": "#E6E6E6",
                "grid.linewidth": 0.6,
                "legend.fontsize": 8,
                "legend.frameon": False,
                "lines.linewidth": 1.5,
                # Fonts as outlines that any PDF reader has, and text that can be searched.
                "pdf.fonttype": 42,
                "ps.fonttype": 42,
                "text.color": INK,
                # Names are names, dollars and all.
                "text.parse_math": False,
                "xtick.color": GREY,
                "xtick.labelcolor": INK,
                "xtick.labelsize": 7.5,
                "ytick.color": GREY,
                "ytick.labelcolor": INK,
                "ytick.labelsize": 7.5,
            }
        )
        yield


def colour_of(name: str, order: Sequence[str]) -> str:
    """The colour of a model: its place in the config's order, the same in every figure."""
    return PALETTE[order.index(name) % len(PALETTE)]


def stroke_of(reading: str, readings: Sequence[str]) -> tuple[Any, str]:
    """Dashes of a reading's line, and the same in words."""
    if reading in DASHES:
        return DASHES[reading], STROKES[reading]
    at = [r for r in readings if r not in DASHES].index(reading)
    return MORE_DASHES[at % len(MORE_DASHES)], MORE_STROKES[at % len(MORE_STROKES)]


def marker_of(name: str, order: Sequence[str]) -> str:
    """The marker of a model, which tells apart those that share a colour."""
    return MARKERS[order.index(name) // len(PALETTE) % len(MARKERS)]


def grid(
    n_rows: int,
    n_columns: int,
    *,
    panel_height: float = 1.9,
    panel_width: float = PANEL,
    **keywords: Any,
) -> Any:
    """A figure without a GUI behind it, and its panels as an array of shape (rows, columns)."""
    figure = Figure(
        figsize=(max(panel_width * n_columns + 0.7, 5.2), panel_height * n_rows + 0.5),
        layout="constrained",
    )
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, **keywords)
    for axis in axes.flat:
        axis.grid(axis="y")
        axis.set_axisbelow(True)
    return figure, axes


def row_height(rows: int, points: int) -> float:
    """Height in inches of a row of points one below another: higher where rows are few."""
    return max(ROW, min(POINT * points, TALL / rows))


def depth_axis(axis: Axes, *, label: bool = True) -> None:
    """Make the x-axis depth in per cent, from the embedding output to the last block."""
    axis.set_xlim(-0.03, 1.03)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    if label:
        axis.set_xlabel("Depth (% of layers)")


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of one line of text at its widest, in points."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    return HINTING * float(width)


def in_lines(text: str, room: float, size: float, weight: str = "normal") -> list[str]:
    """Break text between words into lines of at most `room` points, as they will be set.

    A number and its per cent sign stay together.
    """
    lines: list[str] = []
    for word in text.replace(" %", NO_BREAK + "%").split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, weight) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def header(figure: Figure, headline: str, subtitle: str) -> None:
    """Write the finding and what is shown above the panels, making room for them.

    The figure grows by the height of the text, so that panels keep their size; lines are wrapped
    to the figure's width. Call it once, after the panels and legends are there.
    """
    width, height = figure.get_size_inches()
    room = 72 * width - 14
    top = in_lines(headline, room, 11, "bold")
    below = in_lines(subtitle, room, 8)
    first, second = 0.185 * len(top), 0.15 * len(below)
    extra = first + second + 0.2
    figure.set_size_inches(width, height + extra)
    total = height + extra
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, 0, 1, height / total))
    left = 0.09 / width
    figure.text(
        left, 1 - 0.07 / total, "\n".join(top),
        va="top", ha="left", fontsize=11, fontweight="bold", linespacing=1.15,
    )  # fmt: skip
    figure.text(
        left, 1 - (0.12 + first) / total, "\n".join(below),
        va="top", ha="left", fontsize=8, color=GREY, linespacing=1.2,
    )  # fmt: skip


def step_colours(steps: Sequence[int]) -> tuple[Colormap, SymLogNorm]:
    """Colour map and scale of training steps: logarithmic, with a place for step 0.

    Linear up to the first step after 0, logarithmic from there on; the lightest end of the map is
    cut off, which would be too faint on white.
    """
    full = mpl.colormaps[SEQUENTIAL]
    cut = mpl.colors.ListedColormap(full(np.linspace(0.0, 0.93, 256)))
    positive = [s for s in steps if s > 0] or [1]
    norm = SymLogNorm(
        linthresh=min(positive), linscale=0.5, vmin=min(steps), vmax=max(max(positive), 1)
    )
    return cut, norm


def depth_colours() -> tuple[Colormap, Any]:
    """Colour map and scale of depth, from 0 to 1."""
    full = mpl.colormaps[SEQUENTIAL]
    return mpl.colors.ListedColormap(full(np.linspace(0.0, 0.93, 256))), mpl.colors.Normalize(0, 1)


def save(figure: Figure, png: Path, pdf: Path, facts: Mapping[str, str] | None = None) -> None:
    """Write the figure as PNG at 200 dpi and as PDF with its fonts in it, each whole or not.

    Parameters
    ----------
    facts : mapping, optional
        Text for the PNG's metadata.
    """
    with replacing(pdf) as partial:
        # No date inside: the same data gives the same file.
        figure.savefig(partial, format="pdf", facecolor="white", metadata={"CreationDate": None})
    with replacing(png) as partial:
        figure.savefig(
            partial, format="png", dpi=DPI, facecolor="white", metadata=dict(facts or {})
        )
