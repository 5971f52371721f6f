"""Claims of arXiv 2502.02013, each with the numbers that its authors released about it.

`page` writes docs/claims.md. Sentences are in our words. Scores are in percentage points, over the
tasks and layers that `layerwise.association.curves.score_curves` keeps; intervals are 95% CI over
task clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from layerwise import association, stats
from layerwise.association.curves import ScoreCurves, usable
from layerwise.association.scores import HIGHEST, LOWEST, gains_by_task
from papers.tables import TEXTS, Release

Verdict = Literal["reproduced", "not reproduced", "mixed"]
SIZES = ("Pythia-14m", "Pythia-70m", "Pythia-160m", "Pythia-410m", "Pythia-1b")
LARGE, MAMBA, BERT, SIMCSE = (
    "Pythia-410m",
    "mamba-370m",
    "bert-base",
    "LLM2Vec-mntp-unsup-simcse-8B",
)
EMBEDDERS = ("LLM2Vec-mntp-8B", SIMCSE, "LLM2Vec-mntp-supervised-8B")
METRICS = ("prompt_entropy", "dataset_entropy", "curvature", "infonce", "dime", "lidar")


class Found(NamedTuple):
    """The authors' numbers about a claim, and if they support it."""

    numbers: str
    supports: tuple[bool, ...]

    @property
    def verdict(self) -> Verdict:
        """``mixed`` if some of the numbers support the claim."""
        if all(self.supports):
            return "reproduced"
        return "mixed" if any(self.supports) else "not reproduced"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes
    ----------
    where : str
        Section, figure or table.
    says : str
        The claim, in our words.
    check : callable
        Computes the authors' numbers.
    decides : str
        What would decide it beyond the authors' numbers.
    """

    where: str
    says: str
    check: Callable[[Release], Found]
    decides: str


def lead(curves: ScoreCurves) -> tuple[int, float, str]:
    """Best layer, its lead over the last one in points, and both as words."""
    leads = curves.values - curves.output[:, None]
    interval = stats.simultaneous_ci(100 * leads, curves.sources)
    best = int(leads.mean(axis=0).argmax())
    ends = f"{_signed(interval.low[best])} to {_signed(interval.high[best])}"
    words = f"{curves.model}: layer {curves.layers[best]} of {curves.last_layer} leads by "
    words += f"{interval.estimate[best]:.1f} ({ends})"
    return int(curves.layers[best]), float(interval.estimate[best]), words


def _signed(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")


def intermediate_layers_win(release: Release) -> Found:
    found = [lead(release.score(model)) for model in (LARGE, MAMBA, BERT)]
    return Found("; ".join(words for *_, words in found), tuple(gain > 0 for _, gain, _ in found))


def up_to_sixteen(release: Release) -> Found:
    _, gain, words = lead(release.score(MAMBA))
    return Found(words, (gain > 15.5,))


def at_least_two(release: Release) -> Found:
    scores = release.score(SIMCSE)
    _, gain, words = lead(scores)
    return Found(f"{words}, on {len(scores.tasks)} common tasks", (gain >= 2,))


def mid_depth_is_best(release: Release) -> Found:
    places = {m: lead(release.score(m))[0] for m in (*SIZES[:4], MAMBA, BERT, "roberta-base")}
    depths = {m: layer / release.score(m).last_layer for m, layer in places.items()}
    words = ", ".join(f"{m} {places[m]} of {release.score(m).last_layer}" for m in places)
    return Found(
        f"best layers: {words}", tuple(0.25 <= depth <= 0.75 for depth in depths.values())
    )


def dime_gains(release: Release) -> Found:
    ends = _dime(release, LARGE)
    return Found(_of_ends(LARGE, ends), (ends[LOWEST][0] > 2.5,))


def dime_gains_in_llm2vec(_: Release) -> Found:
    ends = _dime(Release("released_2024"), SIMCSE)
    supports = tuple(gain > 0 for gain, *_ in ends.values())
    return Found(f"{_of_ends(SIMCSE, ends)}; metrics of 2024", supports)


def _dime(release: Release, model: str) -> dict[str, list[float]]:
    """Gain in points, low and high at each end of DiME."""
    scores = release.score(model)
    ends = gains_by_task(release.own_texts(scores)["dime"], scores).set_index("end")
    numbers = 100 * ends[["gain", "low", "high"]]
    return dict(zip(map(str, ends.index), numbers.to_numpy().tolist(), strict=True))


def _of_ends(model: str, ends: Mapping[str, list[float]]) -> str:
    words = [
        "{} ({} to {}) at the {} DiME".format(*map(_signed, ends[end]), end)
        for end in (LOWEST, HIGHEST)
    ]
    return f"{model}: {', '.join(words)}"


def associations(release: Release, model: str, measure: str) -> dict[str, tuple[float, float]]:
    """Association of each metric with the score over layers, and its null level."""
    scores = release.score(model)
    found = {}
    for metric, values in release.own_texts(scores).items():
        tasks, layers = usable(values)
        if metric in METRICS and tasks.any():
            x, y = (v[tasks][:, layers].mean(axis=0)[None] for v in (values, scores.values))
            size = float(association.strengths(measure, x, y)[0])
            found[metric] = size, association.null_level(measure, x, y)
    return found


def metrics_track_scores(release: Release) -> Found:
    found = associations(release, LARGE, "dcor")
    words = ", ".join(f"{metric} {size:.2f}" for metric, (size, _) in found.items())
    null = next(iter(found.values()))[1]
    above = tuple(size > level for size, level in found.values())
    return Found(f"dCor {words}; 95% of random walks stay below {null:.2f}", above)


def metrics_track_bert(release: Release) -> Found:
    found = associations(release, BERT, "spearman")
    words = ", ".join(f"{metric} {_two(size)}" for metric, (size, _) in found.items())
    strong = tuple(abs(size) >= 0.4 for size, _ in found.values())
    return Found(f"Spearman's ρ on common tasks: {words}", strong)


def _two(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def entropy_falls_in_training(release: Release) -> Found:
    return _over_training(release, "prompt_entropy", falls=True)


def curvature_falls_in_training(release: Release) -> Found:
    return _over_training(release, "curvature", falls=True)


def _over_training(release: Release, metric: str, *, falls: bool) -> Found:
    first, last = (release.curve(LARGE, metric, revision=r)[12] for r in ("step1", "main"))
    words = f"{LARGE}, layer 12: {first:.3f} at step 1, {last:.3f} at the end"
    return Found(words, ((last < first) == falls,))


def valleys(release: Release) -> pd.DataFrame:
    """Depth of the valley on the texts of each task: tasks as rows, sizes as columns."""
    of_model = (release.metrics["model"] == LARGE) & (release.metrics["revision"] == "main")
    entropy = release.metrics[of_model & (release.metrics["metric"] == "prompt_entropy")]
    texts = sorted({*entropy["corpus"]} & {*TEXTS})
    return pd.DataFrame({m: [release.valley(m, c) for c in texts] for m in SIZES}, index=texts)


def valley_deepens(release: Release) -> Found:
    of_tasks = valleys(release)
    on_tasks = of_tasks.mean().tolist()
    on_wikitext = [release.valley(model) for model in (*SIZES, "Pythia-6.9b")]
    supports = (b > a for d in (on_tasks, on_wikitext) for a, b in pairwise(d))
    words, more = (", ".join(f"{d:.2f}" for d in depths) for depths in (on_tasks, on_wikitext))
    numbers = f"without the last layer: on {len(of_tasks)} tasks, 14m to 1b: {words} nats; "
    return Found(f"{numbers}on WikiText, 14m to 1b and 6.9b: {more}", tuple(supports))


def _mean_over_layers(release: Release, metric: str) -> list[float]:
    return [float(release.curve(model, metric).mean()) for model in SIZES]


def larger_models_are_smoother(release: Release) -> Found:
    found = _mean_over_layers(release, "curvature")
    words = ", ".join(f"{v:.2f}" for v in found)
    return Found(f"mean over layers, 14m to 1b: {words}", (found[-1] < found[0],))


def larger_models_have_higher_lidar(release: Release) -> Found:
    found = _mean_over_layers(release, "lidar")
    words = ", ".join(f"{v:.2f}" for v in found)
    return Found(f"mean over layers, 14m to 1b: {words}", (found[-1] > found[0],))


def fine_tuning_orders_entropy(release: Release) -> Found:
    means = {m: release.curve(m, "prompt_entropy").mean() for m in ("Llama3-8B", *EMBEDDERS[1:])}
    words = ", ".join(f"{m} {v:.2f}" for m, v in means.items())
    plain, simcse, supervised = means.values()
    return Found(f"mean over layers: {words}", (simcse > plain, supervised < plain))


def objective_makes_the_valley(release: Release) -> Found:
    """Supported by each other model with a valley that is shallower than those of all AIM."""
    vision = release.metrics[release.metrics["corpus"] == "imagenet"]["model"].unique()
    families = ("aim", "vit", "beit", "dinov2", "mae")
    models = [m for family in families for m in sorted(vision) if m.startswith(f"{family}-")]
    depths = {m: release.valley(m, "imagenet") for m in models}
    words = ", ".join(f"{m} {d:.2f}" for m, d in depths.items())
    causal = min(d for m, d in depths.items() if m.startswith("aim"))
    others = [d for m, d in depths.items() if not m.startswith("aim")]
    return Found(f"depth in nats: {words}", tuple(causal > d for d in others))


def _of_levels(release: Release, corpus: str, levels: tuple[str, ...]) -> list[float]:
    return [
        float(release.curve(LARGE, "prompt_entropy", f"{corpus} {level}").mean())
        for level in levels
    ]


def repetition_lowers_entropy(release: Release) -> Found:
    first, last = _of_levels(release, "repeated tokens", ("0", "1"))
    words = f"normalised, mean over layers: {first:.2f} without repetition, {last:.2f} with most"
    return Found(words, (last < first,))


def randomness_raises_entropy(release: Release) -> Found:
    first, last = _of_levels(release, "random tokens", ("0", "1"))
    words = f"normalised, mean over layers: {first:.2f} for texts, {last:.2f} for random tokens"
    return Found(words, (last > first,))


def length_raises_entropy(release: Release) -> Found:
    first, last = _of_levels(release, "random prompts", ("64", "2048"))
    words = f"mean over layers: {first:.2f} nats for 64 random tokens, {last:.2f} for 2,048"
    return Found(words, (last > first,))


def state_space_models_change_less(release: Release) -> Found:
    """Supported by each metric of Figure 2 with a smaller range over layers in Mamba."""
    words, smaller = [], []
    for metric in ("prompt_entropy", "curvature", "lidar"):
        large, mamba = (float(np.ptp(release.curve(m, metric))) for m in (LARGE, MAMBA))
        words.append(f"{metric} {large:.2f} in {LARGE}, {mamba:.2f} in {MAMBA}")
        smaller.append(mamba < large)
    return Found(f"range over layers: {'; '.join(words)}", tuple(smaller))


CLAIMS = (
    Claim(
        "§4.1, Figure 1",
        "Intermediate layers outperform the last layer in all three architectures.",
        intermediate_layers_win,
        "More families, scored at every layer",
    ),
    Claim("§4.1", "The gain is up to 16%.", up_to_sixteen, "Mamba with all tasks at all layers"),
    Claim(
        "§4.1",
        "The gain is at least 2%.",
        at_least_two,
        "LLM2Vec with all tasks at all layers; more embedding models",
    ),
    Claim(
        "§4.1",
        "The best layers are at mid-depth.",
        mid_depth_is_best,
        "More models of each size",
    ),
    Claim(
        "§4.3, Table 2",
        "Selecting the layer of each task by DiME gains about 3% in Pythia-410m.",
        dime_gains,
        "A direction that is fixed before the scores are seen",
    ),
    Claim(
        "§4.3, Table 2",
        "It gains about 3% in LLM2Vec too.",
        dime_gains_in_llm2vec,
        "The metrics of 2025 on LLM2Vec's tasks",
    ),
    Claim(
        "§4.3, Figures 3 and 8",
        "The metrics are strongly associated with the scores in Pythia-410m.",
        metrics_track_scores,
        "A test over six models or more",
    ),
    Claim(
        "Figure 9",
        "The associations are moderate to strong in BERT.",
        metrics_track_bert,
        "BERT with all tasks at all layers",
    ),
    Claim(
        "§4.2, Figure 10 of version 1 (the caption of Figure 2 says the opposite)",
        "Metrics change less over the layers of Mamba than over those of Pythia.",
        state_space_models_change_less,
        "More state-space models",
    ),
    Claim(
        "§5.2, Figure 4",
        "Prompt entropy of middle layers falls during training.",
        entropy_falls_in_training,
        "Checkpoints of other suites",
    ),
    Claim(
        "§5.2, Figure 4",
        "Representations become smoother during training: curvature falls.",
        curvature_falls_in_training,
        "The printed formula of curvature, on the checkpoints",
    ),
    Claim(
        "Figure 12",
        "Compression in the middle layers grows with the model's size.",
        valley_deepens,
        "Pythia 1.4b to 12b, without the first token as well",
    ),
    Claim(
        "Figure 12",
        "Larger models have lower curvature.",
        larger_models_are_smoother,
        "Pythia 1.4b to 12b",
    ),
    Claim(
        "Figure 12",
        "Larger models have higher LiDAR.",
        larger_models_have_higher_lidar,
        "Pythia 1.4b to 12b",
    ),
    Claim(
        "Figure 13",
        "Unsupervised SimCSE has more prompt entropy than Llama3, supervised training less.",
        fine_tuning_orders_entropy,
        "Intervals over prompts",
    ),
    Claim(
        "Figure 14",
        "AIM has a valley of prompt entropy; ViT, BEiT, DINOv2 and MAE have none.",
        objective_makes_the_valley,
        "AIM and ViT of one size on the same images",
    ),
    Claim(
        "Figure 6a",
        "Repeated tokens lower prompt entropy.",
        repetition_lowers_entropy,
        "Without the first token",
    ),
    Claim(
        "Figure 6b",
        "Random tokens raise prompt entropy.",
        randomness_raises_entropy,
        "Without the first token",
    ),
    Claim(
        "Figure 6c",
        "Longer prompts have higher prompt entropy.",
        length_raises_entropy,
        "Texts in place of random tokens",
    ),
)

INTRODUCTION = """# The paper's claims, and its authors' numbers

