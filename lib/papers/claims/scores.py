"""Claims about task scores: which layer is best, and what metrics have to do with it.

Scores are in percentage points, over the tasks and layers that
`layerwise.association.curves.score_curves` keeps; intervals are 95% CI over task clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from layerwise import association, stats
from layerwise.association.curves import ScoreCurves, usable
from layerwise.association.scores import HIGHEST, LOWEST, gains_by_task
from papers.claims.claim import Number, claim, signed
from papers.tables import BERT, EMBEDDER, MAMBA, METRICS, PYTHIA, Release

FIGURE_1 = (PYTHIA, MAMBA, BERT)
NEARLY_EVERY = 0.9
MID_DEPTH = (0.25, 0.75)
TASK_TYPES = {
    "Classification": 10,
    "Clustering": 6,
    "PairClassification": 3,
    "Reranking": 4,
    "STS": 9,
}
"""Tasks of each type among the paper's 32."""


class Lead(NamedTuple):
    """Best layer of a model and its lead over the last one, in points."""

    layer: int
    gain: float
    words: str


def lead(curves: ScoreCurves) -> Lead:
    """Best layer of a model, with an interval that holds for all layers together."""
    leads = curves.values - curves.output[:, None]
    interval = stats.simultaneous_ci(100 * leads, curves.sources)
    best = int(leads.mean(axis=0).argmax())
    ends = f"{signed(interval.low[best])} to {signed(interval.high[best])}"
    words = f"{curves.model}: layer {curves.layers[best]} of {curves.last_layer} leads by "
    words += f"{interval.estimate[best]:.1f} ({ends})"
    return Lead(int(curves.layers[best]), float(interval.estimate[best]), words)


def lead_in_the_mix_of_32(curves: ScoreCurves) -> float:
    """Lead of the best layer in points, with types of tasks weighted as in the paper's 32."""
    by_type = pd.DataFrame(100 * (curves.values - curves.output[:, None]))
    by_type = by_type.groupby(np.asarray(curves.task_types)).mean()
    weights = pd.Series(TASK_TYPES).reindex(by_type.index)
    return float(np.average(by_type, axis=0, weights=weights).max())


@claim(
    says="Intermediate layers outperform the last layer in all three architectures.",
    section="§4.1.2",
    figure="Figure 1",
    version_2="§4.1",
    supported_if="the best layer's mean score is above the last layer's",
    decides="More families, scored at every layer",
)
def intermediate_layers_win(release: Release) -> Iterator[Number]:
    for model in FIGURE_1:
        curves = release.score(model)
        best = lead(curves)
        yield Number(best.words, best.gain > 0)
        if curves.tasks_left_out:
            mixed = lead_in_the_mix_of_32(curves)
            missing = ", ".join(curves.tasks_left_out)
            yield Number(
                f"{len(curves.tasks)} of 32 tasks, without {missing}; weighted to the 32 tasks' "
                f"types the lead is {mixed:.1f}"
            )


@claim(
    says="In nearly every task some intermediate layer outperforms the last one.",
    section="§4.1.2",
    supported_if="some layer from 1 to the last but one does in 90% of the models' tasks or more",
    decides="Layers selected on other examples than those that are scored: the best of many is "
    "biased upwards",
)
def nearly_every_task(release: Release) -> Iterator[Number]:
    ahead = {}
    for model in (*FIGURE_1, EMBEDDER):
        curves = release.score(model)
        between = (curves.layers > 0) & (curves.layers < curves.last_layer)
        ahead[model] = curves.values[:, between].max(axis=1) > curves.output
    tasks = np.concatenate(list(ahead.values()))
    yield Number(f"{tasks.sum()} of {len(tasks)} tasks", bool(tasks.mean() >= NEARLY_EVERY))
    yield Number(", ".join(f"{model} {n.sum()} of {len(n)}" for model, n in ahead.items()))


@claim(
    says="The gain on average is as high as 16%.",
    section="§4.1.2",
    version_2="§4.1",
    supported_if="the largest lead is 15.5 points or more",
    decides="Mamba with all tasks at all layers",
)
def up_to_sixteen(release: Release) -> Iterator[Number]:
    best = max((lead(release.score(m)) for m in FIGURE_1), key=lambda found: found.gain)
    yield Number(best.words, best.gain >= 15.5)


