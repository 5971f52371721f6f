"""Layer choice without labels: what following a metric would have cost or gained.

Each metric with a declared direction picks the layer at its better end; of equal layers the
shallowest. No score is looked at in the choice. Beside the metrics stand the ``consensus`` (the
layer with the best mean rank over the paper's seven metrics, those of them there are) and the
baselines that need no metric at all: ``model output``, which is what users of the model get (the
last layer after the model's last norm), and ``middle layer`` (l = L/2, rounded down). The ``best
rule of the others`` follows, in each model, the rule that does best in the other models: what is
left of a winner where it was not chosen.

A pick is refused where the metric is decided by its regulariser or by the number of prompts
(`layerwise.association.stability`), and then counts in neither.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.association.curves import (
    VARIANT,
    ScoreCurves,
    metric_curves,
    of_poolings,
    score_curves,
    usable,
)
from layerwise.association.measures import FEWEST_LAYERS as MIN_LAYERS
from layerwise.association.measures import strengths
from layerwise.association.order import Order
from layerwise.association.stability import Reasons, reasons_of
from layerwise.association.votes import refused_together, same_votes
from layerwise.errors import LayerwiseError
from layerwise.statistics import depth, headlines
from layerwise.statistics import tasks as over_tasks

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

CONSENSUS = "consensus"
NESTED = "best rule of the others"
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
    "pooling", "task_type", "direction", "spearman", "spearman_chance", "layer", "depth",
    "refused", "same_as", "score", "best_layer", "best_is_output", "best_score", "regret",
    "regret_low", "regret_high", "output_score", "output_from", "gain_over_output", "gain_low",
    "gain_high", "middle_score", "gain_over_middle", "p", "n_layers", "n_tasks", "n_sources",
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
        (`spearman`, and what unrelated curves reach).
    refused : str
        Why the layer is not to be chosen by this metric; empty where it may be.
    """

    variant: Mapping[str, object]
    layer: int
    sign: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""


def pick_layers(
    rows: pd.DataFrame,
    values: Floats,
    layers: npt.NDArray[np.int64],
    directions: Mapping[str, int],
    refused: Reasons | None = None,
) -> list[Pick]:
    """The layer that each metric picks, then the consensus of each corpus and protocol.

    The consensus takes one variant of each metric of `CONSENSUS_OF` (raw, and alpha 1 where there
    is one), ranks the layers by each, and averages the ranks; it needs two metrics. A layer
    without a value ranks last, and a metric whose picks are refused has no say.

    Parameters
    ----------
    rows : DataFrame
        The columns of `VARIANT`, one row a metric.
    values : array, shape (k, n)
    layers : array, shape (n,)
    directions : mapping from metric to +1 (higher is better) or -1
        Metrics that are not in it are passed over.
    refused : mapping of (corpus, metric, protocol) to reason, optional
    """
    from scipy.stats import rankdata

    picks: list[Pick] = []
    ranked: list[tuple[object, object, Floats]] = []
    for index, metric in enumerate(rows["metric"]):
        if metric not in directions or not np.isfinite(values[index]).any():
            continue
        good = np.where(np.isfinite(values[index]), directions[metric] * values[index], -np.inf)
        variant = dict(rows.iloc[index][VARIANT])
        why = (refused or {}).get((variant["corpus"], metric, variant["protocol"]), "")
        picks.append(Pick(variant, int(layers[int(np.argmax(good))]), refused=why))
        if _plain(variant) and metric in CONSENSUS_OF and not why:
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


def _plain(variant: Mapping[Any, Any]) -> bool:
    alpha = variant["alpha"]
    return variant["normalization"] == "raw" and bool(pd.isna(alpha) or alpha == 1)


