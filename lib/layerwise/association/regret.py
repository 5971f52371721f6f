"""What a rule for choosing a layer loses in models that it was not made on.

The regret of a rule in a model is the score of the best layer, or of the model's own output, less
that of the layer it picks, in points. The models are the sample: intervals and tests are over
them, and a rule that learns anything learns it from the other models.

=========================== ==============================================================
last                        the model's own output
middle, 60 % depth          the layer nearest to that depth
a metric                    the layer at its better end (`layerwise.metrics.registry`)
consensus                   of the paper's metrics (`layerwise.association.choice`)
best depth of the others    the depth that loses least in the other models
best rule of the others     the rule that loses least in the other models
learned from the others     ridge regression of the score on the ranks of the layers by each
                            metric, on depth and its square, fitted to the other models
=========================== ==============================================================

Two rules are compared by their difference in each model. Its sign is flipped in all ways over the
models, for all rules alike; the smallest of all rules' p under each flip corrects for how many
were tried (Westfall & Young 1993). With n models no p is below ``2^(1 - n)``, so that a rule that
few have known takes nothing from the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association.choice import pick_layers
from layerwise.association.curves import metric_curves, of_poolings, score_curves, usable
from layerwise.association.order import Order
from layerwise.association.stability import reasons_of
from layerwise.association.votes import refused_together, same_votes
from layerwise.errors import LayerwiseError
from layerwise.statistics.flips import flips

Floats = npt.NDArray[np.float64]

LAST, MIDDLE, SIXTY = "last", "middle", "60 % depth"
DEPTH, RULE, LEARNED = (
    "best depth of the others", "best rule of the others", "learned from the others",
)  # fmt: skip
REFERENCES = (LAST, SIXTY)
FIXED = {MIDDLE: 0.5, SIXTY: 0.6}
GRID = np.linspace(0, 1, 21)
PENALTY = 1.0
CLOSE = 1 - 1e-9


@dataclass(frozen=True)
class Case:
    """A model on the tasks of a type: what can be chosen, and what the metrics say.

    Attributes
    ----------
    layers : array of int, shape (n,)
    score : array, shape (n,)
        Mean over tasks, in [0, 1].
    output : float
        The mean score of the model's own output.
    picks : mapping of metric to layer
        Those that are not refused, and the consensus.
    ranks : mapping of metric to array, shape (n,)
        The layers' ranks by it, from 0 (worst) to 1; of those that are not refused.
    """

    model: str
    task_type: str
    layers: npt.NDArray[np.int64]
    last_layer: int
    score: Floats
    output: float
    picks: Mapping[str, int]
    ranks: Mapping[str, Floats]

    @property
    def depth(self) -> Floats:
        """Of each layer, 0 to 1."""
        return np.asarray(self.layers / max(self.last_layer, 1), dtype=np.float64)

    @property
    def best(self) -> float:
        """The best score that could be chosen."""
        return max(float(self.score.max()), self.output)

    def at(self, depth: float) -> int:
        """Place of the layer nearest to a depth; of two, the shallower."""
        return int(np.abs(self.depth - depth).argmin())

    def regret(self, layer: int) -> float:
        """Points lost by a layer of the residual stream."""
        return 100 * (self.best - float(self.score[int(np.flatnonzero(self.layers == layer)[0])]))


def cases(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    directions: Mapping[str, int],
    *,
    corpus: str,
    protocol: str = "paper",
    tokens: str = "all",
    own_texts: Mapping[str, str] | None = None,
    stability: pd.DataFrame | None = None,
    order: Order | None = None,
) -> list[Case]:
    """The models of some tables at their last checkpoints, on all tasks and on each type.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables.
    directions : mapping of metric to 1 or -1
    corpus, protocol, tokens : str
        Of the metrics.
    own_texts, stability, order
        As of `layerwise.association.choice.choose_layers`.

    Raises
    ------
    LayerwiseError
        If no model has both.
    """
    from scipy.stats import rankdata

    found = []
    scores = (order or Order()).only_last(of_poolings(scores, ("mean",)))
    for curves in score_curves(scores):
        if curves.tokens != tokens:
            continue
        variants, values = metric_curves(metrics, curves, own_texts=own_texts)
        plain = (variants["corpus"] == corpus) & (variants["protocol"] == protocol)
        plain &= variants["normalization"] == "raw"
        plain &= variants["alpha"].isna() | (variants["alpha"] == 1)
        plain &= variants["metric"].isin(list(directions))
        variants, values = variants[plain].reset_index(drop=True), values[plain.to_numpy()]
        if not len(variants):
            continue
        known = reasons_of(stability, curves.model, curves.revision, curves.tokens)
        names = list(map(str, variants["metric"]))
        for group in curves.groups():
            tasks = curves.of_type(group)
            output = curves.output[tasks]
            if not np.isfinite(output).all():
                continue
            curve = np.stack([_mean(value) for value in values[:, tasks]])
            why = refused_together(same_votes(names, curve, directions), known)
            picks = pick_layers(variants, curve, curves.layers, directions, why)
            good = {str(p.variant["metric"]): p.layer for p in picks if not p.refused}
            refused = {p.variant["metric"] for p in picks if p.refused}
            ranks = {
                metric: (rankdata(directions[metric] * row) - 1) / max(len(row) - 1, 1)
                for metric, row in zip(names, curve, strict=True)
                if np.isfinite(row).all() and metric not in refused
            }
            found.append(
                Case(curves.model, group, curves.layers, curves.last_layer,
                     curves.values[tasks].mean(axis=0), float(output.mean()), good, ranks)
            )  # fmt: skip
    if not found:
        raise LayerwiseError(
            f"No model has scores read with tokens {tokens} and metrics on {corpus} under the "
            f"protocol {protocol}."
        )
    return found


def _mean(values: Floats) -> Floats:
    tasks, layers = usable(values)
    mean = np.full(values.shape[1], np.nan)
    if tasks.any():
        mean[layers] = values[tasks][:, layers].mean(axis=0)
    return mean


def regrets(models: Sequence[Case]) -> pd.DataFrame:
    """The regret of every rule in every model.

    Returns
    -------
    DataFrame with the columns model, task_type, rule, layer, depth and regret (points). A rule
    that a model refuses, or whose metric it lacks, has no row there.

    Raises
    ------
    LayerwiseError
        If a model comes twice on the tasks of a type.
    """
    twice = [k for k, n in Counter((m.model, m.task_type) for m in models).items() if n > 1]
    if twice:
        model, task_type = twice[0]
        raise LayerwiseError(
            f"{model} comes twice on tasks of the type {task_type}; each model counts once: give "
            "only one folder of results with it, or another name."
        )
    rows: list[dict[str, object]] = []
    for task_type in dict.fromkeys(case.task_type for case in models):
        some = [case for case in models if case.task_type == task_type]
        fixed = {case.model: _fixed(case) for case in some}
        for case in some:
            others = [other for other in some if other.model != case.model]
            chosen = dict(fixed[case.model])
            if others:
                chosen |= _from_others(case, others, fixed)
            for rule, layer in chosen.items():
                out = layer is None
                at = case.last_layer if layer is None else layer
                rows.append(
                    {"model": case.model, "task_type": task_type, "rule": rule, "layer": at,
                     "depth": at / max(case.last_layer, 1),
                     "regret": 100 * (case.best - case.output) if out else case.regret(at)}
                )  # fmt: skip
    return pd.DataFrame(rows)


Layer = int | None
"""A layer, or None for the model's own output."""


