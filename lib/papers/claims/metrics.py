"""Claims about metrics on WikiText: architectures, sizes, fine-tuning, sub-layers, training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from layerwise import association
from papers.claims.claim import Number, claim, signed
from papers.claims.scores import MID_DEPTH
from papers.tables import BERT, MAMBA, METRICS, PYTHIA, SIZES, TEXTS, Release, lowest

FIGURE_2 = ("prompt_entropy", "curvature", "lidar")
LLAMA, SIMCSE, SUPERVISED = (
    "Llama3-8B",
    "LLM2Vec-mntp-unsup-simcse-8B",
    "LLM2Vec-mntp-supervised-8B",
)
RELATED = (*SIZES, MAMBA, BERT, LLAMA)
"""Models whose metrics are related to each other over layers."""
EARLY, MIDDLE, LATE = slice(0, 4), slice(8, 16), slice(20, 23)
"""Layers of Pythia-410m, of 24; both ends belong to them. The last layer has the final norm."""
LAST_OF_RUN = "step128000"
"""Last checkpoint whose pooled metrics are of one run with those before. Those of `main` were
computed a day later on other batches: LiDAR at layer 8 jumps, prompt entropy doesn't."""
SAME_RUN = ("step1", LAST_OF_RUN)
"""The first checkpoint of Figure 4, and the last."""


def range_over_layers(release: Release, model: str, metric: str) -> float:
    """Largest value of a metric on WikiText less its smallest, without the normed last state.

    The release has that state of Pythia and not of Mamba.
    """
    return float(np.ptp(release.stream(model, metric)))


@claim(
    says="Pythia and Mamba change their metrics over layers, BERT remains more stable.",
    section="§4.2",
    figure="Figure 2",
    version_2="§5.1, Figure 2",
    supported_if="the metric's range over layers is larger than in BERT",
    decides="More encoders",
)
def bert_is_stable(release: Release) -> Iterator[Number]:
    for metric in FIGURE_2:
        bert = range_over_layers(release, BERT, metric)
        for model in (PYTHIA, MAMBA):
            size = range_over_layers(release, model, metric)
            yield Number(f"{metric} {size:.2f} in {model}, {bert:.2f} in {BERT}", size > bert)
    for metric, split in (("dataset_entropy", ""), ("infonce", " on the test split")):
        pythia, bert = (range_over_layers(release, m, metric) for m in (PYTHIA, BERT))
        words = f"not in Figure 2: {metric} {pythia:.2f} in {PYTHIA}, {bert:.2f} in {BERT}"
        yield Number(f"{words}{split}")


@claim(
    says="Mamba has flatter curves than Pythia.",
    section="§4.2",
    figure="Figure 10 (the caption of Figure 2 says the opposite)",
    version_2="§5.1",
    supported_if="the metric's range over layers is smaller in Mamba",
    decides="More state-space models",
)
def mamba_is_flatter(release: Release) -> Iterator[Number]:
    for metric in FIGURE_2:
        pythia, mamba = (range_over_layers(release, m, metric) for m in (PYTHIA, MAMBA))
        words = f"{metric} {pythia:.2f} in {PYTHIA}, {mamba:.2f} in {MAMBA}"
        yield Number(words, mamba < pythia)


@claim(
    says="BERT keeps the most prompt entropy, Pythia compresses the most, Mamba lies between.",
    section="§4.2",
    figure="Figure 2",
    supported_if="the least prompt entropy over layers is in this order",
    decides="Several models of each architecture",
)
def bert_keeps_entropy(release: Release) -> Iterator[Number]:
    least = {m: release.curve(m, "prompt_entropy").min() for m in (BERT, MAMBA, PYTHIA)}
    for higher, lower in pairwise(least):
        words = f"{higher} {least[higher]:.2f} nats, {lower} {least[lower]:.2f}"
        yield Number(words, bool(least[higher] > least[lower]))


@claim(
    says="Autoregressive models have a valley of prompt entropy, bidirectional ones have none.",
    section="§4.2",
    figure="Figure 2",
    supported_if="an autoregressive model's valley is deeper than that of both BERTs",
    decides="Encoders and decoders of one size on the same data, without the first token",
)
def decoders_have_the_valley(release: Release) -> Iterator[Number]:
    encoders = {m: release.valley(m) for m in (BERT, "bert-large")}
    for model in (PYTHIA, MAMBA, LLAMA):
        depth = release.valley(model)
        yield Number(f"{model} {depth:.2f} nats", depth > max(encoders.values()))
    words = ", ".join(f"{m} {depth:.2f}" for m, depth in encoders.items())
    yield Number(f"{words}, the latter on the test split, all others on the training split")
    made_bidirectional = ", ".join(f"{m} {release.valley(m):.2f}" for m in (SIMCSE, SUPERVISED))
    yield Number(f"Llama3 made bidirectional: {made_bidirectional}")


