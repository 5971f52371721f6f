"""Panels of a figure by the roles of dimensions, with their axes, colour bars and legends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerwise.config.studies import ROLES
from layerwise.errors import LayerwiseError
from layerwise.figures.select import axis_label, value_labels
from layerwise.io.files import replacing
from layerwise.names import step_of
from layerwise.stats import FEW
from layerwise.vocabulary import LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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


WIDTH, HEIGHT = 2.45, 1.9  # of a panel, in inches
LOW = 0.7  # height of a lower panel, as a share
NARROWEST = 5.0  # of a figure
TITLE = 0.35  # height of the figure's title
COLUMNS = 4
TALLEST = 4  # metrics one below the other
BAR = 9  # so many checkpoints get a colour bar in place of a legend
NAMED = {"model", "what", "part"}  # dimensions that have a label even if they have one value
UNNAMED = {"y", "what", "part"}  # dimensions of rows that the labels of their axes explain
Label = str | Mapping[str, str] | Callable[[pd.DataFrame], str]


@dataclass(frozen=True)
class Look:
    """Roles and colours that a plot needs in addition to its table.

    Attributes
    ----------
    roles : mapping of role to dimensions
        Dimensions of rows and columns of panels, of colours and of dashes.
    models : sequence of str
        All models of the config, which fixes their colours.
    ordered : bool
        True if the colours are steps of one quantity.
    ax : Axes, optional
        Axes to draw a single panel on, in place of a new figure.
    copies : collection of str
        Models with the weights of another, which do not count in means over models.
    """

    roles: Mapping[str, Sequence[str]]
    models: Sequence[str]
    ordered: bool = False
    ax: Axes | None = None
    copies: Collection[str] = ()

    def only(self, ordered: bool = False, **roles: Sequence[str]) -> Look:
        """The same look with these roles."""
        return replace(self, roles=roles, ordered=ordered)

    @property
    def sequential(self) -> bool:
        """True if the values of the role ``colour`` have an order."""
        return self.ordered or bool(
            {*self.roles.get("colour", ())} & {"revision", "alpha", *LABELS}
        )


@dataclass(frozen=True)
class Panel:
    """One panel: its axes, its rows of the table and its place."""

    ax: Axes
    table: pd.DataFrame
    row: str
    column: str
    left: bool
    bottom: bool


@dataclass
class Facets:
    """A figure and its panels, row by row.

    Attributes
    ----------
    table : DataFrame
        With a column for each role, see `with_roles`.
    styles, dashes : mapping of label to style
        Colours with markers, and line styles, of the roles ``colour`` and ``dashes``.
    """

    figure: Figure
    panels: list[Panel]
    table: pd.DataFrame
    look: Look
    styles: dict[str, dict[str, Any]]
    dashes: dict[str, Any]

    def row(self, name: str) -> list[Panel]:
        """The panels of one row."""
        return [p for p in self.panels if p.row == name]

    @property
    def many(self) -> bool:
        """True if a colour bar says more than a legend."""
        return self.look.sequential and len(self.styles) >= BAR

    def curves(self, panel: Panel) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
        """Each curve of a panel: its colour, marker and line style, and its rows."""
        for (colour, dash), subset in panel.table.groupby(["colour", "dashes"], observed=True):
            style = self.styles[str(colour)] or {"color": self.colour(panel)}
            yield style | ({"linestyle": self.dashes[str(dash)]} if dash else {}), subset

    def colour(self, panel: Panel) -> str:
        """Colour of a panel's model."""
        return colour_of(str(panel.table["model"].iloc[0]), self.look.models)

    def label(self, x: str = "", y: Label = "", *, share: bool = True) -> Facets:
        """Label the axes; if `share`, panels with equal labels get equal limits.

        The label of y may depend on the row or on a panel's table. Heat maps keep their limits.
        """
        from matplotlib.collections import QuadMesh

        by_row = {p.row: y for p in self.panels} if isinstance(y, str) else y
        labels = [by_row(p.table) if callable(by_row) else by_row[p.row] for p in self.panels]
        alike: dict[str, list[Axes]] = {}
        before: tuple[str, str] | None = None
        for panel, label in zip(self.panels, labels, strict=True):
            ax = panel.ax
            is_heat_map = any(isinstance(c, QuadMesh) for c in ax.collections)
            shared = share and not is_heat_map
            if x == DEPTH and not is_heat_map:
                depth_axis(ax)
            if panel.bottom:
                ax.set_xlabel(x)
            if panel.left or before != (panel.row, label):
                # Beside a panel with the metric's name, the unit is enough.
                named = panel.column and label.startswith(panel.column)
                ax.set_ylabel(
                    fill(label[len(panel.column) :].strip(" ()") if named else label, 24)
                )
            elif shared:
                ax.tick_params(labelleft=False)
            before = panel.row, label
            if shared and ax.has_data():
                alike.setdefault(label, []).append(ax)
        for axes in alike.values():
            low, high = zip(*(ax.get_ylim() for ax in axes), strict=True)
            for ax in axes:
                ax.set_ylim(min(low), max(high))
        return self

    def bar(
        self, mappable: Any, label: str, panels: Sequence[Panel] | None = None, **more: Any
    ) -> Any:
        """Add a colour bar to the right of some panels, by default all, at their first row."""
        panels = panels or self.panels
        tops = [round(p.ax.get_position().y1, 3) for p in panels]
        first = [p.ax for p, top in zip(panels, tops, strict=True) if top == max(tops)]
        lines = {round(p.ax.get_position().y1, 3) for p in self.panels}
        height = self.figure.get_size_inches()[1] / len(lines)
        more |= {"shrink": min(1.0, 2.4 / height), "anchor": (0.0, 1.0)}
        bar = self.figure.colorbar(mappable, ax=first, aspect=22, pad=0.015, **more)
        bar.set_label(fill(label, 26))
        bar.outline.set_visible(False)
        return bar

    def legend(self, handles: Sequence[Line2D] = (), **style: Any) -> Facets:
        """Put one legend below all panels: of the roles (in this style), then the handles."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        shown = [*(entry(n, linestyle=s) for n, s in self.dashes.items() if n), *handles]
        if self.many:
            names = list(self.styles)
            places = spread(len(names), BAR)
            scale = ListedColormap([s["color"] for s in self.styles.values()])
            mappable = ScalarMappable(Normalize(-0.5, len(names) - 0.5), scale)
            what = "Checkpoint" if "revision" in self.look.roles["colour"] else ""
            ticks = [step_name(names[index]) for index in places]
            self.bar(mappable, what).set_ticks(places, labels=ticks)
        else:
            style = {"markersize": 3.5} | style
            shown = [entry(n, **s | style) for n, s in self.styles.items() if n] + shown
        if any(curve.get_marker() == ROUGH for p in self.panels for curve in p.ax.lines):
            rough = dot(marker=ROUGH, markersize=4)
            shown.append(entry(f"n < {FEW}: rough interval", **rough))
        if shown and self.look.ax:
            self.look.ax.legend(handles=shown)
        elif shown:
            widest = max(len(str(h.get_label())) for h in shown)
            width, height = self.figure.get_size_inches()
            columns = max(1, min(len(shown), int(width * 72 // (46 + 4.6 * widest))))
            lines = -(-len(shown) // columns)
            self.figure.set_size_inches(width, height + 0.2 + 0.17 * lines)
            self.figure.legend(handles=shown, loc="outside lower left", ncols=columns)
        return self


def with_roles(table: pd.DataFrame, look: Look) -> tuple[pd.DataFrame, Look]:
    """Add a column for each role that says, in words, which values of its dimensions a row has.

    The columns are ordered categories, in the order in which values first appear. Rows and columns
    of panels change places where there are more than `TALLEST` metrics one below the other.
    """
    metrics = table["y"].nunique() if "y" in table else 0
    if look.roles.get("row") == ("y",) and metrics > TALLEST:
        roles = {**look.roles, "row": look.roles.get("column", ()), "column": ("y",)}
        look = replace(look, roles=roles)
    table = table.copy()
    for role in ROLES:
        dimensions = [
            d
            for d in look.roles.get(role, ())
            if d in table and ((d in NAMED and role != "dashes") or table[d].nunique() > 1)
        ]
        words = [_words(table[d], d) for d in dimensions]
        labels = [" · ".join(filter(None, row)) for row in zip(*words, strict=True)]
        labels = labels or [""] * len(table)
        ranks = [pd.factorize(table[d], use_na_sentinel=False)[0] for d in dimensions[::-1]]
        in_order = [labels[row] for row in (np.lexsort(ranks) if ranks else range(len(table)))]
        table[role] = pd.Categorical(labels, list(dict.fromkeys(in_order)))
    return table, look


def _words(values: pd.Series, dimension: str) -> list[str]:
    """The words for each value of a dimension; empty where there is none."""
    words = value_labels(dimension, values.dropna().astype(str).unique())
    return [words.get(str(value), "") for value in values]


def facets(
    table: pd.DataFrame,
    look: Look,
    *,
    height: float = HEIGHT,
    width: float = WIDTH,
    columns: int = COLUMNS,
    low: str | None = None,
) -> Facets:
    """Make a panel for each row and column of a table; lower ones for rows that end in `low`.

    More columns than fit side by side continue below, all rows again.
    """
    t, look = with_roles(table, look)
    rows, cols = (list(t[role].cat.categories) for role in ("row", "column"))
    parts = dict(iter(t.groupby(["row", "column"], observed=True)))
    n = -(-len(cols) // -(-len(cols) // columns))  # blocks of about the same number of columns
    blocks = [cols[i : i + n] for i in range(0, len(cols), n)]
    lines = [(r, block) for block in blocks for r in rows if any((r, c) in parts for c in block)]
    width = max(width, NARROWEST / n)
    heights = [LOW * height if low and row.endswith(low) else height for row, _ in lines]
    figure, axes = _axes(look, heights, n, n * width + 0.3)
    panels: list[Panel] = []
    for (row, block), line_of_axes in zip(lines, axes, strict=True):
        there = [column for column in block if (row, column) in parts]
        for column, ax in itertools.zip_longest(block, line_of_axes):
            if column not in there:
                ax.set_visible(False)
                continue
            of_column = [r for r in rows if (r, column) in parts]
            left, bottom = column == there[0], row == of_column[-1]
            panel = Panel(ax, parts[row, column], row, column, left, bottom)
            panels.append(panel)
            if row == of_column[0]:
                _name_column(panel, look, int(width * 10))
            in_row = look.roles.get("row", ())
            name = row.rpartition(" · ")[0] if UNNAMED & {*in_row} else row
            if column == there[-1] and len(rows) > 1 and name:
                style = {"rotation": 270, "va": "center", "fontweight": "bold"}
                ax.text(1.03, 0.5, fill(name, 26), transform=ax.transAxes, **style)
    dashes = dict(zip(t["dashes"].cat.categories, itertools.cycle(DASHES), strict=False))
    return Facets(figure, panels, t, look, styles(t, look), dashes)


def _axes(
    look: Look, heights: Sequence[float], n_columns: int, width: float
) -> tuple[Figure, Any]:
    """A figure with a grid of axes; or the one that the caller gave, with its figure.

    Raises
    ------
    LayerwiseError
        If several panels do not fit on the caller's axes.
    """
    if look.ax is None:
        import matplotlib.pyplot as plt
        import seaborn as sns

        grid: dict[str, Any] = {"squeeze": False, "height_ratios": heights}
        size = (width, sum(heights) + TITLE)
        figure, axes = plt.subplots(len(heights), n_columns, figsize=size, **grid)
        figure.tight_layout()  # texts are measured at these widths
        figure.set_layout_engine("constrained")
        sns.despine(figure)
        return figure, axes
    if (n_panels := len(heights) * n_columns) > 1:
        raise LayerwiseError(
            f"This figure has {n_panels} panels and does not fit on one ax: name one "
            "model, metric and token selection, or leave out ax.",
            code="ambiguous",
        )
    figure = look.ax.get_figure(root=True)
    assert figure is not None
    return figure, np.array([[look.ax]])


def _name_column(panel: Panel, look: Look, width: int) -> None:
    """Write the name of a column above its first panel, in the colour of its model."""
    model = str(panel.table["model"].iloc[0]) if "model" in panel.table else ""
    of_model = "model" in look.roles.get("column", ()) and panel.column.startswith(model)
    coloured = of_model and not look.roles.get("colour")
    colour = colour_of(model, look.models) if coloured else INK
    panel.ax.set_title(fill(panel.column, width), color=colour)


def styles(table: pd.DataFrame, look: Look) -> dict[str, dict[str, Any]]:
    """Colours and markers of the role ``colour`` of a table from `with_roles`.

    Models have a colour of their own; checkpoints, alphas and other ordered values are on a scale;
    all else has the palette's colours in turn. Without the role there is one label, the empty one.
    """
    names = [str(n) for n in table["colour"].cat.categories]
    if names == [""]:
        return {"": {}}
    if look.sequential:
        colours = sequential()(np.linspace(0, 1, len(names)))
        return {n: {"color": c, "marker": "o"} for n, c in zip(names, colours, strict=True)}
    by_model = look.roles["colour"][0] == "model"
    of = dict(zip(table["colour"], table["model" if by_model else "colour"], strict=True))
    order = list(look.models) if by_model else names
    return {
        n: {"color": colour_of(of[n], order), "marker": marker_of(of[n], order)} for n in names
    }


def named_rows(panel: Panel, names: Sequence[str], bold: Iterable[str] = ()) -> None:
    """Name the rows of a panel of dots on its y-axis, the first on top."""
    ax = panel.ax
    ax.set_yticks(range(len(names)), names)
    for label in ax.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() in {*bold} else "normal")
    ax.tick_params(axis="y", length=0, labelleft=panel.left)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="x")
    ax.grid(axis="y", visible=False)


def depth_bar(grid: Facets) -> None:
    """Add a colour bar of depth."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    bar = grid.bar(ScalarMappable(Normalize(0, 1), sequential()), DEPTH)
    bar.set_ticks([0, 0.5, 1], labels=["0", "50", "100"])


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
    style = {"color": INK} | style
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
    colour = style.pop("color", INK)
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
    style = {"cbar": False, "rasterized": True, "cmap": sequential()} | scale
    sns.heatmap(wide.astype(float), ax=ax, xticklabels=False, yticklabels=every, **style)
    ax.grid(visible=False)
    ax.set(xlabel="", ylabel="")
    ax.tick_params(axis="y", rotation=0)
    if up:
        ax.invert_yaxis()
    return ax.collections[0]


def dot(**style: Any) -> dict[str, Any]:
    """Style of a dot, or of another marker without a line."""
    return {"marker": "o", "linestyle": "none", "color": INK, "clip_on": False} | style


def best(colour: Any = INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the best layer: a filled circle."""
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    return dot(color=colour, markersize=4.5 if small else 6, zorder=5, **edge)


def output(colour: Any = INK, *, small: bool = False) -> dict[str, Any]:
    """Style of the model's output: an open circle."""
    edge = {"markeredgecolor": colour, "markeredgewidth": 1.1}
    return dot(color="white", markersize=4 if small else 5, zorder=4, **edge)


def entry(label: str, **style: Any) -> Line2D:
    """A legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **({"color": INK} | style))


def zero(ax: Axes) -> None:
    """Draw a line at 0."""
    ax.axhline(0, color=GREY, linewidth=0.7, zorder=1)


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
