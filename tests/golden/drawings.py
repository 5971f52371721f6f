"""What stands in a drawn figure: its axes, marks, texts and legends, as a small table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tables
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.text import Text

from layerwise.figures.render import Drawn

FOLDER = Path(__file__).parent / "drawings"


WORDS = ["panel", "what", "text"]
NUMBERS = ["n", "x", "y", "xy"]


def check(kind: str, drawn: Drawn) -> None:
    """Assert that a figure has the marks of its golden drawing."""
    golden = pd.read_csv(FOLDER / f"{kind}.csv", dtype=dict.fromkeys(WORDS, str))
    golden, table = golden.fillna(dict.fromkeys(WORDS, "")), describe(drawn)
    assert table[WORDS].to_numpy().tolist() == golden[WORDS].to_numpy().tolist()
    numbers = (frame[NUMBERS].astype(float) for frame in (table, golden))
    pd.testing.assert_frame_equal(*numbers, rtol=1e-4, atol=1e-6)


def write(kind: str, drawn: Drawn) -> None:
    """Write the golden drawing of a kind."""
    FOLDER.mkdir(exist_ok=True)
    tables.write(describe(drawn), FOLDER / f"{kind}.csv")


def describe(drawn: Drawn) -> pd.DataFrame:
    """A row for each text and legend, and for all marks of one style in a panel.

    A row of marks has their number, and the means of x, of y and of their product over all points.
    """
    figure, none = drawn.figure, (1, np.nan, np.nan, np.nan)
    rows = [("", "title", drawn.title, *none), ("", "caption", drawn.caption, *none)]
    rows += [("", "size", "", 1, *figure.get_size_inches(), np.nan)]
    rows += [("", *row) for row in _legends(figure.legends)]
    rows += [("", "text", text.get_text(), *_numbers([text])) for text in figure.texts]
    for number, ax in enumerate(figure.axes):
        if ax.get_visible():
            rows += [(str(number), *row) for row in _of_axes(ax)]
    return pd.DataFrame(rows, columns=[*WORDS, *NUMBERS])


def _of_axes(ax: Axes) -> Iterator[tuple[Any, ...]]:
    for side, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        shown = [label for label in axis.get_ticklabels() if label.get_visible()]
        ticks = ", ".join(filter(None, (label.get_text() for label in shown)))
        low, high = axis.get_view_interval()
        words = f"{axis.get_label_text()} | {ticks} | {axis.get_scale()}"
        yield f"{side} axis", " ".join(words.split()), 1, low, high, np.nan
    for place in ("left", "center", "right"):
        if title := ax.get_title(loc=place):
            yield "title", " ".join(title.split()), 1, np.nan, np.nan, np.nan
    marks: dict[tuple[str, str], list[Artist]] = {}
    for artist in [*ax.lines, *ax.collections, *ax.patches, *ax.texts]:
        if artist.get_visible():
            marks.setdefault((type(artist).__name__, _style(artist)), []).append(artist)
    for (what, style), artists in sorted(marks.items(), key=lambda item: item[0]):
        yield what, style, *_numbers(artists)
    yield from _legends([ax.get_legend()] if ax.get_legend() else [])


def _legends(legends: list[Any]) -> Iterator[tuple[Any, ...]]:
    for legend in legends:
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            yield "legend", f"{text.get_text()}: {_style(handle)}", 1, np.nan, np.nan, np.nan


def _style(artist: Any) -> str:
    if isinstance(artist, Line2D):
        words = [artist.get_linestyle(), f"{artist.get_linewidth():g}", artist.get_marker()]
        if artist.get_marker() not in ("", "None", None):
            words += [f"{artist.get_markersize():g}", to_hex(artist.get_markerfacecolor())]
            words += [to_hex(artist.get_markeredgecolor()), str(artist.get_clip_on())]
        return " ".join(map(str, [to_hex(artist.get_color()), *words, artist.get_zorder()]))
    if isinstance(artist, Text):
        size, weight = artist.get_fontsize(), artist.get_fontweight()
        words = [to_hex(artist.get_color()), weight, f"{size:g}", artist.get_rotation()]
        return " ".join(map(str, [" ".join(artist.get_text().split()), *words]))
    if isinstance(artist, QuadMesh):
        (low, high), colours = artist.get_clim(), artist.get_cmap()
        ends = to_hex(colours(0.0)), to_hex(colours(1.0))
        return f"{ends[0]} {ends[1]} {low:.4g} {high:.4g}"
    if isinstance(artist, Collection):
        colours = {to_hex(c) for c in (*artist.get_facecolor(), *artist.get_edgecolor())}
        return f"{' '.join(sorted(colours))} {artist.get_alpha()} {artist.get_linewidth()[0]:g}"
    return f"{to_hex(artist.get_facecolor())} {artist.get_alpha()}"


def _numbers(artists: list[Any]) -> tuple[float, ...]:
    points = np.vstack([_points(artist) for artist in artists])
    with np.errstate(invalid="ignore"):
        points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return len(artists), np.nan, np.nan, np.nan
    return len(artists), *points.mean(axis=0), float(points.prod(axis=1).mean())


def _points(artist: Any) -> np.ndarray:
    if isinstance(artist, Line2D):
        return np.column_stack([np.asarray(d, float) for d in artist.get_data(orig=False)])
    if isinstance(artist, Text):
        return np.array([artist.get_position()], float)
    if isinstance(artist, QuadMesh):
        values = np.ma.filled(np.ma.asarray(artist.get_array(), float), np.nan).ravel()
        return np.column_stack([np.arange(len(values)), values])
    if isinstance(artist, PolyCollection) or not hasattr(artist, "get_offsets"):
        paths = artist.get_paths() if isinstance(artist, Collection) else [artist.get_path()]
        return np.vstack([path.vertices for path in paths] or [np.empty((0, 2))])
    if artist.get_paths() and len(artist.get_offsets()) <= 1:
        return np.vstack([path.vertices for path in artist.get_paths()])
    return np.asarray(artist.get_offsets(), float)
