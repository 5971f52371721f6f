"""Layer selection: the layers that metrics select without labels, and the best ones by score.

A metric with a declared direction selects the layer at its better end; of equal layers the
shallowest. It does not look at the scores. Beside the metrics there are the ``consensus`` (the
best mean rank over the paper's seven metrics) and two baselines: ``model output``, which is what
users of a model get, and ``middle layer``, l = L/2 rounded down. ``LOES`` is the layer of highest
isotropy, as LOES selects one layer without labels (arXiv 2605.23033): the mean over the standard
deviation of the covariance's eigenvalues is highest where the participation ratio is.
Two rules are selected by scores: ``best layer`` by those of all tasks, which no rule can beat on
them, and ``best layer of the other tasks``, for each task cluster by those of the others.
``best rule of the others`` takes, in each model, the rule that does best in the other models.

A regret is against the best layer, which is selected on the same tasks and so looks better than it
is on new ones. The nested regret is against the best layer of the other tasks, which new tasks can
get; it is negative where a rule does better.

A selection is unreliable with fewer than `layerwise.stats.FEW` prompts, or if other samples of
prompts would select another layer. The consensus and the best rule ignore unreliable metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from layerwise import stats
from layerwise.association.curves import (
    BASELINE,
    KEYS,
    NO_ALPHA,
    VARIANT,
    Names,
    ScoreCurves,
    Tasks,
    fewest,
    mean_curve,
    metric_curves,
    of_blocks,
    of_curves,
    score_curves,
    variants_by_layer,
)
from layerwise.association.scores import Columns, at_columns, best_elsewhere, best_of
from layerwise.errors import LayerwiseError
from layerwise.names import Order

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Layers = npt.NDArray[np.int64]

CONSENSUS = "consensus"
NESTED = "best rule of the others"
OUTPUT = "model output"
MIDDLE = "middle layer"
LOES = "LOES"
OTHER_TASKS = "best layer of the other tasks"
ORACLE = "best layer"
BY_SCORES = (OTHER_TASKS, ORACLE)
"""Rules that are selected by the scores that they are compared with."""
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
UNKNOWN_OF_NESTED = ["alpha", "direction", "layer", "depth"]
UNKNOWN_OF_NESTED += [
    f"{of}_{end}" for of in ("regret", "nested", "gain") for end in ("low", "high")
]


NEAR = 0.1
"""Distance in depth within which two layers count as the same selection."""
STABLE = 0.8
"""Share of resampled curves that must select nearly the same layer."""
N_RESAMPLES = 1000
OF_PROMPTS = ["corpus", "metric", "protocol", "alpha"]


def why_unreliable(good: Floats, resampled: Floats, n: float) -> str:
    """Why there are too few prompts to select a layer by a metric; empty if there are enough.

    Parameters
    ----------
    good : array, shape (L,)
        The metric, higher being better; minus infinity where it has no value.
    resampled : array, shape (B, L)
        The same on other samples of prompts; none if that is unknown.
    n : float
        Number of prompts, NaN if unknown.
    """
    if n < stats.FEW:
        return f"{n:.0f} prompts; selecting a layer takes {stats.FEW}"
    if not len(resampled):
        return ""
    selected = np.where(np.isfinite(resampled), resampled, -np.inf).argmax(axis=1)
    near = float((np.abs(selected - good.argmax()) <= NEAR * (len(good) - 1)).mean())
    return "" if near >= STABLE else f"{1 - near:.0%} of resamples select another layer"


def resampled_curves(
    variants: pd.DataFrame,
    values: Floats,
    stderr: Floats,
    prompts: pd.DataFrame | None,
    layers: npt.NDArray[np.int64],
    seed: int = 0,
) -> list[Floats]:
    """Curves of each metric as other samples of prompts would give them, shape (B, L) each.

    Bootstrap samples of the prompts where their values are known; noise that layers share then
    cancels. Otherwise draws from the standard errors, independent between layers, which overstates
    the noise. None of them for a metric without either.

    Parameters
    ----------
    variants : DataFrame
        One row per metric, with the columns of `layerwise.association.curves.VARIANT`.
    values, stderr : array, shape (k, L)
    prompts : DataFrame, optional
        Tidy table of prompts of this model, revision and token selection.
    """
    rng = np.random.default_rng(seed)
    wide: dict[tuple[object, ...], Floats] = {}
    if prompts is not None and len(prompts):
        for key, part in of_blocks(prompts).fillna({"alpha": NO_ALPHA}).groupby(OF_PROMPTS):
            curves = part.pivot(index="prompt_id", columns="layer", values="value")
            wide[key] = curves.reindex(columns=layers).dropna().to_numpy(dtype=np.float64)
    found: list[Floats] = []
    for row, variant in enumerate(variants.fillna({"alpha": NO_ALPHA}).to_dict("records")):
        own = wide.get(tuple(variant[key] for key in OF_PROMPTS))
        if own is not None and len(own) and variant["normalization"] == "raw":
            n = len(own)
            found.append(rng.multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES) @ own / n)
        elif np.isfinite(stderr[row]).any():
            noise = rng.normal(size=(N_RESAMPLES, len(layers)))
            found.append(values[row] + noise * np.nan_to_num(stderr[row]))
        else:
            found.append(np.empty((0, len(layers))))
    return found


class Measured(NamedTuple):
    """Curves of k metrics over the layers of a model.

    Attributes
    ----------
    variants : DataFrame
        The columns of `VARIANT`, one row per metric.
    values, stderr : array, shape (k, L)
    n : array, shape (k,)
        Numbers of prompts, NaN if unknown.
    layers : array, shape (L,)
    """

    variants: pd.DataFrame
    values: Floats
    stderr: Floats
    n: Floats
    layers: Layers


def select_by_metrics(
    measured: Measured,
    directions: Mapping[str, int],
    prompts: pd.DataFrame | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The layer that each metric selects, then the consensus of each corpus and protocol.

    Parameters
    ----------
    directions : mapping of metric to +1 (higher is better) or -1
        Metrics that are not in it are skipped.
    prompts : DataFrame, optional
        As in `resampled_curves`.

    Returns
    -------
    DataFrame
        `VARIANT`, layer, direction (null for the consensus), and `unreliable`: why there are too
        few prompts, empty if there are enough.
    """
    variants, values, stderr, n, layers = measured
    known = np.isfinite(values)
    direction = variants["metric"].map(directions).to_numpy(dtype=float)
    good = np.where(known, direction[:, None] * values, -np.inf)
    resampled = resampled_curves(variants, values, stderr, prompts, layers, seed)
    found = variants[VARIANT].assign(
        direction=direction,
        layer=layers[good.argmax(axis=1)],
    )
    found = found[np.isfinite(direction) & known.any(axis=1)]
    found["unreliable"] = [
        why_unreliable(good[i], direction[i] * resampled[i], n[i]) for i in found.index
    ]
    rules = []
    isotropy = is_plain(variants) & (variants["metric"] == "participation_ratio")
    for i in np.flatnonzero(isotropy.to_numpy() & known.any(axis=1)):
        best = layers[np.nanargmax(values[i])]
        why = why_unreliable(np.where(known[i], values[i], -np.inf), resampled[i], n[i])
        row = variants.iloc[i]
        rules.append(_rule(LOES, best, row["corpus"], row["protocol"]) | {"unreliable": why})
    agree = is_plain(found) & found["metric"].isin(CONSENSUS_OF) & (found["unreliable"] == "")
    for (corpus, protocol), part in found[agree].groupby(["corpus", "protocol"]):
        if len(part) > 1:
            best = layers[rankdata(good[part.index], axis=1).mean(axis=0).argmax()]
            rules.append(_rule(CONSENSUS, best, str(corpus), str(protocol)))
    return pd.concat([found, pd.DataFrame(rules)], ignore_index=True)


