"""What the curves of a study say: title, subtitle, caption and the numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import STAND_IN, last_layer_of, score_curves
from layerwise.figures import style
from layerwise.figures.frames import Rows, at, combinations, pick_scores
from layerwise.figures.labels import (
    LENS,
    SUBLAYERS,
    TOKENS,
    counted,
    in_sentence,
    listing,
    metric_label,
    metric_unit,
    noun_of,
    of_all_tokens,
    percent,
    reading,
    reading_label,
    signed,
    span,
    value_label,
)
from layerwise.statistics.headlines import count as chance_count
from layerwise.statistics.headlines import told_apart
from layerwise.statistics.tasks import band
from layerwise.statistics.two_curves import difference
from layerwise.statistics.valleys import SHALLOW, of_means
from layerwise.vocabulary import LABELS

ALPHA = 0.05
NEAR = 0.1  # of the depth: what counts as the same place
TOLD = 12  # curves that a caption describes one by one

Finding = tuple[str, str, str, dict[str, Any]]

MARKS = (
    "Filled circles are the layers that the metrics themselves pick (the better end, where the "
    "metric has one; no score is looked at), open circles the last layers."
)


OWN_BANDS = "Bands are the task's own 95 % intervals, a layer at a time."


def chance_said(rows: Rows) -> str:
    """What the dotted line is, and how answers were read, as sentences."""
    lens = rows.scored_rows["chance"].notna().any()
    return f" The dotted line is chance. {LENS}" if lens else ""


def varying(rows: Rows, *, but: Sequence[str] = ("y", "reading")) -> list[str]:
    """The dimensions with a role that have several values."""
    placed = [d for v in rows.roles.values() for d in v if d not in but]
    return [d for d in placed if rows.table[d].nunique() > 1]


def noun(rows: Rows) -> str:
    """What one of several curves is, beside its reading."""
    dimensions = varying(rows)
    if "revision" in dimensions:
        return "checkpoint"
    return noun_of(dimensions[0]) if len(dimensions) == 1 else "curve" if dimensions else "model"


def roles_said(rows: Rows) -> str:
    """Which dimension is what in the figure, as a sentence."""
    words = {"row": "row of panels", "column": "panel", "colour": "colour", "dashes": "dash style"}
    if "y" in rows.roles.get("row", ()):
        words["column"] = "column of panels"
    said = []
    for role, what in words.items():
        shown = [d for d in rows.roles.get(role, ()) if rows.table[d].nunique() > 1]
        names = ["score or metric" if d == "y" and rows.scored else "metric" if d == "y"
                 else noun_of(d) for d in shown]  # fmt: skip
        if names:
            said.append(f"a {what} for each {listing(names)}")
    text = "; ".join(said)
    return f" There is {text}." if text else ""


def output_said(rows: Rows) -> str:
    """What the model's output is, as sentences, wherever something is set against it."""
    table = rows.table[rows.table["output_from"].notna()]
    stood_in = table.loc[table["output_from"] == STAND_IN, "model"].unique()
    text = (
        "The model's output is its last layer as it hands it out, after its last norm, where it "
        "has one."
    )
    if not len(stood_in):
        return text
    of = "" if len(stood_in) == table["model"].nunique() else f" of {listing(sorted(stood_in))}"
    return f"{text} No output{of} was scored; the last layer stands in for it."


def left_out_said(rows: Rows) -> str:
    """What of the tables is not shown, and how many prompts had no value, as sentences."""
    text = "".join(f" Left out: {name}." for name in rows.left_out)
    gaps = int(rows.scored_rows["value"].isna().sum())
    if gaps:
        text += (
            f" {counted(gaps, 'gap')}: {'a layer' if gaps == 1 else 'layers'} at which some task "
            "has no score."
        )
    n = int(rows.table["n_left_out"].max()) if _has(rows.table, "n_left_out") else 0
    return text + (f" Up to {counted(n, 'prompt')} had no value and were left out." if n else "")


def _has(table: pd.DataFrame, column: str) -> bool:
    return column in table and bool(table[column].notna().any())


def _tasks(rows: Rows) -> str:
    numbers = sorted({int(n) for n in rows.table["n_tasks"].dropna()})
    if len(numbers) == 1:
        return counted(numbers[0], "task")
    return f"{numbers[0]}–{numbers[-1]} tasks"


