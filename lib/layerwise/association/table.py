"""The association of every metric with the task scores over layers, as one tidy table.

One row a model, revision, corpus, metric (protocol, alpha, normalization), token choice, pooling,
task type and measure. Rows of one model say how large an association is, and how large it is among
curves that know nothing of one another; there is no p, since the layers of a model are one curve
and not draws. Rows of the model ``all`` are over models, the last revision of each: there is a p
where there are models enough. What each is stands in docs/statistics.md.

==================== ==========================================================================
value                the measure between the metric's curve and the mean score over the tasks;
                     of ``all``, ``match``: mean correlation of a model's metric with its own
                     scores, both less the mean over models at each depth; ``slope``: points of
                     score (0 to 100) per standard deviation of the metric, given depth
sign                 direction: that of Spearman's rho for distance correlations, which have none
low, high            95 % interval over tasks (of ``all``: over models); slopes alone have one
chance               what 95 % of pairs of unrelated smooth curves of so many layers stay below
without_error        r as it would be without the metric's and the score's errors, slope without
                     the metric's; null where more than 70 % of a curve beyond depth is error
reliability          share of the metric's curve beyond depth (of ``all``: beyond the mean of the
                     models) that is not error over prompts
strangers            of ``match``: the same with the scores of other models
p, p_all             of ``all``; p_all is corrected for all metrics of the task type, in all
                     readings that the same models have
reason               why there is no p
n_layers             layers that went into it (of ``all``: common depths)
n_tasks, n_sources   tasks, and sources of their texts, which count as draws
n_models             1, or the number of models
==================== ==========================================================================

Rows with protocol ``baseline`` are the pseudo-metrics that a metric has to beat. A metric is set
against scores of the same token choice only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association.curves import (
    NO_ALPHA,
    VARIANT,
    ScoreCurves,
    baselines,
    metric_curves,
    of_poolings,
    score_curves,
    select,
    usable,
)
from layerwise.association.measures import embed, paired_strengths
from layerwise.association.order import Order
from layerwise.config.association import AssociationSettings
from layerwise.errors import LayerwiseError
from layerwise.statistics import corrections, depth, matching, mixed
from layerwise.statistics.sampling import design, mean_and_error
from layerwise.statistics.tasks import within_tasks

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

POOLED = "all"
MATCH = "match"
BASELINE = "baseline"
MIN_LAYERS = 4  # below that any two curves agree or disagree perfectly by chance
FEWEST_FOR_SLOPE = 4  # models
ONE_MODEL = "one model: its layers are one curve, not draws"
GIVEN_DEPTH = ("r", "slope")

COLUMNS = (
    "model", "revision", "corpus", "metric", "protocol", "tokens", "alpha", "normalization",
    "pooling", "task_type", "measure", "value", "sign", "low", "high", "chance", "without_error",
    "reliability", "strangers", "p", "p_all", "reason", "n_layers", "n_tasks", "n_sources",
    "n_models",
)  # fmt: skip


@dataclass(frozen=True)
class _Model:
    """One model's scores and metrics over the same layers: (t, n) and (k, t, n)."""

    scores: ScoreCurves
    variants: pd.DataFrame
    values: Floats
    errors: Floats