Each claim of "Layer by Layer" ([arXiv 2502.02013](https://arxiv.org/abs/2502.02013)), in our
words, with the numbers that its authors released about it (state of July 2025).
`python -m papers claims` writes this page from the shipped tables.

Scores are in percentage points on English test sets; where scores are missing, tasks or layers are
left out. Intervals are 95% CI over task clusters, simultaneous over layers where a best layer is
meant. A check compares the numbers with the claim one by one. *Reproduced*: all of them support
it; *mixed*: some do; *not reproduced*: none does.

| where | claim | the authors' numbers | verdict | what would decide it |
|---|---|---|---|---|
"""


def page() -> str:
    """The page docs/claims.md."""
    release = Release()
    rows = []
    for claim in CLAIMS:
        found = claim.check(release)
        cells = (claim.where, claim.says, found.numbers, f"**{found.verdict}**", claim.decides)
        rows.append(f"| {' | '.join(cells)} |\n")
    return INTRODUCTION + "".join(rows) + "\n" + not_in_the_paper(release)


def not_in_the_paper(release: Release) -> str:
    """Findings in the released scores of checkpoints."""
    revisions = [
        str(r) for r in release.scores[release.scores["model"] == LARGE]["revision"].unique()
    ]
    steps = sorted((r for r in revisions if r != "main"), key=lambda r: int(r[4:]))
    best = {r: lead(release.score(LARGE, r))[:2] for r in [*steps, "main"]}
    early = [r for r in steps if best[r][0] == 0]
    late = [r for r in best if r not in early]
    return (
        "## Not in the paper\n\n"
        f"In {LARGE} layer 0 has the best mean score at every released checkpoint up to "
        f"{early[-1]}. From {late[0]} on a late layer has it ({best[late[0]][0]}, later "
        f"{min(best[r][0] for r in late)} to {max(best[r][0] for r in late[1:])}), and its lead "
        f"over the output grows from {min(best[r][1] for r in late):.1f} to "
        f"{best['main'][1]:.1f} points.\n"
    )
