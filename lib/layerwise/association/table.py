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
null95               `layerwise.association.null_level`; over tasks, the size that 95%
                     of permutations of the tasks stay below
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
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise import association, stats
from layerwise.association import curves
from layerwise.association.curves import BASELINE, Floats, MetricCurves, ScoreCurves, Tasks, usable
from layerwise.config.settings import AssociationSettings, Measure, Over
from layerwise.errors import LayerwiseError
from layerwise.names import Order

log = logging.getLogger(__name__)

ALL_MODELS = "all"
MATCH = "match"
# With five models there are 120 permutations, and most correlations of .5 are missed.
FEWEST_MODELS = 6
N_PERMUTATIONS = 5000
N_TASK_PERMUTATIONS = 200
ONE_MODEL = "one model: its layers are one curve, not a sample"
OVER_TASKS = "mean over layers that share their tasks"

COLUMNS = [*curves.KEYS, "measure", "value", "sign", "low", "high", "null95", "p", "p_adjusted"]
COLUMNS += ["reason", "n_layers", "n_tasks", "n_sources", "n_models", "n"]

# The scores of one model, and its metrics and baselines.
Model = tuple[ScoreCurves, MetricCurves]


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
    over layers, or known at too few of them, have no row; the log names them.

    Raises
    ------
    LayerwiseError
        If there is nothing to associate.
    """
    settings = settings or AssociationSettings()
    # Division by a constant changes no association.
    raw = metrics[metrics["normalization"] == "raw"]
    models: list[Model] = []
    rows: list[dict[Any, object]] = []
    for model_scores in curves.score_curves(scores):
        if model_scores.omitted:
            log.warning("scores are missing; left out %s", model_scores.omitted)
        both = pd.concat([raw, curves.baselines(model_scores)], ignore_index=True)
        model_metrics = curves.metric_curves(both, model_scores, settings.own_texts)
        if (model_metrics.variants["protocol"] == BASELINE).all():
            log.info("%s has scores but no metrics; left out", model_scores)
            continue
        models.append((model_scores, model_metrics))
        for group, tasks in model_scores.groups().items():
            rows += _of_one(model_scores, model_metrics, group, tasks, over)
    for family in _families(models, order or Order()) if models and over == "layers" else ():
        for group in family[0][0][0].groups():
            rows += _over_models(family, group)
    if not rows:
        raise LayerwiseError(
            f"No metric varies over {association.FEWEST_LAYERS} layers of a model that has scores "
            "of the same revision and tokens, so there is nothing to associate; score the models "
            "and token selections that have metrics, at more layers.",
            code="too_few",
        )
    return pd.DataFrame(rows, columns=COLUMNS).astype({"sign": "Int64"})


def _of_one(
    scores: ScoreCurves, metrics: MetricCurves, group: str, chosen: Tasks, over: Over
) -> Iterator[dict[Any, object]]:
    """Associate all metrics of a model with the scores of the tasks of one type."""
    variants, values, _, n_prompts = metrics
    for about, value, n in zip(variants.to_dict("records"), values, n_prompts, strict=True):
        tasks, layers = usable(value[chosen])
        x, y = value[chosen][tasks][:, layers], scores.values[chosen[tasks]][:, layers]
        if layers.sum() < association.FEWEST_LAYERS or not len(x) or np.ptp(x.mean(axis=0)) == 0:
            log.info("%s: %s is constant or at too few layers; left out", scores, about["metric"])
            continue
        sources = scores.sources[chosen[tasks]]
        common: dict[Any, object] = {
            **scores.about,
            **about,
            "task_type": group,
            "reason": ONE_MODEL,
            "n_layers": int(layers.sum()),
            "n_tasks": len(y),
            "n_sources": len(set(sources)),
            "n_models": 1,
            "n": n,
        }
        for measure in get_args(Measure):
            of = _over_tasks(measure, x, y) if over == "tasks" else _size(measure, x, y, sources)
            yield {**common, "measure": measure, **of}


def _size(measure: str, x: Floats, y: Floats, sources: npt.NDArray[Any]) -> dict[str, object]:
    """A measure of a metric's curves (t, n) with the scores (t, n)."""
    metric, score = x.mean(axis=0)[None], y.mean(axis=0)[None]
    n_layers, fewest = metric.shape[1], association.FEWEST_GIVEN_DEPTH
    if measure in association.GIVEN_DEPTH and n_layers < fewest:
        return {"reason": f"{n_layers} layers: given depth it takes {fewest}"}
    if measure == "slope":
        slope = stats.mean_ci(association.slopes(x, 100 * y), sources)
        return {**_signed(slope.estimate), "low": slope.low, "high": slope.high}
    (value,) = association.strengths(measure, metric, score)
    (rho,) = association.strengths("spearman", metric, score) if measure == "dcor" else (value,)
    return {**_signed(value, rho), "null95": association.null_level(measure, metric, score)}


def _signed(value: float, direction: float | None = None) -> dict[str, object]:
    return {"value": value, "sign": int(np.sign(value if direction is None else direction))}


