"""Metrics against the number of prompts: are there enough?"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from layerwise.errors import LayerwiseError
from layerwise.figures import labels, style
from layerwise.figures.drawn import Drawn
from layerwise.metrics.sample_size import change_by_doubling

COLUMNS = 4
PANEL = 1.8  # inches
# A change by this much when the prompts are doubled is a few per cent: enough of them.
SETTLED = 0.03


def draw(table: pd.DataFrame, protocol: str, tokens: str, layer: int, alpha: float = 1.0) -> Drawn:
    """Draw a panel a metric: its value on random subsets, one line a random order.

    Parameters
    ----------
    table : DataFrame
        From `layerwise.metrics.sample_size.against_n_by_layer`.
    protocol, tokens, layer, alpha
        Which of its rows; metrics without an order are drawn whatever `alpha` is.

    Raises
    ------
    LayerwiseError
        If the table has none of these rows.
    """
    chosen = table[
        (table["protocol"] == protocol)
        & (table["tokens"] == tokens)
        & (table["layer"] == layer)
        & (table["alpha"].isna() | (table["alpha"] == alpha))
    ]
    metrics = list(dict.fromkeys(chosen["metric"]))
    if not metrics:
        raise LayerwiseError(
            f"There is nothing to draw for protocol {protocol!r}, tokens {tokens!r}, layer "
            f"{layer}: the table has layers {sorted(map(int, table['layer'].unique()))}."
        )
    change = change_by_doubling(chosen).set_index("metric")["change"]
    rows = math.ceil(len(metrics) / COLUMNS)
    figure, panels = style.grid(
        rows, min(COLUMNS, len(metrics)), panel_height=1.7, panel_width=PANEL
    )
    for axis in panels.flat[len(metrics) :]:
        axis.set_visible(False)
    for place, (metric, axis) in enumerate(zip(metrics, panels.flat, strict=False)):
        _panel(axis, chosen[chosen["metric"] == metric], metric, float(change[metric]))
        if place + COLUMNS >= len(metrics):
            axis.set_xlabel("Prompts")
    total = int(chosen["n"].max())
    moving = change[change.abs() > SETTLED].abs().sort_values(ascending=False)
    title = (
        f"{total:,} prompts settle all {len(metrics)} metrics: none changes by more than "
        f"{SETTLED:.0%} from half of them"
        if moving.empty
        else f"{len(moving)} of {len(metrics)} metrics still change by more than {SETTLED:.0%} "
        f"from {total // 2:,} to {total:,} prompts, most of all "
        f"{labels.in_sentence(str(moving.index[0]))} ({moving.iloc[0]:.0%})"
    )
    repeats = int(chosen["repeat"].max()) + 1
    caption = (
        f"Metrics of layer {layer} on random subsets of {total:,} prompts (protocol {protocol}, "
        f"tokens {tokens}); a line is one of {repeats} random orders of the prompts, the dot all "
        "of them. In each panel: the change from half of the prompts to all."
    )
    style.header(
        figure,
        title,
        f"Layer {layer}; protocol {protocol}; tokens {tokens}. A line is a random order of the "
        f"prompts; per cent: change from half of them to all, coloured above {SETTLED:.0%}.",
    )
    facts = {"n": total, "change": {str(k): float(v) for k, v in change.items()}}
    return Drawn(figure, chosen.reset_index(drop=True), title, caption, facts)


def _panel(axis: Axes, rows: pd.DataFrame, metric: str, change: float) -> None:
    total = rows["n"].max()
    whole = float(rows.loc[rows["n"] == total, "value"].mean())
    colour = style.PALETTE[0]
    for _, line in rows[rows["n"] < total].groupby("repeat"):
        ordered = line.sort_values("n")
        axis.plot([*ordered["n"], total], [*ordered["value"], whole], color=colour, linewidth=0.7)
    axis.plot([total], [whole], "o", color=colour, markersize=4, clip_on=False)
    axis.set_xscale("log", base=2)
    sizes = np.sort(rows["n"].unique())
    axis.set_xticks(sizes[:: max(1, math.ceil(len(sizes) / 4))][-4:])
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.minorticks_off()
    settled = abs(change) <= SETTLED
    percent = f"{100 * change:+.0f} %".replace("-", "−") if round(100 * change) else "0 %"
    name = style.in_lines(labels.metric_label(metric), 62 * PANEL, 7.5, "bold")
    axis.set_title(
        "\n".join([*name, percent]),
        fontsize=7.5,
        color=style.INK if settled else style.PALETTE[1],
        loc="left",
    )
