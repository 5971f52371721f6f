"""Claims of "Does Representation Matter?" (arXiv 2412.09563), by the tables of 2024.

The claims and sections are those of a summary; the text was not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from papers.claims.claim import Claim, Number, claim
from papers.claims.inputs import (
    length_raises_entropy,
    randomness_raises_entropy,
    repetition_compresses_the_middle,
)
from papers.claims.metrics import EARLY, LATE, MIDDLE, SAME_RUN, changes_in_training
from papers.claims.scores import lead
from papers.tables import EMBEDDER, MAMBA, PYTHIA, Release, lens_accuracies

OLD = "released_2024"
STATED = ("prompt_entropy", "dataset_entropy", "infonce", "dime", "lidar")
"""Metrics whose tables of 2024 are complete; half of curvature's values are missing."""


@claim(
    says="The best intermediate layer improves the average MTEB score by at least 2%.",
    section="§4.1",
    supported_if="the best layer leads the last by 2.0 points or more",
    decides="More embedding models, with all tasks at all layers",
)
def two_percent_on_mteb(release: Release) -> Iterator[Number]:
    for model in (PYTHIA, MAMBA, EMBEDDER):
        best = lead(release.score(model))
        yield Number(best.words, best.gain >= 2)


@claim(
    says="Intermediate layers are better on MMLU too.",
    section="§4.1",
    supported_if="the best state before the last is ahead by 2.0 points or more",
    decides="A run of `presets/mmlu.yaml`",
)
def intermediate_layers_win_on_mmlu(_: Release) -> Iterator[Number]:
    for model in ("Llama3-8B", "Pythia-2.8b"):
        accuracy = 100 * lens_accuracies("MMLU", model)
        best, last = int(accuracy[:-1].argmax()), len(accuracy) - 1
        words = f"{model}: state {best} of {last} has {accuracy[best]:.1f}, the last "
        words += f"{accuracy[-1]:.1f}"
        yield Number(words, bool(accuracy[best] - accuracy[-1] >= 2))
    yield Number("guessing gives 25.0")


@claim(
    says="Pythia loses prompt entropy in intermediate layers, Mamba's values remain more stable.",
    section="§4.3.1",
    supported_if="the metric's range over layers is smaller in Mamba",
    decides="More state-space models; curvature, of which the tables lack half",
)
def state_space_models_are_stable(_: Release) -> Iterator[Number]:
    release = Release(OLD)
    for metric in STATED:
        pythia, mamba = (float(np.ptp(release.curve(m, metric))) for m in (PYTHIA, MAMBA))
        words = f"{metric} {pythia:.2f} in {PYTHIA}, {mamba:.2f} in {MAMBA}"
        yield Number(words, mamba < pythia)


def changes_of_layers(since: str) -> Iterator[Number]:
    """If a metric changes most at intermediate layers, from a checkpoint to step 128,000."""
    release = Release(OLD)
    for metric in STATED:
        change = changes_in_training(release, metric, since)
        early, middle, late = (change.loc[layers].mean() for layers in (EARLY, MIDDLE, LATE))
        words = f"{metric} {early:.2f}, {middle:.2f}, {late:.2f}"
        yield Number(words, bool(middle > max(early, late)))


@claim(
    says="The largest changes during training are in intermediate layers.",
    section="§4.3.2",
    supported_if="the mean absolute change from step 1 to 128,000 is larger at layers 8 to 16 "
    "than at layers 0 to 4 and at layers 20 to 23",
    decides="Checkpoints of other suites",
)
def middle_layers_change_most(_: Release) -> Iterator[Number]:
    yield from changes_of_layers(SAME_RUN[0])


@claim(
    says="Initial and final layers stabilise earlier than intermediate ones.",
    section="§4.3.2",
    supported_if="the mean absolute change from step 1,000, after the initial phase, to 128,000 "
    "is smaller at layers 0 to 4 and at layers 20 to 23 than at layers 8 to 16",
    decides="Checkpoints of other suites",
)
def outer_layers_stabilise(_: Release) -> Iterator[Number]:
    yield from changes_of_layers("step1000")


@claim(
    says="As training progresses, prompt entropy of intermediate layers falls.",
    section="§4.3.2",
    supported_if="the mean of layers 8 to 16 is lower at step 128,000 than at step 1",
    decides="Checkpoints of other suites",
)
def entropy_falls_in_training(_: Release) -> Iterator[Number]:
    release = Release(OLD)
    first, last = (
        release.curve(PYTHIA, "prompt_entropy", revision=r).loc[MIDDLE].mean() for r in SAME_RUN
    )
    yield Number(f"{first:.2f} at step 1, {last:.2f} at step 128,000", bool(last < first))


@claim(
    section="Key results",
    says="Repetition, randomness and length affect intermediate layers distinctively.",
    supported_if="as in the claims about Figure 6 above: repetition compresses the middle, "
    "random tokens and length raise entropy",
    decides="Without the first token",
)
def extreme_prompts(release: Release) -> Iterator[Number]:
    same = {
        "repetition": repetition_compresses_the_middle,
        "randomness": randomness_raises_entropy,
        "length": length_raises_entropy,
    }
    for name, first_paper in same.items():
        numbers = list(first_paper.check(release))
        verdicts = [number.supports for number in numbers if number.supports is not None]
        words = f"{name}: {sum(verdicts)} of {len(verdicts)} numbers support it"
        yield Number(words, all(verdicts))


def nothing(_: Release) -> Iterator[Number]:
    """No number of the release is about the claim."""
    yield from ()


bimodality = Claim(
    section="Open question 1",
    says="Prompt entropy of intermediate layers is bimodal over prompts, which length, semantic "
    "complexity and overlap with the training data don't explain.",
    decides="Entropies by prompt: studies `bimodality` and `groups` of `presets/medical.yaml` and "
    "`presets/layer_studies.yaml`, which test length, surface properties and attention sinks",
    check=nothing,
)
CLAIMS = (
    two_percent_on_mteb,
    intermediate_layers_win_on_mmlu,
    state_space_models_are_stable,
    middle_layers_change_most,
    outer_layers_stabilise,
    entropy_falls_in_training,
    extreme_prompts,
    bimodality,
)
