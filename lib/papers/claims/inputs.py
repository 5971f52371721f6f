"""Claims about extreme prompts in Pythia-410m, and about vision models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from scipy.stats import spearmanr

from papers.claims.claim import Number, claim, signed
from papers.claims.metrics import MIDDLE
from papers.claims.scores import MID_DEPTH
from papers.release import ATTENTION_PROBE, PROBES
from papers.tables import PYTHIA, Release, lowest

THIRDS = {
    "first layers (0 to 4)": slice(0, 4),
    "layers 8 to 16": MIDDLE,
    "18 to 23": slice(18, 23),
}
RANDOM_LENGTHS = (64, 128, 256, 512, 1024, 2048)
WIDTH = 1024
"""Dimensions of Pythia-410m."""
RISING = ("vit-base", "beit-base", "dinov2-base", "mae-base")
FAMILIES = ("aim", "vit", "beit", "dinov2", "mae")


def changes_of_entropy(release: Release, corpus: str, level: str) -> Mapping[str, float]:
    """Mean change of normalised prompt entropy from level 0 in three groups of layers."""
    first, last = (release.curve(PYTHIA, "prompt_entropy", f"{corpus} {p}") for p in ("0", level))
    return {name: float((last - first).loc[layers].mean()) for name, layers in THIRDS.items()}


@claim(
    says="Repeated tokens lower prompt entropy.",
    section="§5",
    figure="Figure 6a",
    version_2="Figure 6a",
    supported_if="normalised entropy falls from no repetition to p = 1, in each group of layers",
    decides="Without the first token",
)
def repetition_lowers_entropy(release: Release) -> Iterator[Number]:
    for layers, change in changes_of_entropy(release, "repeated tokens", "1").items():
        yield Number(f"{layers} {signed(change, 2)}", change < 0)


@claim(
    says="Repetition compresses most in intermediate layers.",
    section="§5",
    figure="Figure 6a",
    supported_if="normalised entropy falls more at layers 8 to 16 than at the embeddings (layer "
    "0) and than at layers 18 to 23",
    decides="Without the first token",
)
def repetition_compresses_the_middle(release: Release) -> Iterator[Number]:
    for level in ("0.43", "1"):
        first, last = (
            release.curve(PYTHIA, "prompt_entropy", f"repeated tokens {p}") for p in ("0", level)
        )
        fall = first - last
        embeddings, middle, late = fall.loc[0], fall.loc[MIDDLE].mean(), fall.loc[18:23].mean()
        words = f"p = {level}: middle {middle:.2f}"
        yield Number(f"{words}, embeddings {embeddings:.2f}", bool(middle > embeddings))
        yield Number(f"{words}, late {late:.2f}", bool(middle > late))


@claim(
    says="Random tokens raise prompt entropy.",
    section="§5",
    figure="Figure 6b",
    version_2="Figure 6b",
    supported_if="normalised entropy rises from texts to random tokens, in each group of layers",
    decides="Without the first token",
)
def randomness_raises_entropy(release: Release) -> Iterator[Number]:
    for layers, change in changes_of_entropy(release, "random tokens", "1").items():
        yield Number(f"{layers} {signed(change, 3)}", change > 0)


@claim(
    says="Random tokens raise it most in the first layers; deeper layers are robust.",
    section="§5",
    figure="Figure 6b",
    supported_if="the rise at layers 0 to 4 is larger than that of the other group",
    decides="Without the first token",
)
def randomness_raises_the_first_layers(release: Release) -> Iterator[Number]:
    early, *deeper = changes_of_entropy(release, "random tokens", "1").items()
    for layers, change in deeper:
        words = f"{early[0]} {early[1]:.3f}, {layers} {change:.3f}"
        yield Number(words, early[1] > change)


def entropies_of_lengths(release: Release) -> list[float]:
    """Mean over layers of prompt entropy in nats, by length of random prompts."""
    return [
        float(release.curve(PYTHIA, "prompt_entropy", f"random prompts {n}").mean())
        for n in RANDOM_LENGTHS
    ]


@claim(
    says="Longer prompts have higher prompt entropy.",
    section="§5",
    figure="Figure 6c",
    version_2="Figure 6c",
    supported_if="the mean over layers rises from each length to the next",
    decides="Texts in place of random tokens",
)
def length_raises_entropy(release: Release) -> Iterator[Number]:
    by_length = zip(RANDOM_LENGTHS, entropies_of_lengths(release), strict=True)
    for (shorter, low), (longer, high) in pairwise(by_length):
        yield Number(f"{shorter:,} to {longer:,} tokens: {low:.2f} to {high:.2f}", high > low)


@claim(
    says="Entropy normalised by its maximum grows more slowly with length.",
    section="§5",
    supported_if="it grows by a smaller factor than raw entropy, from each length to the next",
    decides="Texts in place of random tokens",
)
def normalised_entropy_grows_more_slowly(release: Release) -> Iterator[Number]:
    raw = entropies_of_lengths(release)
    normalised = [h / np.log(min(n, WIDTH)) for n, h in zip(RANDOM_LENGTHS, raw, strict=True)]
    words = ", ".join(f"{value:.2f}" for value in normalised)
    slower = [
        after / before <= raw_after / raw_before
        for (before, after), (raw_before, raw_after) in zip(
            pairwise(normalised), pairwise(raw), strict=True
        )
    ]
    yield Number(f"64 to 2,048 tokens: {words}", all(slower))


@claim(
    says="AIM has a valley of prompt entropy; ViT, BEiT, DINOv2 and MAE have none.",
    section="§6",
    figure="Figure 14",
    version_2="Figure 14",
    supported_if="the model's valley is shallower than those of all AIM models",
    decides="AIM and ViT of one size on the same images",
)
def objective_makes_the_valley(release: Release) -> Iterator[Number]:
    on_images = release.metrics[release.metrics["corpus"] == "imagenet"]["model"].unique()
    models = [m for family in FAMILIES for m in sorted(on_images) if m.startswith(f"{family}-")]
    depths = {m: release.valley(m, "imagenet") for m in models}
    aim = {m: depth for m, depth in depths.items() if m.startswith("aim-")}
    yield Number(", ".join(f"{m} {depth:.2f} nats" for m, depth in aim.items()))
    for model, depth in depths.items():
        if model not in aim:
            yield Number(f"{model} {depth:.2f}", min(aim.values()) > depth)


def best_probe(release: Release, model: str, task: str) -> tuple[int, int, float, float]:
    """Best layer of a probe, the last layer, and the accuracies of both in percent."""
    table = release.scores[(release.scores["model"] == model) & (release.scores["task"] == task)]
    accuracy = 100 * table.set_index("layer")["main_score"].sort_index()
    best, last = lowest(-accuracy), int(accuracy.index.max())
    return best, last, float(accuracy[best]), float(accuracy[last])


@claim(
    says="Accuracy of ViT, BEiT, DINOv2 and MAE rises towards the final layers.",
    section="§6",
    figure="Figure 14",
    supported_if="the best layer is the last one or the one before it (base models, which have "
    "accuracies of the last layer)",
    decides="Probes of the large models at their last layer",
)
def accuracy_rises(release: Release) -> Iterator[Number]:
    for model in RISING:
        best, last, *_ = best_probe(release, model, PROBES["imagenet"])
        yield Number(f"{model} layer {best} of {last}", best >= last - 1)


@claim(
    says="Their invariance metrics rise steadily with depth.",
    section="§6",
    figure="Figure 14",
    supported_if="Spearman's ρ of the metric with depth is 0.9 or more (InfoNCE, a loss: −0.9 or "
    "less)",
    decides="Intervals over images",
)
def invariance_rises(release: Release) -> Iterator[Number]:
    for model in RISING:
        for metric, sign in (("lidar", 1), ("dime", 1), ("infonce", -1)):
            curve = release.curve(model, metric, "imagenet")
            rho = float(spearmanr(curve.index, curve)[0])
            yield Number(f"{model} {metric} {signed(rho, 2)}", sign * rho >= 0.9)


@claim(
    says="AIM's accuracy peaks at intermediate layers.",
    section="§6",
    figure="Figure 14",
    supported_if="the best layer lies between 25% and 75% of the depth",
    decides="Probes of one kind for all sizes",
)
def aim_peaks_in_the_middle(release: Release) -> Iterator[Number]:
    low, high = MID_DEPTH
    for model, task in (
        ("aim-huge", PROBES["imagenet"]),
        ("aim-large", ATTENTION_PROBE),
        ("aim-1B", PROBES["imagenet100"]),
    ):
        best, last, top, output = best_probe(release, model, task)
        words = f"{model} ({task}) layer {best} of {last}, {top:.1f} and {output:.1f} at the last"
        yield Number(words, low <= best / last <= high)


CLAIMS = (
    repetition_lowers_entropy,
    repetition_compresses_the_middle,
    randomness_raises_entropy,
    randomness_raises_the_first_layers,
    length_raises_entropy,
    normalised_entropy_grows_more_slowly,
    objective_makes_the_valley,
    accuracy_rises,
    invariance_rises,
    aim_peaks_in_the_middle,
)
