"""Look of all figures: fonts, palettes, scales of colour, and writing the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure

from layerwise.io.files import replacing

DPI = 200

# Okabe & Ito (2008) without yellow, which is too faint for a thin line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # from the eighth model on the next marker

INK = "#222222"
GREY = "#666666"
FAINT = "#BBBBBB"

SEQUENTIAL = "viridis"
DIVERGING = "PuOr_r"

DASHES: tuple[Any, ...] = (
    "solid",
    (0, (4, 1.5)),
    (0, (1, 1.2)),
    (0, (6, 1.2, 1, 1.2)),
    (0, (1, 3)),
    (0, (6, 1, 1, 1, 1, 1)),
    (0, (9, 2)),
)

SMALL = 7.5  # notes and ticks; all else has one size

SETTINGS: dict[str, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.8,
    "axes.titlelocation": "left",
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.size": 8.5,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    # Fonts as outlines that any PDF reader has, and text that can be searched.
    "pdf.fonttype": 42,
    "text.color": INK,
    # Names are names, dollars and all.
    "text.parse_math": False,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": SMALL,
}


@contextmanager
def theme() -> Iterator[None]:
    """Apply the look within a block; the caller's settings come back."""
    import seaborn as sns  # a second to load, and only drawing needs it

    with mpl.rc_context():
        sns.set_theme("paper", "ticks", list(PALETTE), "DejaVu Sans", rc=SETTINGS)
        yield


def colour_of(name: str, order: Sequence[str]) -> str:
    """Colour of a model: by its place in the config, the same in every figure."""
    return PALETTE[order.index(name) % len(PALETTE)] if name in order else INK


def marker_of(name: str, order: Sequence[str]) -> str:
    """Marker of a model, which separates those that share a colour."""
    return MARKERS[order.index(name) // len(PALETTE) % len(MARKERS)] if name in order else "D"


def sequential() -> Colormap:
    """Viridis without its lightest end, which is too faint on white."""
    full = mpl.colormaps[SEQUENTIAL]
    return ListedColormap(full(np.linspace(0.0, 0.93, 256)))


def save(figure: Figure, png: Path, pdf: Path, metadata: Mapping[str, str]) -> None:
    """Write a figure atomically as PNG, with its metadata, and as PDF with embedded fonts."""
    with replacing(pdf) as partial:
        # No date inside: the same data gives the same file.
        figure.savefig(partial, format="pdf", facecolor="white", metadata={"CreationDate": None})
    with replacing(png) as partial:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white", metadata=dict(metadata))
