"""What the authors' numbers say that the papers don't: five additions, each with intervals.

`additions` makes docs/additions.csv. Scores and their changes are in percentage points, intervals
are 95%.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats as scipy_stats
from scipy.stats import pearsonr, rankdata, spearmanr

from layerwise import stats
from layerwise.association.curves import SHARED_TEXTS, ScoreCurves
from papers.claims.scores import lead
from papers.tables import BERT, MAMBA, METRICS, PYTHIA, SIZES, TEXTS, Release

Row = dict[str, object]
Floats = npt.NDArray[np.float64]
BLOCKS = slice(5, 9)
"""Blocks of Pythia-410m over which its valley forms; both ends belong to it."""
LATE = tuple(f"step{1000 * 2**n}" for n in range(2, 8))
"""Checkpoints from step 4,000 on, where a late layer is the best, with metrics of one run."""
FALLING_FROM = "step16000"
CLUSTERS = "task clusters"
N_RESAMPLES = 2000


def additions() -> pd.DataFrame:
    """All additions.

    Returns
    -------
    DataFrame
        Columns addition, what, group, value, low, high, n and unit: the units that the interval is
        over. Without an interval, ends are NaN.
    """
    release = Release()
    rows: list[Row] = []
    for addition in (
        mlps_write_the_valley,
        output_gets_worse,
        entropy_predicts_no_gain,
        valley_moves_forward,
        lead_by_task_type,
        last_metrics_are_another_run,
    ):
        rows += [{"addition": addition.__name__, **row} for row in addition(release)]
    return pd.DataFrame(rows)


def row(what: str, group: str, estimate: stats.Estimate, unit: str, scale: float = 1) -> Row:
    """A row with its interval."""
    ends = scale * estimate.estimate, scale * estimate.low, scale * estimate.high
    value, low, high = (round(float(end), 4) for end in ends)
    about: Row = {"what": what, "group": group, "value": value, "low": low, "high": high}
    return {**about, "n": estimate.n, "unit": unit}


def number(what: str, group: str, value: float) -> Row:
    """A row without an interval."""
    return {"what": what, "group": group, "value": round(float(value), 4)}


def mlps_write_the_valley(release: Release) -> Iterator[Row]:
    """Change of the stream's log effective rank by attention and MLPs, over blocks 5 to 9.

    The interval takes the five blocks as a sample; the release has no values of prompts.
    """
    steps = [step for step in release.checkpoints() if step >= 2000]
    totals = []
    for revision in [*(f"step{step}" for step in steps), "main"]:
        changes = release.changes_of_rank(revision).loc[BLOCKS]
        n = len(changes)
        for part, label in (("mixer", "attention"), ("mlp", "MLP")):
            change = stats.mean_ci(changes[part].to_numpy())
            yield row(f"change by {label}", revision, change, "blocks", n)
        less = stats.mean_ci((changes["mlp"] - changes["mixer"]).to_numpy())
        yield row("change by MLP less that by attention", revision, less, "blocks", n)
        totals.append(float(changes["mlp"].sum()))
    doublings = np.log2([*steps, 143_000])
    yield row("change by MLP per doubling of steps", "", slope(doublings, totals), "checkpoints")
    ranks = release.stages()
    for block in (3, 6, 7, 8, 12):
        yield number("effective rank of the MLP's output", f"block {block}", ranks["mlp"][block])
    falls = release.changes_of_rank()["mlp"].to_numpy()
    windows = np.convolve(falls, np.ones(5), "valid")
    larger = int((windows < totals[-1] - 1e-9).sum())
    yield number("windows of five blocks with a larger fall", "", larger)


def slope(x: Floats, y: list[float]) -> stats.Estimate:
    """Slope of a straight line with Student's interval; the points count as independent."""
    fit = scipy_stats.linregress(x, y)
    half = float(scipy_stats.t.ppf(1 - stats.ALPHA / 2, len(x) - 2) * fit.stderr)
    low, high = fit.slope - half, fit.slope + half
    return stats.Estimate(fit.slope, low, high, fit.pvalue, fit.stderr, len(x))


def output_gets_worse(release: Release) -> Iterator[Row]:
    """Change of the scores of Pythia-410m from step 16,000 to the end, paired by task."""
    before, after = release.score(PYTHIA, FALLING_FROM), release.score(PYTHIA)
    changes = {"output": after.output - before.output}
    changes["layer 17"] = after.values[:, 17] - before.values[:, 17]
    for layer, change in changes.items():
        yield row(
            "change of the score", layer, stats.mean_ci(change, after.sources), CLUSTERS, 100
        )
        yield number("tasks with a lower score", layer, (change < 0).sum())
    for task_type, tasks in by_type(after):
        of_type = stats.mean_ci(changes["output"][tasks], after.sources[tasks])
        yield row("change of the score", f"output, {task_type}", of_type, CLUSTERS, 100)