@claim(
    says="The gain on average is at least 2%.",
    section="§4.1.2",
    version_2="§4.1",
    supported_if="the best layer leads by 2.0 points or more (1.5 would round to 2%)",
    decides="LLM2Vec with all tasks at all layers; more embedding models",
)
def at_least_two(release: Release) -> Iterator[Number]:
    for model in (*FIGURE_1, EMBEDDER):
        curves = release.score(model)
        best = lead(curves)
        yield Number(f"{best.words}, on {len(curves.tasks)} tasks", best.gain >= 2)


@claim(
    says="The best layer is around mid-depth.",
    section="§4.1.2",
    version_2="§4.1",
    supported_if="the best layer lies between 25% and 75% of the depth",
    decides="More models of each size",
)
def mid_depth_is_best(release: Release) -> Iterator[Number]:
    for model in (*FIGURE_1, EMBEDDER):
        curves = release.score(model)
        layer = lead(curves).layer
        low, high = MID_DEPTH
        words = f"{model} layer {layer} of {curves.last_layer}"
        yield Number(words, low <= layer / curves.last_layer <= high)


@claim(
    says="The best layers are those of the valley: performance peaks where prompt entropy is "
    "least.",
    section="§4.1.2, §4.2",
    figure="Figures 1 and 2",
    supported_if="the best layer and the layer of least prompt entropy before the last one are "
    "at most a tenth of the depth apart",
    decides="Scores of models before and after the valley is removed",
)
def valley_is_the_peak(release: Release) -> Iterator[Number]:
    for model in ("Pythia-14m", "Pythia-70m", "Pythia-160m", *FIGURE_1):
        valley, last = release.lowest_layer(model)
        best = lead(release.score(model)).layer
        words = f"{model} valley at layer {valley}, best layer {best} of {last}"
        yield Number(words, abs(valley - best) <= last / 10)


def gains_by_dime(release: Release, model: str) -> Mapping[str, list[float]]:
    """Gain in points, low and high at each end of DiME."""
    scores = release.score(model)
    ends = gains_by_task(release.own_texts(scores)["dime"], scores).set_index("end")
    numbers = 100 * ends[["gain", "low", "high"]]
    return dict(zip(map(str, ends.index), numbers.to_numpy().tolist(), strict=True))


def dime_numbers(release: Release, model: str) -> Iterator[Number]:
    """Gains at both ends of DiME; the larger of them counts.

    Tasks are those that have scores and DiME at the same layers.
    """
    ends = gains_by_dime(release, model)
    larger = max(ends, key=lambda end: ends[end][0])
    for end in (LOWEST, HIGHEST):
        gain, low, high = ends[end]
        words = f"{signed(gain)} ({signed(low)} to {signed(high)}) at the {end} DiME"
        yield Number(words, gain >= 2.5 if end == larger else None)


@claim(
    says="Selecting the layer of each task by DiME gains about 3% in Pythia-410m.",
    version_2="§4.3, Table 2",
    supported_if="the gain at the better of the two ends is 2.5 points or more",
    decides="A direction that is fixed before the scores are seen",
)
def dime_gains(release: Release) -> Iterator[Number]:
    yield from dime_numbers(release, PYTHIA)


@claim(
    says="It gains about 3% in LLM2Vec too.",
    version_2="§4.3, Table 2",
    supported_if="the gain at the better of the two ends is 2.5 points or more (metrics by the "
    "formulas of 2024; they and scores share 28 tasks at most)",
    decides="The metrics of 2025 on LLM2Vec's tasks",
)
def dime_gains_in_llm2vec(_: Release) -> Iterator[Number]:
    yield from dime_numbers(Release("released_2024"), EMBEDDER)


def associations(release: Release, model: str, measure: str) -> dict[str, tuple[float, float]]:
    """Association of each metric with the score over layers, and its null level."""
    scores = release.score(model)
    by_metric = {}
    for metric, values in release.own_texts(scores).items():
        tasks, layers = usable(values)
        if metric in METRICS and tasks.any():
            x, y = (v[tasks][:, layers].mean(axis=0)[None] for v in (values, scores.values))
            size = float(association.strengths(measure, x, y)[0])
            by_metric[metric] = size, association.null_level(measure, x, y)
    return by_metric


def above_the_null(release: Release, model: str) -> Iterator[Number]:
    """Distance correlations, each of which counts if 95% of random walks stay below it."""
    by_metric = associations(release, model, "dcor")
    for metric, (size, level) in by_metric.items():
        yield Number(f"{metric} {size:.2f}", size > level)
    level = next(iter(by_metric.values()))[1]
    yield Number(f"95% of random walks stay below {level:.2f}")