def associate(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    settings: AssociationSettings | None = None,
    order: Order | None = None,
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
        The config's checkpoints, the last of which stand for their models; without one, by their
        steps.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`, see the module's docstring. Metrics that are constant
    over layers, or known at fewer than `MIN_LAYERS` of them, have no row; the log counts them.

    Raises
    ------
    LayerwiseError
        If the tables have no model, revision and token choice in common.
    """
    settings, order = settings or AssociationSettings(), order or Order()
    chosen = select(
        metrics,
        names=settings.metrics,
        protocols=settings.protocols,
        alphas=settings.alphas,
        normalizations=settings.normalizations,
    )
    models = []
    for curves in score_curves(of_poolings(scores, settings.poolings)):
        variants, values = metric_curves(chosen, curves, own_texts=settings.own_texts)
        if not len(variants):
            log.info(
                "%s at %s has scores but no metrics for the tokens %s; left out",
                curves.model, curves.revision, curves.tokens,
            )  # fmt: skip
            continue
        _, errors = metric_curves(chosen, curves, own_texts=settings.own_texts, column="stderr")
        if settings.baselines:
            more_variants, more_values = baselines(curves)
            variants = pd.concat([variants, more_variants], ignore_index=True)
            values = np.concatenate([values, more_values])
            errors = np.concatenate([errors, np.zeros_like(more_values)])
        models.append(_Model(curves, variants, values, errors))
    if not models:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in "
            f"common: metrics are of {_names(chosen)}, scores of {_names(scores)}."
        )
    rows: list[dict[str, object]] = []
    for one in models:
        for group in one.scores.groups():
            rows += _of_one(one, group, settings)
    if settings.pooled:
        for family in _families(models, order):
            for group in family[0][0].scores.groups():
                rows += _over_models(family, group, settings)
    if not rows:
        raise LayerwiseError(
            f"No metric varies over at least {MIN_LAYERS} layers that have scores, so there is "
            "nothing to associate; score more layers, or give deeper models."
        )
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    return table.astype({"alpha": float, "sign": "Int64"})


def _names(frame: pd.DataFrame) -> str:
    triples = frame[["model", "revision", "tokens"]].drop_duplicates().head(4)
    return "; ".join(" ".join(map(str, t)) for t in triples.to_numpy()) or "nothing"


def _families(models: Sequence[_Model], order: Order) -> list[list[list[_Model]]]:
    """Readings whose scores several models have, those of the same models together.

    The last revision of each model stands for it.
    """
    by_readout: dict[tuple[str, str], dict[str, list[_Model]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in models:
        s = one.scores
        by_readout[s.tokens, s.pooling][s.model].append(one)
    families: dict[tuple[str, ...], list[list[_Model]]] = defaultdict(list)
    for by_model in by_readout.values():
        if len(by_model) > 1:
            last = {m: order.last(m, (o.scores.revision for o in v)) for m, v in by_model.items()}
            chosen = [
                next(o for o in v if o.scores.revision == last[m]) for m, v in by_model.items()
            ]
            _say_what_some_lack(chosen)
            families[tuple(by_model)].append(chosen)
    return list(families.values())


def _of_one(one: _Model, group: str, settings: AssociationSettings) -> list[dict[str, object]]:
    """Associate all metrics of a model with the scores of one task type."""
    chosen, s, rows, left_out = one.scores.of_type(group), one.scores, [], 0
    for k, variant in enumerate(one.variants[VARIANT].to_dict("records")):
        tasks, layers = usable(one.values[k][chosen])
        x = one.values[k][chosen][tasks][:, layers]
        if layers.sum() < MIN_LAYERS or not len(x) or np.ptp(x.mean(axis=0)) == 0:
            left_out += 1
            continue
        y = s.values[chosen[tasks]][:, layers]
        sources = s.sources_of(chosen[tasks])
        common = {
            "model": s.model, "revision": s.revision, **variant, "tokens": s.tokens,
            "pooling": s.pooling, "task_type": group, "reason": ONE_MODEL,
            "n_layers": int(layers.sum()), "n_tasks": len(y), "n_sources": len(set(sources)),
            "n_models": 1,
        }  # fmt: skip
        errors = one.errors[k][chosen][tasks][:, layers]
        rows += [{**common, **f} for f in _sizes(x, y, errors, sources, settings.measures)]
    if left_out:
        log.info(
            "%s at %s, tokens %s, %s tasks: %d metrics left out, constant or at fewer than %d "
            "layers",
            s.model, s.revision, s.tokens, group, left_out, MIN_LAYERS,
        )  # fmt: skip
    return rows


def _sizes(
    x: Floats, y: Floats, errors: Floats, sources: Sequence[str], measures: Sequence[str]
) -> Iterator[dict[str, object]]:
    """Each measure of a metric's curves (t, n) with the scores (t, n)."""
    metric, score = x.mean(axis=0), y.mean(axis=0)
    layers = len(metric)
    rho = _strength("spearman", metric, score)
    deep = layers >= depth.FEWEST_LAYERS
    measured = {"metric": np.nan, "score": np.nan}
    if deep:
        measured["metric"] = float(depth.reliability(metric, _error_of_mean(x, errors)))
        if len(set(sources)) > 1:
            how = design(len(y), sources)
            measured["score"] = float(
                depth.reliability(score, mean_and_error(within_tasks(y), how)[1])
            )
    for measure in measures:
        found: dict[str, object] = {"measure": measure, "reliability": measured["metric"]}
        if measure in GIVEN_DEPTH and not deep:
            few = f"{layers} layers: given depth it takes {depth.FEWEST_LAYERS}"
            yield found | {"reason": few}
            continue
        if measure == "slope":
            value = 100 * float(depth.slopes_of_tasks(x, y).mean())
            found["value"] = value
            if len(set(sources)) > 1:
                over = depth.slope_beyond_depth(x, 100 * y, sources)
                found |= {"low": over.low, "high": over.high}
            if measured["metric"] >= LEAST:
                found["without_error"] = value / measured["metric"]
        else:
            if measure == "r":
                value = float(depth.beyond_depth(metric, score).r)
                found["without_error"] = depth.without_error(
                    value, measured["metric"], measured["score"]
                )
            elif measure == "bcdcor":
                value = depth.bias_corrected_dcor(metric, score)
            else:
                value = _strength(measure, metric, score)
            found |= {"value": value, "chance": depth.chance_level(layers, measure)}
        found["sign"] = int(np.sign(rho if measure in ("dcor", "bcdcor") else value))
        yield found


LEAST = 0.3
"""Reliability below which nothing is corrected for error: more noise than signal."""


def _strength(measure: str, metric: Floats, score: Floats) -> float:
    one, other = embed(measure, metric[None]), embed(measure, score[None])  # type: ignore[arg-type]
    return float(paired_strengths(measure, one, other)[0])  # type: ignore[arg-type]


def _error_of_mean(x: Floats, errors: Floats) -> Floats:
    """Standard errors of a metric's mean curve over tasks, (t, n) to (n,)."""
    if (x == x[:1]).all():  # one corpus for all tasks
        return np.asarray(errors[0])
    return np.asarray(np.sqrt(np.square(errors).sum(axis=0)) / len(errors))


@dataclass(frozen=True)
class _Matched:
    """One metric of one reading over models, at common depths: (m, p), its errors, (m, t, p)."""

    head: Mapping[Any, Any]
    metric: Floats
    errors: Floats
    scores: Floats
    sources: tuple[str, ...]


def _over_models(
    readings: Sequence[Sequence[_Model]], group: str, settings: AssociationSettings
) -> list[dict[str, object]]:
    """Match all metrics of all readings at once: do they belong to their own model's scores?"""
    curves = [c for blocks in readings for c in _at_common_depths(blocks, group)]
    if not curves:
        return []
    models = len(readings[0])
    points = min(c.metric.shape[1] for c in curves)
    found = matching.match(
        [matching.on_common_depths(list(c.metric), points) for c in curves],
        [matching.on_common_depths(list(c.scores.mean(axis=1)), points) for c in curves],
        seed=settings.seed,
    )
    rows: list[dict[str, object]] = []
    slopes = []
    for i, c in enumerate(curves):
        common = {
            **c.head, "model": POOLED, "revision": POOLED, "task_type": group,
            "n_layers": points, "n_tasks": c.scores.shape[1], "n_sources": len(set(c.sources)),
            "n_models": models,
        }  # fmt: skip
        rows.append(
            {
                **common, "measure": MATCH, "value": found.value[i],
                "sign": int(np.sign(found.value[i])), "strangers": found.strangers[i],
                "p": found.p[i], "p_all": found.p_all[i], "reason": found.reason,
            }
        )  # fmt: skip
        slope: dict[str, object] = {**common, "measure": "slope"}
        if models < FEWEST_FOR_SLOPE:
            slope["reason"] = f"{models} models: a slope over models takes {FEWEST_FOR_SLOPE}"
        elif len(set(c.sources)) < 2:
            slope["reason"] = "tasks of one text source: a slope over models takes two"
        else:
            over = mixed.beyond_depth_over_models(list(c.metric), list(100 * c.scores), c.sources)
            known = mixed.reliability_over_models(list(c.metric), list(c.errors))
            slope |= {
                "value": over.value, "low": over.low, "high": over.high, "p": over.p,
                "sign": int(np.sign(over.value)), "reason": "", "reliability": known,
            }  # fmt: skip
            if known >= LEAST:
                slope["without_error"] = over.value / known
        slopes.append(slope)
    if "slope" not in settings.measures:
        return rows
    p_all = corrections.holm([float(s.get("p", np.nan)) for s in slopes])  # type: ignore[arg-type]
    return rows + [{**s, "p_all": p} for s, p in zip(slopes, p_all, strict=True)]


def _at_common_depths(blocks: Sequence[_Model], group: str) -> Iterator[_Matched]:
    """The metrics that all models have, and vary, with the scores of the tasks that all have."""
    tasks = sorted(
        set.intersection(*({b.scores.tasks[i] for i in b.scores.of_type(group)} for b in blocks))
    )
    if not tasks:
        return
    order = [[b.scores.tasks.index(t) for t in tasks] for b in blocks]
    sources = blocks[0].scores.sources_of(order[0])
    variants, metrics, errors = _in_common(blocks)
    head = blocks[0].scores
    points = min(len(b.scores.layers) for b in blocks)
    at = np.linspace(0.0, 1.0, points)
    for k, variant in enumerate(variants[VARIANT].to_dict("records")):
        if variant["protocol"] == BASELINE:
            continue  # the same in all models, and nothing is left of it
        found = [usable(m[k][o]) for m, o in zip(metrics, order, strict=True)]
        which: npt.NDArray[np.bool_] = np.logical_and.reduce([t for t, _ in found])
        if not which.any() or any(w.sum() < MIN_LAYERS for _, w in found):
            continue
        x, y, noise = [], [], []
        for block, metric, error, o, (_, layers) in zip(
            blocks, metrics, errors, order, found, strict=True
        ):
            deep = block.scores.layers / max(block.scores.last_layer, 1)
            curves = metric[k][o][which][:, layers]
            x.append(np.interp(at, deep[layers], curves.mean(axis=0)))
            own = _error_of_mean(curves, error[k][o][which][:, layers])
            noise.append(np.interp(at, deep[layers], own))
            scores = block.scores.values[o][which]
            y.append(np.stack([np.interp(at, deep, task) for task in scores]))
        if any(np.ptp(c) == 0 for c in x):
            continue
        reading: dict[Any, Any] = {"tokens": head.tokens, "pooling": head.pooling}
        kept = tuple(s for s, w in zip(sources, which, strict=True) if w)
        yield _Matched({**variant, **reading}, np.stack(x), np.stack(noise), np.stack(y), kept)


def _keys(block: _Model) -> list[tuple[object, ...]]:
    """What tells a model's metrics from one another, in a form that can be compared."""
    # A missing alpha equals a missing alpha here, as it does not in a plain comparison.
    plain = block.variants[VARIANT].fillna({"alpha": NO_ALPHA})
    return [tuple(r) for r in plain.to_numpy()]


def _say_what_some_lack(blocks: Sequence[_Model]) -> None:
    """Log the metrics that a model lacks and others have, which no pooled row can be about."""
    there = [dict.fromkeys(_keys(b)) for b in blocks]
    anywhere = dict.fromkeys(k for keys in there for k in keys)
    for block, keys in zip(blocks, there, strict=True):
        lacking: dict[object, list[str]] = defaultdict(list)
        for corpus, *rest in (k for k in anywhere if k not in keys):
            lacking[corpus].append("/".join(str(r) for r in rest if r != NO_ALPHA))
        for corpus, names in lacking.items():
            log.warning(
                "pooled, tokens %s, pooling %s: left out on %s, since %s at %s lacks them: %s",
                block.scores.tokens, block.scores.pooling, corpus, block.scores.model,
                block.scores.revision, ", ".join(names),
            )  # fmt: skip


def _in_common(blocks: Sequence[_Model]) -> tuple[pd.DataFrame, list[Floats], list[Floats]]:
    """The metrics that all blocks have, in one order, and their errors."""
    keys = [_keys(b) for b in blocks]
    everywhere = set(keys[0]).intersection(*keys[1:])
    common = [k for k in keys[0] if k in everywhere]
    index = [[k.index(c) for c in common] for k in keys]
    first = blocks[0].variants.iloc[index[0]].reset_index(drop=True)
    picked = list(zip(blocks, index, strict=True))
    return first, [b.values[i] for b, i in picked], [b.errors[i] for b, i in picked]
