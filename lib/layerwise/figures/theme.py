"""Look of all figures: fonts, palettes, scales of colour, and writing the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerwise.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# matplotlib and seaborn take two seconds to load. Every job reads the config, which names kinds of
# figures; only drawing imports them.

DPI = 200

# Okabe & Ito (2008) without yellow, which is too faint for a thin line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # from the eighth model on the next marker

INK = "#222222"
GREY = "#666666"
FAINT = "#BBBBBB"

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
STYLE = Path(__file__).with_name("layerwise.mplstyle")


@contextmanager
def theme() -> Iterator[None]:
    """Apply the look within a block; the caller's settings come back."""
    import matplotlib as mpl
    import matplotlib.style
    import seaborn as sns

    with mpl.rc_context():
        sns.set_theme("paper", "ticks", list(PALETTE), "DejaVu Sans")
        mpl.style.use(STYLE)
        yield


def colour_of(name: str, order: Sequence[str]) -> str:
    """Colour of a model: by its place in the config, the same in every figure."""
    return PALETTE[order.index(name) % len(PALETTE)] if name in order else INK


def marker_of(name: str, order: Sequence[str]) -> str:
    """Marker of a model, which separates those that share a colour."""
    return MARKERS[order.index(name) // len(PALETTE) % len(MARKERS)] if name in order else "D"


def sequential() -> Colormap:
    """Viridis without its lightest end, which is too faint on white."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    full = mpl.colormaps["viridis"]
    return ListedColormap(full(np.linspace(0.0, 0.93, 256)))


def save(figure: Figure, png: Path, pdf: Path, metadata: Mapping[str, str]) -> None:
    """Write a figure atomically as PNG, with its metadata, and as PDF with embedded fonts."""
    with replacing(pdf) as partial:
        # No date inside: the same data gives the same file.
        figure.savefig(partial, format="pdf", facecolor="white", metadata={"CreationDate": None})
    with replacing(png) as partial:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white", metadata=dict(metadata))
