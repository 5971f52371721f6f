"""The association of every metric with the task scores over layers, as one tidy table.

One row a model, revision, corpus, metric (protocol, alpha, normalization), token choice, pooling,
task type and measure:

================= =============================================================================
value             the measure between the metric's curve and the mean score over the tasks
low, high         95 % bootstrap interval over tasks (percentiles; null for a single task)
p_permutation     share of permuted layer orders at least as strong, two-sided for rank measures
p_shift           the same for circular shifts, which keep the curves' smoothness; >= 1/n_layers
n_layers          layers that went into it, summed over models in pooled rows
n_tasks, n_models how much data it is on
================= =============================================================================

Rows with protocol ``baseline`` are the pseudo-metrics that a metric has to beat. Rows with model
``all`` are pooled over models, each a block (see `layerwise.association.engine`), the last
revision of each. A metric is set against scores of the same token choice only.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association import nulls
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
from layerwise.association.engine import associate_blocks
from layerwise.association.order import Order
from layerwise.config.association import AssociationSettings
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

POOLED = "all"
MIN_LAYERS = 4  # below that any two curves agree or disagree perfectly by chance

COLUMNS = (
    "model", "revision", "corpus", "metric", "protocol", "tokens", "alpha", "normalization",
    "pooling", "task_type", "measure", "value", "low", "high", "p_permutation", "p_shift",
    "n_layers", "n_tasks", "n_models",
)  # fmt: skip


@dataclass(frozen=True)
class _Model:
    """One model's scores and metrics over the same layers: (t, n) and (k, t, n)."""

    scores: ScoreCurves
    variants: pd.DataFrame
    values: Floats


