"""What is drawn inside panels: lines with bands, dots with intervals, heat maps, axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerwise.figures import theme
from layerwise.figures.labels import axis_label
from layerwise.names import step_of
from layerwise.stats import FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

TICKS = 6  # checkpoints named on an axis
ROUGH = "x"  # marker of few prompts


def line(
    ax: Axes,
    subset: pd.DataFrame,
    x: str,
    y: str = "value",
    ends: Sequence[str] = ("low", "high"),
    *,
    scale: float = 1.0,
    shade: float = 0.16,
    **style: Any,
) -> None:
    """Draw a line with its band, with crosses if it is of fewer than `FEW` prompts."""
    subset = subset.sort_values(x).astype({x: float})
    style = {"color": theme.INK} | style
    if "n" in subset and subset["n"].between(1, FEW - 1).any():
        style |= {"marker": ROUGH, "markersize": 4}
    if {*ends} <= {*subset} and subset[[*ends]].notna().any(axis=None):
        lower, upper = (scale * subset[end].astype(float) for end in ends)
        ax.fill_between(subset[x], lower, upper, color=style["color"], alpha=shade, linewidth=0)
        if len(subset) == 1:
            ax.vlines(subset[x], lower, upper, color=style["color"], linewidth=0.8)
    ax.plot(subset[x], scale * subset[y].astype(float), **style)


def dots(
    ax: Axes,
    x: Any,
    y: Any,
    low: Any = None,
    high: Any = None,
    filled: Any = True,
    *,
    vertical: bool = False,
    **style: Any,
) -> None:
    """Draw dots with intervals along x (or along y if `vertical`); open where not `filled`."""
    colour = style.pop("color", theme.INK)
    t = pd.DataFrame({"x": x, "y": y, "filled": filled})
    if low is not None:
        draw, at = (ax.vlines, t["x"]) if vertical else (ax.hlines, t["y"])
        draw(at, low, high, color=colour, linewidth=1.0, alpha=0.6)
    style = {"markersize": 4.5, "markeredgewidth": 0.9, "zorder": 3} | style
    for full, subset in t.groupby("filled"):
        face = {"color": colour if full else "white", "markeredgecolor": colour}
        ax.plot(subset["x"], subset["y"], **dot(**style, **face))


def points(ax: Axes, x: Any, y: Any, **style: Any) -> None:
    """Draw marks that the axes do not clip, if there are any."""
    if len(x):  # an unclipped line without points would claim the page's corner
        ax.plot(x, y, **style)


def heat(ax: Axes, wide: pd.DataFrame, *, up: bool = True, **scale: Any) -> Any:
    """Draw a heat map of a table with numbered rows, the first at the bottom if `up`.

    Returns the mesh, for a colour bar.
    """
    import seaborn as sns

    every = max(1, -(-len(wide) // TICKS)) if up else 1
    style = {"cbar": False, "rasterized": True, "cmap": theme.sequential()} | scale
    sns.heatmap(wide.astype(float), ax=ax, xticklabels=False, yticklabels=every, **style)
    ax.grid(visible=False)
    ax.set(xlabel="", ylabel="")
    ax.tick_params(axis="y", rotation=0)
    if up:
        ax.invert_yaxis()
    return ax.collections[0]


def dot(**style: Any) -> dict[str, Any]:
    """Style of a dot, or of another marker without a line."""
    return {"marker": "o", "linestyle": "none", "color": theme.INK, "clip_on": False} | style


def best(colour: Any = theme.INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the best layer: a filled circle."""
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    return dot(color=colour, markersize=4.5 if small else 6, zorder=5, **edge)


def output(colour: Any = theme.INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the model's output: an open circle."""
    edge = {"markeredgecolor": colour, "markeredgewidth": 1.1}
    return dot(color="white", markersize=4 if small else 5, zorder=4, **edge)


def entry(label: str, **style: Any) -> Line2D:
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **({"color": theme.INK} | style))


def zero(ax: Axes) -> None:
    """Draw a line at 0."""
    ax.axhline(0, color=theme.GREY, linewidth=0.7, zorder=1)


def depth_axis(ax: Axes) -> None:
    """Make the x-axis depth in per cent, from the embedding output to the last layer."""
    from matplotlib.ticker import PercentFormatter

    ax.set_xlim(-0.03, 1.03)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    ax.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))


DEPTH = "Depth (% of layers)"


def spread(n: int, most: int) -> list[int]:
    """Evenly spaced ones of n places, with the last: at most so many."""
    return list(range(n - 1, -1, -max(1, -(-n // most))))[::-1]


def course(
    ax: Axes, curve: pd.DataFrame, names: Sequence[str], *columns: Any, **style: Any
) -> None:
    """Draw a line over checkpoints, see `line`, on the axis of `checkpoint_axis`."""
    line(ax, curve.assign(place=curve["revision"].map(names.index)), "place", *columns, **style)


def checkpoint_axis(ax: Axes, names: Sequence[str], *, offset: float = 0.0) -> None:
    """Space checkpoints evenly on the x-axis; name at most `TICKS`, the last always."""
    shown = spread(len(names), TICKS)
    ax.set_xticks([i + offset for i in shown], [step_name(names[i]) for i in shown], rotation=0)
    ax.set_xlim(-0.5 + offset, len(names) - 0.5 + offset)


def step_name(name: str) -> str:
    """A checkpoint on an axis: its step if it has one."""
    step = step_of(name)
    if step is None:
        return fill(name, 9)
    return f"{step // 1000}k" if step >= 1000 and step % 1000 == 0 else f"{step:,}"


def step_label(names: Iterable[str]) -> str:
    """Label of an axis of checkpoints."""
    return "Training step" if all(step_of(n) is not None for n in names) else "Checkpoint"


def metric_axis(subset: pd.DataFrame) -> str:
    """Label of the axis of a panel's metric or score."""
    alphas, normals = subset["alpha"].unique(), subset["normalization"].unique()
    return axis_label(
        str(subset["metric"].iloc[0]),
        alphas[0] if len(alphas) == 1 else None,
        str(normals[0]) if len(normals) == 1 else "raw",
    )
