"""Real layers under every order alpha, beside the theory; which conclusions hang on alpha."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from scipy.stats import rankdata

from layerwise.errors import LayerwiseError
from layerwise.figures import marks, over_prompts, style
from layerwise.figures.drawn import Drawn
from layerwise.figures.frames import Rows, mean_scores, pick_prompts, pick_scores
from layerwise.figures.given import Given
from layerwise.figures.labels import (
    counted,
    in_sentence,
    in_unit,
    listing,
    metric_label,
    reading_label,
    value_label,
)
from layerwise.metrics.powerlaw import power_law_curves
from layerwise.statistics.corrections import holm
from layerwise.statistics.depth import chance_level
from layerwise.statistics.prompts import may_be_best, means, resampled
from layerwise.statistics.valleys import valley


def draw(given: Given) -> Drawn:
    """Draw the metric by depth, a line per alpha, for each model; first, power-law spectra.

    A layer is picked at the metric's better end.

    Returns
    -------
    Drawn
        Its table has a row per model, reading and alpha: rank correlation of the curve over layers
        with that of alpha 1 (or the alpha nearest to it), with a bootstrap interval over prompts;
        depth of the valley with interval, p, p after Holm's correction over all rows, place; the
        layer picked, the layers that the prompts would let it be (at all rows together with 95 %
        confidence), its score and how far that is below the best layer's; Spearman's rho with the
        score over layers; mean over layers, and the model's place by it among all models.
    """
    tables, study, order, better = given.tables, given.study, given.order, given.better
    prompts = tables["prompts"]
    metric = (study.curves or ())[0].metric
    mine = prompts.loc[prompts["metric"] == metric, "alpha"]
    if mine.isna().all():
        raise LayerwiseError(
            f"{metric} has no alpha, and a study of kind {study.kind} is about alpha; name an "
            "entropy under `metrics`, such as prompt_entropy."
        )
    if study.alpha is None:
        every = tuple(sorted(float(a) for a in mine.dropna().unique()))
        study = study.model_copy(update={"alpha": every})
    rows = pick_prompts(prompts, study, order)
    scores = mean_scores(pick_scores(tables["scores"], study))
    table, curves = _table(rows, scores, better.get(metric))
    alphas = sorted(table["alpha"].unique())
    theory = power_law_curves(alphas=alphas)
    scale = mpl.colormaps[style.SEQUENTIAL](np.linspace(0, 0.93, len(alphas)))
    colours = dict(zip(alphas, scale, strict=True))
    place = {model: i for i, (model, _) in enumerate(over_prompts.points(rows))}
    keys = sorted(dict.fromkeys(k[:3] for k in curves), key=lambda k: place[k[0]])
    columns = min(style.COLUMNS, 1 + len(keys))
    blocks = -(-(1 + len(keys)) // columns)
    figure, axes = style.grid(blocks, columns, panel_height=2.1)
    for axis in axes.flat:
        axis.set_visible(False)
    flat = list(axes.flat)
    flat[0].set_visible(True)
    for alpha in alphas:
        part = theory[theory["alpha"] == alpha]
        flat[0].plot(part["beta"], part["share"], color=colours[alpha])
    marks.panel_title(flat[0], "theory", [f"{int(theory['n'].iloc[0]):,} eigenvalues"])
    flat[0].set_xlabel(r"Exponent β, $λ_i ∝ i^{-β}$", parse_math=True)
    flat[0].set_ylabel("Entropy / log n")
    label = metric_label(metric)
    for k, (model, revision, reading) in enumerate(keys, start=1):
        axis = flat[k]
        axis.set_visible(True)
        for alpha in alphas:
            values = curves.get((model, revision, reading, alpha))
            if values is not None:
                layers = values.columns.to_numpy()
                axis.plot(layers / max(1, layers[-1]), values.mean(), color=colours[alpha])
        picks = table[(table["model"] == model) & (table["revision"] == revision)
                      & (table["reading"] == reading)]  # fmt: skip
        for row in picks.dropna(subset=["pick"]).to_dict("records"):
            axis.plot(
                [row["pick_depth"]], [row["pick_value"]], **marks.best_mark(colours[row["alpha"]])
            )
        over_prompts.head(axis, model, [over_prompts.reading_note(rows, reading)], order.models)
        style.depth_axis(axis)
        if k % columns == 0 or k == 1:
            axis.set_ylabel(in_unit(label, metric))
    handles = [Line2D([], [], color=colours[a], label=value_label("alpha", str(a)))
               for a in alphas]  # fmt: skip
    if table["pick"].notna().any():
        handles.append(Line2D([], [], label="layer picked", **marks.best_mark(style.INK)))
    marks.legend(figure, handles)
    facts = _facts(table) | {"reversals": _reversals(curves)}
    title = _title(facts, in_sentence(metric))
    n = ", ".join(dict.fromkeys(str(int(v)) for v in table["n"]))
    corpus = listing([c for c in rows.values("corpus") if c])
    style.header(
        figure, title,
        f"Entropy of power-law spectra, and {in_sentence(metric)} by depth on {n} prompts of "
        f"{corpus}.",
    )  # fmt: skip
    caption = (
        f"{label} by depth on {n} prompts of {corpus} for every order α, beside the entropy of "
        "power-law spectra; circles at the layer that the metric's declared end picks. The table "
        "holds, for each α, the rank correlation over layers with the curve of α = "
        f"{facts['reference']:g} (bootstrap over prompts), the valley's depth and place, the pick "
        "with its score, Spearman's correlation with the mean score, and the models' order. A "
        "pick changes beyond noise where no layer may be the one picked at every α; all tests are "
        "corrected for how many curves there are, so that chance alone gives any such change in "
        "1 of 20 figures. "
        f"{_said(facts)} A correlation over the layers of one model is a size and no test: of "
        f"unrelated smooth curves 95 % stay below {facts['chance']}."
    )
    return Drawn(figure, table, title, caption, facts)


def _table(
    rows: Rows, scores: pd.DataFrame, end: int | None
) -> tuple[pd.DataFrame, dict[tuple[str, str, str, float], pd.DataFrame]]:
    curves: dict[tuple[str, str, str, float], pd.DataFrame] = {}
    for about, part in over_prompts.curves(rows):
        for alpha in sorted(float(a) for a in part["alpha"].unique()):
            key = (about["model"], about["revision"], about["reading"], alpha)
            curves[key] = over_prompts.matrix(part[part["alpha"].astype(float) == alpha])
    alphas = sorted({k[3] for k in curves})
    reference = min(alphas, key=lambda a: abs(a - 1))
    level = 1 - over_prompts.LEVEL / len(curves)
    found = []
    for (model, revision, reading, alpha), values in curves.items():
        array = values.to_numpy(dtype=float)
        base, own = over_prompts.together(curves[model, revision, reading, reference], values)
        weights = resampled(len(own))
        drawn = _rank_correlations(weights @ own, weights @ base)
        low, high = np.quantile(drawn, [0.025, 0.975])
        mean = array.mean(axis=0)
        layers = values.columns.to_numpy()
        dip = valley(array)
        row: dict[str, Any] = {
            "model": model, "revision": revision, "reading": reading,
            "corpus": rows.values("corpus")[0], "metric": rows.metrics[0].metric, "alpha": alpha,
            "reference": reference,
            "rank_correlation": float(_rank_correlations(mean[None], base.mean(axis=0)[None])[0]),
            "rank_correlation_low": low, "rank_correlation_high": high,
            **{f"valley_{k}": v for k, v in asdict(dip.depth).items()},
            "valley_place": dip.place, "valley_place_low": dip.place_low,
            "valley_place_high": dip.place_high,
            "level": float(mean.mean()), "layers": int(layers[-1]), "n": len(array),
            "may_be_picked": "", "pick": None, "pick_depth": np.nan, "pick_value": np.nan,
            "score": np.nan, "below_best": np.nan, "spearman_with_score": np.nan,
        }  # fmt: skip
        if end is not None:
            at = int(np.argmax(end * mean))
            row |= {"pick": int(layers[at]), "pick_depth": layers[at] / max(1, layers[-1]),
                    "pick_value": float(mean[at])}  # fmt: skip
            likely = layers[may_be_best(end * array, level)]
            row["may_be_picked"] = " ".join(str(int(at)) for at in likely)
        mine = scores[
            (scores["model"] == model) & (scores["revision"] == revision)
            & (scores["reading"] == reading)
        ].dropna(subset=["value"]).set_index("layer")["value"]  # fmt: skip
        both = [i for i, layer in enumerate(layers) if layer in mine.index]
        if len(both) > 2:
            score = mine.loc[layers[both]].to_numpy(dtype=float)
            row["spearman_with_score"] = float(
                _rank_correlations(mean[both][None], score[None])[0]
            )
            if row["pick"] in mine.index:
                row |= {"score": float(mine.loc[row["pick"]]),
                        "below_best": float(mine.max() - mine.loc[row["pick"]])}  # fmt: skip
        found.append(row)
    table = pd.DataFrame(found)
    table["valley_p_holm"] = holm(table["valley_p"])
    table["place_among_models"] = (
        table.groupby(["reading", "alpha"])["level"].rank(ascending=False).astype(int)
    )
    return table, curves


def _reversals(
    curves: Mapping[tuple[str, str, str, float], pd.DataFrame],
) -> list[tuple[str, str, str]]:
    """Pairs of models of which either has more than the other at some alpha, beyond noise.

    Means over layers, prompt by prompt; Holm's correction over all pairs and alphas.
    """
    signs: list[tuple[tuple[str, str, str], float]] = []
    ps: list[float] = []
    for (one, a), (other, b) in itertools.combinations(curves.items(), 2):
        if one[2:] == other[2:] and one[0] != other[0]:
            x, y = over_prompts.together(a.mean(axis=1).to_frame(), b.mean(axis=1).to_frame())
            gap = means(x - y)
            signs.append(((one[2], one[0], other[0]), float(np.sign(gap.value[0]))))
            ps.append(float(gap.p[0]))
    passing = [p < over_prompts.LEVEL for p in holm(ps)]
    seen = {s for s, passes in zip(signs, passing, strict=True) if passes}
    return [pair for pair, sign in sorted(seen) if sign > 0 and (pair, -1.0) in seen]


def _rank_correlations(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> Any:
    """Spearman's rho row by row; 0 where a row is constant."""
    a, b = (rankdata(x, axis=1) for x in (one, other))
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (a, b))
    norm = np.sqrt(np.square(a).sum(axis=1) * np.square(b).sum(axis=1))
    return np.divide((a * b).sum(axis=1), norm, out=np.zeros(len(a)), where=norm > 0)


