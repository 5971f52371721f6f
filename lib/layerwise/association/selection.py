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
prompts would select another layer. A metric that stays near chance at every layer, as InfoNCE does
where all embeddings point one way, selects none. The consensus and the best rule ignore both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from layerwise import stats
from layerwise.association import curves
from layerwise.association.curves import BASELINE, Floats, MetricCurves, ScoreCurves, Tasks
from layerwise.association.scores import Columns, at_columns, best_elsewhere, best_of
from layerwise.errors import LayerwiseError
from layerwise.metrics.registry import at_chance
from layerwise.names import Order

log = logging.getLogger(__name__)

Layers = npt.NDArray[np.int64]

CONSENSUS = "consensus"
NESTED = "best rule of the others"
MODEL_OUTPUT = "model output"
MIDDLE = "middle layer"
LOES = "LOES"
OTHER_TASKS = "best layer of the other tasks"
ORACLE = "best layer"
# Rules that are selected by the scores that they are compared with.
BY_SCORES = (OTHER_TASKS, ORACLE)
# The paper's metrics; others are variations of them and would count the same evidence twice.
CONSENSUS_OF = (
    *("prompt_entropy", "dataset_entropy", "effective_rank", "curvature"),
    *("infonce", "lidar", "dime"),
)

# Distance in depth within which two layers count as the same selection.
NEAR = 0.1
# Share of resampled curves that must select nearly the same layer.
STABLE = 0.8
N_RESAMPLES = 1000
AT_CHANCE = "near chance at every layer; it selects none"


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
    layers: Layers,
    seed: int = 0,
) -> list[Floats]:
    """Curves of each metric as other samples of prompts would give them, shape (B, L) each.

    Bootstrap samples of the prompts where their values are known; noise that layers share then
    cancels. Otherwise draws from the standard errors, independent between layers, which overstates
    the noise. None of them for a metric without either.

    Parameters
    ----------
    variants : DataFrame
        One row per metric, with the columns of `layerwise.association.curves.CURVE_KEYS`.
    values, stderr : array, shape (k, L)
    prompts : DataFrame, optional
        Tidy table of prompts of this model, revision and token selection.
    """
    rng = np.random.default_rng(seed)
    by_prompt: dict[Any, Floats] = {}
    if prompts is not None and len(prompts):
        raw = curves.of_blocks(prompts).assign(normalization="raw")
        for variant, rows in raw.fillna({"alpha": curves.NO_ALPHA}).groupby(curves.CURVE_KEYS):
            wide = rows.pivot(index="prompt_id", columns="layer", values="value")
            by_prompt[variant] = wide.reindex(columns=layers).dropna().to_numpy(dtype=np.float64)
    samples = []
    for row, variant in enumerate(_keys(variants)):
        of_prompts = by_prompt.get(variant, np.empty((0, len(layers))))
        if n := len(of_prompts):
            counts = rng.multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES)
            samples.append(counts @ of_prompts / n)
        elif np.isfinite(stderr[row]).any():
            noise = rng.normal(size=(N_RESAMPLES, len(layers)))
            samples.append(values[row] + noise * np.nan_to_num(stderr[row]))
        else:
            samples.append(of_prompts)
    return samples