@claim(
    says="The valley lies at mid-depth.",
    section="§4.2",
    figure="Figures 2, 12 and 13",
    supported_if="prompt entropy is least between 25% and 75% of the depth",
    decides="The same without the first token",
)
def valley_is_in_the_middle(release: Release) -> Iterator[Number]:
    for model in (*SIZES, "Pythia-6.9b", LLAMA):
        layer, last = release.lowest_layer(model)
        low, high = MID_DEPTH
        yield Number(f"{model} layer {layer} of {last}", low <= layer / last <= high)


def over_sizes(release: Release, metric: str, sign: int) -> Iterator[Number]:
    """Rank correlation with size over the five sizes of Figure 12; p = .04 at ±.9, one-sided."""
    if metric == "valley":
        values = [release.valley(model) for model in SIZES]
    else:
        values = [float(release.curve(model, metric).mean()) for model in SIZES]
    rho = float(spearmanr(range(len(values)), values)[0])
    words = ", ".join(f"{value:.2f}" for value in values)
    yield Number(f"14m to 1b: {words}; ρ {signed(rho)}", sign * rho >= 0.9 - 1e-9)


RANKS = "Spearman's ρ with size over the five sizes is {}0.9 or {} (one-sided p .04)"


def valleys_on_tasks(release: Release) -> pd.DataFrame:
    """Depth of the valley on the texts of each task: tasks as rows, sizes as columns."""
    of_model = (release.metrics["model"] == PYTHIA) & (release.metrics["revision"] == "main")
    entropy = release.metrics[of_model & (release.metrics["metric"] == "prompt_entropy")]
    texts = sorted({*entropy["corpus"]} & {*TEXTS})
    return pd.DataFrame({m: [release.valley(m, c) for c in texts] for m in SIZES}, index=texts)


@claim(
    says="Larger Pythia models, 14M to 1B, have deeper valleys of prompt entropy.",
    section="§4.2",
    figure="Figure 12",
    version_2="Figure 12",
    supported_if=RANKS.format("", "more"),
    decides="Pythia 1.4b to 12b, without the first token as well",
)
def valley_deepens(release: Release) -> Iterator[Number]:
    yield from over_sizes(release, "valley", 1)
    yield Number(f"outside the figure: 6.9b {release.valley('Pythia-6.9b'):.2f}")
    on_tasks = valleys_on_tasks(release)
    words = ", ".join(f"{depth:.2f}" for depth in on_tasks.mean())
    yield Number(f"on the texts of {len(on_tasks)} tasks {words}")


@claim(
    says="Larger Pythia models have lower curvature.",
    section="§4.2",
    figure="Figure 12",
    version_2="Figure 12",
    supported_if=f"{RANKS.format('−', 'less')}; angles are of the absolute cosine",
    decides="Pythia 1.4b to 12b",
)
def larger_models_are_smoother(release: Release) -> Iterator[Number]:
    yield from over_sizes(release, "curvature", -1)


@claim(
    says="Larger Pythia models have stronger invariance: higher LiDAR.",
    section="§4.2",
    figure="Figure 12",
    version_2="Figure 12",
    supported_if=RANKS.format("", "more"),
    decides="Pythia 1.4b to 12b",
)
def larger_models_have_higher_lidar(release: Release) -> Iterator[Number]:
    yield from over_sizes(release, "lidar", 1)


@claim(
    says="Unsupervised SimCSE has more prompt entropy than Llama3, supervised training less.",
    section="§4.2",
    figure="Figure 13",
    version_2="Figure 13",
    supported_if="the mean over layers differs from Llama3's in this direction",
    decides="Intervals over prompts",
)
def fine_tuning_orders_entropy(release: Release) -> Iterator[Number]:
    plain, simcse, supervised = (
        release.curve(m, "prompt_entropy").mean() for m in (LLAMA, SIMCSE, SUPERVISED)
    )
    yield Number(f"SimCSE {simcse:.2f}, Llama3 {plain:.2f}", bool(simcse > plain))
    yield Number(f"supervised {supervised:.2f}", bool(supervised < plain))