def _facts(table: pd.DataFrame) -> dict[str, Any]:
    found = []
    for (model, revision, reading), part in table.groupby(
        ["model", "revision", "reading"], sort=False
    ):
        others = part[part["alpha"] != part["reference"]]
        worst = (others if len(others) else part).sort_values("rank_correlation").iloc[0]
        rho = part["spearman_with_score"].dropna()
        found.append(
            {
                "model": model, "revision": revision, "reading": reading,
                "picks": sorted({int(p) for p in part["pick"].dropna()}),
                "picks_differ": not set.intersection(
                    *(set(str(p).split()) for p in part["may_be_picked"])
                ),
                "valleys": [float(a) for a in
                            part.loc[part["valley_p_holm"] < over_prompts.LEVEL, "alpha"]],
                "alphas": len(part), "worst_alpha": float(worst["alpha"]),
                "worst": [float(worst[f"rank_correlation{e}"]) for e in ("", "_low", "_high")],
                "score": [float(rho.min()), float(rho.max())] if len(rho) else [],
            }
        )  # fmt: skip
    models = table["model"].nunique()
    chance = ", ".join(
        f"{chance_level(n + 1, 'spearman'):.2f} ({n + 1} layers)"
        for n in sorted(table["layers"].unique())
    )
    return {
        "reference": float(table["reference"].iloc[0]), "found": found,
        "models": int(models), "chance": chance,
        "readings": [str(r) for r in table["reading"].unique()],
    }  # fmt: skip


