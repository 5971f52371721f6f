"""The association of every metric with the task scores over layers, as one tidy table.

One row per model, revision, corpus, metric (protocol, alpha, normalization), token selection,
pooling, task type and measure. Rows of one model give a size and no p value, because the layers
of a model are one curve and not a sample. Rows of the model ``all`` are over models, the last
revision of each, with a p value for `FEWEST_MODELS` models or more.

==================== ==========================================================================
value                the measure between the metric's curve and the mean score over the tasks; for
                     ``match``, the mean correlation of a model's metric with its own scores, both
                     minus the mean over models at each depth
sign                 direction; for distance correlations that of Spearman's rho
low, high            95% interval over tasks, of slopes only
null95               size that 95% of pairs of unrelated smooth curves stay below; over tasks,
                     that 95% of permutations of the tasks stay below
p, p_adjusted        of ``match``, by permuting models; adjusted for all metrics and poolings
reason               reason for a missing p or value
n_layers             number of layers (for ``all``, of common depths)
n_tasks, n_sources   number of tasks, and of task clusters
n_models             1, or the number of models
n                    fewest prompts of the metric at a layer
==================== ==========================================================================

Rows with the protocol ``baseline`` are pseudo-metrics that a metric has to beat. A metric is
compared with scores of the same token selection only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import stats
from layerwise.association import measures
from layerwise.association.curves import (
    BASELINE,
    KEYS,
    VARIANT,
    MetricCurves,
    ScoreCurves,
    metric_curves,
    score_curves,
    usable,
    with_baselines,
)
from layerwise.association.order import Order
from layerwise.config.association import AssociationSettings, Measure, Over
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

ALL_MODELS = "all"
MATCH = "match"
FEWEST_MODELS = 6
"""With five models there are 120 permutations, and most correlations of .5 are missed."""
N_PERMUTATIONS = 5000
N_TASK_PERMUTATIONS = 200
ONE_MODEL = "one model: its layers are one curve, not a sample"
OVER_TASKS = "mean over layers that share their tasks"

COLUMNS = (
    *KEYS,
    "measure",
    "value",
    "sign",
    "low",
    "high",
    "null95",
    "p",
    "p_adjusted",
    "reason",
    "n_layers",
    "n_tasks",
    "n_sources",
    "n_models",
    "n",
)


@dataclass(frozen=True)
class _Model:
    """The scores of one model, and its metrics and baselines."""

    scores: ScoreCurves
    metrics: MetricCurves


def associate(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    settings: AssociationSettings | None = None,
    order: Order | None = None,
    over: Over = "layers",
) -> pd.DataFrame:
    """Associate metrics with scores over the layers of each model, and over models.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables as `results/README.md` describes them, of any number of models, corpora and
        tasks.
    settings : AssociationSettings, optional
        The config's `association`; its defaults without one.
    order : Order, optional
        Order of checkpoints; the last one of a model represents it. By default, the order of
        training steps.
    over : str
        ``tasks`` measures the association over tasks within each layer and averages it over
        layers, as in the authors' released notebook. It needs metrics on each task's own texts.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`, see the module's docstring. Metrics that are constant
    over layers, or known at too few of them, have no row; the log counts them.

    Raises
    ------
    LayerwiseError
        If the tables have no model, revision and token selection in common.
    """
    settings, order = settings or AssociationSettings(), order or Order()
    # Division by a constant changes no association.
    chosen = metrics[metrics["normalization"] == "raw"]
    models = []
    for curves in score_curves(scores):
        found = metric_curves(chosen, curves, settings.own_texts)
        if not len(found.variants):
            log.info(
                "%s at %s has scores but no metrics for the tokens %s; left out",
                curves.model,
                curves.revision,
                curves.tokens,
            )
            continue
        models.append(_Model(curves, with_baselines(found, curves)))
    if not models:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in "
            f"common: metrics are of {_names(metrics)}; scores are of {_names(scores)}.",
            code="too_few",
        )
    rows: list[dict[str, object]] = []
    for one in models:
        for group in one.scores.groups():
            rows += _of_one(one, group, over)
    if over == "layers":
        for family in _families(models, order):
            for group in family[0][0].scores.groups():
                rows += _over_models(family, group, settings.seed)
    if not rows:
        raise LayerwiseError(
            f"No metric varies over at least {measures.FEWEST_LAYERS} layers that have scores, so "
            "there is nothing to associate; score more layers, or use deeper models.",
            code="too_few",
        )
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS)).astype({"sign": "Int64"})


def _names(frame: pd.DataFrame) -> str:
    triples = frame[["model", "revision", "tokens"]].drop_duplicates().head(4)
    return "; ".join(" ".join(map(str, t)) for t in triples.to_numpy()) or "nothing"


def _of_one(one: _Model, group: str, over: Over) -> list[dict[str, object]]:
    """Associate all metrics of a model with the scores of one task type."""
    chosen, s, n_left_out = one.scores.of_type(group), one.scores, 0
    rows: list[dict[str, object]] = []
    variants, metrics, _, prompts = one.metrics
    for about, values, n in zip(variants.to_dict("records"), metrics, prompts, strict=True):
        tasks, layers = usable(values[chosen])
        x = values[chosen][tasks][:, layers]
        few = layers.sum() < measures.FEWEST_LAYERS
        if few or not len(x) or np.ptp(x.mean(axis=0)) == 0:
            n_left_out += 1
            continue
        y = s.values[chosen[tasks]][:, layers]
        sources = s.sources_of(chosen[tasks])
        common: dict[Any, object] = {
            **s.about,
            **about,
            "task_type": group,
            "reason": ONE_MODEL,
            "n_layers": int(layers.sum()),
            "n_tasks": len(y),
            "n_sources": len(set(sources)),
            "n_models": 1,
            "n": n,
        }
        sizes = _sizes(x, y, sources) if over == "layers" else _over_tasks(x, y)
        rows += [common | size for size in sizes]
    if n_left_out:
        log.info(
            "%s at %s, tokens %s, %s tasks: %d metrics left out, constant or at fewer than %d "
            "layers",
            s.model,
            s.revision,
            s.tokens,
            group,
            n_left_out,
            measures.FEWEST_LAYERS,
        )
    return rows


def _sizes(x: Floats, y: Floats, sources: Sequence[str]) -> Iterator[dict[str, object]]:
    """Each measure of a metric's curves (t, n) with the scores (t, n)."""
    metric, score = x.mean(axis=0)[None], y.mean(axis=0)[None]
    n_layers = metric.shape[1]
    rho = float(measures.strengths("spearman", metric, score)[0])
    for measure in get_args(Measure):
        if measure in measures.GIVEN_DEPTH and n_layers < measures.FEWEST_GIVEN_DEPTH:
            few = f"{n_layers} layers: given depth it takes {measures.FEWEST_GIVEN_DEPTH}"
            yield {"measure": measure, "reason": few}
        elif measure == "slope":
            over_tasks = stats.clustered_mean_ci(measures.slopes(x, 100 * y), sources)
            value, low, high, *_ = over_tasks
            yield {
                "measure": measure,
                "value": value,
                "sign": int(np.sign(value)),
                "low": low,
                "high": high,
            }
        else:
            value = float(measures.strengths(measure, metric, score)[0])
            direction = rho if measure == "dcor" else value
            yield {
                "measure": measure,
                "value": value,
                "sign": int(np.sign(direction)),
                "null95": measures.null_level(measure, n_layers),
            }


def _over_tasks(x: Floats, y: Floats) -> Iterator[dict[str, object]]:
    """Each measure of a metric (t, n) with the scores (t, n) over tasks, averaged over layers."""
    reason = None
    if len(x) < measures.FEWEST_LAYERS:
        reason = f"{len(x)} tasks: it takes {measures.FEWEST_LAYERS}"
    elif not np.ptp(x, axis=0).any():
        reason = "the metric is the same for all tasks"
    for measure in get_args(Measure):
        if measure in measures.GIVEN_DEPTH:
            yield {"measure": measure, "reason": "over tasks there is no depth to account for"}
        elif reason:
            yield {"measure": measure, "reason": reason}
        else:
            value = float(measures.strengths(measure, x.T, y.T).mean())
            rho = float(measures.strengths("spearman", x.T, y.T).mean())
            yield {
                "measure": measure,
                "value": value,
                "sign": int(np.sign(rho)),
                "null95": _null_of_tasks(measure, x, y),
                "reason": OVER_TASKS,
            }


def _null_of_tasks(measure: str, x: Floats, y: Floats) -> float:
    """Size that 95% of associations stay below if scores belong to other tasks."""
    rng = np.random.default_rng(0)
    null = [
        abs(measures.strengths(measure, x.T, y[rng.permutation(len(y))].T).mean())
        for _ in range(N_TASK_PERMUTATIONS)
    ]
    return float(np.quantile(null, 0.95))


def _families(models: Sequence[_Model], order: Order) -> list[list[list[_Model]]]:
    """Representations that several models have scores for, those of the same models together.

    The last revision of each model represents it.
    """
    about = pd.DataFrame([m.scores.about for m in models])
    deep = [len(m.scores.layers) >= measures.FEWEST_LAYERS for m in models]
    families: dict[tuple[str, ...], list[list[_Model]]] = defaultdict(list)
    for _, part in about[deep].groupby(["tokens", "pooling"], sort=False):
        last = order.only_last(part)
        if len(last) > 1:
            families[tuple(last["model"])].append([models[i] for i in last.index])
    return list(families.values())


def _over_models(
    representations: Sequence[Sequence[_Model]], group: str, seed: int
) -> list[dict[str, object]]:
    """Test if the metrics of all representations belong to their own model's scores."""
    n_points = min(len(m.scores.layers) for models in representations for m in models)
    curves = [c for models in representations for c in _at_common_depths(models, group, n_points)]
    if not curves:
        return []
    n_models = len(representations[0])
    strengths = np.stack([_apart(x) @ _apart(y).T for _, x, y in curves])
    value = np.trace(strengths, axis1=1, axis2=2) / n_models
    p = p_adjusted = np.full(len(curves), np.nan)
    reason = f"{n_models} models: a test over models takes {FEWEST_MODELS}"
    if n_models >= FEWEST_MODELS:
        _, p, p_adjusted = stats.pairing_test(strengths, N_PERMUTATIONS, seed)
        reason = ""
    return [
        {
            **head,
            "model": ALL_MODELS,
            "revision": ALL_MODELS,
            "task_type": group,
            "measure": MATCH,
            "value": value[i],
            "sign": int(np.sign(value[i])),
            "p": p[i],
            "p_adjusted": p_adjusted[i],
            "reason": reason,
            "n_layers": n_points,
            "n_models": n_models,
        }
        for i, (head, _, _) in enumerate(curves)
    ]


def _at_common_depths(
    models: Sequence[_Model], group: str, n_points: int
) -> Iterator[tuple[dict[str, Any], Floats, Floats]]:
    """Metrics that all models have: their columns, metric and score, shape (models, depths)."""
    first = models[0].scores
    tasks = sorted(
        set.intersection(*({m.scores.tasks[i] for i in m.scores.of_type(group)} for m in models))
    )
    if not tasks:
        return
    chosen = [[m.scores.tasks.index(t) for t in tasks] for m in models]
    sources = first.sources_of(chosen[0])
    at = np.linspace(0.0, 1.0, n_points)
    for about, every, n in _in_common(models):
        values = [v[c] for v, c in zip(every, chosen, strict=True)]
        known = [usable(v) for v in values]
        which: npt.NDArray[np.bool_] = np.logical_and.reduce([t for t, _ in known])
        if not which.any() or any(n.sum() < measures.FEWEST_LAYERS for _, n in known):
            continue
        x, y = [], []
        for one, value, c, (_, layers) in zip(models, values, chosen, known, strict=True):
            depth = one.scores.layers / max(one.scores.last_layer, 1)
            x.append(np.interp(at, depth[layers], value[which][:, layers].mean(axis=0)))
            y.append(np.interp(at, depth, one.scores.values[c][which].mean(axis=0)))
        if all(np.ptp(curve) > 0 for curve in x):
            head: dict[str, Any] = {
                **about,
                "tokens": first.tokens,
                "pooling": first.pooling,
                "n_tasks": int(which.sum()),
                "n_sources": len({s for s, w in zip(sources, which, strict=True) if w}),
                "n": n,
            }
            yield head, np.stack(x), np.stack(y)


def _in_common(
    models: Sequence[_Model],
) -> Iterator[tuple[dict[Any, Any], list[Floats], float]]:
    """The metrics that all models have: columns, values in each, and prompts; the log names the
    others.

    Baselines are the same in all models; without the mean over models, nothing remains of them.
    """
    every = pd.concat([m.metrics.variants.reset_index(names="row") for m in models])
    every = every[every["protocol"] != BASELINE]
    lacking = []
    for _, part in every.groupby(VARIANT, sort=False, dropna=False):
        about = part.iloc[0][VARIANT].to_dict()
        if len(part) == len(models):
            each = [(m.metrics, row) for m, row in zip(models, part["row"], strict=True)]
            yield about, [m.values[row] for m, row in each], min(m.n[row] for m, row in each)
        else:
            lacking.append("/".join(str(v) for v in about.values() if pd.notna(v)))
    if lacking:
        log.warning("over models: left out %s, which some model lacks", ", ".join(lacking))


def _apart(curves: Floats) -> Floats:
    """Curves of models to unit length, minus their mean over models, to unit length."""
    scaled = _unit(curves - curves.mean(axis=1, keepdims=True))
    return _unit(scaled - scaled.mean(axis=0))


def _unit(curves: Floats) -> Floats:
    size = np.linalg.norm(curves, axis=1, keepdims=True)
    return np.asarray(np.divide(curves, size, out=np.zeros_like(curves), where=size > 1e-12))
