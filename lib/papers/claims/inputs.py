"""Claims about extreme prompts in Pythia-410m, and about vision models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from scipy.stats import spearmanr

from papers.claims.claim import Number, claim, signed
from papers.claims.metrics import MIDDLE
from papers.claims.scores import MID_DEPTH
from papers.release import ATTENTION_PROBE, PROBES, SECOND_PROBE
from papers.tables import PYTHIA, Release, lowest

THIRDS = {
    "first layers (0 to 4)": slice(0, 4),
    "layers 8 to 16": MIDDLE,
    "18 to 23": slice(18, 23),
}
HIGHEST_REPETITION = "0.7875"
"""Share of repeated tokens of the figure's last curve."""
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
    supported_if="normalised entropy falls from no repetition to p = .79, the highest level of "
    "the figure, in each group of layers",
    decides="Without the first token",
)
def repetition_lowers_entropy(release: Release) -> Iterator[Number]:
    for layers, change in changes_of_entropy(
        release, "repeated tokens", HIGHEST_REPETITION
    ).items():
        yield Number(f"{layers} {signed(change, 2)}", change < 0)


@claim(
    says="With repeated tokens prompt entropy falls sharply in mid-depth layers.",
    section="§5",
    figure="Figure 6a",
    supported_if="entropy falls by a larger share at layers 8 to 16 than at layers 2 to 4 and "
    "than at layers 18 to 23",
    decides="Without the first token",
)
def repetition_compresses_the_middle(release: Release) -> Iterator[Number]:
    for level in ("0.3375", HIGHEST_REPETITION):
        first, last = (
            release.curve(PYTHIA, "prompt_entropy", f"repeated tokens {p}") for p in ("0", level)
        )
        fall = 100 * (1 - last / first)
        middle = fall.loc[MIDDLE].mean()
        words = f"p = {float(level):.2f}: layers 8 to 16 {middle:.0f}%"
        for name, layers in (("2 to 4", slice(2, 4)), ("18 to 23", slice(18, 23))):
            share = fall.loc[layers].mean()
            yield Number(f"{words}, layers {name} {share:.0f}%", bool(middle > share))
        yield Number(f"embeddings {fall.loc[0]:.0f}%")


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
    decides="Random tokens in place of texts whose first layers are far from the maximum",
)
def randomness_raises_the_first_layers(release: Release) -> Iterator[Number]:
    early, *deeper = changes_of_entropy(release, "random tokens", "1").items()
    for layers, change in deeper:
        words = f"{early[0]} {early[1]:.3f}, {layers} {change:.3f}"
        yield Number(words, early[1] > change)
    texts = release.curve(PYTHIA, "prompt_entropy", "random tokens 0")
    shares = [
        f"{name} {100 * change / (1 - texts.loc[layers].mean()):.0f}%"
        for (name, change), layers in zip((early, *deeper), THIRDS.values(), strict=True)
    ]
    yield Number(f"as shares of what is left to the maximum: {', '.join(shares)}")


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
    says="Entropy normalised by its maximum grows with length, at a falling rate.",
    section="§5",
    supported_if="it grows from each length to the next, by less than before",
    decides="Texts in place of random tokens",
)
def normalised_entropy_grows_more_slowly(release: Release) -> Iterator[Number]:
    raw = entropies_of_lengths(release)
    normalised = [h / np.log(min(n, WIDTH)) for n, h in zip(RANDOM_LENGTHS, raw, strict=True)]
    growth_before = np.inf
    for (shorter, longer), (low, high) in zip(
        pairwise(RANDOM_LENGTHS), pairwise(normalised), strict=True
    ):
        growth = high - low
        words = f"{shorter:,} to {longer:,} tokens: {low:.3f} to {high:.3f}"
        yield Number(words, bool(0 < growth < growth_before))
        growth_before = growth


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
    second = best_probe(release, "aim-huge", SECOND_PROBE)[-1]
    yield Number(f"a second probe of aim-huge's last layer has {second:.1f}, above all others")


@claim(
    says="AIM's valley of prompt entropy lies at intermediate layers.",
    section="§6",
    figure="Figure 14",
    supported_if="prompt entropy is least between 25% and 75% of the depth",
    decides="Intervals over images",
)
def aim_valley_is_in_the_middle(release: Release) -> Iterator[Number]:
    low, high = MID_DEPTH
    for model in ("aim-huge", "aim-1B", "aim-3B"):
        layer, last = release.lowest_layer(model, "imagenet")
        yield Number(f"{model} layer {layer} of {last}", low <= layer / last <= high)


@claim(
    says="AIM's accuracy has its peak where its prompt entropy has its valley.",
    section="§6",
    figure="Figure 14",
    supported_if="the best layer and the layer of least prompt entropy are at most a tenth of the "
    "depth apart",
    decides="Linear probes of all layers of the larger models",
)
def aim_valley_is_the_peak(release: Release) -> Iterator[Number]:
    task = PROBES["imagenet"]
    valley, last = release.lowest_layer("aim-huge", "imagenet")
    best, *_ = best_probe(release, "aim-huge", task)
    rows = release.scores["model"].eq("aim-huge") & release.scores["task"].eq(task)
    accuracy = 100 * release.scores[rows].set_index("layer")["main_score"]
    words = f"aim-huge valley at layer {valley} of {last} (accuracy {accuracy[valley]:.1f}), best "
    words += f"layer {best} ({accuracy[best]:.1f})"
    yield Number(words, abs(valley - best) <= last / 10)


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
    aim_valley_is_in_the_middle,
    aim_valley_is_the_peak,
)
