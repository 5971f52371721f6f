"""Layer choice without labels: what following a metric would have cost or gained.

Each metric with a declared direction picks the layer at its better end; of equal layers the
shallowest. No score is looked at in the choice. Beside the metrics stand the ``consensus`` (the
layer with the best mean rank over the paper's seven metrics, those of them there are) and the
baselines that need no metric at all: ``model output``, which is what users of the model get (the
last layer after the model's last norm), and ``middle layer`` (l = L/2, rounded down).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association import nulls
from layerwise.association.curves import (
    VARIANT,
    ScoreCurves,
    metric_curves,
    of_poolings,
    score_curves,
    usable,
)
from layerwise.association.engine import associate_blocks
from layerwise.association.order import Order
from layerwise.association.table import batches_of
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

CONSENSUS = "consensus"
OUTPUT = "model output"
MIDDLE = "middle layer"
BASELINE = "baseline"

# Those of the paper. Others are variations on them, which would count the same evidence twice.
CONSENSUS_OF = frozenset(
    {
        "prompt_entropy",
        "dataset_entropy",
        "effective_rank",
        "curvature",
        "infonce",
        "lidar",
        "dime",
    }
)

COLUMNS = (
    "model", "revision", "corpus", "metric", "protocol", "tokens", "alpha", "normalization",
    "pooling", "task_type", "direction", "spearman", "spearman_low", "spearman_high", "layer",
    "depth", "score", "best_layer", "best_is_output", "best_score", "regret", "regret_low",
    "regret_high", "output_score", "output_from", "gain_over_output", "gain_low", "gain_high",
    "middle_score", "gain_over_middle", "n_layers", "n_tasks",
)  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """A layer picked by one metric for one model, corpus and token choice.

    Attributes
    ----------
    variant : dict
        The columns of `VARIANT`.
    layer : int
    sign : dict
        The end it was picked at (`direction`), and the one that the scores speak for
        (`spearman` and its interval).
    """

    variant: Mapping[str, object]
    layer: int
    sign: Mapping[str, object] = field(default_factory=dict)


def pick_layers(
    rows: pd.DataFrame,
    values: Floats,
    layers: npt.NDArray[np.int64],
    directions: Mapping[str, int],
) -> list[Pick]:
    """The layer that each metric picks, then the consensus of each corpus and protocol.

    The consensus takes one variant of each metric of `CONSENSUS_OF` (raw, and alpha 1 where there
    is one), ranks the layers by each, and averages the ranks; it needs two metrics. A layer
    without a value ranks last.

    Parameters
    ----------
    rows : DataFrame
        The columns of `VARIANT`, one row a metric.
    values : array, shape (k, n)
    layers : array, shape (n,)
    directions : mapping from metric to +1 (higher is better) or -1
        Metrics that are not in it are passed over.
    """
    from scipy.stats import rankdata

    picks: list[Pick] = []
    ranked: list[tuple[object, object, Floats]] = []
    for index, metric in enumerate(rows["metric"]):
        if metric not in directions or not np.isfinite(values[index]).any():
            continue
        good = np.where(np.isfinite(values[index]), directions[metric] * values[index], -np.inf)
        variant = dict(rows.iloc[index][VARIANT])
        picks.append(Pick(variant, int(layers[int(np.argmax(good))])))
        alpha = variant["alpha"]
        plain = variant["normalization"] == "raw" and (pd.isna(alpha) or alpha == 1)
        if plain and metric in CONSENSUS_OF:
            ranked.append((variant["corpus"], variant["protocol"], rankdata(good)))
    for corpus, protocol in dict.fromkeys((c, p) for c, p, _ in ranked):
        ranks = [r for c, p, r in ranked if (c, p) == (corpus, protocol)]
        if len(ranks) > 1:
            variant = {
                "corpus": corpus,
                "metric": CONSENSUS,
                "protocol": protocol,
                "alpha": np.nan,
                "normalization": "raw",
            }
            picks.append(Pick(variant, int(layers[int(np.argmax(np.mean(ranks, axis=0)))])))
    return picks


def choose_layers(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    directions: Mapping[str, int],
    *,
    own_texts: Mapping[str, str] | None = None,
    poolings: Sequence[str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Set the picks of every metric against the scores, per model and task type.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables.
    directions : mapping
        As `layerwise.metrics.registry.directions` gives it, with what the config turns.
    own_texts : mapping of corpus to task, optional
        As in `layerwise.association.curves.metric_curves`; a task's pick then comes from the mean
        over the tasks' own corpora.
    poolings : sequence of str, optional
        As in `layerwise.association.curves.of_poolings`.
    resamples, seed : int
        Bootstrap over tasks, for the intervals of regret and gain.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`. Scores in [0, 1]; regret = best score - score, >= 0;
    gains are differences of scores. `regret_low` to `gain_high` are 95 % bootstrap intervals over
    tasks, null for a single task; that of the regret is of the difference to the layer that is
    best over all tasks, so it goes below 0 where the two cannot be told apart.

    `direction` is the end that was picked. `spearman` is the rank correlation of metric and mean
    score over layers, with a 95 % bootstrap interval over tasks: its sign is the end that the
    scores speak for. It is null where the metric is constant or known at fewer than four layers.

    The best is one of the layers or the model's own output (`best_is_output`; `best_layer` is then
    L). Baselines have the protocol ``baseline``. Where the output has no score, there is no
    baseline `OUTPUT`, and `output_score` and all gains over it are null; where the scores hold no
    readout ``output``, the last layer stands in (`output_from`).

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model in common, or no metric has a direction.
    """
    if not set(metrics["metric"]) & set(directions):
        raise LayerwiseError(
            "None of the metrics has a direction, so none can pick a layer; metrics are "
            f"{', '.join(sorted(set(metrics['metric'])))}, directions are known for "
            f"{', '.join(sorted(directions))}."
        )
    rows: list[dict[str, object]] = []
    for curves in score_curves(of_poolings(scores, poolings)):
        variants, values = metric_curves(metrics, curves, own_texts=own_texts)
        if not len(variants):
            log.info("%s at %s has scores but no metrics; left out", curves.model, curves.revision)
            continue
        for group in curves.groups():
            tasks = curves.of_type(group)
            curve = np.stack([_mean_curve(v) for v in values[:, tasks]])
            picks = pick_layers(variants, curve, curves.layers, directions)
            directed = variants["metric"].isin(list(directions)).to_numpy()
            mute = int((directed & ~np.isfinite(curve).any(axis=1)).sum())
            if mute:
                log.warning(
                    "%s at %s (%s, %s), %s tasks: metrics without a pick: %d, since no task has a "
                    "value at each of their layers",
                    curves.model, curves.revision, curves.tokens, curves.pooling, group, mute,
                )  # fmt: skip
            rng = nulls.generator(
                seed, curves.model, curves.revision, curves.tokens, curves.pooling, group
            )
            signs = _signs(variants, values[:, tasks], curves, group, resamples, seed)
            known = [_with_sign(p, directions, signs) for p in picks]
            rows += _against_scores(
                known + _baselines(curves, tasks), curves, group, resamples, rng
            )
    if not rows:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in common."
        )
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS)).astype({"direction": "Int64"})