def strongest(release: Release, model: str) -> list[tuple[str, float]]:
    """Metrics by distance correlation, the largest first."""
    by_metric = associations(release, model, "dcor")
    sizes = [(metric, size) for metric, (size, _) in by_metric.items()]
    return sorted(sizes, key=lambda pair: -pair[1])


@claim(
    says="All metrics are strongly associated with the scores of Pythia-410m.",
    section="§4.1.3",
    figure="Figure 3",
    version_2="§4.3, Figure 3",
    supported_if="the distance correlation is above that of 95% of random walks",
    decides="A test over six models or more",
)
def metrics_track_scores(release: Release) -> Iterator[Number]:
    yield from above_the_null(release, PYTHIA)


@claim(
    says="DiME, curvature and InfoNCE are the strongest, DiME first.",
    section="§4.1.3",
    figure="Figure 3",
    supported_if="the three have the largest distance correlations, and DiME has the largest",
    decides="More tasks: the first two differ by 0.001",
)
def dime_is_first(release: Release) -> Iterator[Number]:
    order = strongest(release, PYTHIA)
    words = ", ".join(f"{metric} {size:.3f}" for metric, size in order)
    yield Number(words, {m for m, _ in order[:3]} == {"dime", "curvature", "infonce"})
    yield Number(f"{order[0][0]} is first", order[0][0] == "dime")


@claim(
    says="The associations are robust under Spearman's and Kendall's correlation.",
    section="§4.1.3",
    figure="Figure 8",
    supported_if="the absolute correlation is above that of 95% of unrelated curves of the same "
    "smoothness",
    decides="A test over six models or more",
)
def robust_under_ranks(release: Release) -> Iterator[Number]:
    for measure, symbol in (("spearman", "ρ"), ("kendall", "τ")):
        for metric, (size, level) in associations(release, PYTHIA, measure).items():
            words = f"{symbol} {metric} {signed(size, 2)}, null {level:.2f}"
            yield Number(words, abs(size) > level)


@claim(
    says="All associations are inverse but InfoNCE's, which is positive.",
    section="Appendix G",
    figure="Figure 8",
    supported_if="Spearman's ρ has the sign that the caption gives",
    decides="A test over six models or more",
)
def inverse_but_infonce(release: Release) -> Iterator[Number]:
    for metric, (size, _) in associations(release, PYTHIA, "spearman").items():
        yield Number(f"{metric} {signed(size, 2)}", (size > 0) == (metric == "infonce"))


@claim(
    says="In BERT distance correlations are strong for all metrics.",
    section="Appendix G",
    figure="Figure 9",
    supported_if="the distance correlation is above that of 95% of random walks",
    decides="BERT with all tasks at all layers",
)
def metrics_track_bert(release: Release) -> Iterator[Number]:
    yield from above_the_null(release, BERT)


@claim(
    says="In BERT LiDAR and dataset entropy have the strongest association.",
    section="Appendix G",
    figure="Figure 9",
    supported_if="they have the two largest distance correlations",
    decides="BERT with all tasks at all layers",
)
def lidar_leads_in_bert(release: Release) -> Iterator[Number]:
    order = strongest(release, BERT)
    words = ", ".join(f"{metric} {size:.2f}" for metric, size in order)
    yield Number(words, {m for m, _ in order[:2]} == {"lidar", "dataset_entropy"})


@claim(
    says="Other measures of association are moderate to strong in BERT.",
    section="Appendix G",
    figure="Figure 9",
    supported_if="the absolute correlation is above that of 95% of unrelated curves of the same "
    "smoothness, which is what strong means in all rows",
    decides="BERT with all tasks at all layers",
)
def other_measures_in_bert(release: Release) -> Iterator[Number]:
    for measure, symbol in (("spearman", "ρ"), ("kendall", "τ")):
        for metric, (size, level) in associations(release, BERT, measure).items():
            words = f"{symbol} {metric} {signed(size, 2)}, null {level:.2f}"
            yield Number(words, abs(size) > level)


CLAIMS = (
    intermediate_layers_win,
    nearly_every_task,
    up_to_sixteen,
    at_least_two,
    mid_depth_is_best,
    valley_is_the_peak,
    dime_gains,
    dime_gains_in_llm2vec,
    metrics_track_scores,
    dime_is_first,
    robust_under_ranks,
    inverse_but_infonce,
    metrics_track_bert,
    lidar_leads_in_bert,
    other_measures_in_bert,
)
