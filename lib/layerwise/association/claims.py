"""Which claims about metrics and scores stand on a set of tables: one table of all tests.

Every row has a `part`; which columns it fills is said at the function of that part. Scores are in
points (0 to 100). Intervals are over tasks, tasks of the same texts being one draw. What the parts
answer: docs/published-claims.md.
"""

from __future__ import annotations

import logging
import re
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
from layerwise.statistics import depth, headlines, matching, tasks
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
    as_good within a point, k of n tasks best served earlier with its chance expectation and p) and
    ``leads told apart`` (k, n, expected, p over the models).
    """
    rows: Rows = []
    signs = []
    for c in curves:
        s, sources = _points(c), list(c.sources)
        gain = tasks.gain_new_task(s, s[:, -1], sources)
        signs.append(gain.sign)
        likely = c.layers[tasks.best_set(s, sources)]
        same = c.layers[:-1][tasks.equivalent(s[:, :-1] - s[:, [-1]], 1.0, sources) <= 0.05]
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
        at = (s.shape[1] - 1) // 2
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
    picks["middle layer"] = [(len(c.layers) - 1) // 2 for c in curves]
    picks[FIRST] = [0] * len(curves)
    rows: Rows = []
    for name, at in picks.items():
        for pick, c in zip(at, curves, strict=True):
            s, sources = _points(c), list(c.sources)
            lead = tasks.interval(s[:, pick] - s[:, -1], sources)
            lost = tasks.regret(s, pick, sources)
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


# The page

NONE = "–"
SAID = {1: "earlier is better", -1: "last is better", 0: "cannot be told"}


def page_parts(table: pd.DataFrame, labels: Mapping[str, str]) -> dict[str, str]:
    """The Markdown tables of a page about the claims, by the names of their places.

    Parameters
    ----------
    table : DataFrame
        From `claims`, or read back from a CSV.
    labels : mapping of metric to its name in words
    """
    table = table.astype(object).where(table.notna(), "")
    models = list(dict.fromkeys(m for m in table["model"] if m))

    def part(name: str) -> list[dict[str, Any]]:
        return [
            {str(k): v for k, v in r.items()}
            for r in table[table["part"] == name].to_dict("records")
        ]

    def words(rule: str) -> str:
        first, _, rest = rule.partition(" ")
        return f"{first} {labels.get(rest, rest)}" if rest else rule

    gains = [
        f"| {r['model']} | {r['layer']:.0f} of {r['last_layer']:.0f} | {r['apparent']:.1f} | "
        f"{_number(r['value'])} | {_to(r)} | {r['may_be_best']} | {r['as_good']} | "
        f"{r['k']:.0f} of {r['n']:.0f} | {r['expected']:.1f} (p {r['p']:.2f}) |"
        for r in part("leads")
    ]
    (apart,) = part("leads told apart")
    count = headlines.Count(int(apart["k"]), int(apart["n"]), apart["expected"], apart["p"])
    said = count.text("A lead over the last layer that can be told from 0", "models")
    types = [
        f"| {r['model']} | {r['what']} | {r['n_tasks']:.0f} ({r['n_sources']:.0f}) | "
        f"{_minus(r['value'])} | {_to(r)} | {_verdict(r)} |"
        for r in part("types")
    ]
    over = {(r["model"], r["what"]): r for r in part("middle")}
    middles = [
        f"| {m} | {over[m, LAST]['layer']:.0f} | {_signed(over[m, LAST])} | "
        f"{_signed(over[m, FIRST])} |"
        for m in models
    ]
    sizes = [
        f"| {r['model']} | {labels.get(r['what'], r['what'])} | {r['n_tasks']:.0f} | "
        f"{_number(r['dcor'], '.2f')} | {_number(r['dcor_chance'], '.2f')} | "
        f"{', '.join(str(r['dcor_others']).split()) or NONE} | "
        f"{_number(r['spearman'], '+.2f')} | {_number(r['r'], '+.2f')} | "
        f"{_number(r['r_chance'], '.2f')} | {_number(r['value'], '+.2f')} "
        f"({_number(r['low'], '.2f')} to {_number(r['high'], '.2f')}) |"
        for r in part("associations")
    ]
    texts = [
        f"| {r['model']} | {labels.get(r['what'], r['what'])} | {r['n_sources']:.0f} | "
        f"{_number(r['value'], '+.2f')} | {_number(r['strangers'], '+.2f')} | "
        f"{_number(r['p'], '.3f')} | {_number(r['p_within'], '.3f')} |"
        for r in part("own texts")
    ]
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for r in part("rules"):
        by_rule.setdefault(r["what"], []).append(r)
    picked = [
        f"| {words(name)} | {', '.join(str(int(r['layer'])) for r in each)} | "
        f"{'; '.join(map(_signed, each))} | "
        + "; ".join(
            f"{_number(r['regret'])} ({_number(r['regret_low'])} to {_number(r['regret_high'])})"
            for r in each
        )
        + " |"
        for name, each in by_rule.items()
    ]
    best = "".join(
        f"{r['n']:.0f} rules, {r['k']:.0f} of them distinct. Best over all models: "
        f"{words(r['what'])}, mean regret {r['apparent']:.2f}; of the rule chosen "
        f"without the model it is judged on: {r['nested']:.2f}; of the last layer: "
        f"{r['value']:.2f}."
        for r in part("best rule")  # none for one model
    )
    return {
        "gains": _markdown(
            ["model", "best layer", "apparent lead", "on a new task", "95 % interval",
             "may be best", "as good as the last within 1 point", "tasks best served earlier",
             "by chance"], gains, f"{said} (p {apart['p']:.1g}).",
        ),
        "types": _markdown(
            ["model", "type", "tasks (text sources)", "on a new task", "95 % interval", ""], types
        ),
        "middle": _markdown(["model", "middle layer", "over the last", "over layer 0"], middles),
        "associations": _markdown(
            ["model", "metric", "tasks", "dCor", "chance (95 %)", "dCor with others' scores",
             "Spearman", "r given depth", "chance (95 %)",
             "points of score per sd, given depth"], sizes,
        ),
        "own texts": _markdown(
            ["model", "metric", "text sources", "own", "another's", "p (of all metrics)",
             "p, within types"], texts,
        ),
        "rules": _markdown(
            ["rule", f"picks in {', '.join(models)}", "lead over the last layer (95 % interval)",
             "regret (95 % interval)"], picked, best,
        ),
    }  # fmt: skip


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with what stands between ``<!-- name -->`` and ``<!-- end -->`` replaced.

    Raises
    ------
    LayerwiseError
        If the page lacks one of the places.
    """
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            raise LayerwiseError(f"The page has no part <!-- {name} --> … <!-- end --> to fill.")
        page = pattern.sub(lambda m, text=text: m[1] + text + "\n" + m[2], page)  # type: ignore[misc]
    return page


def _markdown(head: list[str], rows: list[str], below: str = "") -> str:
    lines = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "|" + "---|" * len(head), *rows]
    return "\n".join(lines + (["", below] if below else []))


def _number(value: Any, form: str = ".1f") -> str:
    return NONE if value == "" else f"{value:{form}}"


def _minus(value: Any) -> str:
    text = _number(value)
    return "0.0" if text == "-0.0" else text


def _to(row: Mapping[str, Any]) -> str:
    return f"{_minus(row['low'])} to {_minus(row['high'])}"


def _signed(row: Mapping[str, Any]) -> str:
    return f"{_number(row['value'], '+.1f')} ({_to(row)})"


def _verdict(row: Mapping[str, Any]) -> str:
    if row["low"] == row["high"] == 0:
        return "the last is chosen each time"
    return SAID[int(row["low"] > 0) - int(row["high"] < 0)]
