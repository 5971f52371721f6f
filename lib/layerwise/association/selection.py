"""Layer selection: the layers that metrics select without labels, and the best ones by score.

A metric with a declared direction selects the layer at its better end; of equal layers the
shallowest. It does not look at the scores. Beside the metrics there are the ``consensus`` (the
best mean rank over the paper's seven metrics) and two baselines: ``model output``, which is what
users of a model get, and ``middle layer``, l = L/2 rounded down. ``best rule of the others``
takes, in each model, the rule that does best in the other models.

A selection is unreliable with fewer than `layerwise.stats.FEW` prompts, or if other samples of
prompts would select another layer. The consensus and the best rule ignore unreliable metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from layerwise import stats
from layerwise.association.curves import (
    BASELINE,
    KEYS,
    VARIANT,
    ScoreCurves,
    fewest,
    mean_curve,
    metric_curves,
    score_curves,
    variants_by_layer,
)
from layerwise.association.order import Order
from layerwise.association.reliability import resampled_curves, why_unreliable
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Layers = npt.NDArray[np.int64]

CONSENSUS = "consensus"
NESTED = "best rule of the others"
OUTPUT = "model output"
MIDDLE = "middle layer"
CONSENSUS_OF = (
    "prompt_entropy",
    "dataset_entropy",
    "effective_rank",
    "curvature",
    "infonce",
    "lidar",
    "dime",
)
"""The paper's metrics; others are variations of them and would count the same evidence twice."""

COLUMNS = (
    *KEYS,
    "direction",
    "layer",
    "depth",
    "unreliable",
    "score",
    "best_layer",
    "best_is_output",
    "best_score",
    "regret",
    "regret_low",
    "regret_high",
    "output_score",
    "output_from",
    "gain_over_output",
    "gain_low",
    "gain_high",
    "n_layers",
    "n_tasks",
    "n_sources",
)
INTERVALS = ("regret_low", "regret_high", "gain_low", "gain_high")


def select_by_metrics(
    variants: pd.DataFrame,
    values: Floats,
    layers: Layers,
    directions: Mapping[str, int],
    resampled: Sequence[Floats | None],
    n: Floats,
) -> pd.DataFrame:
    """The layer that each metric selects, then the consensus of each corpus and protocol.

    Parameters
    ----------
    variants : DataFrame
        The columns of `VARIANT`, one row per metric.
    values : array, shape (k, L)
    layers : array, shape (L,)
    directions : mapping of metric to +1 (higher is better) or -1
        Metrics that are not in it are skipped.
    resampled : sequence of k arrays, shape (B, L), or None
        Curves of each metric on other samples of prompts, from `resampled_curves`.
    n : array, shape (k,)
        Numbers of prompts, NaN if unknown.

    Returns
    -------
    DataFrame
        `VARIANT`, layer, direction (null for the consensus), and `unreliable`: why there are too
        few prompts, empty if there are enough.
    """
    known = np.isfinite(values)
    direction = variants["metric"].map(directions).to_numpy(dtype=float)
    good = np.where(known, direction[:, None] * values, -np.inf)
    found = variants[VARIANT].assign(direction=direction, layer=layers[good.argmax(axis=1)])
    found = found[np.isfinite(direction) & known.any(axis=1)]
    others = ((i, resampled[i]) for i in found.index)
    found["unreliable"] = [
        why_unreliable(good[i], None if curves is None else direction[i] * curves, n[i])
        for i, curves in others
    ]
    rules = []
    agree = is_plain(found) & found["metric"].isin(CONSENSUS_OF) & (found["unreliable"] == "")
    for (corpus, protocol), part in found[agree].groupby(["corpus", "protocol"]):
        if len(part) > 1:
            best = layers[rankdata(good[part.index], axis=1).mean(axis=0).argmax()]
            rules.append(_rule(CONSENSUS, best, str(corpus), str(protocol)))
    return pd.concat([found, pd.DataFrame(rules)], ignore_index=True)


def _rule(name: str, layer: int, corpus: str = "none", protocol: str = BASELINE) -> dict[Any, Any]:
    return {
        "corpus": corpus,
        "metric": name,
        "protocol": protocol,
        "alpha": np.nan,
        "normalization": "raw",
        "layer": layer,
        "unreliable": "",
    }


def is_plain(table: pd.DataFrame) -> pd.Series[bool]:
    """True for raw metrics, of alpha 1 if they have an order."""
    return (table["normalization"] == "raw") & table["alpha"].fillna(1).eq(1)


