"""Panels, and what is drawn in them: lines with bands, dots with intervals, heat maps, legends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from layerwise.config.kinds import ROLES
from layerwise.errors import LayerwiseError
from layerwise.figures import theme
from layerwise.figures.labels import axis_label, value_label, wrapped
from layerwise.figures.registry import Look
from layerwise.names import step_of
from layerwise.stats import FEW
from layerwise.vocabulary import LABELS

WIDTH, HEIGHT = 2.45, 1.9  # of a panel, in inches
NARROWEST = 5.0  # of a figure
TITLE = 0.35  # height of the figure's title
COLUMNS = 4
TALLEST = 4  # metrics one below the other
TICKS = 6  # checkpoints named on an axis
ROUGH = "x"  # marker of few prompts
BAR = 9  # so many checkpoints get a colour bar in place of a legend
Label = str | Callable[[pd.DataFrame], str]


@dataclass(frozen=True)
class Panel:
    """One panel: its axes, its rows of the table and its place."""

    ax: Axes
    table: pd.DataFrame
    row: str
    column: str
    top: bool
    left: bool
    bottom: bool
    right: bool


@dataclass
class Facets:
    """A figure and its panels, row by row."""

    figure: Figure
    panels: list[Panel]
    handles: list[Any] = field(default_factory=list)
    inside: bool = False
    """True if the legend belongs inside the panel, since the figure is the caller's."""

    def row(self, name: str) -> list[Panel]:
        """The panels of one row."""
        return [p for p in self.panels if p.row == name]

    def label(
        self, x: Label = "", y: Label = "", *, share: bool | tuple[str, ...] = True
    ) -> Facets:
        """Label the axes; panels with equal labels get equal limits if `share` has their row."""
        before: tuple[str, str] = ("", "")
        alike: dict[str, list[Axes]] = {}
        for panel in self.panels:
            xlabel, ylabel = (v(panel.table) if callable(v) else v for v in (x, y))
            if panel.bottom:
                panel.ax.set_xlabel(xlabel)
            if panel.left or before != (panel.row, ylabel):
                panel.ax.set_ylabel(wrapped(ylabel, 24))
            elif share is True or (share and panel.row in share):
                panel.ax.tick_params(labelleft=False)
            before = panel.row, ylabel
            if share is True or (share and panel.row in share):
                alike.setdefault(ylabel, []).append(panel.ax)
        for axes in alike.values():
            ends = [a.get_ylim() for a in axes if a.has_data()]
            for ax in axes if ends else ():
                ax.set_ylim(min(e[0] for e in ends), max(e[1] for e in ends))
        return self

    def bar(
        self, mappable: Any, label: str, panels: Sequence[Panel] | None = None, **more: Any
    ) -> Any:
        """Add a colour bar to the right of some panels, by default all."""
        axes = [p.ax for p in panels or self.panels]
        height = self.figure.get_size_inches()[1] * len({p.row for p in panels or self.panels})
        more = {
            "shrink": min(1.0, 2.4 * len({p.row for p in self.panels}) / height),
            "anchor": (0.0, 1.0),
        } | more
        bar = self.figure.colorbar(
            mappable, ax=axes, location="right", aspect=22, pad=0.015, **more
        )
        bar.set_label(wrapped(label, 26))
        bar.outline.set_visible(False)
        return bar

    def legend(self, handles: Sequence[Any] = ()) -> Facets:
        """Put one legend below all panels."""
        shown = [*self.handles, *handles]
        if any(line.get_marker() == ROUGH for p in self.panels for line in p.ax.lines):
            rough = {"marker": ROUGH, "markersize": 4, "linestyle": "none"}
            shown.append(entry(f"n < {FEW}: rough interval", **rough))
        if shown and self.inside:
            self.panels[0].ax.legend(handles=shown)
        elif shown:
            widest = max(len(str(h.get_label())) for h in shown)
            width, height = self.figure.get_size_inches()
            columns = max(1, min(len(shown), int(width * 72 // (46 + 4.6 * widest))))
            lines = -(-len(shown) // columns)
            self.figure.set_size_inches(width, height + 0.2 + 0.17 * lines)
            self.figure.legend(handles=shown, loc="outside lower left", ncols=columns)
        return self


def place(table: pd.DataFrame, look: Look) -> pd.DataFrame:
    """Add a column for each role that says, in words, which values of its dimensions a row has.

    The columns are ordered categories, in the order in which values first appear.
    """
    table = table.copy()
    for role in ROLES:
        dimensions = [
            d
            for d in look.roles.get(role, ())
            if d in table and ((d == "model" and role != "dashes") or table[d].nunique() > 1)
        ]
        table[role] = pd.Categorical([""] * len(table))
        if not dimensions:
            continue
        keys = table[dimensions].drop_duplicates()
        keys = keys.sort_values(
            dimensions, key=lambda c: pd.Index(keys[c.name].unique()).get_indexer(c)
        )
        names = [
            " · ".join(filter(None, (value_label(str(d), str(v)) for d, v in key.items())))
            for key in keys.to_dict("records")
        ]
        values = table[dimensions].merge(keys.assign(label=names), how="left")["label"]
        table[role] = pd.Categorical(values, list(dict.fromkeys(names)))
    if look.roles.get("row") == ("y",) and table["row"].nunique() > TALLEST:
        table = table.rename(columns={"row": "column", "column": "row"})
    return table


def facets(
    table: pd.DataFrame,
    look: Look,
    *,
    height: float = HEIGHT,
    width: float = WIDTH,
    columns: int = COLUMNS,
) -> Facets:
    """Make a panel for each row and column of a table that `place` has been over.

    More columns than fit side by side continue below, all rows again.
    """
    rows, cols = (list(table[r].cat.categories) for r in ("row", "column"))
    parts = dict(iter(table.groupby(["row", "column"], observed=True)))
    if look.ax is not None:
        if len(parts) > 1:
            raise LayerwiseError(
                f"This figure has {len(parts)} panels and does not fit on one ax: name one "
                "model, metric and token selection, or leave out ax.",
                code="ambiguous",
            )
        look.ax.set_title(cols[0])
        panel = Panel(look.ax, table, rows[0], cols[0], True, True, True, True)
        figure = look.ax.get_figure(root=True)
        assert figure is not None
        return Facets(figure, [panel], inside=True)
    n = min(columns, len(cols))
    blocks = [cols[i : i + n] for i in range(0, len(cols), n)]
    lines = [(r, block) for block in blocks for r in rows if any((r, c) in parts for c in block)]
    width = max(width, NARROWEST / n)
    size = (n * width + 0.3, len(lines) * height + TITLE)
    figure, grid = plt.subplots(len(lines), n, squeeze=False, figsize=size)
    figure.tight_layout()  # texts are measured at these widths
    figure.set_layout_engine("constrained")
    sns.despine(figure)
    panels: list[Panel] = []
    for (row, block), axes in zip(lines, grid, strict=True):
        for column, ax in itertools.zip_longest(block, axes):
            if (row, column) not in parts:
                ax.set_visible(False)
                continue
            own = [r for r in rows if (r, column) in parts]
            left, right = column == block[0], column == block[-1]
            edges = (row == own[0], left, row == own[-1], right)
            panels.append(Panel(ax, parts[row, column], row, column, *edges))
    by_row = [d for d in look.roles.get("row", ()) if d != "y"]
    for panel in panels:
        if panel.top and panel.column:
            colour = theme.INK
            model = panel.table["model"].iloc[0] if "model" in panel.table else ""
            if "model" in look.roles.get("column", ()) and panel.column.startswith(str(model)):
                colour = theme.colour_of(model, look.models)
            panel.ax.set_title(wrapped(panel.column, int(width * 12.5)), color=colour)
        if panel.right and len(rows) > 1 and by_row:
            panel.ax.annotate(
                wrapped(panel.row, 26),
                (1, 0.5),
                (6, 0),
                xycoords="axes fraction",
                rotation=270,
                textcoords="offset points",
                va="center",
                fontsize=8,
                fontweight="bold",
            )
    return Facets(figure, panels)


@dataclass(frozen=True)
class Palette:
    """Colours and markers of the values of a role.

    Attributes
    ----------
    colours, markers : mapping of label to colour or marker
    steps : mapping of label to number
        Training steps, or places in the order; empty where values have no order.
    norm : Normalize or None
        Scale of those numbers.
    """

    colours: dict[str, Any]
    markers: dict[str, str]
    steps: dict[str, float] = field(default_factory=dict)
    norm: Normalize | None = None

    @property
    def continuous(self) -> bool:
        """True if a colour bar says more than a legend."""
        return self.norm is not None and len(self.colours) >= BAR

    def add_to(self, grid: Facets) -> None:
        """Add a colour bar of the values, or legend entries."""
        if not self.continuous:
            for name, colour in self.colours.items():
                if name:
                    style = {"color": colour, "marker": self.markers[name], "markersize": 3.5}
                    grid.handles.append(entry(name, **style))
            return
        every = -(-len(self.steps) // BAR)
        shown = dict(list(self.steps.items())[::-1][::every][::-1])
        bar = grid.bar(
            ScalarMappable(self.norm, theme.sequential()), "Checkpoint", ticks=list(shown.values())
        )
        bar.ax.minorticks_off()
        bar.ax.set_yticklabels([step_name(name) for name in shown])


def palette(table: pd.DataFrame, look: Look) -> Palette:
    """Colours of the role ``colour`` of a table that `place` has been over.

    Models have a colour of their own; checkpoints, alphas and other ordered values are on a scale;
    all else has the palette's colours in turn. Without a role, a model's colour is everything's.
    """
    names = [str(n) for n in table["colour"].cat.categories]
    dimensions = look.roles.get("colour", ())
    if dimensions[:1] == ("model",) and not look.ordered:
        models = table.drop_duplicates("colour").set_index("colour")["model"]
        return Palette(
            {n: theme.colour_of(models[n], look.models) for n in names},
            {n: theme.marker_of(models[n], look.models) for n in names},
        )
    if look.ordered or {*dimensions} & {"revision", "alpha", *LABELS}:
        steps = [step_of(n) for n in names]
        known = [s for s in steps if s is not None]
        steps_known = len(known) == len(names) and len(known) > 2
        numbers = known if steps_known else list(range(len(names)))
        norm = theme.step_scale(known) if steps_known else Normalize(0, max(1, len(names) - 1))
        scale = theme.sequential()
        colours = {n: scale(norm(v)) for n, v in zip(names, numbers, strict=True)}
        places = dict(zip(names, map(float, numbers), strict=True))
        return Palette(colours, dict.fromkeys(names, "o"), places, norm)
    if names == [""]:
        return Palette({"": None}, {"": ""})
    return Palette(
        {n: theme.colour_of(n, names) for n in names},
        {n: theme.marker_of(n, names) for n in names},
    )


def dashes(table: pd.DataFrame) -> dict[str, Any]:
    """Line styles of the role ``dashes`` of a table that `place` has been over."""
    names = [str(n) for n in table["dashes"].cat.categories]
    return {n: theme.DASHES[i % len(theme.DASHES)] for i, n in enumerate(names)}


def line(
    ax: Axes,
    part: pd.DataFrame,
    x: str,
    y: str = "value",
    *,
    low: str = "low",
    high: str = "high",
    colour: Any = theme.INK,
    scale: float = 1.0,
    shade: float = 0.16,
    **style: Any,
) -> None:
    """Draw a line with its band, with crosses if it is of fewer than `FEW` prompts."""
    part = part.sort_values(x)
    if "n" in part and part["n"].between(1, FEW - 1).any():
        style |= {"marker": ROUGH, "markersize": 4}
    places = part[x].to_numpy(dtype=float)
    if low in part and part[low].notna().any():
        lower, upper = (scale * part[c].to_numpy(dtype=float) for c in (low, high))
        ax.fill_between(places, lower, upper, color=colour, alpha=shade, linewidth=0)
        if len(part) == 1:
            ax.vlines(places, lower, upper, color=colour, linewidth=0.8)
    ax.plot(places, scale * part[y].to_numpy(dtype=float), color=colour, **style)


def dots(
    ax: Axes,
    x: Any,
    y: Any,
    low: Any = None,
    high: Any = None,
    *,
    colour: Any = theme.INK,
    marker: str = "o",
    filled: Any = True,
    vertical: bool = False,
) -> None:
    """Draw dots with intervals along x (or along y if `vertical`); open where not `filled`."""
    x, y = np.atleast_1d(np.asarray(x, dtype=float)), np.atleast_1d(np.asarray(y, dtype=float))
    if low is not None:
        lower, upper = (np.atleast_1d(np.asarray(e, dtype=float)) for e in (low, high))
        draw, at = (ax.vlines, x) if vertical else (ax.hlines, y)
        draw(at, lower, upper, color=colour, linewidth=1.0, alpha=0.6)
    full = np.broadcast_to(np.asarray(filled, dtype=bool), x.shape)
    for shown, face in ((full, colour), (~full, "white")):
        if shown.any():  # an unclipped line without points would claim the page's corner
            ax.plot(
                x[shown],
                y[shown],
                linestyle="none",
                marker=marker,
                markersize=4.5,
                color=face,
                markeredgecolor=colour,
                markeredgewidth=0.9,
                zorder=3,
                clip_on=False,
            )


def heat(
    ax: Axes,
    wide: pd.DataFrame,
    *,
    vmin: float,
    vmax: float,
    cmap: Any = None,
    xticks: Any = None,
    up: bool = True,
) -> ScalarMappable:
    """Draw a heat map of a table with numbered rows, the first at the bottom if `up`."""
    cmap = theme.sequential() if cmap is None else cmap
    sns.heatmap(
        wide.astype(float),
        ax=ax,
        vmin=vmin,
        vmax=vmax,
        cmap=cmap,
        cbar=False,
        rasterized=True,
        xticklabels=False,
        yticklabels=False if up else list(wide.index),
    )
    ax.grid(visible=False)
    ax.set(xlabel="", ylabel="")
    if up:
        ax.invert_yaxis()
        every = max(1, -(-len(wide) // TICKS))
        rows = range(0, len(wide), every)
        ax.set_yticks([r + 0.5 for r in rows], [f"{wide.index[r]:g}" for r in rows], rotation=0)
    if xticks is not None:
        checkpoint_axis(ax, xticks, offset=0.5)
    return ScalarMappable(Normalize(vmin, vmax), cmap)


CIRCLE: dict[str, Any] = {"marker": "o", "linestyle": "none", "clip_on": False}


def best(colour: Any = theme.INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the best layer: a filled circle."""
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    return {**CIRCLE, **edge, "markersize": 4.5 if small else 6, "color": colour, "zorder": 5}


def output(colour: Any = theme.INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the model's output: an open circle."""
    edge = {"markeredgecolor": colour, "markeredgewidth": 1.1}
    return {**CIRCLE, **edge, "markersize": 4 if small else 5, "color": "white", "zorder": 4}


def entry(label: str, **style: Any) -> Line2D:
    """A legend entry."""
    return Line2D([], [], label=label, **({"color": theme.INK} | style))


def zero(ax: Axes) -> None:
    """Draw a line at 0."""
    ax.axhline(0, color=theme.GREY, linewidth=0.7, zorder=1)


def depth_axis(ax: Axes) -> None:
    """Make the x-axis depth in per cent, from the embedding output to the last layer."""
    ax.set_xlim(-0.03, 1.03)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    ax.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))


DEPTH = "Depth (% of layers)"


def depth_bar(grid: Facets) -> None:
    """Add a colour bar of depth."""
    bar = grid.bar(ScalarMappable(Normalize(0, 1), theme.sequential()), DEPTH, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0", "50", "100"])


def checkpoint_axis(ax: Axes, names: Sequence[str], *, offset: float = 0.0) -> None:
    """Space checkpoints evenly on the x-axis; name at most `TICKS`, the last always."""
    every = max(1, -(-len(names) // TICKS))
    shown = list(range(len(names) - 1, -1, -every))[::-1]
    ax.set_xticks([i + offset for i in shown], [step_name(names[i]) for i in shown], rotation=0)
    ax.set_xlim(-0.5 + offset, len(names) - 0.5 + offset)


def step_name(name: str) -> str:
    """A checkpoint on an axis: its step if it has one."""
    step = step_of(name)
    if step is None:
        return wrapped(name, 9)
    return f"{step // 1000}k" if step >= 1000 and step % 1000 == 0 else f"{step:,}"


def step_label(names: Sequence[str]) -> str:
    """Label of an axis of checkpoints."""
    return "Training step" if all(step_of(n) is not None for n in names) else "Checkpoint"


def metric_axis(part: pd.DataFrame) -> str:
    """Label of the axis of a panel's metric or score."""
    alphas, normals = part["alpha"].unique(), part["normalization"].unique()
    return axis_label(
        str(part["metric"].iloc[0]),
        alphas[0] if len(alphas) == 1 else None,
        str(normals[0]) if len(normals) == 1 else "raw",
    )


def few_ticks(ax: Axes, n: int = 4) -> None:
    """At most `n` intervals on the x-axis."""
    ax.xaxis.set_major_locator(MaxNLocator(n))