def _fixed(case: Case) -> dict[str, Layer]:
    found: dict[str, Layer] = {LAST: None}
    found |= {name: int(case.layers[case.at(depth)]) for name, depth in FIXED.items()}
    return found | dict(case.picks)


def _lost(case: Case, layer: Layer) -> float:
    return 100 * (case.best - case.output) if layer is None else case.regret(layer)


def _from_others(
    case: Case, others: Sequence[Case], fixed: Mapping[str, Mapping[str, Layer]]
) -> dict[str, Layer]:
    """The rules that learn from the other models."""
    at_depth = [np.mean([100 * (o.best - o.score[o.at(d)]) for o in others]) for d in GRID]
    output = float(np.mean([_lost(o, None) for o in others]))
    deep: Layer = int(case.layers[case.at(float(GRID[int(np.argmin(at_depth))]))])
    found: dict[str, Layer] = {DEPTH: None if output <= min(at_depth) else deep}
    known = set(fixed[case.model]).intersection(*(fixed[o.model] for o in others))
    mean = {rule: np.mean([_lost(o, fixed[o.model][rule]) for o in others]) for rule in known}
    # Of rules that lose the same, the first by name: an order that no score decides.
    best = min(sorted(mean), key=lambda rule: float(mean[rule]))
    found[RULE] = fixed[case.model][best]
    layer = _learned(case, others)
    return found if layer is None else {**found, LEARNED: layer}


