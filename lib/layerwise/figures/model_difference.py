"""What tuning (or any other change of a model) does, layer by layer and prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    axis_label,
    counted,
    in_sentence,
    listing,
    reading_label,
    span,
)
from layerwise.figures.layer_similarity import with_intervals
from layerwise.statistics.corrections import holm
from layerwise.statistics.prompts import means

CKA = "cka_debiased"


def draw(given: Given) -> Drawn:
    """Draw each metric's difference from the first model, and CKA with it, by depth.

    Returns
    -------
    Drawn
        Its table has a row per model (checkpoint), reading, metric and layer: mean difference over
        prompts with Student's 95 % interval, p, p after Holm's correction over all these rows,
        whether it passes; the base's mean, and the difference in standard deviations over the
        base's prompts. CKA has rows of its own.

    Raises
    ------
    LayerwiseError
        If a model has another number of layers than the first.
    """
    study, order = given.study, given.order
    rows = given.prompts()
    shown = over_prompts.points(rows)
    if len(shown) < 2:
        raise LayerwiseError(
            f"A study of kind {study.kind} sets models against the first; these tables have "
            f"{shown[0][0]} at {shown[0][1]} alone: name another under `models` or `revisions`."
        )
    base = shown[0]
    table = _differences(rows, base)
    table = pd.concat([table, _similarity(given.tables["similarities"], base, shown[1:], table)],
                      ignore_index=True)  # fmt: skip
    ys = [*rows.values("y"), CKA]
    keys = [(p, r) for p in shown[1:] for r in rows.values("reading")]
    figure, axes = style.grid(len(ys), len(keys), panel_height=1.55, sharex="col")
    for c, ((model, revision), reading) in enumerate(keys):
        for r, y in enumerate(ys):
            axis = axes[r, c]
            part = table[
                (table["model"] == model) & (table["revision"] == revision)
                & (table["reading"] == reading) & (table["y"] == y)
            ]  # fmt: skip
            over_prompts.band(
                axis, part["depth"], part, style.colour_of(model, order.models),
                marked=y != CKA,
            )  # fmt: skip
            if y != CKA:
                axis.axhline(0, color=style.GREY, linewidth=0.7, zorder=1)
            if r == 0:
                at = revision if any(m == base[0] for m, _ in shown[1:]) else ""
                over_prompts.head(
                    axis, model, [at, over_prompts.reading_note(rows, reading)], order.models
                )
            style.depth_axis(axis, label=r == len(ys) - 1)
            if c == 0:
                label = "CKA with the base" if y == CKA else f"Δ {_axis(rows, y)}"
                axis.set_ylabel(marks.broken(label, 20))
    for r, y in enumerate(ys):
        ends = [a.get_ylim() for a in axes[r]]
        low, high = min(e[0] for e in ends), max(e[1] for e in ends)
        for axis in axes[r]:
            axis.set_ylim(*((min(low, -0.05), 1.05) if y == CKA else (low, high)))
            axis.tick_params(labelleft=axis is axes[r, 0])
    marks.legend(
        figure,
        [Line2D([], [], color=style.INK, marker="o", markersize=3.2,
                label="differs from 0 (Holm-corrected p < .05)")],
    )  # fmt: skip
    facts = _facts(table, base, rows)
    title = _title(facts, rows.values("reading"))
    n = span([int(v) for v in table["n"]])
    corpus = listing([c for c in rows.values("corpus") if c])
    name = f"{base[0]} at {base[1]}" if any(m == base[0] for m, _ in shown[1:]) else base[0]
    style.header(
        figure, title,
        f"Each model less {name}, on the same {n} prompts of {corpus}. Bands: 95 % over prompts.",
    )  # fmt: skip
    caption = (
        f"Difference from {name} of {listing([_axis(rows, y) for y in ys[:-1]])}, taken "
        f"prompt by prompt on {n} prompts of {corpus} and averaged, by depth in per cent of the "
        "layers, with Student's 95 % interval over prompts; circles where it differs from 0 after "
        "Holm's correction over all layers, metrics, readings and models. Below, the "
        "debiased CKA of the same layer of both models, with a jackknife interval. "
        f"{_said(facts)} The intervals are over prompts: how far another tuning of the same base "
        "would differ they cannot say."
    )
    return Drawn(figure, table, title, caption, facts)


def _axis(rows: Rows, y: str) -> str:
    one = rows.metric(y)
    assert one is not None
    return axis_label(one.metric, one.alpha, one.normalization or "raw")


def _name(rows: Rows, y: str) -> str:
    """The metric of a y in a sentence, with what tells it from another y of that metric."""
    one = rows.metric(y)
    assert one is not None
    several = sum(m.metric == one.metric for m in rows.metrics) > 1
    return in_sentence(one.metric) + (f" at α = {one.alpha:g}" if several and one.alpha else "")


def _differences(rows: Rows, base: tuple[str, str]) -> pd.DataFrame:
    curves = {
        (a["y"], a["reading"], a["model"], a["revision"]): (part, over_prompts.matrix(part))
        for a, part in over_prompts.curves(rows)
    }
    found = []
    for (y, reading, model, revision), (part, values) in curves.items():
        if (model, revision) == base:
            continue
        reference = curves.get((y, reading, *base))
        if reference is None:
            raise LayerwiseError(
                f"{base[0]} has no {reading_label(reading)}, which {model} is to be compared in; "
                "name others under `tokens`."
            )
        before = reference[1]
        if list(before.columns) != list(values.columns):
            raise LayerwiseError(
                f"{model} has {len(values.columns) - 1} layers and {base[0]} has "
                f"{len(before.columns) - 1}, and this study compares layer by layer; take models "
                "of one architecture, or the kind layer_similarity."
            )
        one, other = over_prompts.together(before, values)
        mean = means(other - one)
        layers = values.columns.to_numpy()
        spread = one.std(axis=0, ddof=1)
        found.append(
            pd.DataFrame(
                {
                    "model": model, "revision": revision, "base": base[0],
                    "base_revision": base[1], "corpus": str(part["corpus"].iloc[0]),
                    "reading": reading, "y": y, "metric": str(part["quantity"].iloc[0]),
                    "layer": layers,
                    "depth": layers / max(1, layers[-1]), "value": mean.value, "low": mean.low,
                    "high": mean.high, "p": mean.p, "base_mean": one.mean(axis=0),
                    "in_sd": np.divide(mean.value, spread, out=np.full(len(layers), np.nan),
                                       where=spread > 0),
                    "n": len(one),
                }
            )
        )  # fmt: skip
    table = pd.concat(found, ignore_index=True)
    table["p_holm"] = holm(table["p"])
    table["passes"] = table["p_holm"] < over_prompts.LEVEL
    return table


def _similarity(
    found: pd.DataFrame, base: tuple[str, str], others: list[tuple[str, str]], like: pd.DataFrame
) -> pd.DataFrame:
    same = found[(found["measure"] == CKA) & (found["layer"] == found["other_layer"])]
    of_base = (same["model"] == base[0]) & (same["revision"] == base[1])
    there = [p in others for p in zip(same["other_model"], same["other_revision"], strict=True)]
    kept = with_intervals(same[of_base & np.array(there, dtype=bool)])
    readings = kept["tokens"].isin(set(like["reading"]))
    return pd.DataFrame(
        {
            "model": kept["other_model"], "revision": kept["other_revision"],
            "base": kept["model"], "base_revision": kept["revision"], "corpus": kept["corpus"],
            "reading": kept["tokens"], "y": CKA, "metric": CKA,
            **{c: kept[c] for c in ("layer", "depth", "value", "low", "high", "n")},
            "passes": False,
        }
    )[readings]  # fmt: skip


def _facts(table: pd.DataFrame, base: tuple[str, str], rows: Rows) -> dict[str, Any]:
    found = []
    keys = ["model", "revision", "reading", "y", "metric"]
    for (model, revision, reading, y, metric), part in table.groupby(keys, sort=False):
        low = part.iloc[int(part["value"].argmin())]
        top = part.iloc[int(part["value"].abs().argmax())]
        found.append(
            {
                "model": model, "revision": revision, "reading": reading, "metric": metric,
                "y": y, "name": "CKA" if metric == CKA else _name(rows, str(y)),
                "changed": int(part["passes"].sum()), "of": len(part),
                "layer": int((low if metric == CKA else top)["layer"]),
                "value": float((low if metric == CKA else top)["value"]),
                "low": float((low if metric == CKA else top)["low"]),
                "high": float((low if metric == CKA else top)["high"]),
            }
        )  # fmt: skip
    return {"base": list(base), "readings": rows.values("reading"), "found": found}


def _title(facts: Mapping[str, Any], readings: list[str]) -> str:
    mine = [f for f in facts["found"] if f["reading"] == readings[0] and f["metric"] != CKA]
    first = mine[0]["y"]
    several = any(f["model"] == facts["base"][0] for f in mine)
    told = [
        f"{f['changed']} of {counted(f['of'], 'layer')} of {f['model']}"
        + (f" at {f['revision']}" if several else "")
        for f in mine
        if f["y"] == first
    ]
    how = f" ({reading_label(readings[0], sentence=True)})" if len(readings) > 1 else ""
    label = mine[0]["name"]
    base = " at ".join(facts["base"]) if several else facts["base"][0]
    if not any(f["changed"] for f in mine if f["y"] == first):
        return f"No evidence that {label} differs from {base}: in {listing(told)}{how}"
    return f"{label[:1].upper()}{label[1:]} differs from {base} in {listing(told)}{how}"


def _said(facts: Mapping[str, Any]) -> str:
    said = []
    for f in facts["found"]:
        number = over_prompts.number
        interval = f"{number(f['value'])}, {number(f['low'])} to {number(f['high'])}"
        how = f", {reading_label(f['reading'])}" if len(facts["readings"]) > 1 else ""
        where = f"{f['model']} at {f['revision']}{how}"
        if f["metric"] == CKA:
            said.append(f"{where}: CKA is lowest at layer {f['layer']} ({interval}).")
        else:
            said.append(
                f"{where}: {f['name']} differs in {f['changed']} of "
                f"{f['of']} layers, most at layer {f['layer']} ({interval})."
            )
    return " ".join(said)