def bands_said(rows: Rows) -> str:
    """What the bands about curves of scores are, as sentences."""
    table = rows.scored_rows
    wide = table[table["band_low"].notna()]
    if not len(wide):
        return f" {OWN_BANDS}" if table["low"].notna().any() else ""
    single = (wide["high"] - wide["low"]).sum()
    times = (wide["band_high"] - wide["band_low"]).sum() / single if single > 0 else 1.0
    n = span(wide["n_sources"].tolist())
    return (
        " Bands are 95 % intervals of each layer by itself over tasks (Student's, after each "
        "task's own mean over layers is taken off, so that they speak of differences between "
        f"layers; tasks of the same texts are one draw: {n} sources). One that holds the whole "
        f"curve at once is {times:.1f} times as wide (band_low and band_high in the table)."
    )


def _prompts(rows: Rows) -> str:
    corpora = [c for c in rows.values("corpus") if c]
    on = listing(corpora) if len(corpora) < 4 else f"{len(corpora)} corpora"
    n = rows.table["n"].dropna()
    # Published tables do not say on how many prompts they are.
    return f"{span(n.tolist())} prompts of {on}" if len(n) and n.max() > 0 else on


def _metrics(rows: Rows) -> str:
    return listing(list(dict.fromkeys(metric_label(m.metric) for m in rows.metrics)))


def _variant(rows: Rows) -> str:
    protocols = [p for p in rows.values("protocol") if p]
    return f", protocol {listing(protocols)}"


def curves_of(table: pd.DataFrame, rows: Rows, y: int = 0) -> Iterable[pd.DataFrame]:
    """The curves of one y, in the order in which they are shown."""
    mine = table[table["y"] == y]
    placed = [d for v in rows.roles.values() for d in v if d != "y"]
    keys = list(dict.fromkeys(["model", "revision", *placed, "reading"]))
    if mine.empty:
        return
    ranks = {d: {v: i for i, v in enumerate(rows.values(d))} for d in keys}
    groups = {tuple(map(str, k)): part for k, part in mine.groupby(keys, dropna=False, sort=False)}
    for key in sorted(groups, key=lambda k: [ranks[d][v] for d, v in zip(keys, k, strict=True)]):
        yield groups[key].sort_values("layer")


def above_all(curve: pd.DataFrame) -> bool:
    """Whether a curve is of scores and the model's output has a better one than every layer."""
    if curve["y"].iloc[0] != 0 or not curve["output_is_best"].iloc[0]:
        return False
    return bool(curve["output_score"].iloc[0] > curve["value"].max())


def best_depths(rows: Rows, dimensions: Sequence[str], key: Sequence[str]) -> list[float]:
    """The depths of the best scores of the curves that have these values; the output's is 1."""
    return [_summary(c)["best_depth"] for c in curves_of(at(rows.table, dimensions, key), rows)]


def _summary(curve: pd.DataFrame) -> dict[str, Any]:
    first, last_layer = curve.iloc[0], last_layer_of(curve)
    output = float(first["output_score"])
    best = curve.iloc[int(np.nanargmax(curve["value"].to_numpy(dtype=float)))]
    of_output = above_all(curve)
    return {
        "model": str(first["model"]),
        "revision": str(first["revision"]),
        "reading": str(first["reading"]),
        "best_layer": last_layer if of_output else int(best["layer"]),
        "best_is_output": bool(first["output_is_best"]),
        "n_layers": int(curve["value"].notna().sum()),
        "last_layer": last_layer,
        "best_depth": 1.0 if of_output else float(best["depth"]),
        "best_score": output if of_output else float(best["value"]),
        "output_score": None if np.isnan(output) else output,
        **{
            name: None if np.isnan(first[name]) else float(first[name])
            for name in ("lead", "lead_low", "lead_high")
        },
    }


def _where(s: Mapping[str, Any]) -> str:
    return (
        "the model's output" if s["best_is_output"]
        else f"layer {s['best_layer']} of {s['last_layer']}"
    )  # fmt: skip


def notes(table: pd.DataFrame, rows: Rows) -> list[str]:
    """The best layer of each curve of a panel, and the model's output, in small print."""
    dashes = rows.roles.get("dashes", ())
    strokes = [", ".join(k) for k in rows.keys("dashes")]
    lines = []
    for curve in curves_of(table, rows):
        s = _summary(curve)
        against = (
            "" if s["best_is_output"]
            else ", no score of the output" if s["output_score"] is None
            else f", output {100 * s['output_score']:.1f}"
        )  # fmt: skip
        where = "the output" if s["best_is_output"] else _where(s)
        name = ", ".join(str(curve[d].iloc[0]) for d in dashes)
        stroke = f"{style.stroke_of(name, strokes)[1]}  " if len(strokes) > 1 else ""
        lines.append(f"{stroke}best {100 * s['best_score']:.1f} ({where}){against}")
    return lines