def by_type(curves: ScoreCurves) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Task types of a model, each with its tasks."""
    for task_type in np.unique(curves.task_types):
        yield str(task_type), curves.task_types == task_type


def entropy_predicts_no_gain(release: Release) -> Iterator[Row]:
    """Rank correlation of late changes of a metric and of the score, over layers.

    Changes are between neighbouring checkpoints, less their mean over layers. Intervals resample
    task clusters; layers and checkpoints of one model are no sample. For comparison, the median
    over layers 8 to 23 of the correlation of metric and score over the same checkpoints.
    """
    for first in (LATE[0], FALLING_FROM):
        revisions = LATE[LATE.index(first) :]
        scores = [release.score(PYTHIA, revision) for revision in revisions]
        layers, sources = scores[0].layers, scores[0].sources
        gains = [centred(100 * (b.values - a.values)) for a, b in pairwise(scores)]
        draws, n = resampled(sources), len(np.unique(sources))
        for metric in METRICS:
            of_layers = [release.curve(PYTHIA, metric, revision=r) for r in revisions]
            curves = [np.asarray(curve.to_numpy()[layers], float) for curve in of_layers]
            changes = [centred(b - a) for a, b in pairwise(curves)]
            rho = correlations(changes, gains, np.full((1, len(sources)), 1 / len(sources)))[0]
            low, high = np.quantile(correlations(changes, gains, draws), [0.025, 0.975])
            estimate = stats.Estimate(rho, low, high, np.nan, np.nan, n)
            group = f"{metric}, from {first}"
            yield row("Spearman's ρ of the changes over layers", group, estimate, CLUSTERS)
            means = np.array([score.values.mean(axis=0) for score in scores])
            over_time = spearmanr_of_columns(np.array(curves), means)
            yield number("Spearman's ρ over checkpoints, median of layers", group, over_time)


def correlations(changes: list[Floats], gains: list[Floats], weights: Floats) -> Floats:
    """Spearman's ρ of changes of a metric with tasks' gains, averaged by each row of weights."""
    mean_gains = np.hstack([weights @ gain for gain in gains])
    x, y = (rankdata(values, axis=-1) for values in (np.concatenate(changes), mean_gains))
    return np.asarray(pearsonr(x, y, axis=-1).statistic)


def spearmanr_of_columns(metric: Floats, score: Floats) -> float:
    """Median over layers 8 to 23 of Spearman's ρ over rows."""
    pairs = zip(metric.T[8:24], score.T[8:24], strict=True)
    return float(np.median([spearmanr(x, y)[0] for x, y in pairs]))


def centred(curves: Floats) -> Floats:
    """Curves less their mean over layers."""
    return np.asarray(curves - curves.mean(axis=-1, keepdims=True))


def resampled(sources: npt.NDArray[np.str_]) -> Floats:
    """Weights of tasks when their clusters are drawn with replacement, shape (draws, tasks)."""
    names, cluster = np.unique(sources, return_inverse=True)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=N_RESAMPLES)
    weights = counts[:, cluster].astype(float)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def valley_moves_forward(release: Release) -> Iterator[Row]:
    """Depth in the model, 0 to 1, of the layer of least prompt entropy before the last."""
    for model in ("Pythia-70m", *SIZES[2:], "Pythia-6.9b"):
        layer, last = release.lowest_layer(model)
        yield number("depth of the valley on WikiText", model, layer / last)
    entropy = release.metrics[release.metrics["metric"] == "prompt_entropy"]
    texts = sorted({*entropy.loc[entropy["model"] == PYTHIA, "corpus"]} & {*TEXTS})
    sources = [SHARED_TEXTS.get(TEXTS[text], text) for text in texts]
    depths = {}
    for model in SIZES[1:]:
        lowest = [release.lowest_layer(model, text) for text in texts]
        depths[model] = np.array([layer / last for layer, last in lowest])
        estimate = stats.mean_ci(depths[model], sources)
        yield row("depth of the valley on task texts", model, estimate, CLUSTERS)
    change = stats.mean_ci(depths["Pythia-1b"] - depths["Pythia-70m"], sources)
    yield row("depth of the valley on task texts", "Pythia-1b less Pythia-70m", change, CLUSTERS)


def lead_by_task_type(release: Release) -> Iterator[Row]:
    """Lead of a model's best layer, selected on all tasks, over its output, by type of task."""
    for model in (PYTHIA, "Pythia-160m", MAMBA, BERT):
        curves = release.score(model)
        best = int(np.flatnonzero(curves.layers == lead(curves).layer)[0])
        leads = curves.values[:, best] - curves.output
        for task_type, tasks in by_type(curves):
            estimate = stats.mean_ci(leads[tasks], curves.sources[tasks])
            yield row("lead of the best layer", f"{model}, {task_type}", estimate, CLUSTERS, 100)
        similar = np.isin(curves.task_types, ("STS", "PairClassification"))
        yield row(
            "share of the summed lead",
            f"{model}, STS and pairs",
            share(leads, similar, curves),
            CLUSTERS,
        )
        above = stats.mean_ci(curves.output - curves.values[:, 0], curves.sources)
        yield row("output less the embeddings", model, above, CLUSTERS, 100)


def share(leads: Floats, tasks: npt.NDArray[np.bool_], curves: ScoreCurves) -> stats.Estimate:
    """Share of some tasks in the summed lead; the interval resamples task clusters."""
    draws = resampled(curves.sources)
    low, high = np.quantile((draws @ (leads * tasks)) / (draws @ leads), [0.025, 0.975])
    n = len(np.unique(curves.sources))
    return stats.Estimate(leads[tasks].sum() / leads.sum(), low, high, np.nan, np.nan, n)


def last_metrics_are_another_run(release: Release) -> Iterator[Row]:
    """Metrics of Pythia-410m at step 128,000 and at the end, which were computed a day apart."""
    for metric, layer in (("lidar", 8), ("dataset_entropy", 0), ("prompt_entropy", 12)):
        for revision in (LATE[-1], "main"):
            value = release.curve(PYTHIA, metric, revision=revision)[layer]
            yield number(f"{metric} of layer {layer}", revision, value)
