"""Where prompts fall into two groups, and what tells the groups apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.order import Order
from layerwise.corpora.properties import LABELS, properties
from layerwise.figures import marks, over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    axis_label,
    counted,
    in_sentence,
    listing,
    metric_label,
    p_value,
    reading_label,
)
from layerwise.statistics.corrections import holm
from layerwise.statistics.groups import dip_p, effect, split

PROPERTIES = {
    "n_tokens": "number of tokens", **LABELS, "surprisal": "surprisal to the model",
    "sink": "entropy the first token takes",
}  # fmt: skip
TOLD = 3  # properties that a title names
BINS = 36


def draw(given: Given) -> Drawn:
    """Draw the groups at the layer of each panel that splits most, and what tells them apart.

    Returns
    -------
    Drawn
        Its table has a row per panel and layer (``what`` = ``dip``: Hartigan's dip, p, p after
        Holm's correction over all layers of the study, size and mean of the two groups where it
        rejects) and, of the panel's most split layer, one per property: Cliff's delta of the upper
        against the lower group with 95 % interval, p, and p after Holm's correction over all
        properties and panels.
    """
    order = given.order
    rows = given.prompts()
    texts = given.tables["texts"]
    known = properties(list(texts["text"])).assign(prompt_id=texts["prompt_id"].to_numpy())
    of_text = known.set_index("prompt_id")
    cubes = {
        (a["model"], a["revision"], a["reading"]): part for a, part in over_prompts.curves(rows)
    }
    dips = pd.concat([_dips(part, key) for key, part in cubes.items()], ignore_index=True)
    dips["p_holm"] = holm(dips["p"])
    dips["passes"] = dips["p_holm"] < over_prompts.LEVEL
    effects, groups = [], {}
    for key, part in cubes.items():
        mine = dips[_is(dips, key)].dropna(subset=["value"])
        if mine.empty:
            continue
        most = mine.iloc[int(mine["value"].argmax())]
        layer = int(most["layer"])
        at = part[part["layer"] == layer].set_index("prompt_id")
        values = at["value"].to_numpy(dtype=float)
        upper = split(values) if most["passes"] else np.zeros(len(values), dtype=bool)
        groups[key] = (layer, values, upper, float(most["p_holm"]))
        if not most["passes"]:
            continue
        have = of_text.reindex(at.index).assign(n_tokens=at["n_tokens"])
        without = cubes.get((key[0], key[1], "drop_first")) if key[2] == "all" else None
        if without is not None:
            other = without[without["layer"] == layer].set_index("prompt_id")["value"]
            have["sink"] = other.reindex(at.index) - at["value"]
        own = _of_prompts(given.tables["surprisals"], *key[:2])
        if len(own):
            have["surprisal"] = own.reindex(at.index)
        for name in PROPERTIES:
            if name in have:
                there = have[name].notna().to_numpy()
                one = effect(have.loc[there, name], upper[there])
                if np.isfinite(one.delta):
                    effects.append(
                        {**_about(part, key), "what": name, "layer": layer,
                         "depth": float(at["depth"].iloc[0]), "value": one.delta,
                         "low": one.low, "high": one.high, "p": one.p, "n": int(there.sum())}
                    )  # fmt: skip
    found = pd.DataFrame(effects)
    if len(found):
        found["p_holm"] = holm(found["p"])
        found["passes"] = found["p_holm"] < over_prompts.LEVEL
    dips = _sizes(dips, cubes)
    table = pd.concat([dips, found], ignore_index=True) if len(found) else dips
    figure = _figure(groups, found, rows, order)
    facts = _facts(dips, found, groups)
    label = in_sentence(rows.metrics[0].metric)
    title = _title(facts, metric_label(rows.metrics[0].metric), rows)
    n = ", ".join(dict.fromkeys(str(int(v)) for v in dips["n"]))
    corpus = listing([c for c in rows.values("corpus") if c])
    style.header(
        figure, title,
        f"Prompts by {label} at each panel’s most split layer ({n} prompts of {corpus})"
        + (", and how far the upper group lies above the lower in what the prompts are like "
           "(Cliff’s delta, 95 %)." if len(found) else "."),
    )  # fmt: skip
    caption = (
        f"{metric_label(rows.metrics[0].metric)} of {n} prompts of {corpus}, at the layer of each "
        "panel where Hartigan's dip is largest, with p after Holm's correction over all layers of "
        "all panels; where that rejects a single hump, colours are two components of a mixture "
        "of normals. Below, Cliff's delta between the groups (0: "
        "alike, ± 1: apart without exception) with DeLong's interval; filled where the "
        "Brunner-Munzel test passes Holm's correction over all properties and panels. Properties "
        "are read off the text; what the first token takes is of the same entropies as the groups "
        f"and so no independent property. {_surprisal_said(given.tables['surprisals'], cubes)} "
        f"{_said(facts, rows)} What goes with the groups need not make them."
    )
    return Drawn(figure, table, title, caption, facts)


def _of_prompts(surprisals: pd.DataFrame, model: str, revision: str) -> pd.Series[float]:
    """The surprisal of each prompt to a model; empty where it predicts no next token."""
    mine = (surprisals["model"] == model) & (surprisals["revision"] == revision)
    found: pd.Series[float] = surprisals[mine].set_index("prompt_id")["surprisal"]
    return found


def _surprisal_said(surprisals: pd.DataFrame, cubes: Mapping[Any, pd.DataFrame]) -> str:
    there = set(surprisals["model"])
    lacking = list(dict.fromkeys(key[0] for key in cubes if key[0] not in there))
    said = "Surprisal is to the model itself, in nats a token, the first token left out"
    which = "predicts" if len(lacking) == 1 else "predict"
    return f"{said}{f'; {listing(lacking)} {which} no next token' if lacking else ''}."


def _about(part: pd.DataFrame, key: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "model": key[0], "revision": key[1], "reading": key[2],
        "corpus": str(part["corpus"].iloc[0]), "metric": str(part["quantity"].iloc[0]),
    }  # fmt: skip


def _is(table: pd.DataFrame, key: tuple[str, str, str]) -> pd.Series[bool]:
    return (
        (table["model"] == key[0]) & (table["revision"] == key[1]) & (table["reading"] == key[2])
    )


def _dips(part: pd.DataFrame, key: tuple[str, str, str]) -> pd.DataFrame:
    found = []
    for layer in sorted(part["layer"].unique()):
        at = part[part["layer"] == layer]
        dip, p = dip_p(at["value"].to_numpy(dtype=float))
        found.append(
            {**_about(part, key), "what": "dip", "layer": int(layer),
             "depth": float(at["depth"].iloc[0]), "value": dip, "p": p, "n": len(at)}
        )  # fmt: skip
    return pd.DataFrame(found)


def _sizes(dips: pd.DataFrame, cubes: Mapping[Any, pd.DataFrame]) -> pd.DataFrame:
    """With the two groups of each layer where the test rejects."""
    found = []
    for row in dips.to_dict("records"):
        if row["passes"]:
            part = cubes[row["model"], row["revision"], row["reading"]]
            v = part.loc[part["layer"] == row["layer"], "value"].to_numpy(dtype=float)
            upper = split(v)
            if 0 < upper.sum() < len(v):
                row |= {"upper_share": upper.mean(), "upper_mean": v[upper].mean(),
                        "lower_mean": v[~upper].mean()}  # fmt: skip
        found.append(row)
    return pd.DataFrame(found)


def _figure(groups: Mapping[Any, Any], found: pd.DataFrame,
            rows: Rows, order: Order) -> Any:  # fmt: skip
    keys = list(groups)
    n_columns = min(style.COLUMNS, len(keys))
    blocks = -(-len(keys) // n_columns)
    heights = [1.5, 2.6] if len(found) else [1.9]
    figure, axes = style.grid(
        len(heights) * blocks, n_columns, panel_height=float(np.mean(heights)),
        gridspec_kw={"height_ratios": heights * blocks},
    )  # fmt: skip
    for axis in axes.flat:
        axis.set_visible(False)
    several = len({k[:2] for k in keys}) > len({k[0] for k in keys})
    label = axis_label(
        rows.metrics[0].metric, rows.metrics[0].alpha, rows.metrics[0].normalization or "raw"
    )
    for i, key in enumerate(keys):
        block, c = divmod(i, n_columns)
        top = axes[len(heights) * block, c]
        top.set_visible(True)
        colour = style.colour_of(key[0], order.models)
        notes = [key[1] if several else "", over_prompts.reading_note(rows, key[2])]
        layer, values, upper, p = groups[key]
        edges = np.linspace(values.min(), values.max(), BINS + 1)
        top.hist([values[~upper], values[upper]], bins=edges, stacked=True,
                 color=[style.FAINT, colour])  # fmt: skip
        notes = [", ".join(n for n in notes if n), f"layer {layer}, {p_value(p)}"]
        over_prompts.head(top, key[0], notes, order.models)
        top.set_xlabel(label, fontsize=7.5)
        if c == 0:
            top.set_ylabel("Prompts")
        if not upper.any():
            continue
        axis = axes[len(heights) * block + 1, c]
        axis.set_visible(True)
        mine = found[_is(found, key)]
        names = [p for p in PROPERTIES if p in set(found["what"])]
        axis.axvline(0, color=style.GREY, linewidth=0.7, zorder=1)
        for row in mine.to_dict("records"):
            y = names.index(row["what"])
            axis.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=1)
            axis.plot([row["value"]], [y], marker="o", markersize=4, color=colour,
                      markerfacecolor=colour if row["passes"] else "white")  # fmt: skip
        axis.set_yticks(range(len(names)), [PROPERTIES[p] for p in names])
        axis.tick_params(labelleft=c == 0)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlim(-1.05, 1.05)
        axis.set_xlabel("Cliff’s delta, upper less lower group", fontsize=7.5)
    if len(found):
        marks.legend(
            figure,
            [Line2D([], [], linestyle="none", marker="s", markersize=5, color=style.FAINT,
                    label="lower group"),
             Line2D([], [], linestyle="none", marker="s", markersize=5, color=style.INK,
                    label="upper group (in the model’s colour)"),
             Line2D([], [], linestyle="none", marker="o", markersize=4, color=style.INK,
                    label="told apart (Holm-corrected p < .05)")],
        )  # fmt: skip
    return figure


def _facts(dips: pd.DataFrame, found: pd.DataFrame, groups: Mapping[Any, Any]) -> dict[str, Any]:
    said = []
    for names, part in dips.groupby(["model", "revision", "reading"], sort=False):
        key = (str(names[0]), str(names[1]), str(names[2]))
        fact: dict[str, Any] = {
            "model": key[0], "revision": key[1], "reading": key[2],
            "layers": [int(v) for v in part.loc[part["passes"], "layer"]], "of": len(part),
            "apart": [],
        }  # fmt: skip
        if key in groups and len(found):
            mine = found[_is(found, key) & found["passes"]].copy()
            mine = mine.reindex(mine["value"].abs().sort_values(ascending=False).index)
            fact["layer"] = groups[key][0]
            fact["apart"] = [
                {"what": str(r["what"]), **{k: float(r[k]) for k in ("value", "low", "high")}}
                for r in mine.to_dict("records")
            ]
        said.append(fact)
    return {"panels": said}


def _title(facts: Mapping[str, Any], label: str, rows: Rows) -> str:
    split_up = [f for f in facts["panels"] if f["layers"]]
    if not split_up:
        return f"{label} splits prompts into two groups in no layer that passes a test"
    several = len(rows.values("reading")) > 1
    checkpoints = len({(f["model"], f["revision"]) for f in split_up}) > len(
        {f["model"] for f in split_up}
    )
    f = max(split_up, key=lambda f: len(f["layers"]))
    where = f["model"] + (f" at {f['revision']}" if checkpoints else "")
    where += f" {reading_label(f['reading'], sentence=True)}" if several else ""
    apart = [a for a in f["apart"] if a["what"] != "sink"][:TOLD]
    told = (
        f"told apart by {listing([PROPERTIES[a['what']] for a in apart])}" if apart
        else "told apart by nothing that the text shows"
    )  # fmt: skip
    more = f"; {counted(len(split_up), 'panel')} of {len(facts['panels'])} split"
    return (
        f"{label} splits prompts in {len(f['layers'])} of {f['of']} layers of {where}, {told}"
        + (more if len(facts["panels"]) > 1 else "")
    )


def _said(facts: Mapping[str, Any], rows: Rows) -> str:
    said = []
    for f in facts["panels"]:
        how = f", {reading_label(f['reading'])}" if len(rows.values("reading")) > 1 else ""
        text = (
            f"{f['model']} at {f['revision']}{how}: {len(f['layers'])} of {f['of']} layers split"
        )
        if f["apart"]:
            each = [
                f"{PROPERTIES[a['what']]} "
                + "{:+.2f} ({:.2f} to {:.2f})".format(a["value"], a["low"], a["high"]).replace(
                    "-", "−"
                )
                for a in f["apart"][:4]
            ]
            text += f"; at layer {f['layer']} by {listing(each)}"
        said.append(text + ".")
    return " ".join(said) if len(said) <= 8 else " ".join(s for s in said if "; at" in s)
