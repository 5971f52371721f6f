"""How alike layers are: CKA and RSA between all pairs of layers of models and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from scipy import stats

from layerwise.figures import over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.given import Given
from layerwise.figures.labels import TOKENS, listing, reading_label, span

SHOWN = {"cka_debiased": "Debiased CKA", "rsa": "RSA (Spearman)"}
FEW = 3  # candidates that a title names
PAIR = ["model", "revision", "other_model", "other_revision"]


def draw(given: Given) -> Drawn:
    """Draw a heat map for each pair of points and reading: CKA above, RSA below.

    Returns
    -------
    Drawn
        Its table is that of `layerwise.similarity.table` with 95 % intervals.
    """
    order = given.order
    table = with_intervals(given.tables["similarities"])
    pairs = [tuple(map(str, p)) for p in table[PAIR].drop_duplicates().to_numpy()]
    readings = [t for t in TOKENS if t in set(table["tokens"])]
    keys = [(pair, reading) for pair in pairs for reading in readings]
    columns = min(style.COLUMNS, len(keys))
    blocks = -(-len(keys) // columns)
    figure, axes = style.grid(2 * blocks, columns, panel_height=2.15)
    for axis in axes.flat:
        axis.set_visible(False)
    several = table[PAIR[:2]].drop_duplicates().groupby("model").size().max() > 1
    for k, (pair, reading) in enumerate(keys):
        block, column = divmod(k, columns)
        for r, measure in enumerate(SHOWN):
            axis = axes[2 * block + r, column]
            axis.set_visible(True)
            part = _part(table, pair, reading, measure)
            wide = part.pivot(index="layer", columns="other_layer", values="value")
            image = axis.imshow(
                np.ma.masked_invalid(wide.to_numpy(dtype=float)), origin="lower", aspect="auto",
                cmap=style.SEQUENTIAL, vmin=0, vmax=1, interpolation="nearest",
            )  # fmt: skip
            axis.grid(visible=False)
            for ticks in (axis.xaxis, axis.yaxis):
                ticks.set_major_locator(MaxNLocator(5, integer=True))
            one, other = _name(pair[:2], several), _name(pair[2:], several)
            if r == 0:
                notes = [pair[1]] if several and one == other else []
                notes += (
                    [] if one == other else [f"{one.removeprefix(pair[0])} with {other}".strip()]
                )
                notes += [reading_label(reading)] if len(readings) > 1 else []
                over_prompts.head(axis, pair[0], notes, order.models)
            axis.set_ylabel(f"Layer of {one}" if one != other else "Layer")
            axis.yaxis.label.set_size(7.5)
            if r == 1:
                axis.set_xlabel(f"Layer of {other}" if one != other else "Layer", fontsize=7.5)
            axis.annotate(
                SHOWN[measure], (0.03, 0.95), xycoords="axes fraction", fontsize=6.5, va="top",
                bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5},
            )  # fmt: skip
    bar = figure.colorbar(image, ax=axes, location="right", aspect=25, pad=0.01)
    bar.set_label("Similarity (0 or less: unrelated)")
    facts = _facts(table, pairs, readings)
    title = _title(facts, readings)
    n, corpus = span(table["n"].tolist()), listing(sorted(table["corpus"].unique()))
    style.header(
        figure, title,
        f"Every layer with every layer, mean-pooled embeddings of the same {n} prompts of "
        f"{corpus}.",
    )  # fmt: skip
    caption = (
        "Debiased linear CKA (above) and RSA (below; Spearman correlation of the dissimilarities "
        f"of all pairs of prompts) of the pooled embeddings of {n} prompts of {corpus}, of every "
        "layer with every layer (0 is the embedding output); a panel for each model or pair and "
        "reading. The table also holds the plain, biased CKA. Intervals are jackknives over "
        "prompts; where the title names one step of many, its interval is widened for their "
        f"number. {' '.join(_sentences(facts, readings))}"
    )
    return Drawn(figure, table, title, caption, facts)


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """The table of similarities with 95 % intervals, within -1 and 1."""
    margin = style.Z95 * table["stderr"].astype(float)
    ends = {"low": table["value"] - margin, "high": table["value"] + margin}
    return table.assign(**{k: v.clip(-1, 1) for k, v in ends.items()})


def _part(table: pd.DataFrame, pair: Any, reading: str, measure: str) -> pd.DataFrame:
    kept = (table["tokens"] == reading) & (table["measure"] == measure)
    for column, value in zip(PAIR, pair, strict=True):
        kept &= table[column] == value
    return table[kept]


def _name(point: Any, several: bool) -> str:
    return " ".join(point) if several else str(point[0])


def _facts(table: pd.DataFrame, pairs: list[Any], readings: list[str]) -> dict[str, Any]:
    found = []
    for pair in pairs:
        for reading in readings:
            part = _part(table, pair, reading, "cka_debiased")
            own = pair[:2] == pair[2:]
            # Neighbours; of two models the same layer, or where they have other layers the pair
            # that is most alike.
            like = part["layer"].max() == part["other_layer"].max()
            chosen = part if not like else part[part["other_layer"] - part["layer"] == int(own)]
            chosen = chosen.sort_values("value", ascending=like)
            if chosen.empty:
                continue
            # Widened for the choice of one step among many.
            z = float(stats.norm.isf(0.025 / len(chosen)))
            low, high = (chosen["value"] + sign * z * chosen["stderr"] for sign in (-1, 1))
            found.append(
                {
                    "model": pair[0], "revision": pair[1], "other_model": pair[2],
                    "other_revision": pair[3], "reading": reading, "own": own,
                    "layer": int(chosen["layer"].iloc[0]),
                    "value": float(chosen["value"].iloc[0]),
                    "low": float(max(low.iloc[0], -1)), "high": float(min(high.iloc[0], 1)),
                    "candidates": sorted(int(v) for v in chosen.loc[low <= high.iloc[0], "layer"]),
                    "same_depth": bool(like), "other_layer": int(chosen["other_layer"].iloc[0]),
                    "of": len(chosen),
                    "highest": float(chosen["value"].iloc[-1]),
                }
            )  # fmt: skip
    return {"pairs": found}


def _interval(f: Mapping[str, Any]) -> str:
    ends = (f"{f[k]:.2f}".replace("-", "−") for k in ("value", "low", "high"))
    return "CKA {}, {} to {}".format(*ends)


def _steps(f: Mapping[str, Any]) -> str:
    """The steps from layer to layer that may be the largest: all, if they are few."""
    if len(f["candidates"]) > FEW:
        return f"one of {len(f['candidates'])} steps of {f['of']}"
    return " or ".join(f"layers {n} and {n + 1}" for n in f["candidates"])


def _layers(f: Mapping[str, Any]) -> str:
    if len(f["candidates"]) > FEW:
        return f"one of {len(f['candidates'])} layers of {f['of']}"
    return "layer " + " or ".join(map(str, f["candidates"]))


def _most(f: Mapping[str, Any]) -> str:
    return (
        f"Most alike of {f['model']} and {f['other_model']} are layer {f['layer']} and layer "
        f"{f['other_layer']} ({_interval(f)})"
    )


def _sentences(facts: Mapping[str, Any], readings: list[str]) -> list[str]:
    said = []
    for f in facts["pairs"]:
        how = f" {reading_label(f['reading'], sentence=True)}" if len(readings) > 1 else ""
        where = f"{f['model']} at {f['revision']}{how}"
        if f["own"]:
            said.append(f"Least alike of neighbours in {where}: {_steps(f)} ({_interval(f)}).")
        elif not f["same_depth"]:
            said.append(f"{_most(f)}{how}.")
        else:
            said.append(
                f"The same layer of {where} and of {f['other_model']} at {f['other_revision']}: "
                f"least alike at {_layers(f)} ({_interval(f)}), most with CKA {f['highest']:.2f}."
            )
    return said


def _title(facts: Mapping[str, Any], readings: list[str]) -> str:
    cross = [f for f in facts["pairs"] if not f["own"]]
    if cross:
        # The first point against the last, on the last reading.
        f = [c for c in cross if (c["model"], c["revision"]) == (
            cross[0]["model"], cross[0]["revision"])][-1]  # fmt: skip
        how = f" ({reading_label(f['reading'], sentence=True)})" if len(readings) > 1 else ""
        if not f["same_depth"]:
            return f"{_most(f)}{how}"
        same = f["model"] == f["other_model"]
        other = f["other_revision"] if same else f["other_model"]
        one = f"{f['model']} at {f['revision']}" if same else f["model"]
        pair = f"Layer by layer, {one} and {other} are least alike"
        return f"{pair} at {_layers(f)}: {_interval(f)}{how}"
    told = []
    for model in dict.fromkeys(f["model"] for f in facts["pairs"]):
        mine = [f for f in facts["pairs"] if f["model"] == model]
        each = [
            f"{_steps(f)} "
            + (f"{reading_label(f['reading'], sentence=True)} " if len(readings) > 1 else "")
            + f"({_interval(f)})"
            for f in mine
        ]
        told.append(f"in {model} at {listing(each)}")
    return f"Neighbouring layers are least alike {listing(told)}"
