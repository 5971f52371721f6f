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
from layerwise.association.curves import (
    BASELINE,
    KEYS,
    VARIANT,
    MetricCurves,
    ScoreCurves,
    Tasks,
    baselines,
    metric_curves,
    score_curves,
    usable,
)
from layerwise.config.settings import AssociationSettings, Measure, Over
from layerwise.errors import LayerwiseError
from layerwise.names import Order

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

COLUMNS = [*KEYS, "measure", "value", "sign", "low", "high", "null95", "p", "p_adjusted"]
COLUMNS += ["reason", "n_layers", "n_tasks", "n_sources", "n_models", "n"]

Model = tuple[ScoreCurves, MetricCurves]
"""The scores of one model, and its metrics and baselines."""


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
    for curves in score_curves(scores):
        if curves.omitted:
            log.warning("scores are missing; left out %s", curves.omitted)
        both = pd.concat([raw, baselines(curves)], ignore_index=True)
        found = metric_curves(both, curves, settings.own_texts)
        if (found.variants["protocol"] == BASELINE).all():
            log.info("%s has scores but no metrics; left out", curves)
        else:
            models.append((curves, found))
    rows = [
        row
        for model in models
        for group, tasks in model[0].groups().items()
        for row in _of_one(*model, group, tasks, over)
    ]
    if over == "layers" and models:
        for family in _families(models, order or Order()):
            for group in family[0][0][0].groups():
                rows += _over_models(family, group, settings.seed)
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
    variants, values, _, prompts = metrics
    for about, value, n in zip(variants.to_dict("records"), values, prompts, strict=True):
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
        for size in _sizes(x, y, sources) if over == "layers" else _over_tasks(x, y):
            yield common | size


def _sizes(x: Floats, y: Floats, sources: npt.NDArray[Any]) -> Iterator[dict[str, object]]:
    """Each measure of a metric's curves (t, n) with the scores (t, n)."""
    metric, score = x.mean(axis=0)[None], y.mean(axis=0)[None]
    n_layers = metric.shape[1]
    rho = float(association.strengths("spearman", metric, score)[0])
    for measure in get_args(Measure):
        if measure in association.GIVEN_DEPTH and n_layers < association.FEWEST_GIVEN_DEPTH:
            few = f"{n_layers} layers: given depth it takes {association.FEWEST_GIVEN_DEPTH}"
            yield {"measure": measure, "reason": few}
        elif measure == "slope":
            slope = stats.mean_ci(association.slopes(x, 100 * y), sources)
            ends = {"low": slope.low, "high": slope.high}
            yield {"measure": measure, **_signed(slope.estimate), **ends}
        else:
            value = float(association.strengths(measure, metric, score)[0])
            sized = _signed(value, rho if measure == "dcor" else value)
            null = association.null_level(measure, metric, score)
            yield {"measure": measure, **sized, "null95": null}


def _signed(value: float, direction: float | None = None) -> dict[str, object]:
    return {"value": value, "sign": int(np.sign(value if direction is None else direction))}


def _over_tasks(x: Floats, y: Floats) -> Iterator[dict[str, object]]:
    """Each measure of a metric (t, n) with the scores (t, n) over tasks, averaged over layers."""
    reason = ""
    if len(x) < association.FEWEST_LAYERS:
        reason = f"{len(x)} tasks: it takes {association.FEWEST_LAYERS}"
    elif not np.ptp(x, axis=0).any():
        reason = "the metric is the same for all tasks"
    for measure in get_args(Measure):
        if measure in association.GIVEN_DEPTH:
            yield {"measure": measure, "reason": "over tasks there is no depth to account for"}
        elif reason:
            yield {"measure": measure, "reason": reason}
        else:
            value, rho = (
                float(association.strengths(name, x.T, y.T).mean())
                for name in (measure, "spearman")
            )
            null = _null_of_tasks(measure, x, y)
            sized = _signed(value, rho)
            yield {"measure": measure, **sized, "null95": null, "reason": OVER_TASKS}