@claim(
    says="Both fine-tuned models have better augmentation invariance than Llama3.",
    section="§4.2",
    figure="Figure 13",
    supported_if="LiDAR and DiME, mean over layers, are higher than Llama3's, or InfoNCE's loss "
    "is lower",
    decides="Intervals over prompts",
)
def fine_tuning_improves_invariance(release: Release) -> Iterator[Number]:
    for metric, better in (("lidar", 1), ("dime", 1), ("infonce", -1)):
        plain = release.curve(LLAMA, metric).mean()
        for model in (SIMCSE, SUPERVISED):
            tuned = release.curve(model, metric).mean()
            words = f"{metric} {plain:.2f} in Llama3, {tuned:.2f} in {model}"
            yield Number(words, bool(better * (tuned - plain) > 0))


def related(release: Release, metric: str, other: str, sign: int) -> Iterator[Number]:
    """Spearman's ρ of two metrics over layers, beside the level of unrelated smooth curves."""
    for model in RELATED:
        x, y = (np.array([release.stream(model, m)], dtype=float) for m in (metric, other))
        rho = float(association.strengths("spearman", x, y)[0])
        level = association.null_level("spearman", x, y)
        words = f"{model} ρ {signed(rho, 2)}, null {level:.2f}"
        yield Number(words, None if rho == 0 else bool(sign * rho > level * (1 + 1e-9)))


@claim(
    says="Sharp turns of the trajectory manifest as skewed spectra.",
    section="§3.2",
    supported_if="over layers, curvature falls as prompt entropy rises: Spearman's ρ is beyond "
    "that of 95% of unrelated curves of the same smoothness",
    decides="A test over six models or more, and the printed formula of curvature",
)
def turns_skew_spectra(release: Release) -> Iterator[Number]:
    yield from related(release, "curvature", "prompt_entropy", -1)


@claim(
    says="Less InfoNCE implies more dataset entropy.",
    section="§3.4",
    supported_if="over layers, InfoNCE falls as dataset entropy rises: Spearman's ρ is beyond "
    "that of 95% of unrelated curves of the same smoothness",
    decides="A test over six models or more",
)
def infonce_implies_entropy(release: Release) -> Iterator[Number]:
    yield from related(release, "infonce", "dataset_entropy", -1)


@claim(
    says="Residual connections drive the compression; outputs before them are only mildly "
    "compressed.",
    section="§4.2",
    figure="Figure 15",
    supported_if="adding an output lowers the log effective rank of the stream over blocks 5 to "
    "9; an output itself keeps at least half of the stream's rank at block 4",
    decides="Effective ranks by prompt, and of other models",
)
def residuals_compress(release: Release) -> Iterator[Number]:
    changes = release.changes_of_rank().loc[5:9]
    for part, label in (("mixer", "attention"), ("mlp", "MLP")):
        total = changes[part].sum()
        words = f"adding {label} outputs changes it by {signed(total, 2)}"
        yield Number(words, bool(total < 0))
    ranks = release.stages().loc[5:9]
    half = release.stages()["block"].to_numpy()[3] / 2  # block 4
    for part, label in (("mixer", "attention"), ("mlp", "MLP")):
        block = lowest(ranks[part])
        words = f"least effective rank of {label} outputs {ranks[part].min():.0f} at block "
        words += f"{block}, half of the stream's is {half:.0f}"
        yield Number(words, bool(ranks[part].min() >= half))


def changes_in_training(
    release: Release, metric: str, since: str = SAME_RUN[0]
) -> pd.Series[float]:
    """Absolute change of a metric of Pythia-410m by layer, from a checkpoint to the last."""
    first, last = (release.curve(PYTHIA, metric, revision=r) for r in (since, LAST_OF_RUN))
    return (last - first).abs()


@claim(
    says="Middle layers change most during training.",
    section="§4.3",
    figure="Figure 4",
    version_2="§5.2",
    supported_if="the mean absolute change from step 1 to 128,000, which the figure shows, is "
    "larger at layers 8 to 16 than at layers 0 to 4 and at layers 20 to 23",
    decides="Checkpoints of other suites, and the printed formula of curvature",
)
def middle_layers_change_most(release: Release) -> Iterator[Number]:
    for metric in FIGURE_2:
        change = changes_in_training(release, metric)
        early, middle, late = (change.loc[layers].mean() for layers in (EARLY, MIDDLE, LATE))
        decimals = 4 if metric == "curvature" else 2
        words = ", ".join(f"{value:.{decimals}f}" for value in (early, middle, late))
        yield Number(f"{metric} {words}", bool(middle > max(early, late)))
    yield Number("curvature's middle and late layers are tied: the verdict hangs on 0.0004")