def associate(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    settings: AssociationSettings | None = None,
    order: Order | None = None,
) -> pd.DataFrame:
    """Associate metrics with scores over the layers of each model, and pooled over models.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables as `results/README.md` describes them, of any number of models, corpora and
        tasks.
    settings : AssociationSettings, optional
        The config's `association`; its defaults without one.
    order : Order, optional
        The config's checkpoints, the last of which are pooled; without one, by their steps.

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
        if settings.baselines:
            more_variants, more_values = baselines(curves)
            variants = pd.concat([variants, more_variants], ignore_index=True)
            values = np.concatenate([values, more_values])
        models.append(_Model(curves, variants, values))
    if not models:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in "
            f"common: metrics are of {_names(chosen)}, scores of {_names(scores)}."
        )
    rows: list[pd.DataFrame] = []
    for one in models:
        for group in one.scores.groups():
            rows += _associate_group([one], group, settings)
    if settings.pooled:
        for several in _same_readout(models, order):
            _say_what_some_lack(several)
            for group in several[0].scores.groups():
                rows += _associate_group(several, group, settings)
    if not rows:
        raise LayerwiseError(
            f"No metric varies over at least {MIN_LAYERS} layers that have scores, so there is "
            "nothing to associate; score more layers, or give deeper models."
        )
    table = pd.concat(rows, ignore_index=True)
    return table[list(COLUMNS)]


def _names(frame: pd.DataFrame) -> str:
    triples = frame[["model", "revision", "tokens"]].drop_duplicates().head(4)
    return "; ".join(" ".join(map(str, t)) for t in triples.to_numpy()) or "nothing"


def _same_readout(models: Sequence[_Model], order: Order) -> list[list[_Model]]:
    """Models to pool: those of the same tokens and pooling, the last revision of each."""
    by_readout: dict[tuple[str, str], dict[str, list[_Model]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in models:
        s = one.scores
        by_readout[s.tokens, s.pooling][s.model].append(one)
    pooled = []
    for by_model in by_readout.values():
        if len(by_model) > 1:
            last = {m: order.last(m, (o.scores.revision for o in v)) for m, v in by_model.items()}
            pooled.append(
                [next(o for o in v if o.scores.revision == last[m]) for m, v in by_model.items()]
            )
    return pooled


def _associate_group(
    blocks: Sequence[_Model], group: str, settings: AssociationSettings
) -> list[pd.DataFrame]:
    """Associate all metrics that the blocks have in common with the scores of one task type."""
    tasks = sorted(
        set.intersection(*({b.scores.tasks[i] for i in b.scores.of_type(group)} for b in blocks))
    )
    if not tasks:
        return []
    order = [[b.scores.tasks.index(t) for t in tasks] for b in blocks]
    scores = [b.scores.values[o] for b, o in zip(blocks, order, strict=True)]
    variants, metrics = _in_common(blocks)
    metrics = [m[:, o] for m, o in zip(metrics, order, strict=True)]

    batches = batches_of(metrics)
    left_out = len(variants) - sum(len(members) for members, _, _ in batches)
    head = blocks[0].scores
    if left_out:
        log.info(
            "%s, tokens %s, %s tasks: %d metrics left out, constant or at fewer than %d layers",
            f"{head.model} at {head.revision}" if len(blocks) == 1 else "pooled",
            head.tokens, group, left_out, MIN_LAYERS,
        )  # fmt: skip
    rows = []
    for members, which_tasks, which_layers in batches:
        x = [
            m[members][:, which_tasks][:, :, w] for m, w in zip(metrics, which_layers, strict=True)
        ]
        y = [s[which_tasks][:, w] for s, w in zip(scores, which_layers, strict=True)]
        for measure in settings.measures:
            names = sorted(b.scores.model for b in blocks)
            rng = nulls.generator(
                settings.seed, *names, head.revision if len(blocks) == 1 else POOLED,
                head.tokens, head.pooling, group, measure,
            )  # fmt: skip
            found = associate_blocks(
                x, y, measure,
                permutations=settings.permutations, resamples=settings.resamples, rng=rng,
            )  # fmt: skip
            part = variants.iloc[members].reset_index(drop=True)
            rows.append(
                part.assign(
                    model=head.model if len(blocks) == 1 else POOLED,
                    revision=head.revision if len(blocks) == 1 else POOLED,
                    tokens=head.tokens,
                    pooling=head.pooling,
                    task_type=group,
                    measure=measure,
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    p_permutation=found.p_permutation,
                    p_shift=found.p_shift,
                    n_layers=sum(s.shape[1] for s in y),
                    n_tasks=int(which_tasks.sum()),
                    n_models=len(blocks),
                )
            )
    return rows


Batch = tuple[list[int], npt.NDArray[np.bool_], list[npt.NDArray[np.bool_]]]


def batches_of(metrics: Sequence[Floats]) -> list[Batch]:
    """Metrics that can be associated on the same tasks and layers, together.

    Parameters
    ----------
    metrics : sequence of arrays, shape (k, t, n_i)
        One a block.

    Returns
    -------
    list of (indices of the metrics, tasks, layers of each block); metrics that are constant or
    known at fewer than `MIN_LAYERS` layers are in none.
    """
    found: dict[tuple[bytes, ...], Batch] = {}
    for k in range(len(metrics[0])):
        mask = _usable([m[k] for m in metrics])
        if mask is not None:
            key = (mask[0].tobytes(), *(m.tobytes() for m in mask[1]))
            found.setdefault(key, ([], *mask))[0].append(k)
    return list(found.values())


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


def _in_common(blocks: Sequence[_Model]) -> tuple[pd.DataFrame, list[Floats]]:
    """The metrics that all blocks have, in one order."""
    if len(blocks) == 1:
        return blocks[0].variants, [blocks[0].values]
    keys = [_keys(b) for b in blocks]
    everywhere = set(keys[0]).intersection(*keys[1:])
    common = [k for k in keys[0] if k in everywhere]
    index = [[k.index(c) for c in common] for k in keys]
    first = blocks[0].variants.iloc[index[0]].reset_index(drop=True)
    return first, [b.values[i] for b, i in zip(blocks, index, strict=True)]


def _usable(
    curves: Sequence[Floats],
) -> tuple[npt.NDArray[np.bool_], list[npt.NDArray[np.bool_]]] | None:
    """Which tasks and which layers of each block one metric can be associated on.

    As `usable` says, with the tasks that are left in every block.
    """
    found = [usable(c) for c in curves]
    layers = [w for _, w in found]
    tasks: npt.NDArray[np.bool_] = np.logical_and.reduce([t for t, _ in found])
    if not tasks.any() or any(w.sum() < MIN_LAYERS for w in layers):
        return None
    if any(np.ptp(c[tasks][:, w].mean(axis=0)) == 0 for c, w in zip(curves, layers, strict=True)):
        return None
    return tasks, layers