def _null_of_tasks(measure: str, x: Floats, y: Floats) -> float:
    """Size that 95% of associations stay below if scores belong to other tasks."""
    rng, own = np.random.default_rng(0), association.features(measure, x.T)
    null = [
        abs(association.of_features(measure, own, association.features(measure, other.T)).mean())
        for other in (rng.permutation(y) for _ in range(N_TASK_PERMUTATIONS))
    ]
    return float(np.quantile(null, 0.95))


def _families(models: Sequence[Model], order: Order) -> list[list[list[Model]]]:
    """Representations that several models have scores for, those of the same models together.

    The last revision of each model represents it.
    """
    about = pd.DataFrame([scores.about for scores, _ in models])
    deep = [len(scores.layers) >= association.FEWEST_LAYERS for scores, _ in models]
    families: dict[tuple[str, ...], list[list[Model]]] = defaultdict(list)
    for _, part in about[deep].groupby(["tokens", "pooling"], sort=False):
        last = order.only_last(part)
        if len(last) > 1:
            families[tuple(last["model"])].append([models[i] for i in last.index])
    return list(families.values())


def _over_models(
    representations: Sequence[Sequence[Model]], group: str, seed: int
) -> list[dict[Any, object]]:
    """Test if the metrics of all representations belong to their own model's scores."""
    n_points = min(len(scores.layers) for models in representations for scores, _ in models)
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
            **_signed(value[i]),
            "p": p[i],
            "p_adjusted": p_adjusted[i],
            "reason": reason,
            "n_layers": n_points,
            "n_models": n_models,
        }
        for i, (head, _, _) in enumerate(curves)
    ]


def _at_common_depths(
    models: Sequence[Model], group: str, n_points: int
) -> Iterator[tuple[dict[Any, object], Floats, Floats]]:
    """Metrics that all models have: their columns, metric and score, shape (models, depths).

    Baselines are the same in all models; without the mean over models, nothing remains of them.
    """
    first = models[0][0]
    found = [{s.tasks[i] for i in s.groups().get(group, ())} for s, _ in models]
    tasks = sorted(set.intersection(*found))
    chosen = [[scores.tasks.index(t) for t in tasks] for scores, _ in models]
    every = pd.concat([metrics.variants.reset_index(names="row") for _, metrics in models])
    every = every[every["protocol"] != BASELINE]
    at = np.linspace(0.0, 1.0, n_points)
    lacking: dict[object, None] = {}
    for _, part in every.groupby(VARIANT, sort=False, dropna=False):
        about = part.iloc[0][VARIANT].to_dict()
        if len(part) < len(models):
            lacking[about["metric"]] = None
            continue
        each = list(zip(models, part["row"], chosen, strict=True))
        known = [usable(metrics.values[row][c]) for (_, metrics), row, c in each]
        which: npt.NDArray[np.bool_] = np.logical_and.reduce([t for t, _ in known])
        if not which.any() or any(n.sum() < association.FEWEST_LAYERS for _, n in known):
            continue
        x, y = [], []
        for ((scores, metrics), row, c), (_, layers) in zip(each, known, strict=True):
            depth = scores.layers / max(scores.last_layer, 1)
            metric = metrics.values[row][c][which][:, layers].mean(axis=0)
            x.append(np.interp(at, depth[layers], metric))
            y.append(np.interp(at, depth, scores.values[c][which].mean(axis=0)))
        if all(np.ptp(curve) > 0 for curve in x):
            head = {
                **about,
                "tokens": first.tokens,
                "pooling": first.pooling,
                "n_tasks": int(which.sum()),
                "n_sources": len(set(first.sources[chosen[0]][which])),
                "n": min(metrics.n[row] for (_, metrics), row, _ in each),
            }
            yield head, np.stack(x), np.stack(y)
    if lacking and group == "all":
        names = ", ".join(map(str, lacking))
        log.warning("over models: some model lacks variants of %s, which are left out", names)


def _apart(curves: Floats) -> Floats:
    """Curves of models to unit length, minus their mean over models, to unit length."""
    scaled = association.unit(curves - curves.mean(axis=1, keepdims=True))
    return association.unit(scaled - scaled.mean(axis=0), 1e-12)