def _title(facts: Mapping[str, Any], label: str) -> str:
    f = facts["found"]
    whole = sum(len(x["valleys"]) == x["alphas"] for x in f)
    some = sum(0 < len(x["valleys"]) < x["alphas"] for x in f)
    readings = len(facts["readings"]) > 1
    what = "models and readings" if readings else "models"
    told = [f"a valley passes its test at every α in {whole} of {len(f)} {what}"]
    told[0] += f", at some in {some}" if some else ""
    picking = [x for x in f if x["picks"]]
    if picking:
        n = sum(x["picks_differ"] for x in picking)
        told.append(
            f"the layer picked changes with α beyond noise in {n or 'none'} of {len(picking)}"
        )
    if facts["models"] > 1:
        pairs = len({(a, b) for _, a, b in facts["reversals"]})
        told.append(f"{counted(pairs, 'pair') if pairs else 'no pair'} of models changes places")
    return f"{label[:1].upper()}{label[1:]} over all α: {'; '.join(told)}"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _said(facts: Mapping[str, Any]) -> str:
    said = []
    for f in facts["found"]:
        how = f", {reading_label(f['reading'])}" if len(facts["readings"]) > 1 else ""
        low = f["worst"]
        alpha = value_label("alpha", str(f["worst_alpha"]))
        text = (
            f"{f['model']}{how}: the curve least like that of α = {facts['reference']:g} is that "
            f"of {alpha} (ρ {_signed(low[0])}, {_signed(low[1])} to {_signed(low[2])}); a valley "
            f"passes the test at {len(f['valleys'])} of {counted(f['alphas'], 'order')}"
        )
        if f["picks"]:
            text += f"; picked: layer {' or '.join(map(str, f['picks']))}"
        if f["score"]:
            text += f"; ρ with the score {_signed(f['score'][0])} to {_signed(f['score'][1])}"
        said.append(text + ".")
    return " ".join(said)