def _guessed(rows: Rows) -> bool:
    """Whether every curve is of one task whose chance and interval are known: of a mean over
    tasks, the interval is of differences between layers and says nothing of its level."""
    table = rows.scored_rows.dropna(subset=["value"])
    known = bool(table[["chance", "low"]].notna().all(axis=None))
    return known and table["n_tasks"].max() == 1


def _above_chance(rows: Rows) -> str:
    """At how many layers the whole interval lies above chance, as a title: to beat the output by a
    question or two is no finding."""
    parts: list[str] = []
    for choice in rows.values("reading"):
        mine = at(rows.scored_rows, ("reading",), (choice,)).dropna(subset=["value"])
        n = int((mine["low"] > mine["chance"]).sum())
        layers = f"{n} of {len(mine)} layers" if not parts else f"{n} of {len(mine)}"
        luck = by_chance(len(mine) * ALPHA / 2)
        parts.append(f"{layers} {reading_label(choice, sentence=True)} (by luck {luck})")
    return f"Above chance, by 95 % intervals of a layer each: {listing(parts)}"


def best_layers(rows: Rows, directions: Mapping[str, int]) -> Finding:  # noqa: ARG001
    """In how many models (or checkpoints, tasks, …) a layer is better than the model's output."""
    found = []
    for curve in curves_of(rows.table, rows):
        others = {d: str(curve[d].iloc[0]) for d in varying(rows, but=("y", "model", "reading"))}
        found.append({**_summary(curve), **others})
    by_reading = {}
    for choice in rows.values("reading"):
        # Whether a layer beats an output without a score isn't known.
        mine = [s for s in found if s["reading"] == choice and s["output_score"] is not None]
        by_reading[choice] = _leads(mine)
    what = noun(rows)
    counts = {c: f for c, f in by_reading.items() if f["n"]}
    if len(found) == 1:
        title = _title_of_one(found[0])
    elif not counts:
        title = "No model's output has a score, so no layer can be said to beat it"
    else:
        title = _title_of_leads(counts, what)
    if _guessed(rows):
        title = _above_chance(rows)
    shown = varying(rows)
    told = [
        f"{_name(s, shown)} ({reading_label(s['reading'])}): best at {_where(s)}"
        + ("" if s["best_is_output"] else f" ({percent(s['best_depth'])} depth)")
        + f" with {100 * s['best_score']:.2f}"
        + (
            ""
            if s["best_is_output"]
            else ", output without a score"
            if s["output_score"] is None
            else f", output {100 * s['output_score']:.2f}"
        )
        + (
            f"; lead of the chosen layer on a new task {_points(s['lead'])} ({_ends(s)})"
            if s["lead_low"] is not None and (s["lead_low"], s["lead_high"]) != (0, 0)
            else ""
        )
        for s in found
    ]
    told = told if len(told) <= TOLD else [
        f"the best of all is {_where(s)} in {_name(s, shown)} "
        f"({reading_label(s['reading'])}) with {100 * s['best_score']:.2f}"
        for s in [max(found, key=lambda s: float(s["best_score"]))]
    ]  # fmt: skip
    said = "; ".join(told)
    caption = (
        f"Mean main score (× 100) over {_tasks(rows)}, by depth in per cent of the model's "
        "layers; layer 0 is the embedding output. Filled circle: best layer, or the output where "
        f"no layer is better; open circle: the model's output. {output_said(rows)}"
        f"{bands_said(rows)}{'' if _guessed(rows) else f' {LEADS}'}{chance_said(rows)}"
        f"{roles_said(rows)}{left_out_said(rows)} "
        f"{said[:1].upper()}{said[1:]}."
    )
    subtitle = (
        f"Mean main score over {_tasks(rows)} by depth. Bands: 95 % over tasks, of each layer by "
        "itself, level differences between tasks removed."
    )
    if rows.scored_rows["n_tasks"].max() == 1:
        names = (
            listing(list(rows.table["task"].unique())) if "task" in varying(rows) else "one task"
        )
        subtitle = f"Main score on {names} by depth. {OWN_BANDS}"
    groups = [d for d in ("task", "task_type") if d in varying(rows)]
    if groups:
        n = counted(rows.table[groups[0]].nunique(), noun_of(groups[0]))
        subtitle = f"Main score, by depth, of each of {n}. " + (
            "Bands: the evaluator's 95 % interval, where it gives one."
            if groups[0] == "task"
            else "Bands: 95 % over the tasks of a type, of each layer by itself, level "
            "differences removed; of a single task, the evaluator's own interval."
        )
    facts = {"layers": found, "n_tasks": sorted({int(n) for n in rows.table["n_tasks"].dropna()}),
             "by_reading": by_reading}  # fmt: skip
    return title, subtitle, caption, facts