def _rule(
    name: str, layer: int | None, corpus: str = "none", protocol: str = BASELINE
) -> dict[Any, Any]:
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
    DataFrame
        One row per metric or rule, model and task type: the keys of
        `layerwise.association.curves`, direction (the end that was selected), layer, depth,
        unreliable, score, the columns that `best_layers` has too, regret (best score - score),
        nested_regret (score of the best layer of the other tasks - score; from three clusters on)
        and gain_over_output, all with 95% intervals over task clusters. Those of regrets hold for
        all layers together (`no_interval` says why there are none), those of gains are Student's
        and take three clusters. Of rules that are selected by scores, all hold for all layers.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model in common, or no metric has a direction.
    """
    rows: list[dict[Any, Any]] = []
    for curves in score_curves(scores):
        known = metric_curves(metrics, curves, own_texts)
        if not known.variants["metric"].isin(list(directions)).any():
            log.info("%s has scores but no metrics with a direction; left out", curves)
            continue
        own_prompts = None if prompts is None else of_curves(prompts, curves)
        for group, tasks in curves.groups().items():
            curve = np.stack([mean_curve(v) for v in known.values[:, tasks]])
            stderr = known.stderr[:, tasks].mean(axis=1)
            measured = Measured(known.variants, curve, stderr, known.n, curves.layers)
            found = select_by_metrics(measured, directions, own_prompts, seed)
            if nowhere := {*known.variants["metric"]} & {*directions} - {*found["metric"]}:
                log.warning("%s, %s: too few values to select by %s", curves, group, nowhere)
            middle = curves.layers[np.abs(curves.layers - curves.last_layer // 2).argmin()]
            selected = [*found.to_dict("records"), _rule(MIDDLE, int(middle))]
            selected.append(_rule(ORACLE, best_of(curves, group, tasks)["best_layer"]))
            if len(set(curves.sources[tasks])) >= stats.FEWEST:
                selected.append(_rule(OTHER_TASKS, None))
            if np.isfinite(curves.output[tasks]).all():
                selected.append(_rule(OUTPUT, curves.last_layer))
            rows += _against_scores(selected, curves, group, tasks, seed)
    if not rows:
        raise LayerwiseError(
            "No model has both scores and metrics with a direction, of the same revision and "
            f"tokens; metrics with a direction are {', '.join(directions)}.",
            code="too_few",
        )
    table = pd.DataFrame(rows).astype({"direction": "Int64", "layer": "Int64"})
    return pd.concat([table, *_rules_over_models(table, order or Order())], ignore_index=True)


def _against_scores(
    selected: Sequence[Mapping[Any, Any]],
    curves: ScoreCurves,
    group: str,
    tasks: Tasks,
    seed: int,
) -> Iterator[dict[Any, Any]]:
    """One row per selected layer: its score, its regrets, and its gain over the output."""
    (layers, values), sources = curves.candidates(tasks), curves.sources[tasks]
    output = curves.output[tasks]
    best, elsewhere = best_of(curves, group, tasks), best_elsewhere(values, sources)
    of_output = values.shape[1] - 1
    columns = {OUTPUT: of_output, ORACLE: int(values.mean(axis=0).argmax())}
    known: dict[bytes, tuple[Floats, Floats]] = {}
    for one in selected:
        rule = one["metric"]
        if rule == OTHER_TASKS and elsewhere is not None:
            at = elsewhere
        else:
            column = columns.get(rule, int((layers == one["layer"]).argmax()))
            at = np.full(len(values), column, dtype=np.intp)
        if at.tobytes() not in known:
            known[at.tobytes()] = _leads_over(values, at, sources, seed)
        (low, high), own = known[at.tobytes()], at_columns(values, at)
        gain = stats.mean_ci(own - output, sources)
        if rule in BY_SCORES and np.isfinite(output).all():
            all_gains = stats.simultaneous_ci(values - output[:, None], sources, seed=seed)
            gain = gain._replace(low=all_gains.low[at].mean(), high=all_gains.high[at].mean())
        # No layer leads by more than the selected one lies below the highest possible score.
        room = 1 - stats.mean_ci(own, sources).low
        nested = (np.nan, np.nan)
        if elsewhere is not None:
            nested = (low[elsewhere].mean(), high[elsewhere].mean())
        yield {
            **best,
            **one,
            "depth": np.nan if one["layer"] is None else one["layer"] / max(curves.last_layer, 1),
            "score": own.mean(),
            "regret": best["best_score"] - own.mean(),
            "regret_low": np.maximum(0.0, low.max()),
            "regret_high": np.minimum(high.max(), room),
            "nested_regret": (at_columns(values, elsewhere) - own).mean(),
            "nested_low": nested[0],
            "nested_high": nested[1],
            "gain_over_output": gain.estimate,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }


def _leads_over(values: Floats, at: Columns, sources: Names, seed: int) -> tuple[Floats, Floats]:
    """Intervals of the leads of all columns over the columns that tasks have, shape (c,) each.

    Where tasks have different columns, the mean over tasks of the ends. Intervals that hold for
    all columns together hold for those that the scores select, too; Student's interval of values
    that are left out in turn does not, as these depend on each other.
    """
    ends = []
    for column in np.unique(at):
        leads = stats.simultaneous_ci(values - values[:, [column]], sources, seed=seed)
        ends.append(np.mean(at == column) * np.stack([leads.low, leads.high]))
    low, high = np.sum(ends, axis=0)
    return low, high


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
        yield rows.drop(columns=UNKNOWN_OF_NESTED).assign(
            metric=NESTED,
            unreliable="",
            score=rows["best_score"] - lost,
            regret=lost,
            nested_regret=rows["score"] + rows["nested_regret"] - rows["best_score"] + lost,
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
        type, best first: n_models, mean_score, mean_regret, worst_regret, mean_nested_regret,
        mean_gain_over_output, and numbers of models: beats_output, ties_output, n_above_output
        (interval of the gain above 0) and n_unreliable. A model where the rule is unreliable
        counts in the last alone.
    """
    final = (order or Order()).only_last(selections)
    good = final["unreliable"] == ""
    numbers = ["score", "regret", "nested_regret", "gain_over_output", "gain_low"]
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
            mean_nested_regret=("nested_regret", "mean"),
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
    measured = Measured(variants, values, stderr, fewest(n), layers)
    table = select_by_metrics(measured, directions, prompts, seed)
    table["depth"] = table["layer"] / max(layers[-1], 1)
    table["better"] = table["direction"].map({1: "higher", -1: "lower"}).fillna("")
    return table[["metric", "better", "layer", "depth", "unreliable"]]
