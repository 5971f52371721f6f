"""Which claims about metrics and scores stand on a set of tables: one table of all tests.

Every row has a `part`; which columns it fills is said at the function of that part. Scores are in
points (0 to 100). Intervals are over tasks, tasks of the same texts being one draw. What the parts
answer: docs/published-claims.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association.curves import (
    ScoreCurves,
    metric_curves,
    score_curves,
    select,
    usable,
)
from layerwise.association.measures import embed, strengths
from layerwise.association.order import in_order
from layerwise.config.association import OWN_TEXTS
from layerwise.errors import LayerwiseError
from layerwise.statistics import corrections, depth, headlines, matching, tasks
from layerwise.vocabulary import ONE

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]

FEWEST_TASKS = 2
LAST, FIRST = "last layer", "layer 0"


def claims(
    scores: pd.DataFrame,
    metrics: pd.DataFrame,
    own_texts: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
    names: Sequence[str] = (),
) -> pd.DataFrame:
    """All tests of all parts.

    Parameters
    ----------
    scores, metrics : DataFrame
        Tidy; one checkpoint and reading of each model.
    own_texts : mapping of corpus to task, optional
        Corpora that are a task's texts. Metrics are taken on them where there are any, and else
        on the only corpus.
    models, names : sequence of str
        The order of the models and of the metrics; others follow, sorted.

    Raises
    ------
    LayerwiseError
        If a model has several readings or checkpoints, its metrics are on several corpora, no
        metric is there for all models, or no model has a score at its last layer. A model without
        one is left out.
    """
    curves = [c for c in score_curves(scores) if c.joined == ONE]
    there = [c.model for c in curves]
    if len(set(there)) < len(there):
        raise LayerwiseError(
            "Claims are looked into for one checkpoint and reading of each model; name one under "
            "`revisions`, `tokens` and `pooling`."
        )
    for c in curves:
        if c.layers[-1] != c.last_layer:
            log.warning(
                "%s is left out: some task has no score at its last layer (%d), which others are "
                "held against", c.model, c.last_layer,
            )  # fmt: skip
    curves = [c for c in curves if c.layers[-1] == c.last_layer]
    if not curves:
        raise LayerwiseError("No model has scores of every task at its last layer.")
    there = [c.model for c in curves]
    by_model = {c.model: c for c in curves}
    curves = [by_model[m] for m in in_order(there, models)]
    usual = select(metrics, alphas=[1.0], normalizations=["raw"])
    found = {c.model: _metrics(usual, c, own_texts) for c in curves}
    # Metrics that every model has: rules and counts are over all of them.
    shared = in_order(
        sorted(m for m in next(iter(found.values())) if all(m in f for f in found.values())), names
    )
    if not shared:
        raise LayerwiseError(
            "No metric has a value at every layer of every model, for two tasks or more; name "
            "others under `models` or `metrics`."
        )
    rows = [
        *leads(curves),
        *leads_by_type(curves),
        *middle(curves),
        *associations(curves, found, shared),
        *(own(curves, found, shared) if own_texts else []),
        *rules(curves, found, shared),
    ]
    return pd.DataFrame(rows)


def _metrics(
    metrics: pd.DataFrame, curves: ScoreCurves, own_texts: Mapping[str, str] | None
) -> dict[str, tuple[npt.NDArray[np.intp], Floats]]:
    """Of each metric the tasks it has a curve for, and those curves, (t, n)."""
    variants, values = metric_curves(metrics, curves, own_texts=own_texts)
    corpora = list(dict.fromkeys(variants["corpus"]))
    if OWN_TEXTS not in corpora and len(corpora) > 1:
        raise LayerwiseError(
            f"Claims are about metrics on one corpus, or on each task's own texts; these are on "
            f"{', '.join(map(str, corpora))}: name one under `corpora`."
        )
    corpus = OWN_TEXTS if OWN_TEXTS in corpora else corpora[0] if corpora else ""
    found = {}
    for i, row in enumerate(variants.to_dict("records")):
        if row["metric"] in found:
            raise LayerwiseError(
                f"Claims are about one reading of each metric; {row['metric']} of {curves.model} "
                "is there in several protocols: name one under `protocol`."
            )
        if row["corpus"] == corpus:
            kept, layers = usable(values[i])
            if kept.sum() >= FEWEST_TASKS and layers.all():
                found[str(row["metric"])] = np.flatnonzero(kept), values[i][kept]
            else:
                log.warning("%s of %s lacks values and is left out", row["metric"], curves.model)
    return found


def leads(curves: list[ScoreCurves]) -> Rows:
    """What an earlier layer brings over the last one.

    Parts ``leads`` (layer, last_layer, apparent lead, value on a new task, low, high, may_be_best,
    as_good within a point after Holm's correction over layers, k of n tasks best served earlier
    with its chance expectation and p) and ``leads told apart`` (k, n, expected, p over the
    models).
    """
    rows: Rows = []
    signs = []
    for c in curves:
        s, sources = _points(c), list(c.sources)
        gain = tasks.gain_new_task(s, s[:, -1], sources)
        signs.append(gain.sign)
        likely = c.layers[tasks.best_set(s, sources)]
        alike = corrections.holm(tasks.equivalent(s[:, :-1] - s[:, [-1]], 1.0, sources))
        same = c.layers[:-1][alike <= 0.05]
        earlier = headlines.earlier_is_best(list(s))
        rows.append(
            {
                "part": "leads", "model": c.model, "layer": int(c.layers[gain.layer]),
                "last_layer": c.last_layer, "apparent": gain.apparent, "value": gain.value,
                "low": gain.low, "high": gain.high, "may_be_best": _listed(likely),
                "as_good": _listed(same), "n_tasks": len(s), "n_sources": len(set(sources)),
                **_count(earlier),
            }
        )  # fmt: skip
    rows.append({"part": "leads told apart", **_count(headlines.told_apart(signs))})
    return rows


def leads_by_type(curves: list[ScoreCurves]) -> Rows:
    """The same for each type of task: part ``types`` (what, n_tasks, n_sources, value, low, high).

    Types of one text source have no interval, and are left out.
    """
    rows: Rows = []
    for c in curves:
        s = _points(c)
        for kind in dict.fromkeys(c.task_types):
            which = c.of_type(kind)
            sources = c.sources_of(which)
            if len(set(sources)) < 2:
                continue
            gain = tasks.gain_new_task(s[which], s[which, -1], sources)
            rows.append(
                {
                    "part": "types", "model": c.model, "what": kind, "n_tasks": len(which),
                    "n_sources": len(set(sources)), "value": gain.value, "low": gain.low,
                    "high": gain.high,
                }
            )  # fmt: skip
    return rows


def middle(curves: list[ScoreCurves]) -> Rows:
    """The middle layer, named beforehand: part ``middle`` (layer, what it is over, value, …)."""
    rows: Rows = []
    for c in curves:
        s = _points(c)
        at = c.middle
        for what, other in ((LAST, -1), (FIRST, 0)):
            found = tasks.interval(s[:, at] - s[:, other], list(c.sources))
            rows.append(
                {
                    "part": "middle", "model": c.model, "layer": int(c.layers[at]), "what": what,
                    "value": found.value, "low": found.low, "high": found.high,
                }
            )  # fmt: skip
    return rows


def associations(
    curves: list[ScoreCurves],
    found: Mapping[str, Mapping[str, tuple[npt.NDArray[np.intp], Floats]]],
    names: list[str],
) -> Rows:
    """Sizes of associations over layers, with what chance reaches.

    Part ``associations``: what (the metric), n_tasks, dcor, dcor_chance, dcor_others (with other
    models' scores), spearman, r given depth, r_chance, and value, low, high: points of score per
    standard deviation of the metric at fixed depth.
    """
    rows: Rows = []
    for c in curves:
        layers = len(c.layers)
        for metric in names:
            which, x = found[c.model][metric]
            mean, y = x.mean(axis=0), _points(c)[which]
            others = [
                _strength("dcor", mean, matching.on_common_depths([s], layers)[0])
                for other in curves
                if other.model != c.model and (s := _mean_of(other, c, which)) is not None
            ]
            enough = layers >= depth.FEWEST_LAYERS
            slope = depth.slope_beyond_depth(mean, y, c.sources_of(which)) if enough else None
            rows.append(
                {
                    "part": "associations", "model": c.model, "what": metric,
                    "n_tasks": len(which), "dcor": _strength("dcor", mean, y.mean(axis=0)),
                    "dcor_chance": depth.chance_level(layers, "dcor"),
                    "dcor_others": " ".join(f"{d:.2f}" for d in others),
                    "spearman": _strength("spearman", mean, y.mean(axis=0)),
                    "r": float(depth.beyond_depth(mean, y.mean(axis=0)).r) if enough else np.nan,
                    "r_chance": depth.chance_level(layers, "r"),
                    "value": slope.value if slope else np.nan,
                    "low": slope.low if slope else np.nan,
                    "high": slope.high if slope else np.nan,
                }
            )  # fmt: skip
    return rows


def own(
    curves: list[ScoreCurves],
    found: Mapping[str, Mapping[str, tuple[npt.NDArray[np.intp], Floats]]],
    names: list[str],
) -> Rows:
    """Does a metric on a task's own texts know that task's scores?

    Part ``own texts``: what (the metric), n_sources, value (matched correlation), strangers
    (another task's), p over all tasks and p_within types, both corrected for all metrics.
    """
    rows: Rows = []
    for c in curves:
        mine = found[c.model]
        common = sorted(set.intersection(*(set(mine[m][0].tolist()) for m in names)))
        x = np.stack([mine[m][1][np.searchsorted(mine[m][0], common)] for m in names])
        y = _points(c)[common]
        # Tasks of the same texts have the same metric: they are one unit, and their scores a mean.
        units = c.sources_of(common)
        first = [units.index(u) for u in dict.fromkeys(units)]
        same = np.array([[u == units[i] for u in units] for i in first], dtype=float)
        same /= same.sum(axis=1, keepdims=True)
        x, y = same @ x, same @ y
        free = matching.match(x, y)
        within = matching.match(x, y, [c.task_types[common[i]] for i in first])
        rows += [
            {
                "part": "own texts", "model": c.model, "what": m, "n_sources": len(first),
                "value": float(free.value[i]), "strangers": float(free.strangers[i]),
                "p": float(free.p_all[i]), "p_within": float(within.p_all[i]),
            }
            for i, m in enumerate(names)
        ]  # fmt: skip
    return rows


def rules(
    curves: list[ScoreCurves],
    found: Mapping[str, Mapping[str, tuple[npt.NDArray[np.intp], Floats]]],
    names: list[str],
) -> Rows:
    """The layer that each rule picks: its lead over the last layer, and its regret.

    Part ``rules``: what (the rule), model, layer, value, low, high of the lead, regret,
    regret_low, regret_high. Part ``best rule``: what, n (rules), k (distinct ones), apparent and
    nested regret, and that of the last layer as `value`. Each metric has both directions.
    """
    picks: dict[str, list[int]] = {}
    for metric in names:
        for sign, word in ((-1, "lowest"), (1, "highest")):
            picks[f"{word} {metric}"] = [
                int((sign * found[c.model][metric][1].mean(axis=0)).argmax()) for c in curves
            ]
    picks["middle layer"] = [c.middle for c in curves]
    picks[FIRST] = [0] * len(curves)
    rows: Rows = []
    for name, at in picks.items():
        for pick, c in zip(at, curves, strict=True):
            s, sources = _points(c), list(c.sources)
            lead = tasks.interval(s[:, pick] - s[:, -1], sources)
            lost = tasks.regret(s, pick, sources, top=100.0)
            rows.append(
                {
                    "part": "rules", "model": c.model, "what": name, "layer": int(c.layers[pick]),
                    "value": lead.value, "low": lead.low, "high": lead.high,
                    "regret": lost.value, "regret_low": lost.low, "regret_high": lost.high,
                }
            )  # fmt: skip
    if len(curves) > 1:
        means = [_points(c).mean(axis=0) for c in curves]
        best = headlines.best_rule(np.array(list(picks.values())), means)
        rows.append(
            {
                "part": "best rule", "what": list(picks)[best.rule], "n": len(picks),
                "k": best.distinct, "apparent": best.apparent, "nested": best.nested,
                "value": float(np.mean([m.max() - m[-1] for m in means])),
            }
        )  # fmt: skip
    return rows


def _points(curves: ScoreCurves) -> Floats:
    return 100 * curves.values


def _mean_of(other: ScoreCurves, mine: ScoreCurves, which: npt.NDArray[np.intp]) -> Floats | None:
    """Another model's mean score on the same tasks; None where it lacks one."""
    names = [mine.tasks[int(i)] for i in which]
    if not set(names) <= set(other.tasks):
        return None
    return np.asarray(_points(other)[[other.tasks.index(n) for n in names]].mean(axis=0))


def _strength(measure: Any, x: Floats, y: Floats) -> float:
    return float(strengths(measure, embed(measure, x[None]), embed(measure, y[None]))[0, 0])


def _count(found: headlines.Count) -> dict[str, Any]:
    return {"k": found.k, "n": found.n, "expected": found.expected, "p": found.p}


def _listed(layers: npt.NDArray[np.int64]) -> str:
    return ", ".join(str(int(at)) for at in layers) or "none"