def select_layers(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    directions: Mapping[str, int],
    *,
    prompts: pd.DataFrame | None = None,
    own_texts: Mapping[str, str] | None = None,
    order: Order | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare the layers that metrics select with the best ones, per model and task type.

    Parameters
    ----------
    metrics, scores : DataFrame
        Tidy tables.
    directions : mapping of metric to 1 or -1
    prompts : DataFrame, optional
        Tidy table of prompts, for `resampled_curves`.
    own_texts : mapping of corpus to task, optional
        As in `layerwise.association.curves.metric_curves`.
    order : Order, optional
        Order of checkpoints; the last one of a model represents it in `NESTED`.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`. Scores are in [0, 1]; regret = best score - score.
    The 95% interval of the regret is from intervals that hold for all layers together, and that of
    the gain over the output is Student's; both are over task clusters and need three of them.
    `direction` is the end that was selected. The best is one of the layers or the model's output
    (`best_is_output`; `best_layer` is then L).

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model in common, or no metric has a direction.
    """
    if not set(metrics["metric"]) & set(directions):
        raise LayerwiseError(
            "None of the metrics has a direction, and none can select a layer; metrics are "
            f"{', '.join(sorted(map(str, metrics['metric'].unique()))[:10])}.",
            code="unsupported",
        )
    rows: list[dict[str, object]] = []
    for curves in score_curves(scores):
        known = metric_curves(metrics, curves, own_texts)
        if not len(known.variants):
            log.info("%s at %s has scores but no metrics; left out", curves.model, curves.revision)
            continue
        own_prompts = None if prompts is None else _of_curves(prompts, curves)
        for group in curves.groups():
            tasks = curves.of_type(group)
            curve = np.stack([mean_curve(v) for v in known.values[:, tasks]])
            stderr = known.stderr[:, tasks].mean(axis=1)
            resampled = resampled_curves(
                known.variants, curve, stderr, own_prompts, curves.layers, seed
            )
            found = select_by_metrics(
                known.variants, curve, curves.layers, directions, resampled, known.n
            )
            n_missing = known.variants["metric"].isin(list(directions)).sum()
            n_missing -= (found["metric"] != CONSENSUS).sum()
            if n_missing:
                log.warning(
                    "%s at %s (%s, %s), %s tasks: %d metrics select no layer, since no task has a "
                    "value at each of their layers",
                    *curves.about.values(),
                    group,
                    n_missing,
                )
            selected = [*found.to_dict("records"), *_baselines(curves, tasks)]
            rows += _against_scores(selected, curves, group, seed)
    if not rows:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in "
            "common.",
            code="too_few",
        )
    table = pd.DataFrame(rows)[list(COLUMNS)].astype({"direction": "Int64", "layer": "Int64"})
    return pd.concat([table, *_rules_over_models(table, order or Order())], ignore_index=True)


def _of_curves(prompts: pd.DataFrame, curves: ScoreCurves) -> pd.DataFrame:
    same = (prompts["model"] == curves.model) & (prompts["revision"] == curves.revision)
    return prompts[same & (prompts["tokens"] == curves.tokens)]


def _baselines(curves: ScoreCurves, tasks: npt.NDArray[np.intp]) -> list[dict[Any, Any]]:
    found = [_rule(MIDDLE, int(curves.layers[curves.middle]))]
    if np.isfinite(curves.output[tasks]).all():
        found = [_rule(OUTPUT, curves.last_layer), *found]
    return found


def _against_scores(
    selected: Sequence[Mapping[Any, Any]], curves: ScoreCurves, group: str, seed: int
) -> Iterator[dict[str, object]]:
    """One row per selected layer: its score, its regret, and its gain over the output."""
    tasks = curves.of_type(group)
    candidates, sources = curves.candidates(tasks), curves.sources_of(tasks)
    values, output = candidates.values, candidates.output_scores
    mean, place = values.mean(axis=0), {int(layer): i for i, layer in enumerate(curves.layers)}
    best = int(np.argmax(mean))
    regrets: dict[int, tuple[float, float]] = {}
    for one in selected:
        at = place[one["layer"]] if one["metric"] != OUTPUT else candidates.output
        assert at is not None
        if at not in regrets:
            regrets[at] = _regret_ci(values, at, sources, seed)
        gain = stats.clustered_mean_ci(values[:, at] - output, sources)
        yield {
            **one,
            **curves.about,
            "task_type": group,
            "depth": one["layer"] / max(curves.last_layer, 1),
            "score": mean[at],
            "best_layer": int(candidates.layers[best]),
            "best_is_output": best == candidates.output,
            "best_score": mean[best],
            "regret": mean[best] - mean[at],
            "regret_low": regrets[at][0],
            "regret_high": regrets[at][1],
            "output_score": output.mean(),
            "output_from": curves.output_from,
            "gain_over_output": mean[at] - output.mean(),
            "gain_low": gain.low,
            "gain_high": gain.high,
            "n_layers": len(curves.layers),
            "n_tasks": len(values),
            "n_sources": len(set(sources)),
        }


def _regret_ci(values: Floats, at: int, sources: Sequence[str], seed: int) -> tuple[float, float]:
    """Interval of the lead of the best layer over one that was selected without the scores."""
    leads = stats.simultaneous_ci(values - values[:, [at]], sources, seed=seed)
    # No layer leads by more than the selected one lies below the highest possible score.
    room = 1 - stats.clustered_mean_ci(values[:, at], sources).low
    low, high = np.maximum(0.0, leads.low.max()), np.minimum(leads.high.max(), room)
    return float(low), float(high)


def _rules_over_models(table: pd.DataFrame, order: Order) -> Iterator[pd.DataFrame]:
    """Rows of `NESTED`: in each model, the rule that is best in the other models."""
    final = order.only_last(table)
    final = final[(final["protocol"] != BASELINE) & is_plain(final)]
    for _, part in final.groupby(["corpus", "protocol", "tokens", "pooling", "task_type"]):
        good = part[(part["unreliable"] == "").groupby(part["metric"]).transform("all")]
        layers, regrets = (
            good.pivot(index="metric", columns="model", values=value).dropna()
            for value in ("layer", "regret")
        )
        regrets = regrets[~layers.duplicated()]  # rules that select the same layers are one
        if min(regrets.shape) < 2:
            continue
        rows = part.drop_duplicates("model").set_index("model", drop=False).loc[regrets.columns]
        lost = nested_regret(regrets.to_numpy(dtype=float))
        yield rows.drop(columns=["alpha", "direction", "layer", "depth", *INTERVALS]).assign(
            metric=NESTED,
            unreliable="",
            score=rows["best_score"] - lost,
            regret=lost,
            gain_over_output=rows["best_score"] - lost - rows["output_score"],
        )


def nested_regret(regrets: Floats) -> Floats:
    """Regret in each model of the rule that is best in the other models.

    Parameters
    ----------
    regrets : array, shape (rules, models)

    Returns
    -------
    array, shape (models,)
        The mean over rules that tie.
    """
    others = regrets.sum(axis=1, keepdims=True) - regrets
    winners = others <= others.min(axis=0) + 1e-12
    return np.asarray((regrets * winners).sum(axis=0) / winners.sum(axis=0))


def summarize(selections: pd.DataFrame, order: Order | None = None) -> pd.DataFrame:
    """Summarise each rule over all models, the last revision of each.

    Returns
    -------
    DataFrame
        One row per metric (with corpus, protocol, alpha, normalization), tokens, pooling and task
        type, best first: n_models, mean_score, mean_regret, worst_regret, mean_gain_over_output,
        and numbers of models: beats_output, ties_output, n_above_output (interval of the gain
        above 0) and n_unreliable. A model where the rule is unreliable counts in the last alone.
    """
    final = (order or Order()).only_last(selections)
    good = final["unreliable"] == ""
    numbers = ["score", "regret", "gain_over_output", "gain_low"]
    final = final.assign(**{c: final[c].astype(float).where(good) for c in numbers})
    summary = (
        final.assign(
            beats_output=final["gain_over_output"] > 0,
            ties_output=final["gain_over_output"] == 0,
            above=final["gain_low"] > 0,
            unreliable=~good,
            model=final["model"].where(good),
        )
        .groupby(KEYS[2:], dropna=False)
        .agg(
            n_models=("model", "nunique"),
            mean_score=("score", "mean"),
            mean_regret=("regret", "mean"),
            worst_regret=("regret", "max"),
            mean_gain_over_output=("gain_over_output", "mean"),
            beats_output=("beats_output", "sum"),
            ties_output=("ties_output", "sum"),
            n_above_output=("above", "sum"),
            n_unreliable=("unreliable", "sum"),
        )
        .reset_index()
    )
    return summary.sort_values(["task_type", "tokens", "mean_regret"], ignore_index=True)


def selected_layers(
    metrics: pd.DataFrame,
    directions: Mapping[str, int],
    prompts: pd.DataFrame | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The layer that each metric selects, without any scores.

    Parameters
    ----------
    metrics : DataFrame
        Of one model, revision, corpus, protocol and token selection.
    prompts : DataFrame, optional
        As in `select_layers`.

    Returns
    -------
    DataFrame
        metric, better (``higher`` or ``lower``; empty for the consensus), layer, depth,
        unreliable.
    """
    layers = np.sort(metrics["layer"].unique())
    variants, (values, stderr, n) = variants_by_layer(metrics, layers)
    resampled = resampled_curves(variants, values, stderr, prompts, layers, seed)
    table = select_by_metrics(variants, values, layers, directions, resampled, fewest(n))
    table["depth"] = table["layer"] / max(layers[-1], 1)
    table["better"] = table["direction"].map({1: "higher", -1: "lower"}).fillna("")
    return table[["metric", "better", "layer", "depth", "unreliable"]]