def _learned(case: Case, others: Sequence[Case]) -> Layer:
    names = sorted(set(case.ranks) & {name for o in others for name in o.ranks})
    if not names:
        return None

    def features(one: Case) -> Floats:
        depth = one.depth
        # A metric that is refused in a model tells its layers not apart.
        ranks = (one.ranks.get(name, np.full(len(depth), 0.5)) for name in names)
        return np.column_stack([depth, depth**2, *ranks])

    x = np.concatenate([features(o) - features(o).mean(axis=0) for o in others])
    spread = [o.score - o.score.mean() for o in others]
    # Each model counts alike, however many layers it has and however far its scores range.
    y = np.concatenate([s / (s.std() or 1) for s in spread])
    weight = np.concatenate([np.full(len(s), 1 / len(s)) for s in spread])
    gram = (x * weight[:, None]).T @ x + PENALTY / len(names) * np.eye(x.shape[1])
    slope = np.linalg.solve(gram, (x * weight[:, None]).T @ y)
    return int(case.layers[int(np.argmax(features(case) @ slope))])


def compare(found: pd.DataFrame, task_type: str = "all") -> pd.DataFrame:
    """How each rule did over the models, and whether it loses less than a reference.

    Parameters
    ----------
    found : DataFrame
        From `regrets`.

    Returns
    -------
    DataFrame
        One row a rule, the best first: n_models, regret (mean, points), low and high (Student's
        95 % interval over models), worst; and for each of `REFERENCES` in the models that have
        both: ``less_…`` (points that the rule loses less, on average), ``p_…`` (two-sided, of no
        difference) and ``corrected_…`` (over all rules).
    """
    from scipy.stats import t as student

    wide = found[found["task_type"] == task_type].pivot(
        index="rule", columns="model", values="regret"
    )
    rows = []
    for rule, row in wide.iterrows():
        values = row.dropna().to_numpy(dtype=float)
        n = len(values)
        error = values.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
        margin = student.isf(0.025, n - 1) * error if n > 1 else np.nan
        rows.append(
            {"rule": rule, "n_models": n, "regret": values.mean(),
             "low": max(values.mean() - margin, 0.0) if n > 1 else np.nan,
             "high": values.mean() + margin, "worst": values.max()}
        )  # fmt: skip
    table = pd.DataFrame(rows).set_index("rule")
    for reference in REFERENCES:
        less = (wide.loc[reference] - wide).drop(index=reference)
        less = less[less.notna().sum(axis=1) > 1]
        p, corrected = flipped(less.to_numpy(dtype=float))
        table[f"less_{reference}"] = less.mean(axis=1)
        table[f"p_{reference}"] = pd.Series(p, index=less.index)
        table[f"corrected_{reference}"] = pd.Series(corrected, index=less.index)
    return table.sort_values(["regret", "worst"]).reset_index()


def flipped(differences: Floats, seed: int = 0) -> tuple[Floats, Floats]:
    """p values of mean differences of 0, by flipping the signs of all of a model's differences.

    Parameters
    ----------
    differences : array, shape (rules, models)
        NaN where a rule is not known.

    Returns
    -------
    p, corrected : arrays, shape (rules,)
        Two-sided, the latter over all rules by the smallest p; of equal ones, by the largest t.
    """
    if not len(differences):
        return np.empty(0), np.empty(0)
    t = np.abs(flips(differences, seed).t)
    n = len(t)
    order = np.sort(t, axis=0)
    above = [n - np.searchsorted(one, CLOSE * x) for one, x in zip(order.T, t.T, strict=True)]
    # A count of flips and, within it, t: one number that is larger the less likely a flip is.
    unlikely = n - np.stack(above, axis=1) + t / (1 + t)
    corrected = (unlikely.max(axis=1)[:, None] >= CLOSE * unlikely[0]).mean(axis=0)
    return np.array([one[0] for one in above]) / n, np.asarray(corrected)


def verdict(table: pd.DataFrame, level: float = 0.05) -> str:
    """Whether anything beats the references out of sample, in a sentence."""
    better = {}
    for reference in REFERENCES:
        told = (table[f"less_{reference}"] > 0) & (table[f"corrected_{reference}"] <= level)
        better[reference] = list(table.loc[told, "rule"].astype(str))
    tried = len(table)
    n = int(table["n_models"].max())
    parts = [
        f"{' and '.join(rules)} loses less than {ref!r}" if rules
        else f"nothing can be told to lose less than {ref!r}"
        for ref, rules in better.items()
    ]  # fmt: skip
    return (
        f"Of {tried} rules in {n} models, corrected for how many were tried, "
        f"{', and '.join(parts)}."
    )