def choose_layers(
    metrics: pd.DataFrame,
    scores: pd.DataFrame,
    directions: Mapping[str, int],
    *,
    own_texts: Mapping[str, str] | None = None,
    poolings: Sequence[str] | None = None,
    stability: pd.DataFrame | None = None,
    order: Order | None = None,
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
    stability : DataFrame, optional
        From `layerwise.association.stability.stability`; without it nothing is refused.
    order : Order, optional
        The config's checkpoints, the last of which stand for their models in `NESTED`.
    seed : int
        Of the distributions that are drawn.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`. Scores in [0, 1]; regret = best score - score, >= 0;
    gains are differences of scores. `regret_low` and `regret_high` hold the regret on the
    population of tasks with 95 % confidence or more (`layerwise.statistics.tasks.regret`),
    `gain_low` and `gain_high` are Student's; both are null for tasks of a single text source.

    `refused` says why a layer is not to be chosen by the metric (empty where it may be), `same_as`
    names a metric with the same picks in all models, which stands for both. `NESTED` has a `p`:
    how often the best of so many rules does as well when picks have nothing to do with the model.

    `direction` is the end that was picked. `spearman` is the rank correlation of metric and mean
    score over layers, whose sign is the end that the scores speak for; 95 % of unrelated smooth
    curves stay below `spearman_chance`. Null where the metric is constant or known at fewer than
    four layers.

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
    everything: dict[tuple[str, ...], tuple[Floats, float]] = {}
    for curves in score_curves(of_poolings(scores, poolings)):
        variants, values = metric_curves(metrics, curves, own_texts=own_texts)
        if not len(variants):
            log.info("%s at %s has scores but no metrics; left out", curves.model, curves.revision)
            continue
        why = reasons_of(stability, curves.model, curves.revision, curves.tokens)
        for group in curves.groups():
            tasks = curves.of_type(group)
            curve = np.stack([_mean_curve(v) for v in values[:, tasks]])
            reasons = _reasons(variants, curve, directions, why)
            picks = pick_layers(variants, curve, curves.layers, directions, reasons)
            directed = variants["metric"].isin(list(directions)).to_numpy()
            mute = int((directed & ~np.isfinite(curve).any(axis=1)).sum())
            if mute:
                log.warning(
                    "%s at %s (%s, %s), %s tasks: metrics without a pick: %d, since no task has a "
                    "value at each of their layers",
                    curves.model, curves.revision, curves.tokens, curves.pooling, group, mute,
                )  # fmt: skip
            candidates = curves.candidates(tasks)
            key = (curves.model, curves.revision, curves.tokens, curves.pooling, group)
            best = float(candidates.values.mean(axis=0).max())
            everything[key] = curves.values[tasks].mean(axis=0), best
            signs = _signs(variants, curve, curves.values[tasks].mean(axis=0))
            known = [_with_sign(p, directions, signs) for p in picks]
            rows += _against_scores(known + _baselines(curves, tasks), curves, group, seed)
    if not rows:
        raise LayerwiseError(
            "The metrics and the scores have no model with the same revision and tokens in common."
        )
    table = pd.DataFrame(rows).reindex(columns=[*COLUMNS, "place"])
    table = _of_other_models(_same_picks(table), everything, order or Order(), seed)
    return table.astype({"direction": "Int64"})


def _reasons(
    variants: pd.DataFrame, curve: Floats, directions: Mapping[str, int], why: Reasons
) -> Reasons:
    """Reasons against metrics, and against those that are the same on a corpus and protocol."""
    found = dict(why)
    plain = [_plain(v) for v in variants.to_dict("records")]
    numbered = variants.assign(row=range(len(variants)))[plain]
    for (corpus, protocol), part in numbered.groupby(["corpus", "protocol"]):
        same = same_votes(list(part["metric"]), curve[part["row"]], directions)
        mine = {k: v for k, v in why.items() if (k[0], k[2]) == (corpus, protocol)}
        found |= refused_together(same, mine)
    return found


def _signs(variants: pd.DataFrame, curve: Floats, score: Floats) -> dict[Key, tuple[float, float]]:
    """Spearman's rho of each metric's mean curve with the mean score, and its chance level."""
    found: dict[Key, tuple[float, float]] = {}
    for i, variant in enumerate(variants.to_dict("records")):
        known = np.isfinite(curve[i])
        if known.sum() < MIN_LAYERS or np.ptp(curve[i][known]) == 0:
            continue
        rho = strengths("spearman", curve[i][None, known], score[None, known])
        chance = depth.chance_level(int(known.sum()), "spearman")
        found[_key(variant)] = float(rho[0]), chance
    return found


def _same_picks(table: pd.DataFrame) -> pd.DataFrame:
    """Name, for each metric with the same picks as another in all models, the one for both.

    One that is not refused stands for one that is.
    """
    table["same_as"] = ""
    rules = table[(table["protocol"] != BASELINE) & (table["metric"] != CONSENSUS)]
    rules = rules[rules["normalization"] == "raw"]
    rules = rules[rules["alpha"].isna() | (rules["alpha"] == 1)]
    for _, part in rules.groupby(["corpus", "protocol", "tokens", "pooling", "task_type"]):
        wide = part.pivot(index="metric", columns=["model", "revision"], values="layer")
        bad = part.groupby("metric")["refused"].agg(lambda why: (why != "").sum())
        names = sorted(wide.index[wide.notna().all(axis=1)], key=lambda m: (int(bad[m]), m))
        first = headlines.distinct(wide.loc[names].to_numpy(dtype=np.int64)) if names else ()
        for place, name in zip(first, names, strict=True):
            if names[place] != name:
                at = part.index[part["metric"] == name]
                table.loc[at, "same_as"] = names[place]
    return table


def _of_other_models(
    table: pd.DataFrame,
    everything: Mapping[tuple[str, ...], tuple[Floats, float]],
    order: Order,
    seed: int,
) -> pd.DataFrame:
    """Add the rows of `NESTED`: in each model, the rule that is best in the others."""
    final = order.only_last(table)
    more = []
    for head, part in final[final["protocol"] != BASELINE].groupby(
        ["corpus", "protocol", "tokens", "pooling", "task_type"]
    ):
        rules = part[[_plain(v) for v in part.to_dict("records")]]
        rules = rules[rules["same_as"] == ""]
        wide = rules.pivot(index="metric", columns="model", values="layer").dropna()
        refused = set(rules.loc[rules["refused"] != "", "metric"])
        wide = wide[[m not in refused for m in wide.index]]
        if wide.shape[1] < 2 or len(wide) < 2:
            continue
        of_model = part.drop_duplicates("model").set_index("model")
        curves, tops = zip(
            *(everything[(m, str(of_model.loc[m, "revision"]), *map(str, head[2:]))]
              for m in wide.columns), strict=True,
        )  # fmt: skip
        places = rules.pivot(index="metric", columns="model", values="place").loc[wide.index]
        at = places.to_numpy(dtype=np.int64)
        found = headlines.best_rule(at, curves, best=tops, seed=seed)
        for model, regret in zip(wide.columns, found.nested_each, strict=True):
            row = dict(of_model.loc[model])
            score = row["best_score"] - regret
            more.append(
                row
                | {
                    "model": model, "metric": NESTED, "alpha": np.nan, "normalization": "raw",
                    "direction": pd.NA, "spearman": np.nan, "spearman_chance": np.nan,
                    "layer": pd.NA, "depth": np.nan, "refused": "", "same_as": "",
                    "score": score, "regret": regret, "regret_low": np.nan,
                    "regret_high": np.nan, "gain_low": np.nan, "gain_high": np.nan,
                    "gain_over_output": score - row["output_score"],
                    "gain_over_middle": score - row["middle_score"], "p": found.p,
                }
            )  # fmt: skip
    table = pd.concat([table, pd.DataFrame(more)], ignore_index=True) if more else table
    return table.reindex(columns=list(COLUMNS)).astype({"layer": "Int64"})


Key = tuple[object, ...]


def _key(variant: Mapping[Any, Any]) -> Key:
    values = [variant[c] for c in VARIANT]
    return tuple(None if v is None or v != v else v for v in values)


def _with_sign(
    pick: Pick,
    directions: Mapping[str, int],
    signs: Mapping[Key, tuple[float, float]],
) -> Pick:
    if pick.variant["metric"] not in directions:
        return pick  # the consensus has no end of its own
    rho, chance = signs.get(_key(pick.variant), (np.nan, np.nan))
    sign = {"direction": directions[str(pick.variant["metric"])], "spearman": rho}
    return replace(pick, sign={**sign, "spearman_chance": chance})


def _mean_curve(values: Floats) -> Floats:
    """One metric's mean over the tasks it is known for; the others speak for the rest."""
    tasks, layers = usable(values)
    mean = np.full(values.shape[1], np.nan)
    if tasks.any():
        mean[layers] = values[tasks][:, layers].mean(axis=0)
    return mean


def _baselines(curves: ScoreCurves, tasks: npt.NDArray[np.intp]) -> list[Pick]:
    fixed = {MIDDLE: curves.layers[curves.middle]}
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
    picks: Sequence[Pick], curves: ScoreCurves, group: str, seed: int
) -> list[dict[str, object]]:
    chosen = curves.of_type(group)
    candidates, sources = curves.candidates(chosen), curves.sources_of(chosen)
    values, output = candidates.values, candidates.output_scores
    mean = values.mean(axis=0)
    output_score = float(output.mean())
    place = {int(layer): i for i, layer in enumerate(curves.layers)}
    best, middle = int(np.argmax(mean)), curves.middle
    several = len(set(sources)) > 1
    regrets: dict[int, tuple[float, float]] = {}
    rows = []
    for pick in picks:
        is_output = pick.variant["metric"] == OUTPUT
        at = candidates.output if is_output else place[pick.layer]
        assert at is not None
        gain = (np.nan, np.nan)
        if several and candidates.output is not None:
            over = over_tasks.interval(values[:, at] - output, sources)
            gain = (over.low, over.high)
        if several and at not in regrets:
            lost = over_tasks.regret(values, at, sources, seed=seed, top=1.0)
            regrets[at] = (lost.low, lost.high)
        regret = regrets.get(at, (np.nan, np.nan))
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
                "place": at,
                "depth": pick.layer / max(curves.last_layer, 1),
                "refused": pick.refused,
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
                "n_sources": len(set(sources)),
            }
        )
    return rows


def summarize(choices: pd.DataFrame, order: Order | None = None) -> pd.DataFrame:
    """How each metric did over all models, the last revision of each.

    Returns
    -------
    DataFrame
        One row a metric (with corpus, protocol, alpha, normalization), tokens, pooling and task
        type, best first: n_models, mean_score, mean_regret, worst_regret, mean_gain_over_output,
        beats_output, ties_output and beats_middle (numbers of models; one without a score of its
        output counts in neither of the first two), told_above_output (those in which the interval
        of the gain lies above 0) with told_by_chance, refused (in how many models) and same_as.
        Models that refuse the rule count in none but `refused`.
    """
    final = (order or Order()).only_last(choices)
    good = final["refused"] == ""
    number = ["score", "regret", "gain_over_output", "gain_over_middle", "gain_low"]
    final = final.assign(**{c: final[c].astype(float).where(good) for c in number})
    keys = [*VARIANT, "tokens", "pooling", "task_type"]
    summary = (
        final.assign(
            beats_output=final["gain_over_output"] > 0,
            ties_output=final["gain_over_output"] == 0,
            beats_middle=final["gain_over_middle"] > 0,
            told=final["gain_low"] > 0,
            known=final["gain_low"].notna(),
            bad=~good,
            kept=final["model"].where(good),
        )
        .groupby(keys, dropna=False)
        .agg(
            n_models=("kept", "nunique"),
            mean_score=("score", "mean"),
            mean_regret=("regret", "mean"),
            worst_regret=("regret", "max"),
            mean_gain_over_output=("gain_over_output", "mean"),
            beats_output=("beats_output", "sum"),
            ties_output=("ties_output", "sum"),
            beats_middle=("beats_middle", "sum"),
            told_above_output=("told", "sum"),
            told_by_chance=("known", lambda k: 0.025 * k.sum()),
            refused=("bad", "sum"),
            same_as=("same_as", "first"),
        )
        .reset_index()
    )
    return summary.sort_values(["task_type", "tokens", "mean_regret"], ignore_index=True)