def select_by_metrics(
    metrics: MetricCurves,
    layers: Layers,
    tasks: Tasks,
    directions: Mapping[str, int],
    prompts: pd.DataFrame | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The layer that each metric selects, then LOES and the consensus of each corpus and protocol.

    Parameters
    ----------
    layers : array, shape (L,)
        Of the curves of the metrics.
    tasks : array
        Tasks whose curves are averaged.
    directions : mapping of metric to +1 (higher is better) or -1
        Metrics that are not in it are skipped.
    prompts : DataFrame, optional
        As in `resampled_curves`.

    Returns
    -------
    DataFrame
        `layerwise.association.curves.CURVE_KEYS`, direction (NaN for LOES and the consensus),
        layer, and `unreliable`: why there are too few prompts, empty if there are enough. No layer
        is selected by a metric that is near chance at every layer.
    """
    variants, formulas = metrics.variants[curves.CURVE_KEYS], metrics.variants["variant"]
    values = np.stack([curves.mean_curve(of_tasks) for of_tasks in metrics.values[:, tasks]])
    stderr = metrics.stderr[:, tasks].mean(axis=1)
    samples = resampled_curves(variants, values, stderr, prompts, layers, seed)
    isotropy = is_plain(variants) & (variants["metric"] == "participation_ratio")
    variants = variants.assign(direction=variants["metric"].map(directions))
    isotropic = variants[isotropy].assign(metric=LOES, direction=1, alpha=np.nan)
    # LOES reads the rows of participation_ratio, so both have one index.
    rules = pd.concat([variants[variants["direction"].notna()], isotropic])
    has_values: curves.Flags = np.logical_or.reduce(np.isfinite(values), axis=1)
    rules = rules.loc[has_values[rules.index]]
    # Each rule's row among the metrics, and the end of the metric that is better.
    rows, ends = rules.index.to_numpy(), rules["direction"].to_numpy(dtype=float)
    goodness = np.where(np.isfinite(values[rows]), ends[:, None] * values[rows], -np.inf)
    rules = rules.reset_index(drop=True).assign(
        direction=rules["direction"].where(rules["metric"] != LOES).to_numpy(),
        layer=layers[goodness.argmax(axis=1)],
        unreliable=[
            why_unreliable(curve, end * samples[row], metrics.n[row])
            for curve, end, row in zip(goodness, ends, rows, strict=True)
        ],
    )
    near_chance = {
        keys
        for keys, curve, n, of in zip(_keys(variants), values, metrics.n, formulas, strict=True)
        if keys.normalization == "raw" and at_chance(keys.metric, curve, n, keys.protocol, of)
    }
    # A variant is as near chance as the raw metric.
    uninformative = [v._replace(normalization="raw") in near_chance for v in _keys(rules)]
    rules.loc[uninformative, ["layer", "unreliable"]] = np.nan, AT_CHANCE
    consensus = pd.DataFrame(_consensus(rules, goodness, layers))
    return pd.concat([rules, consensus], ignore_index=True)


def _consensus(rules: pd.DataFrame, goodness: Floats, layers: Layers) -> Iterator[dict[Any, Any]]:
    """The layer of the best mean rank over `CONSENSUS_OF`, for each corpus and protocol."""
    agree = is_plain(rules) & rules["metric"].isin(CONSENSUS_OF) & (rules["unreliable"] == "")
    for (corpus, protocol), members in rules[agree].groupby(["corpus", "protocol"]):
        if len(members) > 1:
            ranks = scipy.stats.rankdata(goodness[members.index], axis=1).mean(axis=0)
            yield _rule(CONSENSUS, layers[ranks.argmax()], str(corpus), str(protocol))


def _keys(variants: pd.DataFrame) -> list[Any]:
    """Each row's `curves.CURVE_KEYS`, as a named tuple."""
    keys = variants[curves.CURVE_KEYS].fillna({"alpha": curves.NO_ALPHA})
    return list(keys.itertuples(index=False))


def _rule(
    name: str, layer: float, corpus: str = "none", protocol: str = BASELINE
) -> dict[Any, Any]:
    about = {"corpus": corpus, "metric": name, "protocol": protocol, "alpha": np.nan}
    return {**about, "normalization": "raw", "layer": layer, "unreliable": ""}


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
        all layers together (`no_interval` says why there are none), those of gains are Student's.
        Of rules that are selected by scores, all hold for all layers.

    Raises
    ------
    LayerwiseError
        If metrics and scores have no model in common, or no metric has a direction.
    """
    rows: list[dict[Any, Any]] = []
    for model in curves.score_curves(scores):
        model_metrics = curves.metric_curves(metrics, model, own_texts)
        names = {*model_metrics.variants["metric"]} & {*directions}
        if not names:
            log.info("%s has scores but no metrics with a direction; left out", model)
            continue
        of_prompts = None if prompts is None else curves.of_curves(prompts, model)
        for group, tasks in model.groups().items():
            rules = select_by_metrics(
                model_metrics, model.layers, tasks, directions, of_prompts, seed
            )
            if nowhere := names - {*rules["metric"]}:
                log.warning("%s, %s: too few values to select by %s", model, group, nowhere)
            rows += _scored_rules(rules, model, group, tasks, seed)
    if not rows:
        raise LayerwiseError(
            "No model has both scores and metrics with a direction, of the same revision and "
            f"tokens; metrics with a direction are {', '.join(directions)}.",
            code="too_few",
        )
    table = pd.DataFrame(rows).astype({"direction": "Int64", "layer": "Int64"})
    return pd.concat([table, *_rules_over_models(table, order or Order())], ignore_index=True)


def _scored_rules(
    rules: pd.DataFrame, model: ScoreCurves, group: str, tasks: Tasks, seed: int
) -> Iterator[dict[Any, Any]]:
    """Score, regrets and gain of each rule, a row each; rules that select no layer come first,
    those without metrics last.

    `columns` has what a rule selects: for each task a column of `values`, a layer or the output.
    """
    (layers, values), sources = model.candidates(tasks), model.sources[tasks]
    about_best, elsewhere = best_of(model, group, tasks), best_elsewhere(values, sources)
    gains = values - model.output[tasks, None]
    has_output = np.isfinite(gains).all()

    def column_of(layer: int) -> Columns:
        """The column of a layer; of layer L, the first: the output stands last."""
        return np.full(len(values), (layers == layer).argmax())

    @cache
    def leads_over(column: int) -> stats.Estimate:
        """Leads of all candidates over one, with intervals for all together, so that they hold for
        candidates that scores select."""
        return stats.simultaneous_ci(values - values[:, [column]], sources, seed=seed)

    middle = int(model.layers[np.abs(model.layers - model.last_layer // 2).argmin()])
    selects = rules["layer"].notna()
    for rule in rules[~selects].to_dict("records"):
        yield {**about_best, **rule}
    selections = [(rule, column_of(rule["layer"])) for rule in rules[selects].to_dict("records")]
    selections.append((_rule(MIDDLE, middle), column_of(middle)))
    highest = np.full(len(values), values.mean(axis=0).argmax())
    selections.append((_rule(ORACLE, about_best["best_layer"]), highest))
    if elsewhere is not None:
        selections.append((_rule(OTHER_TASKS, np.nan), elsewhere))
    if has_output:
        output = np.full(len(values), values.shape[1] - 1)
        selections.append((_rule(MODEL_OUTPUT, model.last_layer), output))
    for rule, columns in selections:
        selected = at_columns(values, columns)
        gain = stats.mean_ci(at_columns(gains, columns), sources)
        if rule["metric"] in BY_SCORES and has_output:
            joint = stats.simultaneous_ci(gains, sources, seed=seed)
            gain = gain._replace(low=joint.low[columns].mean(), high=joint.high[columns].mean())
        # The regret is a maximum, the largest of the candidates' leads over the rule. As their
        # intervals hold together, it lies between the largest lower and the largest upper end.
        low_leads = np.mean([leads_over(column).low for column in columns], axis=0)
        high_leads = np.mean([leads_over(column).high for column in columns], axis=0)
        # No lead is larger than the distance from the rule's score to 1, the highest score.
        room = 1 - stats.mean_ci(selected, sources).low
        yield {
            **about_best,
            **rule,
            "depth": rule["layer"] / max(model.last_layer, 1),
            "score": selected.mean(),
            "regret": about_best["best_score"] - selected.mean(),
            "regret_low": np.maximum(0.0, low_leads.max()),
            "regret_high": np.minimum(high_leads.max(), room),
            "nested_regret": (at_columns(values, elsewhere) - selected).mean(),
            "nested_low": np.nan if elsewhere is None else low_leads[elsewhere].mean(),
            "nested_high": np.nan if elsewhere is None else high_leads[elsewhere].mean(),
            "gain_over_output": gain.estimate,
            "gain_low": gain.low,
            "gain_high": gain.high,
        }


def _rules_over_models(table: pd.DataFrame, order: Order) -> Iterator[pd.DataFrame]:
    """Rows of `NESTED`: in each model, the rule that is best in the other models."""
    final = order.only_last(table)
    final = final[(final["protocol"] != BASELINE) & is_plain(final)]
    ends = [f"{of}_{end}" for of in ("regret", "nested", "gain") for end in ("low", "high")]
    for _, rules in final.groupby(["corpus", "protocol", "tokens", "pooling", "task_type"]):
        reliable = (rules["unreliable"] == "").groupby(rules["metric"]).transform("all")
        layers, regrets = (
            rules[reliable].pivot(index="metric", columns="model", values=value).dropna()
            for value in ("layer", "regret")
        )
        regrets = regrets[~layers.duplicated()]  # rules that select the same layers are one
        if min(regrets.shape) < 2:
            continue
        of_models = rules[reliable].drop_duplicates("model").set_index("model", drop=False)
        rows = of_models.loc[regrets.columns]
        lost = regret_of_rule_of_others(regrets.to_numpy(dtype=float))
        # score + nested_regret is the score of the best layer of the other tasks, and best_score -
        # lost the rule's.
        yield rows.drop(columns=["alpha", "direction", "layer", "depth", *ends]).assign(
            metric=NESTED,
            unreliable="",
            score=rows["best_score"] - lost,
            regret=lost,
            nested_regret=rows["score"] + rows["nested_regret"] - rows["best_score"] + lost,
            gain_over_output=rows["best_score"] - lost - rows["output_score"],
        )


def regret_of_rule_of_others(regrets: Floats) -> Floats:
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
    final = final.assign(
        **{c: final[c].astype(float).where(good) for c in numbers},
        model=final["model"].where(good),
        unreliable=~good,
    )
    gain = final["gain_over_output"]
    final = final.assign(beats=gain > 0, ties=gain == 0, above=final["gain_low"] > 0)
    summary = final.groupby(curves.KEYS[2:], dropna=False, as_index=False).agg(
        n_models=("model", "nunique"),
        mean_score=("score", "mean"),
        mean_regret=("regret", "mean"),
        worst_regret=("regret", "max"),
        mean_nested_regret=("nested_regret", "mean"),
        mean_gain_over_output=("gain_over_output", "mean"),
        beats_output=("beats", "sum"),
        ties_output=("ties", "sum"),
        n_above_output=("above", "sum"),
        n_unreliable=("unreliable", "sum"),
    )
    return summary.sort_values(["task_type", "tokens", "mean_regret"], ignore_index=True)