def _signs(
    variants: pd.DataFrame,
    values: Floats,
    curves: ScoreCurves,
    group: str,
    resamples: int,
    seed: int,
) -> dict[tuple[object, ...], tuple[float, float, float]]:
    """Spearman's rho of each metric with the mean score, and its interval."""
    scores = curves.values[curves.of_type(group)]
    found: dict[tuple[object, ...], tuple[float, float, float]] = {}
    for members, tasks, (layers,) in batches_of([values]):
        name = (curves.model, curves.revision, curves.tokens, curves.pooling, group, "sign")
        one = associate_blocks(
            [values[members][:, tasks][:, :, layers]], [scores[tasks][:, layers]], "spearman",
            permutations=1, resamples=resamples, rng=nulls.generator(seed, *name),
        )  # fmt: skip
        for i, member in enumerate(members):
            found[_key(variants.iloc[member])] = (one.value[i], one.low[i], one.high[i])
    return found


def _key(variant: Mapping[str, object] | pd.Series[Any]) -> tuple[object, ...]:
    values = [variant[c] for c in VARIANT]
    return tuple(None if v is None or v != v else v for v in values)


def _with_sign(
    pick: Pick,
    directions: Mapping[str, int],
    signs: Mapping[tuple[object, ...], tuple[float, float, float]],
) -> Pick:
    if pick.variant["metric"] not in directions:
        return pick  # the consensus has no end of its own
    rho, low, high = signs.get(_key(pick.variant), (np.nan, np.nan, np.nan))
    sign = {"direction": directions[str(pick.variant["metric"])], "spearman": rho}
    return replace(pick, sign={**sign, "spearman_low": low, "spearman_high": high})


