"""What changes when in training: layers, the valley, the sink, and the scores beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.lines import Line2D

from layerwise.association.order import Order
from layerwise.figures import marks, over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows, mean_scores, pick_scores
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    counted,
    in_sentence,
    in_unit,
    listing,
    metric_label,
    reading_label,
)
from layerwise.figures.over_prompts import Floats
from layerwise.statistics.corrections import holm
from layerwise.statistics.headlines import count
from layerwise.statistics.prompts import largest, means, squared
from layerwise.statistics.valleys import valley

SINK = "what the first token takes away"


def draw(given: Given) -> Drawn:
    """Draw each layer's change from checkpoint to checkpoint, then valley and sink, then scores.

    Returns
    -------
    Drawn
        Its table has rows of six kinds (``what``): ``change`` of a layer from the checkpoint
        before; ``path`` of a layer, all its changes that pass added up; ``early``, ``late`` and
        ``late less early``, the squared changes of a layer added up, the mean over the first and
        the last third of the layers; ``change of all layers``; ``valley``, ``sink``; ``score`` of
        the best and the last layer. With 95 % intervals, and p after Holm's correction: of
        changes and paths over a model's and reading's rows, else over all rows of one kind.
    """
    tables, study, order = given.tables, given.study, given.order
    rows = given.prompts()
    chosen = pick_scores(tables["scores"], study)
    scores = mean_scores(chosen)
    points = over_prompts.points(rows)
    models = list(dict.fromkeys(m for m, _ in points))
    cubes = {
        (a["model"], a["reading"], a["revision"]): over_prompts.matrix(part)
        for a, part in over_prompts.curves(rows)
    }
    keys = [(m, r) for m in models for r in rows.values("reading")
            if any(k[:2] == (m, r) for k in cubes)]  # fmt: skip
    parts = []
    for model, reading in keys:
        names = [r for m, r in points if m == model and (model, reading, r) in cubes]
        found = _course(cubes, model, reading, names)
        mine = scores[(scores["model"] == model) & (scores["reading"] == reading)]
        parts.append(
            pd.concat([found, _scores(mine, names)], ignore_index=True).assign(
                model=model, reading=reading, corpus=str(rows.table["corpus"].iloc[0]),
                metric=rows.metrics[0].metric,
            )
        )  # fmt: skip
    table = _corrected(pd.concat(parts, ignore_index=True))
    figure = _figure(table, keys, points, rows, order)
    facts = _facts(table, keys, points)
    title = _title(facts, rows)
    label = in_sentence(rows.metrics[0].metric)
    n = ", ".join(dict.fromkeys(str(int(v)) for v in table["n"].dropna()))
    corpus = listing([c for c in rows.values("corpus") if c])
    style.header(
        figure, title,
        f"Change of {label} by layer and step; its valley and what the first token takes away; "
        f"scores. {n} prompts of {corpus}; 95 % intervals.",
    )  # fmt: skip
    caption = (
        f"Change of {label} of each layer from the checkpoint before, the mean over {n} prompts "
        f"of {corpus} (only changes that pass Holm's correction over layers and checkpoints are "
        "coloured); then the depth of the valley (how far the lowest layer inside lies below the "
        "lower of its shoulders) and, where readings with and without the "
        "first token are at hand, the sink: how much more entropy there is without it, at the "
        "layer where that is most. Their intervals hold whatever layers are chosen. Filled points "
        "pass Holm's correction over all checkpoints shown. Then the mean score of the best and "
        "of the last layer, where there are scores, with the interval over tasks. Checkpoints are "
        "evenly spaced. A path is the sum "
        "of a layer's changes up and down that pass; its interval takes these changes as given. "
        "Early and late layers are compared by their squared changes, all of them, added up and "
        f"freed of noise. {_said(facts, rows)} Something stays "
        "from the first checkpoint from which on it passes; more prompts may find it earlier. The "
        "intervals are over prompts of one training, not over trainings."
    )
    return Drawn(figure, table, title, caption, facts)


def paths(steps: Floats, passes: npt.NDArray[np.bool_]) -> Floats:
    """Each prompt's path at each layer: its changes, in the direction of the mean, added up.

    Changes whose mean does not pass a test add nothing, so that noise makes no path.

    Parameters
    ----------
    steps : array, shape (R, N, L)
        Changes from checkpoint to checkpoint.
    passes : array of bool, shape (R, L)

    Returns
    -------
    array, shape (N, L)
    """
    return np.asarray(np.einsum("rl,rnl->nl", np.sign(steps.mean(axis=1)) * passes, steps))


def _course(cubes: Mapping[Any, pd.DataFrame], model: str, reading: str,
            names: Sequence[str]) -> pd.DataFrame:  # fmt: skip
    shared = cubes[model, reading, names[0]].index
    for name in names:
        shared = shared.intersection(cubes[model, reading, name].index)
    values = [cubes[model, reading, name].loc[shared] for name in names]
    layers = values[0].columns.to_numpy()
    cube = np.stack([v.to_numpy(dtype=float) for v in values])
    rows: list[pd.DataFrame] = []

    def add(what: str, array: Floats, **about: Any) -> None:
        mean = means(array)
        found = {"value": mean.value, "low": mean.low, "high": mean.high, "p": mean.p}
        rows.append(pd.DataFrame({"what": what, **found, "n": len(array), **about}))

    steps = np.diff(cube, axis=0)
    for step, name in zip(steps, names[1:], strict=True):
        add("change", step, layer=layers, revision=name)
    corrected = holm(np.concatenate([r["p"] for r in rows])).reshape(len(steps), -1)
    passes = corrected < over_prompts.LEVEL
    path = paths(steps, passes)
    add("path", path, layer=layers)
    # By paths, early and late would differ by which changes happen to pass.
    third, moved = max(1, round(len(layers) / 3)), squared(steps).sum(axis=0)
    early, late = moved[:, :third].mean(axis=1), moved[:, -third:].mean(axis=1)
    add("early", early)
    add("late", late)
    add("late less early", late - early)
    for k, name in enumerate(names[1:]):
        whole = paths(steps[k : k + 1], passes[k : k + 1])
        add("change of all layers", whole.mean(axis=1), revision=name)
    for k, name in enumerate(names):
        found = {}
        if len(layers) > 2:
            found["valley"] = valley(cube[k]).depth
        if reading == "all" and (model, "drop_first", name) in cubes:
            one, other = over_prompts.together(values[k], cubes[model, "drop_first", name])
            found["sink"] = largest(other - one)[0]
        for what, estimate in found.items():
            row = {"what": what, **asdict(estimate), "n": len(shared), "revision": name}
            rows.append(pd.DataFrame([row]))
    return pd.concat(rows, ignore_index=True)


def _corrected(table: pd.DataFrame) -> pd.DataFrame:
    """With p after Holm's correction, and whether it passes."""
    table = table.assign(p_holm=np.nan)
    own = table["what"].isin(["change", "path"])
    for keys, rows in (["what", "model", "reading"], table[own]), (["what"], table[~own]):
        for _, part in rows.dropna(subset=["p"]).groupby(keys):
            table.loc[part.index, "p_holm"] = holm(part["p"])
    table["passes"] = table["p_holm"] < over_prompts.LEVEL
    return table