@claim(
    says="Prompt entropy of middle layers falls steadily during training.",
    section="§4.3",
    figure="Figure 4",
    version_2="§5.2",
    supported_if="Spearman's ρ of the mean of layers 8 to 16 with the step, from step 1,000 to "
    "128,000, is −0.9 or less",
    decides="Checkpoints of other suites",
)
def entropy_falls_in_training(release: Release) -> Iterator[Number]:
    steps = [step for step in release.checkpoints() if step >= 1000]
    means = [
        release.curve(PYTHIA, "prompt_entropy", revision=f"step{step}").loc[MIDDLE].mean()
        for step in steps
    ]
    rho = float(spearmanr(steps, means)[0])
    words = ", ".join(f"{mean:.2f}" for mean in means)
    yield Number(f"steps {steps[0]:,} to {steps[-1]:,}: {words}; ρ {signed(rho, 2)}", rho <= -0.9)


@claim(
    says="Curvature becomes smoother in the middle of the network.",
    section="§4.3",
    figure="Figure 4",
    version_2="§5.2",
    supported_if="the mean of layers 8 to 16 falls from step 1 to 128,000 (the release has angles "
    "of the absolute cosine, the paper prints those of the cosine)",
    decides="The printed formula of curvature, on the checkpoints",
)
def curvature_falls_in_training(release: Release) -> Iterator[Number]:
    first, last = (
        release.curve(PYTHIA, "curvature", revision=r).loc[MIDDLE].mean() for r in SAME_RUN
    )
    yield Number(f"{first:.3f} at step 1, {last:.3f} at step 128,000", bool(last < first))


@claim(
    says="LiDAR is least in the middle layers.",
    section="§4.3",
    figure="Figure 4",
    supported_if="the layer of least LiDAR lies between 25% and 75% of the depth",
    decides="Checkpoints of other suites",
)
def lidar_is_least_in_the_middle(release: Release) -> Iterator[Number]:
    curve = release.curve(PYTHIA, "lidar", revision=LAST_OF_RUN)
    layer, last = lowest(curve), int(curve.index.max())
    low, high = MID_DEPTH
    yield Number(f"layer {layer} of {last}", low <= layer / last <= high)


@claim(
    says="Early layers stabilise quickly, as the detokenisation hypothesis has it.",
    section="§4.3",
    figure="Figure 4",
    version_2="§5.2",
    supported_if="layers 0 to 4 change by less than a quarter of what layers 8 to 16 change, "
    "from step 1,000, after the initial phase, to 128,000",
    decides="Checkpoints of other suites",
)
def early_layers_stabilise(release: Release) -> Iterator[Number]:
    for metric in METRICS:
        change = changes_in_training(release, metric, since="step1000")
        share = change.loc[EARLY].mean() / change.loc[MIDDLE].mean()
        in_figure = metric in FIGURE_2
        words = f"{metric} {100 * share:.0f}%"
        yield Number(
            words if in_figure else f"not in Figure 4: {words}",
            bool(share < 0.25) if in_figure else None,
        )


@claim(
    says="Fine-tuning on chains of thought keeps prompt entropy higher along the sequence, with "
    "lower variance.",
    section="§4.4",
    figure="Figure 5",
    decides="A run of `presets/chain_of_thought.yaml` or of the study kind `along_sequence`, "
    "which draws quartiles over prompts",
)
def chains_of_thought(_: Release) -> Iterator[Number]:
    yield from ()


CLAIMS = (
    bert_is_stable,
    mamba_is_flatter,
    bert_keeps_entropy,
    decoders_have_the_valley,
    valley_is_in_the_middle,
    valley_deepens,
    larger_models_are_smoother,
    larger_models_have_higher_lidar,
    fine_tuning_orders_entropy,
    fine_tuning_improves_invariance,
    turns_skew_spectra,
    infonce_implies_entropy,
    residuals_compress,
    middle_layers_change_most,
    entropy_falls_in_training,
    curvature_falls_in_training,
    lidar_is_least_in_the_middle,
    early_layers_stabilise,
    chains_of_thought,
)