def _name(summary: Mapping[str, Any], shown: Sequence[str]) -> str:
    more = [value_label(d, summary[d]) for d in shown if d != "model"]
    return " ".join([str(summary["model"]), *(f"at {m}" for m in more)])


def _title_of_one(s: Mapping[str, Any]) -> str:
    if s["best_is_output"]:
        return f"The output of {s['model']} is its best"
    if s["output_score"] is None:
        return f"Layer {s['best_layer']} of {s['model']} is its best; its output has no score"
    where = f"Layer {s['best_layer']} of {s['model']}"
    if s["lead_low"] is None:
        return f"{where} is its best on these tasks, too few to tell it from its output"
    on_new = f"{_points(s['lead'])} points on a new task ({_ends(s)})"
    if s["lead_low"] > 0:
        return f"{where} leads its output by {on_new}"
    return f"No evidence that a layer of {s['model']} beats its output: {on_new} for layer " + str(
        s["best_layer"]
    )


LEADS = (
    "The title counts leads over the output on a new task whose 95 % interval, which pays for the "
    "choice of the layer, lies above 0, with the number that chance gives."
)


def _leads(curves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many curves have a layer that leads the output, by the test that their tasks allow."""
    known = [s for s in curves if s["lead_low"] is not None]
    if known:
        count = told_apart([int(s["lead_low"] > 0) for s in known])
    else:  # a task each, or too few texts: nothing but the place of the best layer
        best = sum(not s["best_is_output"] for s in curves)
        count = chance_count(best, [1 - 1 / (s["n_layers"] + 1) for s in curves] or [0.0])
    return {
        "n": len(known or curves), "leads": count.k, "expected": count.expected, "p": count.p,
        "stands": count.stands, "tested": bool(known),
    }  # fmt: skip


def _title_of_leads(by_reading: Mapping[str, Mapping[str, Any]], what: str) -> str:
    tested = all(f["tested"] for f in by_reading.values())
    claim = "a layer inside leads the output" if tested else "a layer inside beats the output"
    parts: list[str] = []
    for choice, f in by_reading.items():
        of = counted(f["n"], what) if not parts else str(f["n"])
        how = reading_label(choice, sentence=True)
        parts.append(f"in {f['leads']} of {of} {how} (by chance in {by_chance(f['expected'])})")
    stand = [f["stands"] for f in by_reading.values()]
    if not any(stand):
        return f"No evidence that {claim}: {listing(parts)}"
    title = f"{claim[:1].upper()}{claim[1:]} {listing(parts)}"
    weak = [reading_label(c, sentence=True) for c, f in by_reading.items() if not f["stands"]]
    return f"{title}; no evidence {listing(weak)}" if weak else title


def by_chance(expected: float) -> str:
    """An expected count, to one digit or two."""
    return f"{expected:.1f}".removesuffix(".0") if expected >= 0.05 or not expected else "< 0.1"


def _points(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−")


def _ends(s: Mapping[str, Any]) -> str:
    return f"95 % interval {_points(s['lead_low'])} to {_points(s['lead_high'])}"


def _metric_words(rows: Rows, line: str) -> tuple[str, str]:
    """Subtitle and caption of studies of metrics alone."""
    caption = (
        f"{_metrics(rows)} by depth in per cent of the layers (0 is the embedding output), on "
        f"{_prompts(rows)}{_variant(rows)}{line}.{roles_said(rows)} Bands are 95 % intervals, "
        f"value ± 1.96 standard errors over prompts.{left_out_said(rows)} {MARKS}"
    )
    return f"By depth, on {_prompts(rows)}. Bands: ± 1.96 standard errors.", caption


def valleys(rows: Rows, directions: Mapping[str, int]) -> Finding:
    """In how many curves of the first metric there is a minimum between the ends."""
    if rows.roles.get("colour") == ("revision",):
        return training(rows, directions)
    if "sublayer" in rows.roles.get("colour", ()):
        return parts_of_blocks(rows)
    labels = [d for d in rows.roles.get("colour", ()) if d in LABELS]
    # Prompts of a corpus that has a panel of its own aren't there at another strength.
    if labels and "corpus" not in varying(rows):
        return perturbed(rows, labels[0])
    first = min(rows.table["y"])
    found: dict[str, dict[str, float | None]] = {r: {} for r in rows.values("reading")}
    known = True
    for curve in curves_of(rows.table, rows, first):
        shown = varying(rows) or ["model"]
        name = ", ".join(str(curve[d].iloc[0]) for d in shown)
        at_layer = of_means(curve["value"], curve["stderr"])
        where = None if at_layer is None else float(curve["depth"].iloc[at_layer])
        known &= bool(curve["stderr"].notna().any())
        found[str(curve["reading"].iloc[0])][name] = where
    label = metric_label(rows.metrics[0].metric)
    parts: list[str] = []
    for choice, depths in found.items():
        n = sum(v is not None for v in depths.values())
        of = counted(len(depths), noun(rows)) if not parts else str(len(depths))
        chance = f" (by chance in {by_chance(len(depths) * ALPHA / 2)})" if known else ""
        parts.append(f"in {n or 'none'} of {of} {reading_label(choice, sentence=True)}{chance}")
    title = f"{label} has a valley {listing(parts)}"
    if not any(v is not None for depths in found.values() for v in depths.values()):
        how = " or ".join(reading_label(choice, sentence=True) for choice in found)
        several = max(map(len, found.values())) > 1
        who = f"No {noun(rows)} shows a" if several else f"{rows.values('model')[0]} shows no"
        title = f"{who} valley of {in_sentence(rows.metrics[0].metric)}, {how}"
    subtitle, caption = _metric_words(rows, "")
    caption += (
        " A valley is a layer that lies below the highest one before it and the highest one after "
        f"it by more than {100 * SHALLOW:.0f} % of the curve's largest absolute value"
        + (
            ", and by more than the standard errors over prompts would let any two layers of a "
            "flat curve differ in 1 of 40 cases."
            if known
            else "; the tables give no standard errors to test it by."
        )
    )
    facts = {"metric": rows.metrics[0].metric, "valley_at": found,
             "n_prompts": span(rows.table["n"].tolist())}  # fmt: skip
    return title, subtitle, caption, facts


def parts_of(table: pd.DataFrame, rows: Rows, but: str) -> list[tuple[str, pd.DataFrame]]:
    """What a table has of each model, and of all else that the figure tells apart, by name."""
    placed = [d for v in rows.roles.values() for d in v if d not in ("y", "reading", but)]
    names = list(dict.fromkeys(d for d in placed if table[d].nunique() > 1 and d != "model"))
    found = []
    for key in combinations(table, ["model", *names], rows.study, rows.order):
        more = ", ".join(map(value_label, names, key[1:]))
        part = at(table, ["model", *names], key)
        found.append((f"{key[0]} ({more})" if more else key[0], part))
    return found


def perturbed(rows: Rows, label: str) -> Finding:
    """At how many layers the first metric differs between the least and most perturbed prompts."""
    metric = next((m for m in rows.metrics if m.normalization in (None, "raw")), rows.metrics[0])
    reading = rows.values("reading")[0]
    table = rows.table[rows.table["y"] == rows.metrics.index(metric) + 1]
    table = at(table, ("reading",), (reading,))
    if "raw" in set(table["normalization"]):
        table = table[table["normalization"].isin(["raw", ""])]
    less, *_, more = rows.values(label)
    pairs = []
    for name, part in parts_of(table, rows, label):
        start, end = (at(part, (label,), (strength,)) for strength in (less, more))
        if len(start) and len(end):
            pairs.append((name, start, end))
    changes = [_change(*pair, comparisons=len(pairs)) for pair in pairs]
    name = in_sentence(metric.metric)
    step = f"going from {value_label(label, less)} to {float(more):g}"
    subtitle, caption = _metric_words(rows, f"; a line for each {noun_of(label)}")
    caption += (
        f" The title counts the layers at which {name} ({reading_label(reading)}) differs between "
        f"{value_label(label, less)} and {value_label(label, more)}. {CHANGES} The same prompts "
        "are perturbed at every strength, so bands of two lines may overlap and their difference "
        "still be certain."
    )
    facts = {"metric": metric.metric, "label": label, "from": less, "to": more,
             "changes": changes}  # fmt: skip
    unit = metric_unit(metric.metric, metric.normalization or "raw")
    title = _title_of_changes(step, name, unit, changes)
    return title, subtitle, caption, facts


CHANGES = (
    "Intervals of the differences hold at all layers of all models together (95 %, Bonferroni); "
    "they take the errors of the two curves as independent, which makes them too wide where both "
    "are of the same prompts. Layers without a standard error are not counted. “By up to” is the "
    "largest difference drawn."
)


def _change(
    model: str, start: pd.DataFrame, end: pd.DataFrame, *, comparisons: int
) -> dict[str, Any]:
    """Where two curves of a model differ, and the largest difference there is."""
    one, other = (c.set_index("layer").sort_index().astype({"value": float}) for c in (start, end))
    layers = one.index.intersection(other.index)
    one, other = one.loc[layers], other.loc[layers]
    errors = [c["stderr"].astype(float) for c in (one, other)]
    tested = bool(errors[0].notna().any() and errors[1].notna().any())
    n = [c["n"].dropna().min() for c in (one, other) if c["n"].notna().any()]
    found = difference(
        one["value"], errors[0], other["value"], errors[1],
        n=int(min(n)) if n and min(n) > 1 else None, comparisons=comparisons,
    )  # fmt: skip
    most = found.most
    return {
        "model": model, "layer": int(layers[most]), "last_layer": int(layers.max()),
        "first": float(one["value"].iloc[most]), "last": float(other["value"].iloc[most]),
        "n_layers": int(np.isfinite(found.low if tested else found.value).sum()),
        "told": [int(at) for at in layers[found.told]] if tested else None,
        "on_average": float(np.nanmean(found.value)),
    }  # fmt: skip


def _title_of_changes(
    step: str, name: str, unit: str, changes: Sequence[Mapping[str, Any]]
) -> str:
    """At how many layers a metric moves, or that nothing says that it does."""
    unit = f" {unit}" if unit else ""
    told = []
    for c in changes:
        size = f"{c['last'] - c['first']:+.2g}{unit} at layer {c['layer']}".replace("-", "−")
        if c["told"] is None:
            told.append(f"by up to {size} of {c['model']}, untested for want of standard errors")
        elif not c["told"]:
            told.append(f"at none of {c['n_layers']} layers of {c['model']} (by up to {size})")
        else:
            many = f"{len(c['told'])} of {c['n_layers']} layers"
            told.append(f"at {many} of {c['model']} (by up to {size})")
    if any(c["told"] or c["told"] is None for c in changes):
        return f"{step[:1].upper()}{step[1:]} moves {name} {listing(told)}"
    return f"No evidence that {step} moves {name}: {listing(told)}"


def parts_of_blocks(rows: Rows) -> Finding:
    """Which part of the blocks has the lowest and the highest mean over the layers."""
    table = rows.table
    reading = rows.values("reading")[0]
    # Parts of blocks begin at layer 1: a mean over layers must be over the same ones.
    head = table[
        (table["y"] == table["y"].min()) & (table["reading"] == reading) & (table["layer"] > 0)
    ]
    parts = head.groupby("sublayer")
    means = {str(k): float(v) for k, v in parts["value"].mean().items()}
    # Errors of one prompt's layers may go together; that of their mean is at most their mean.
    errors = {str(k): float(v) for k, v in parts["stderr"].mean().items()}
    said, told = _extremes(means, errors)
    name, of = metric_label(rows.metrics[0].metric), listing(rows.values("model"))
    ends = [f"{end} at “{SUBLAYERS[p]}” ({means[p]:.2f})" for end, p in said.items() if told[end]]
    title = f"{name}, averaged over the layers of {of}, is {listing(ends)}"
    if not ends:
        values = ", ".join(f"{means[p]:.2f} at “{SUBLAYERS[p]}”" for p in said.values())
        title = (
            f"No evidence which part of the blocks of {of} has the lowest or the highest "
            f"{in_sentence(rows.metrics[0].metric)}: on average over the layers {values}"
        )
    subtitle, caption = _metric_words(
        rows, "; the layers themselves begin with 0, the parts of blocks with 1"
    )
    caption += (
        " A part is called lowest or highest if it differs from each other one by more than 1.96 "
        "standard errors of the difference of their means over layers, which are taken as large "
        "as errors that go together from layer to layer make them."
    )
    facts = {"mean_over_layers": means, "told_apart": told}
    return title, f"Parts of each block. {subtitle}", caption, facts


def _extremes(
    means: Mapping[str, float], errors: Mapping[str, float]
) -> tuple[dict[str, str], dict[str, bool]]:
    """The parts with the lowest and the highest mean, and whether each differs from all others."""
    said = {
        "lowest": min(means, key=means.__getitem__),
        "highest": max(means, key=means.__getitem__),
    }
    told = {
        end: all(
            abs(means[part] - means[other]) > style.Z95 * np.hypot(errors[part], errors[other])
            for other in means
            if other != part
        )
        for end, part in said.items()
    }  # fmt: skip
    return said, told


def training(rows: Rows, directions: Mapping[str, int]) -> Finding:  # noqa: ARG001
    """At how many layers the first metric differs between the first and the last checkpoint."""
    table = rows.table
    first, reading = table["y"].min(), rows.values("reading")[0]
    mine = table[(table["y"] == first) & (table["reading"] == reading)]
    pairs = []
    for name, part in parts_of(mine, rows, "revision"):
        ordered = rows.order.checkpoints(str(part["model"].iloc[0]), part["revision"].unique())
        if len(ordered) > 1:
            first_last = [part[part["revision"] == r] for r in (ordered[0], ordered[-1])]
            pairs.append((name, first_last[0], first_last[1]))
    changes = [_change(*pair, comparisons=len(pairs)) for pair in pairs]
    metric = rows.metrics[0]
    names = rows.values("revision")
    steps = f"{counted(len(names), 'checkpoint')} from {names[0]} to {names[-1]}"
    _, caption = _metric_words(rows, f"; one line a checkpoint: {steps}")
    caption += (
        f" The title counts the layers at which {in_sentence(metric.metric)} "
        f"({reading_label(reading)}) differs between a model's first and its last checkpoint. "
        f"{CHANGES}"
    )
    facts = {"metric": metric.metric, "reading": reading, "checkpoints": names,
             "changes": changes}  # fmt: skip
    unit = metric_unit(metric.metric, metric.normalization or "raw")
    return (
        _title_of_changes("training", in_sentence(metric.metric), unit, changes),
        f"By depth, a line per checkpoint ({steps}), on {_prompts(rows)}. "
        "Bands: ± 1.96 standard errors.",
        caption,
        facts,
    )


def overview(rows: Rows, directions: Mapping[str, int]) -> Finding:
    """Where the model is best, and how many metrics point there."""
    table = rows.table
    best: dict[str, dict[str, Any]] = {}
    near: dict[str, dict[str, Any]] = {}
    model = listing(rows.values("model"))
    told_apart_by = [d for d in varying(rows) if rows.scored_rows[d].nunique() > 1]
    for curve in curves_of(table, rows):
        s = _summary(curve)
        of = [value_label(d, curve[d].iloc[0]) for d in told_apart_by]
        reading = ", ".join([*of, s["reading"]])
        how = reading_label(s["reading"], sentence=True)
        best[reading] = {
            "layer": s["best_layer"], "depth": s["best_depth"], "last_layer": s["last_layer"],
            "score": 100 * s["best_score"], "where": _where(s),
            "how": f"{how} in {', '.join(of)}" if of else how,
        }  # fmt: skip
        picks = {}
        own = at(table, ("model", "revision", "reading"),
                 (s["model"], s["revision"], s["reading"]))  # fmt: skip
        for i, metric in enumerate(rows.metrics, start=1):
            part = own[(own["y"] == i) & own["best"]]
            if metric.metric in directions:
                for name, pick in parts_of(part, rows, "y"):
                    told = name.removeprefix(str(pick["model"].iloc[0]))
                    picks[metric.metric + told] = float(pick["depth"].iloc[0])
        depths = curve["depth"].to_numpy(dtype=float)
        near[reading] = {
            "of": len(picks),
            "by_chance": len(picks) * float((np.abs(depths - s["best_depth"]) <= NEAR).mean()),
            "near": [m for m, d in picks.items() if abs(d - s["best_depth"]) <= NEAR],
        }
    parts = [
        f"{b['where']} {b['how']} "
        f"({len(near[r]['near'])} of {near[r]['of']} metrics point there, by chance "
        f"{by_chance(near[r]['by_chance'])})"
        for r, b in best.items()
    ]
    caption = (
        f"{model}: mean main score (× 100) over {_tasks(rows)} and "
        f"{counted(len(rows.metrics), 'metric')} on {_prompts(rows)}, by depth in per cent of the "
        f"layers.{roles_said(rows)} Vertical lines: the layer with the best score of each "
        f"reading, the model's output included. {output_said(rows)} Bands: 95 % intervals, over "
        "tasks for the score (of each layer by itself), ± 1.96 standard errors for the "
        "metrics. A metric points to a layer if its better end lies within a tenth of the depth "
        f"of it; a layer drawn at random does so as often as the title says. That a layer scores "
        "highest does not say that it is told apart from others: see the first page of the "
        f"report.{left_out_said(rows)}"
    )
    several = len(rows.values("model")) > 1
    return (
        f"{'Scores are' if several else f'{model} scores'} highest at {listing(parts)}",
        f"Scores over {_tasks(rows)}, metrics on {_prompts(rows)}, by depth. Bands: 95 % "
        "intervals.",
        caption,
        {"model": model, "best": best, "near": near},
    )


def token_choice(rows: Rows, scores: pd.DataFrame) -> Finding:
    """At how many layers another choice of tokens changes each model's score."""
    found = _differences(rows, scores)
    readings = [reading_label(r) for r in rows.values("reading")]
    caption = (
        f"Mean main score (× 100) over {_tasks(rows)} and {_metrics(rows)} on {_prompts(rows)}, "
        f"by depth in per cent of the model's layers, under {listing(readings)}; a column per "
        "model. Both come from the same forward pass and differ only in which tokens are "
        "averaged. Shaded: the difference. Filled circle: best layer; open circle: the model's "
        f"output. {output_said(rows)} The title counts the layers at which the mean difference "
        "over tasks, taken task by task, can be told from 0: 95 % intervals (Student's, tasks of "
        "the same texts being one draw) that hold at all layers, models and choices together. "
        f"“By up to” is the largest difference drawn.{left_out_said(rows)}"
    )
    subtitle = (
        "By depth. Shaded: the difference that the token choice makes. Scores over "
        f"{_tasks(rows)}, metrics on {_prompts(rows)}."
    )
    facts = {"differences": found, "readings": rows.values("reading")}
    if not found:
        return "Scores are there for one choice of tokens only", subtitle, caption, facts
    choices = list(dict.fromkeys(f["reading"] for f in found))
    tested, untested = [], []
    for f in found:
        size = f"by up to {signed(f['points'])} points at {percent(f['depth'])} depth"
        what = f" {reading_label(f['reading'], sentence=True)}" if len(choices) > 1 else ""
        if f["told"] is None:
            untested.append(f"{f['model']}{what} ({size})")
            continue
        many = f"{len(f['told']) or 'none'} of {f['n_layers']} layers"
        tested.append(f"{many} of {f['model']}{what} ({size})")
    tokens = choices[0].split(", ")[0].split(" of ")[-1]
    verb = f"scoring {TOKENS[tokens]}" if len(choices) == 1 else "the choice of tokens"
    if not tested:
        title = f"Whether {verb} changes the score is untested"
    elif any(f["told"] for f in found):
        title = f"{verb[:1].upper()}{verb[1:]} changes the score at {listing(tested)}"
    else:
        title = f"No evidence that {verb} changes the score: told from 0 at {listing(tested)}"
    if untested:
        title += f"{'; untested' if tested else ''} in {listing(untested)}: tasks of one source"
    return title, subtitle, caption, facts


def _differences(rows: Rows, scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Each choice of tokens less all of them, of a pooling, task by task; `told` is None without
    a second source of texts to test by."""
    table = rows.scored_rows
    shown = set(zip(table["model"], table["revision"], table["reading"], strict=True))
    curves = {
        (c.model, c.revision, reading(c.tokens, c.pooling)): c
        for c in score_curves(pick_scores(scores, rows.study))
        if (c.model, c.revision, reading(c.tokens, c.pooling)) in shown
    }
    pairs = [
        (key, curve, curves[base])
        for key, curve in curves.items()
        if (base := (*key[:2], of_all_tokens(key[2]))) != key and base in curves
    ]
    places = {m: i for i, m in enumerate(rows.values("model"))}
    found = []
    for (model, _, choice), curve, whole in sorted(pairs, key=lambda p: places[p[0][0]]):
        layers, mine, theirs = np.intersect1d(curve.layers, whole.layers, return_indices=True)
        tasks = [t for t in curve.tasks if t in whole.tasks]
        one, other = ([c.tasks.index(t) for t in tasks] for c in (curve, whole))
        apart = curve.values[one][:, mine] - whole.values[other][:, theirs]
        most = int(np.abs(apart.mean(axis=0)).argmax())
        sources = curve.sources_of(one)
        told: list[int] | None = None
        if len(set(sources)) > 1:
            held = band(apart, sources, 1 - ALPHA / len(pairs))
            told = [int(at) for at in layers[(held.band_low > 0) | (held.band_high < 0)]]
        found.append(
            {
                "model": model, "reading": choice, "layer": int(layers[most]),
                "depth": float(layers[most] / max(curve.last_layer, 1)),
                "points": 100 * float(apart.mean(axis=0)[most]),
                "n_layers": len(layers), "n_sources": len(set(sources)), "told": told,
            }
        )  # fmt: skip
    return found


def ends(rows: Rows, directions: Mapping[str, int]) -> Finding:
    """What a study of curves without a question of its own says: that of its first y."""
    if rows.scored:
        title, subtitle, caption, facts = best_layers(rows, directions)
        if rows.metrics:
            subtitle = f"{subtitle} Metrics on {_prompts(rows)}."
            caption += (
                f" {_metrics(rows)} on {_prompts(rows)}{_variant(rows)}, with 95 % intervals over "
                "prompts."
            )
        return title, subtitle, caption, facts
    return valleys(rows, directions)
