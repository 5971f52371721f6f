"""A quantity along the sequence: a line for a layer, prompts longer from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.cm import ScalarMappable

from layerwise.errors import LayerwiseError
from layerwise.figures import frames, panels, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.findings import parts_of
from layerwise.figures.frames import Rows
from layerwise.figures.given import Given
from layerwise.figures.labels import counted, listing, metric_label, metric_unit, span

Floats = npt.NDArray[np.float64]

MOST = 0.5  # of the prompts: so many have to be long enough for a point
LINES = 6  # layers drawn, evenly spaced; the table has all


def draw(given: Given) -> Drawn:
    """Draw the mean over prompts by number of tokens, a line for some layers.

    Its table ``positions`` is from `layerwise.metrics.sequence`.

    Returns
    -------
    Drawn
        Its table has a row per layer and number of tokens: mean with its 95 % interval, quartiles
        over prompts, prompts that are long enough.

    Raises
    ------
    LayerwiseError
        If a model that the study names has none of it, not being causal.
    """
    table = given.tables["positions"]
    models = given.study.models or map(str, table["model"].unique())
    rows = frames.rows(given.study, given.order, metrics=table)
    lacking = sorted(set(models) - set(rows.table["model"]))
    if lacking and rows.study.models:
        raise LayerwiseError(
            f"{listing(lacking)} has no {rows.metrics[0].metric}: its tokens see those after "
            "them, so that no prefix can be told from the whole prompt; take it out of `models`."
        )
    if lacking:
        told = f"{listing(lacking)}, in which tokens see those after them"
        rows = replace(rows, left_out=(*rows.left_out, told))
    full = rows.table.groupby(["model", "revision", "corpus"])["n"].transform("max")
    rows = replace(rows, table=rows.table[rows.table["n"] >= MOST * full])
    grid = panels.grid(rows, panel_height=2.2)
    colours, norm = style.depth_colours()
    for panel in grid.panels:
        _lines(panel, colours)
        logarithmic = rows.metrics[int(panels.y_of(panel, rows)) - 1].metric == "token_norm"
        if logarithmic:
            panel.axis.set_yscale("log")
        panel.axis.set_xscale("log", base=2)
        panel.axis.xaxis.set_major_formatter("{x:g}")
        panel.axis.set_xlabel("Tokens t" if panel.bottom else "")
        if panel.left or "y" in grid.columns:
            panel.axis.set_ylabel(panels.label_of(panel, rows))
        panels.head(grid, panel, rows)
    panels.one_scale(grid, rows)
    bar = grid.figure.colorbar(
        ScalarMappable(norm, colours), ax=grid.axes, location="right", aspect=25, pad=0.015,
        ticks=[0, 0.5, 1],
    )  # fmt: skip
    bar.set_label("Depth of the layer (%)")
    bar.ax.set_yticklabels(["0", "50", "100"])
    bar.ax.minorticks_off()
    facts = _facts(rows)
    title = _title(facts, rows)
    n = span(rows.table["n"].tolist())
    corpora = listing([c for c in rows.values("corpus") if c])
    style.header(
        grid.figure, title,
        f"Mean over the prompts of {corpora} that are long enough ({n}); a line for a layer. "
        "Bands: from the first to the third quartile over prompts.",
    )  # fmt: skip
    said = "".join(f" Left out: {name}." for name in rows.left_out)
    names = listing([metric_label(m.metric) for m in rows.metrics])
    caption = (
        f"{names} by the number of tokens t, at up to {LINES + 1} layers from the embedding "
        f"output to the last, on {n} prompts of {corpora}. All numbers of tokens come from one "
        "pass of a causal model. A prompt takes part up to its own length, so that points to the "
        "right are of the longer prompts alone; the last is where half of them are long enough. "
        "Bands are the middle half of the prompts; the "
        f"table has 95 % intervals of the mean and all layers.{said} {_told(facts)}"
    )
    return Drawn(grid.figure, rows.table.drop(columns=["prompt_id"], errors="ignore"), title,
                 caption, facts)  # fmt: skip


def _lines(panel: panels.Panel, colours: Any) -> None:
    layers = np.sort(panel.table["layer"].unique())
    shown = layers[np.unique(np.linspace(0, len(layers) - 1, LINES + 1).round().astype(int))]
    for layer in shown:
        line = panel.table[panel.table["layer"] == layer].sort_values("position")
        colour = colours(line["depth"].iloc[0])
        panel.axis.fill_between(
            line["position"], line["quartile_1"], line["quartile_3"], color=colour, alpha=0.12,
            linewidth=0,
        )  # fmt: skip
        panel.axis.plot(
            line["position"], line["value"], color=colour, marker="o", markersize=2, linewidth=1.4
        )


def _facts(rows: Rows) -> dict[str, Any]:
    found = []
    keys = ["revision", "reading", "y"]
    each = [
        (name, key, mine)
        for name, part in parts_of(rows.table, rows, "position")
        for key, mine in part.groupby(keys, sort=False)
    ]
    for model, (revision, reading, y), part in each:
        wide = part.pivot(index="layer", columns="position", values="value")
        layers, positions = ([int(v) for v in axis] for axis in (wide.index, wide.columns))
        values = wide.to_numpy(dtype=float)
        slopes = _slopes(values, positions)
        flat, steep = int(slopes.argmin()), int(slopes.argmax())
        top = np.unravel_index(int(np.nanargmax(values)), values.shape)
        found.append(
            {
                "model": model, "revision": str(revision), "reading": str(reading),
                "metric": rows.metrics[int(str(y)) - 1].metric, "longest": positions[-1],
                "flattest_layer": layers[flat], "flattest": float(slopes[flat]),
                "steepest_layer": layers[steep], "steepest": float(slopes[steep]),
                "last_layer": layers[-1], "largest": float(values[top]),
                "largest_layer": layers[top[0]], "largest_position": positions[top[1]],
            }
        )  # fmt: skip
    return {"panels": found}


def _slopes(values: Floats, positions: Sequence[int]) -> Floats:
    """Least squares slope of each layer over log2 t."""
    steps = np.log2(np.asarray(positions, dtype=float))
    steps -= steps.mean()
    return np.asarray(values @ steps / np.square(steps).sum())


def _title(facts: dict[str, Any], rows: Rows) -> str:
    first = rows.metrics[0].metric
    mine = [f for f in facts["panels"] if f["metric"] == first]
    mine = [f for f in mine if f["reading"] == mine[0]["reading"]]
    if first == "token_norm":
        told = [f"token {f['largest_position']} of {f['model']} (layer {f['largest_layer']})"
                for f in mine]  # fmt: skip
        return f"The largest mean norms are those of {listing(told)}"
    unit = metric_unit(first, rows.metrics[0].normalization or "raw")
    told = [
        f"by {_signed(f['flattest'])} (layer {f['flattest_layer']}) to {_signed(f['steepest'])}"
        f"{f' {unit}' if unit else ''} (layer {f['steepest_layer']}) in {f['model']}"
        for f in mine
    ]
    return f"Each doubling of the prompt changes its entropy {listing(told)}"


def _told(facts: dict[str, Any]) -> str:
    entropies = [f for f in facts["panels"] if f["metric"] == "prefix_entropy"]
    if not entropies:
        return ""
    said = "; ".join(
        f"{f['model']} ({f['reading']}): layer {f['flattest_layer']} least ({f['flattest']:.2f}), "
        f"layer {f['steepest_layer']} most ({f['steepest']:.2f})"
        for f in entropies
    )
    return (
        f"Growth per doubling of t, least squares over {counted(len(entropies), 'panel')}: {said}."
    )


def _signed(value: float) -> str:
    """With a sign; what rounds to nothing has that of what is above it."""
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")