def _scores(mine: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    found = []
    for name in names:
        part = mine[mine["revision"] == name].dropna(subset=["value"])
        if len(part):
            best = part.iloc[int(part["value"].argmax())]
            last = part.iloc[int(part["layer"].argmax())]
            for what, row in (("best layer's score", best), ("last layer's score", last)):
                ends = {k: row[k] for k in ("value", "low", "high")}
                found.append({"what": what, "revision": name, "layer": int(row["layer"]), **ends})
    return pd.DataFrame(found)


def _figure(table: pd.DataFrame, keys: Sequence[tuple[str, str]], points: Sequence[Any],
            rows: Rows, order: Order) -> Any:  # fmt: skip
    with_scores = table["what"].eq("best layer's score").any()
    figure, axes = style.grid(3 if with_scores else 2, len(keys), panel_height=1.9)
    limit = float(table.loc[table["what"] == "change", "value"].abs().max()) or 1.0
    for c, (model, reading) in enumerate(keys):
        mine = table[(table["model"] == model) & (table["reading"] == reading)]
        names = [r for m, r in points if m == model]
        place = {name: i for i, name in enumerate(names)}
        change = mine[mine["what"] == "change"]
        shown = change["value"].where(change["passes"].astype(bool), 0.0)
        wide = change.assign(value=shown).pivot(index="layer", columns="revision", values="value")
        wide = wide.reindex(columns=[n for n in names if n in wide.columns])
        first = place[wide.columns[0]]
        image = axes[0, c].imshow(
            wide.to_numpy(dtype=float), origin="lower", aspect="auto", cmap=style.DIVERGING,
            vmin=-limit, vmax=limit, interpolation="nearest",
            extent=(first - 0.5, len(names) - 0.5, -0.5, len(wide) - 0.5),
        )  # fmt: skip
        axes[0, c].grid(visible=False)
        over_prompts.head(axes[0, c], model, [over_prompts.reading_note(rows, reading)],
                          order.models)  # fmt: skip
        colour = style.colour_of(model, order.models)
        for what, dashes in (("valley", "solid"), ("sink", (0, (4, 1.5)))):
            part = mine[mine["what"] == what]
            if len(part):
                at = [place[r] for r in part["revision"]]
                over_prompts.band(axes[1, c], at, part, colour, linestyle=dashes)
        axes[1, c].axhline(0, color=style.GREY, linewidth=0.7, zorder=1)
        if with_scores:
            for what, dashes in (("best layer's score", "solid"), ("last layer's score",
                                                                   (0, (1, 1.2)))):  # fmt: skip
                part = mine[mine["what"] == what]
                if len(part):
                    scaled = part.assign(**{k: 100 * part[k].astype(float)
                                            for k in ("value", "low", "high")})  # fmt: skip
                    over_prompts.band(
                        axes[2, c], [place[r] for r in part["revision"]], scaled, colour,
                        marked=False, linestyle=dashes, marker="o", markersize=2.5,
                    )  # fmt: skip
        for r in range(len(axes)):
            over_prompts.checkpoint_axis(axes[r, c], names, label=r == len(axes) - 1)
    metric = rows.metrics[0].metric
    labels = ["Layer", in_unit("Valley, and sink", metric), "Mean task score (× 100)"]
    for r, label in enumerate(labels[: len(axes)]):
        axes[r, 0].set_ylabel(label)
        if r:
            ends = [a.get_ylim() for a in axes[r] if a.has_data()]
            for axis in axes[r]:
                axis.set_ylim(min(e[0] for e in ends), max(e[1] for e in ends))
    bar = figure.colorbar(image, ax=list(axes[0]), location="right", aspect=14, pad=0.01)
    bar.set_label(in_unit("Change from the\ncheckpoint before", metric))
    handles = [
        Line2D(
            [],
            [],
            color=style.INK,
            marker="o",
            markersize=3.2,
            label="valley (filled: deeper than 0)",
        ),
        Line2D([], [], color=style.INK, linestyle=(0, (4, 1.5)), label="sink"),
    ]
    if with_scores:
        handles += [
            Line2D([], [], color=style.INK, label="best layer’s score"),
            Line2D([], [], color=style.INK, linestyle=(0, (1, 1.2)), label="last layer’s score"),
        ]
    marks.legend(figure, handles)
    return figure


def appears(part: pd.DataFrame, names: Sequence[str]) -> str | None:
    """The first checkpoint from which on all pass; None if the last does not."""
    passes = part.set_index("revision")["passes"].astype(bool)
    found = None
    for name in reversed([n for n in names if n in passes.index]):
        if not passes[name]:
            break
        found = name
    return found


def _facts(table: pd.DataFrame, keys: Sequence[tuple[str, str]],
           points: Sequence[Any]) -> dict[str, Any]:  # fmt: skip
    found = []
    for model, reading in keys:
        mine = table[(table["model"] == model) & (table["reading"] == reading)]
        names = [r for m, r in points if m == model]
        path = mine[mine["what"] == "path"].sort_values("value")
        whole = mine[mine["what"] == "change of all layers"].sort_values("value").iloc[-1]
        single = {w: mine[mine["what"] == w].iloc[0] for w in ("early", "late", "late less early")}
        found.append(
            {
                "model": model, "reading": reading,
                "most": int(path["layer"].iloc[-1]), "least": int(path["layer"].iloc[0]),
                "most_path": [float(path[k].iloc[-1]) for k in ("value", "low", "high")],
                "least_path": [float(path[k].iloc[0]) for k in ("value", "low", "high")],
                "when": str(whole["revision"]),
                "when_change": [float(whole[k]) for k in ("value", "low", "high")],
                **{w: [float(s[k]) for k in ("value", "low", "high", "p", "p_holm")]
                   for w, s in single.items()},
                "valley": appears(mine[mine["what"] == "valley"], names),
                "sink": appears(mine[mine["what"] == "sink"], names),
                "has_sink": bool(mine["what"].eq("sink").any()),
                "places": {n: i for i, n in enumerate(names)},
            }
        )  # fmt: skip
    return {"courses": found}


def _order_said(f: Mapping[str, Any]) -> str:
    valley, sink = f["valley"], f["sink"]
    if not f["has_sink"]:
        return f"the valley stays from {valley} on" if valley else "no valley stays"
    if valley and sink:
        a, b = f["places"][valley], f["places"][sink]
        if a == b:
            return f"valley and sink both stay from {valley} on"
        return (
            f"the valley stays from {valley} on, the sink from {sink}" if a < b else
            f"the sink stays from {sink} on, the valley from {valley}"
        )  # fmt: skip
    if valley or sink:
        what, other = ("valley", "sink") if valley else ("sink", "valley")
        return f"a {what} stays from {valley or sink} on, no {other} does"
    return "neither valley nor sink stays to the last checkpoint"


def _third_said(f: Mapping[str, Any]) -> str:
    value, *_, p = f["late less early"]
    if p >= over_prompts.LEVEL:
        return "no evidence that early and late layers change differently"
    return f"early layers change {'less' if value > 0 else 'more'} than late ones"


def _title(facts: Mapping[str, Any], rows: Rows) -> str:
    reading = facts["courses"][0]["reading"]
    mine = [f for f in facts["courses"] if f["reading"] == reading]
    several = len(rows.values("reading")) > 1
    how = f" ({reading_label(reading, sentence=True)})" if several else ""
    if len(mine) > 3:
        fewer = sum(f["late less early"][0] > 0 and f["late less early"][3] < over_prompts.LEVEL
                    for f in mine)  # fmt: skip
        found = count(fewer, [over_prompts.LEVEL / 2] * len(mine))
        of = f"in {fewer} of {counted(len(mine), 'model')} (by chance in {found.expected:.1f})"
        claim = "early layers change less than late ones"
        if not found.stands:
            return f"No evidence that {claim}: {of}{how}"
        return f"{claim.capitalize()} {of}{how}"
    told = [f"{f['model']}: {_third_said(f)}, {_order_said(f)}" for f in mine]
    return "; ".join(told) + how


def _said(facts: Mapping[str, Any], rows: Rows) -> str:
    number = over_prompts.number
    said = []
    label = metric_label(rows.metrics[0].metric)
    for f in facts["courses"]:
        several = len(rows.values("reading")) > 1
        how = f", {reading_label(f['reading'])}" if several else ""

        def with_ends(values: Sequence[float]) -> str:
            return f"{number(values[0])}, {number(values[1])} to {number(values[2])}"

        said.append(
            f"{f['model']}{how}: {label} moves most in layer {f['most']} (path "
            f"{with_ends(f['most_path'])}), least in layer {f['least']} "
            f"({with_ends(f['least_path'])}); most of all up to {f['when']} "
            f"({with_ends(f['when_change'])} a layer); squared changes add up to "
            f"{with_ends(f['early'])} in the first third of the layers and to "
            f"{with_ends(f['late'])} in the last, a difference of "
            f"{with_ends(f['late less early'])}; {_order_said(f)}."
        )
    return " ".join(said)