def _over_tasks(measure: str, x: Floats, y: Floats) -> dict[str, object]:
    """A measure of a metric (t, n) with the scores (t, n) over tasks, averaged over layers.

    Its null level is the size that 95% of associations stay below if scores are of other tasks.
    """
    if measure in association.GIVEN_DEPTH:
        return {"reason": "over tasks there is no depth to account for"}
    if len(x) < association.FEWEST_LAYERS:
        return {"reason": f"{len(x)} tasks: it takes {association.FEWEST_LAYERS}"}
    if not np.ptp(x, axis=0).any():
        return {"reason": "the metric is the same for all tasks"}
    value, rho = (float(association.strengths(m, x.T, y.T).mean()) for m in (measure, "spearman"))
    rng, of_metric = np.random.default_rng(0), association.features(measure, x.T)
    null = []
    for _ in range(N_TASK_PERMUTATIONS):
        of_scores = association.features(measure, rng.permutation(y).T)
        null.append(abs(association.of_features(measure, of_metric, of_scores).mean()))
    level = float(np.quantile(null, 0.95))
    return {**_signed(value, rho), "null95": level, "reason": OVER_TASKS}


def _families(models: Sequence[Model], order: Order) -> list[list[list[Model]]]:
    """Representations that several models have scores for, those of the same models together.

    The last revision of each model represents it.
    """
    about = pd.DataFrame([scores.about for scores, _ in models])
    deep = [len(scores.layers) >= association.FEWEST_LAYERS for scores, _ in models]
    families: dict[tuple[str, ...], list[list[Model]]] = defaultdict(list)
    for _, rows in about[deep].groupby(["tokens", "pooling"], sort=False):
        last = order.only_last(rows)
        if len(last) > 1:
            families[tuple(last["model"])].append([models[i] for i in last.index])
    return list(families.values())


def _over_models(
    representations: Sequence[Sequence[Model]], group: str
) -> list[dict[Any, object]]:
    """Test if the metrics of all representations belong to their own model's scores."""
    n_points = min(len(scores.layers) for models in representations for scores, _ in models)
    compared = [c for m in representations for c in _at_common_depths(m, group, n_points)]
    if not compared:
        return []
    n_models = len(representations[0])
    strengths = np.stack([_apart(metric) @ _apart(score).T for _, metric, score in compared])
    value = np.trace(strengths, axis1=1, axis2=2) / n_models
    p = p_adjusted = np.full(len(compared), np.nan)
    reason = f"{n_models} models: a test over models takes {FEWEST_MODELS}"
    if n_models >= FEWEST_MODELS:
        _, p, p_adjusted = stats.pairing_test(strengths, N_PERMUTATIONS)
        reason = ""
    return [
        {
            **head,
            "model": ALL_MODELS,
            "revision": ALL_MODELS,
            "task_type": group,
            "measure": MATCH,
            **_signed(value[i]),
            "p": p[i],
            "p_adjusted": p_adjusted[i],
            "reason": reason,
            "n_layers": n_points,
            "n_models": n_models,
        }
        for i, (head, _, _) in enumerate(compared)
    ]


def _at_common_depths(
    models: Sequence[Model], group: str, n_points: int
) -> Iterator[tuple[dict[Any, object], Floats, Floats]]:
    """Metrics that all models have: their columns, metric and score, shape (models, depths).

    Baselines are the same in all models; without the mean over models, nothing remains of them.
    """
    scores, metrics = zip(*models, strict=True)
    task_names = [{s.tasks[i] for i in s.groups().get(group, ())} for s in scores]
    shared = sorted(set.intersection(*task_names))
    rows = [[s.tasks.index(task) for task in shared] for s in scores]
    score_values = [s.values[of_tasks] for s, of_tasks in zip(scores, rows, strict=True)]
    metric_values = [m.values[:, of_tasks] for m, of_tasks in zip(metrics, rows, strict=True)]
    model_depths = [s.layers / max(s.last_layer, 1) for s in scores]
    depths = np.linspace(0.0, 1.0, n_points)
    variants = pd.concat([m.variants.reset_index(names="row") for m in metrics])
    variants = variants[variants["protocol"] != BASELINE]
    lacking: dict[object, None] = {}
    for _, variant in variants.groupby(curves.CURVE_KEYS, sort=False, dropna=False):
        about = variant.iloc[0][curves.CURVE_KEYS].to_dict()
        if len(variant) < len(models):
            lacking[about["metric"]] = None
            continue
        values = [v[row] for v, row in zip(metric_values, variant["row"], strict=True)]
        usable_tasks, usable_layers = zip(*map(usable, values), strict=True)
        tasks = np.logical_and.reduce(usable_tasks)
        if not tasks.any() or min(map(sum, usable_layers)) < association.FEWEST_LAYERS:
            continue
        metric_curves = [
            np.interp(depths, depth[layers], metric[tasks][:, layers].mean(axis=0))
            for metric, depth, layers in zip(values, model_depths, usable_layers, strict=True)
        ]
        score_curves = [
            np.interp(depths, depth, score[tasks].mean(axis=0))
            for score, depth in zip(score_values, model_depths, strict=True)
        ]
        if all(np.ptp(curve) > 0 for curve in metric_curves):
            head = {
                **about,
                "tokens": scores[0].tokens,
                "pooling": scores[0].pooling,
                "n_tasks": int(tasks.sum()),
                "n_sources": len({*scores[0].sources[rows[0]][tasks]}),
                "n": min(m.n[row] for m, row in zip(metrics, variant["row"], strict=True)),
            }
            yield head, np.stack(metric_curves), np.stack(score_curves)
    if lacking and group == "all":
        names = ", ".join(map(str, lacking))
        log.warning("over models: some model lacks variants of %s, which are left out", names)


def _apart(curves: Floats) -> Floats:
    """Curves of models to unit length, minus their mean over models, to unit length."""
    scaled = association.unit(curves - curves.mean(axis=1, keepdims=True))
    return association.unit(scaled - scaled.mean(axis=0), 1e-12)