def _mean_curve(values: Floats) -> Floats:
    """One metric's mean over the tasks it is known for; the others speak for the rest."""
    tasks, layers = usable(values)
    mean = np.full(values.shape[1], np.nan)
    if tasks.any():
        mean[layers] = values[tasks][:, layers].mean(axis=0)
    return mean


def _middle(curves: ScoreCurves) -> int:
    """Place of the layer nearest to L/2."""
    return int(np.abs(curves.layers - curves.last_layer // 2).argmin())


def _baselines(curves: ScoreCurves, tasks: npt.NDArray[np.intp]) -> list[Pick]:
    fixed = {MIDDLE: curves.layers[_middle(curves)]}
    if np.isfinite(curves.output[tasks]).all():
        fixed = {OUTPUT: curves.last_layer, **fixed}
    return [
        Pick(
            {
                "corpus": "none",
                "metric": name,
                "protocol": BASELINE,
                "alpha": np.nan,
                "normalization": "raw",
            },
            int(layer),
        )
        for name, layer in fixed.items()
    ]


def _against_scores(
    picks: Sequence[Pick],
    curves: ScoreCurves,
    group: str,
    resamples: int,
    rng: np.random.Generator,
) -> list[dict[str, object]]:
    candidates = curves.candidates(curves.of_type(group))
    values, output = candidates.values, candidates.output_scores
    mean = values.mean(axis=0)
    output_score = float(output.mean())
    place = {int(layer): i for i, layer in enumerate(curves.layers)}
    best = int(np.argmax(mean))
    middle = _middle(curves)
    weights = nulls.task_resamples(len(values), resamples, rng) if len(values) > 1 else None
    rows = []
    for pick in picks:
        is_output = pick.variant["metric"] == OUTPUT
        at = candidates.output if is_output else place[pick.layer]
        gain = _interval(weights, values[:, at] - output)
        regret = _interval(weights, values[:, best] - values[:, at])
        rows.append(
            {
                **pick.variant,
                **pick.sign,
                "model": curves.model,
                "revision": curves.revision,
                "tokens": curves.tokens,
                "pooling": curves.pooling,
                "task_type": group,
                "layer": pick.layer,
                "depth": pick.layer / max(curves.last_layer, 1),
                "score": mean[at],
                "best_layer": int(candidates.layers[best]),
                "best_is_output": best == candidates.output,
                "best_score": mean[best],
                "regret": mean[best] - mean[at],
                "regret_low": regret[0],
                "regret_high": regret[1],
                "output_score": output_score,
                "output_from": curves.output_from,
                "gain_over_output": mean[at] - output_score,
                "gain_low": gain[0],
                "gain_high": gain[1],
                "middle_score": mean[middle],
                "gain_over_middle": mean[at] - mean[middle],
                "n_layers": len(curves.layers),
                "n_tasks": len(values),
            }
        )
    return rows


def _interval(weights: Floats | None, differences: Floats) -> tuple[float, float]:
    """Of a mean difference over tasks, null where there are no resamples."""
    if weights is None:
        return np.nan, np.nan
    low, high = nulls.interval(weights @ differences)
    return float(low), float(high)


def summarize(choices: pd.DataFrame, order: Order | None = None) -> pd.DataFrame:
    """How each metric did over all models, the last revision of each.

    Returns
    -------
    DataFrame
        One row a metric (with corpus, protocol, alpha, normalization), tokens, pooling and task
        type, best first: n_models, mean_score, mean_regret, worst_regret, mean_gain_over_output,
        beats_output, ties_output and beats_middle (numbers of models; one without a score of its
        output counts in neither of the first two).
    """
    final = (order or Order()).only_last(choices)
    keys = [*VARIANT, "tokens", "pooling", "task_type"]
    summary = (
        final.assign(
            beats_output=final["gain_over_output"] > 0,
            ties_output=final["gain_over_output"] == 0,
            beats_middle=final["gain_over_middle"] > 0,
        )
        .groupby(keys, dropna=False)
        .agg(
            n_models=("model", "nunique"),
            mean_score=("score", "mean"),
            mean_regret=("regret", "mean"),
            worst_regret=("regret", "max"),
            mean_gain_over_output=("gain_over_output", "mean"),
            beats_output=("beats_output", "sum"),
            ties_output=("ties_output", "sum"),
            beats_middle=("beats_middle", "sum"),
        )
        .reset_index()
    )
    return summary.sort_values(["task_type", "tokens", "mean_regret"], ignore_index=True)
