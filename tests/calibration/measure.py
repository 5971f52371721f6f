"""Run the product's procedures on curves of which the truth is known, and write what came out.

    python tests/calibration/measure.py --repeats 300 --processes 2 docs/calibration.csv

Each row: check, tasks (or models), layers, kind of curve, before and after (a share of the
repeats, empty where there was or is none), and what it should be.
"""

from __future__ import annotations

import argparse
import csv
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import before
from simulate import KINDS, LAYERS, PUBLISHED, TASKS, Floats, curves, published, scores

from layerwise.statistics import depth, headlines, matching, mixed, prompts, tasks, two_curves

Row = dict[str, object]
MODELS = (6, 8, 12)
SOURCES = {
    5: [0, 0, 0, 1, 2],
    10: [0, 0, 0, 0, 1, 1, 2, 3, 4, 5],
    32: list(np.repeat(range(16), 2)),
}
Outcome = tuple[float | None, float | None]


def fixed_layer(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: lead of a layer named beforehand over the last."""
    s, truth = scores(kind, n, layers, rng, peak=0.03)
    at = layers // 2
    lead, true = s[:, at] - s[:, -1], truth[at] - truth[-1]
    low, high = before.mean_interval(lead, rng)
    found = tasks.interval(lead)
    return low <= true <= high, found.low <= true <= found.high


def shared_texts(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: the same where tasks share their texts (3 of 5; 4 and 2 of 10; 16 pairs of 32)."""
    sources = np.array(SOURCES[n])
    s, truth = scores(kind, n, layers, rng, peak=0.03, sources=sources, shared=0.6)
    at = layers // 2
    lead, true = s[:, at] - s[:, -1], truth[at] - truth[-1]
    low, high = before.mean_interval(lead, rng)
    found = tasks.interval(lead, sources.tolist())
    return low <= true <= high, found.low <= true <= found.high


def whole_band(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage of the whole curve of leads over the last layer (before: of the scores' shape)."""
    s, truth = scores(kind, n, layers, rng, peak=0.03)
    low, high = before.band(s, rng)
    shift = s.mean() - truth.mean()
    was = bool(((low <= truth + shift) & (truth + shift <= high)).all())
    found = tasks.band(s[:, :-1] - s[:, [-1]], seed=int(rng.integers(1 << 30)))
    true = truth[:-1] - truth[-1]
    return was, bool(((found.band_low <= true) & (true <= found.band_high)).all())


def chosen_layer(
    kind: str, n: int, layers: int, rng: np.random.Generator, peak: float = 0.04
) -> Outcome:
    """Coverage: lead over the last of the layer that the same tasks chose."""
    s, truth = scores(kind, n, layers, rng, peak=peak)
    low, high, *_ = before.best(s, rng)
    found = tasks.gain_new_task(s, s[:, -1], seed=int(rng.integers(1 << 30)))
    true = truth[found.layer] - truth[-1]
    edge = 1e-12
    return low - edge <= true <= high + edge, found.low - edge <= true <= found.high + edge


def chosen_layer_equal(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: the same where all layers are equal."""
    return chosen_layer(kind, n, layers, rng, peak=0.0)


def false_gain(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: a gain above 0 is claimed where all layers are equal."""
    s, _ = scores(kind, n, layers, rng)
    found = tasks.gain_new_task(s, s[:, -1], seed=int(rng.integers(1 << 30)))
    return before.best(s, rng)[0] > 1e-12, found.low > 1e-12


def regret(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: distance of a picked layer to the best one."""
    s, truth = scores(kind, n, layers, rng, peak=0.04)
    pick = layers // 3
    true = truth.max() - truth[pick]
    top = int(s.mean(axis=0).argmax())
    low, high = before.mean_interval(s[:, top] - s[:, pick], rng)
    found = tasks.regret(s, pick, seed=int(rng.integers(1 << 30)))
    return low <= true <= high, found.low <= true <= found.high


def best_layer(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: the best layer is within the range (before) or the set (after) of likely ones."""
    s, truth = scores(kind, n, layers, rng, peak=0.01)
    *_, first, last = before.best(s, rng)
    found = tasks.best_set(s, seed=int(rng.integers(1 << 30)))
    top = int(truth.argmax())
    return first <= top <= last, bool(found[top])


def certain(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Right, where sure: certainty of .95 or more (before), or a set of one layer (after)."""
    s, truth = scores(kind, n, layers, rng, peak=0.06)
    _, _, certainty, _, _ = before.best(s, rng)
    right = float(s.mean(axis=0).argmax() == truth.argmax())
    found = tasks.best_set(s, seed=int(rng.integers(1 << 30)))
    return right if certainty >= 0.95 else None, right if found.sum() == 1 else None


def equivalence(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: "as good as the last layer" at a true difference of just the margin.

    Two one-sided tests seldom reject where the margin is small beside the error of the mean."""
    s, truth = scores(kind, n, layers, rng, peak=0.05)
    at = layers // 2
    margin = abs(truth[at] - truth[-1])
    return None, bool(tasks.equivalent(s[:, [at]] - s[:, [-1]], margin)[0] <= 0.05)


def association_interval(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: dCor with the mean score (before), slope beyond depth (after)."""
    x = curves("walk", 1, layers, rng)[0]
    f = depth.residuals(x)
    f = 0.5 + 0.03 * f / max(f.std(), 1e-9)
    level = rng.normal(size=(n, 1)) * 0.15
    s = level + f + 0.03 * curves(kind, n, layers, rng)
    low, high = before.dcor_interval(x, s, rng)
    from layerwise.association.measures import embed, strengths

    true = strengths("dcor", embed("dcor", x[None]), embed("dcor", f[None]))[0, 0]
    found = depth.slope_beyond_depth(x, s)
    # The population's slope is the regression of its mean curve, of which no task differs.
    slope = depth.slope_beyond_depth(x, np.stack([f, f]))
    return low <= true <= high, found.low <= slope.value <= found.high


def one_model(null: str) -> Callable[[str, int, int, np.random.Generator], Outcome]:
    def check(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
        x, y = curves(kind, 2, layers, rng)
        return before.layer_p(x, y, null, rng) <= 0.05, None

    check.__doc__ = f"False positive: p of one model by {null}, unrelated curves (after: no p)."
    return check


def _with_trend(kind: str, n: int, layers: int, rng: np.random.Generator, k: int) -> Floats:
    d = np.linspace(-1, 1, layers)
    return 2 * d + curves(kind, n * k, layers, rng).reshape(k, n, layers)


def many_models(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: pooled shifts (before) and matching (after), models share a trend."""
    x = _with_trend(kind, n, layers, rng, 1)
    y = _with_trend(kind, n, layers, rng, 1)[0]
    found = matching.match(x, y, permutations=999, seed=int(rng.integers(1 << 30)))
    was = before.pooled_p(x[0], y, rng) <= 0.05 if n * layers < 300 else None  # minutes, else
    return was, bool(found.p[0] <= 0.05)


def many_metrics(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: any of ten metrics, models share a trend."""
    x = _with_trend(kind, n, layers, rng, 10)
    y = _with_trend(kind, n, layers, rng, 1)[0]
    found = matching.match(x, y, permutations=999, seed=int(rng.integers(1 << 30)))
    was = None
    if (n, layers) == (MODELS[0], LAYERS[0]):  # the old procedure takes long for more
        was = any(before.pooled_p(one, y, rng) <= 0.05 for one in x)
    return was, bool(found.p_all.min() <= 0.05)


def power(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Power of matching where metric and score share r = .5 beyond the trend."""
    g = curves(kind, n, layers, rng)
    x = _with_trend(kind, n, layers, rng, 1) * np.sqrt(0.75)
    y = np.linspace(-1, 1, layers) * 2 + g
    found = matching.match(x + 0.5 * g, y, permutations=999, seed=int(rng.integers(1 << 30)))
    return None, bool(found.p[0] <= 0.05)


def models_and_tasks(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: slope over models and tasks, all models with the same step in both."""
    step = 3.0 * (np.arange(layers) > 1)
    x = list(step + curves(kind, n, layers, rng))
    y = [
        rng.normal(size=(10, 1)) + step + c + 0.5 * curves(kind, 10, layers, rng)
        for c in curves(kind, n, layers, rng)
    ]
    return None, bool(mixed.beyond_depth_over_models(x, y).p <= 0.05)


def noisy_metric(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: slope over n models of a metric with error (before: as if it had none)."""
    own = 2 * np.linspace(-1, 1, layers) + curves(kind, n, layers, rng)
    error = 0.5 * (own - own.mean(axis=0)).std()  # a fifth of what is regressed on
    seen = own + error * rng.normal(size=own.shape)
    # Each model's own slope per standard deviation of its metric as measured.
    slopes = 1 + 0.2 * rng.normal(size=n)
    y = [
        slope * m / s.std() + rng.normal(size=(10, 1)) + 0.3 * curves("iid", 10, layers, rng)
        for slope, m, s in zip(slopes, own, seen, strict=True)
    ]
    found = mixed.beyond_depth_over_models(list(seen), y)
    known = mixed.reliability_over_models(list(seen), [np.full(layers, error)] * n)
    return found.low <= 1 <= found.high, found.low <= known <= found.high


def noisy_regret(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: regret where scores near 1 and few tasks would let it reach beyond 1
    (before: it might)."""
    many = _close_to_1(kind, layers)
    drawn, mean = many[rng.integers(len(many), size=n)], many.mean(axis=0)
    pick = layers // 3
    true, seed = mean.max() - mean[pick], int(rng.integers(1 << 30))
    free, held = (tasks.regret(drawn, pick, seed=seed, top=top) for top in (np.inf, 1.0))
    return free.low <= true <= free.high, held.low <= true <= held.high


def count_headline(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: a headline of earlier layers in more than half of 4 models, equal layers."""
    said = []
    signs = []
    for _ in range(4):
        s, _ = scores(kind, n, layers, rng)
        said.append(s.mean(axis=0).argmax() < layers - 1)
        signs.append(tasks.gain_new_task(s, s[:, -1], seed=int(rng.integers(1 << 30))).sign)
    return sum(said) > 2, headlines.told_apart(signs).stands


def rule_headline(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: the best of 7 rules that pick at random beats the last layer (before, on
    average over n models), or stands against rules dealt out at random (after)."""
    s = [c + 0.5 for c in 0.03 * curves(kind, n, layers, rng)]
    picks = rng.integers(layers, size=(7, n))
    gains = np.mean([c[picks[:, m]] - c[-1] for m, c in enumerate(s)], axis=0)
    found = headlines.best_rule(picks, s, draws=199, seed=int(rng.integers(1 << 30)))
    return bool(gains.max() > 0), bool(found.p <= 0.05)


def scores_near_the_top(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """Coverage: the band of one layer's score, levels of tasks taken off, scores close to 1
    (before: the same band, which may end above 1)."""

    many = _close_to_1(kind, layers)
    drawn = many[rng.integers(len(many), size=n)]
    at = layers // 2
    true = (many.mean(axis=0) - many.mean())[at] + drawn.mean()
    found = tasks.band(tasks.within_tasks(drawn))
    cut = found.within(0, 1)
    return found.low[at] <= true <= found.high[at], cut.low[at] <= true <= cut.high[at]


@lru_cache(maxsize=2)
def _close_to_1(kind: str, layers: int) -> Floats:
    """A population of tasks of which some score nearly 1."""
    s = (
        np.concatenate(published(layers))
        if kind == PUBLISHED
        else scores(kind, 4000, layers, np.random.default_rng(1), peak=0.03)[0]
    )
    return np.minimum(1 - 0.05 * np.exp(-4 * (s - 0.5)), 1)


def title_of_changes(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: a title says that a metric moves (n prompts, two models), nothing does."""
    told = []
    for _ in range(2):
        curve = curves("smooth", 1, layers, rng)[0]
        pair = [curve + curves(kind, n, layers, rng) for _ in range(2)]
        means = [p.mean(axis=0) for p in pair]
        errors = [p.std(axis=0, ddof=1) / np.sqrt(n) for p in pair]
        found = two_curves.difference(means[0], errors[0], means[1], errors[1], n=n, comparisons=2)
        told.append(bool(found.told.any()))
        largest = np.abs(means[1] - means[0]).max()
        assert largest > 0  # what the title said before, whatever its size
    return True, any(told)


def title_of_tokens(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: a title says that the choice of tokens changes the score of two models."""
    told = []
    for _ in range(2):
        s, _ = scores(kind, n, layers, rng)
        apart = s - s.mean(axis=1, keepdims=True)  # of equal readings, task by task
        held = tasks.band(apart, None, 0.975, seed=int(rng.integers(1 << 30)))
        told.append(bool(((held.band_low > 0) | (held.band_high < 0)).any()))
    return True, any(told)


def title_of_picks(kind: str, n: int, layers: int, rng: np.random.Generator) -> Outcome:
    """False positive: a title says that the layer picked changes over three orders of alpha."""
    prompts_of = curves(kind, n, layers, rng)
    shared = [prompts_of + 0.5 * curves(kind, n, layers, rng) for _ in range(3)]
    picks = {int(s.mean(axis=0).argmax()) for s in shared}
    kept = [prompts.may_be_best(s, 1 - 0.05 / 3) for s in shared]
    return len(picks) > 1, not np.logical_and.reduce(kept).any()


Check = Callable[[str, int, int, np.random.Generator], Outcome]
# name, check, numbers of tasks or models, layers, what it should be, share of the repeats
CHECKS: dict[str, tuple[Check, tuple[int, ...], tuple[int, ...], str, float]] = {
    "interval, layer named beforehand": (fixed_layer, TASKS, LAYERS, "0.95", 3),
    "interval, tasks share texts": (shared_texts, TASKS, LAYERS, "0.95", 3),
    "band over all layers": (whole_band, TASKS, LAYERS, "0.95", 1),
    "gain of the chosen layer": (chosen_layer, TASKS, LAYERS, "0.95", 1),
    "gain of the chosen layer, all equal": (chosen_layer_equal, TASKS, LAYERS, "0.95", 1),
    "gain claimed, all equal": (false_gain, TASKS, LAYERS, "at most 0.05", 1),
    "regret of a picked layer": (regret, TASKS, LAYERS, "at least 0.95", 1),
    "best layer in the set": (best_layer, TASKS, LAYERS, "at least 0.95", 1),
    "right where it says it is sure": (certain, TASKS, LAYERS, "at least 0.95", 1),
    "equivalence at the margin": (equivalence, TASKS, LAYERS, "at most 0.05", 3),
    "interval of an association": (association_interval, TASKS, LAYERS, "0.95", 1),
    "one model, permuted layers": (one_model("permutation"), (1,), LAYERS, "0.05", 1),
    "one model, circular shifts": (one_model("circular shifts"), (1,), LAYERS, "0.05", 1),
    "several models, one metric": (many_models, MODELS, LAYERS, "0.05", 1),
    "several models, any of ten metrics": (many_metrics, MODELS, LAYERS, "0.05", 0.5),
    "several models, slope over tasks": (models_and_tasks, (4, 8), LAYERS, "at most 0.05", 3),
    "several models, metric with error": (noisy_metric, (4, 8), LAYERS, "0.95", 1),
    "regret of scores near 1": (noisy_regret, (5, 32), (7, 31), "at least 0.95", 1),
    "power at r = .5": (power, MODELS, LAYERS, "", 0.75),
    "headline by count, all equal": (count_headline, (5,), (7, 31), "at most 0.05", 0.45),
    "headline of the best rule": (rule_headline, (4, 8), (7, 31), "at most 0.05", 0.625),
    "interval of scores near 1": (scores_near_the_top, (5, 32), (7, 31), "0.95", 2),
    "title: training moves a metric": (title_of_changes, (30, 96), (7, 31), "at most 0.05", 2),
    "title: tokens change the score": (title_of_tokens, TASKS, (7, 31), "at most 0.05", 1),
    "title: the pick changes with alpha": (title_of_picks, (30, 96), (7, 31), "at most 0.05", 1),
}  # fmt: skip


def cells(
    only: str = "", kinds: tuple[str, ...] = (*KINDS, PUBLISHED)
) -> Iterator[tuple[str, int, int, str]]:
    """Check, number of tasks or models, layers, kind."""
    for name, (_, numbers, layers, _, _) in CHECKS.items():
        if only in name:
            for n in numbers:
                for count in layers:
                    for kind in kinds:
                        yield name, n, count, kind


def measure(cell: tuple[str, int, int, str], repeats: int) -> Row:
    """One row of the table."""
    name, n, layers, kind = cell
    check, _, _, wanted, share = CHECKS[name]
    rng = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    found = [check(kind, n, layers, rng) for _ in range(max(int(repeats * share), 1))]
    row: Row = {"check": name, "n": n, "layers": layers, "kind": kind}
    for i, side in enumerate(("before", "after")):
        values = [float(f[i]) for f in found if f[i] is not None]  # type: ignore[arg-type]
        row[side] = f"{np.mean(values):.4f}" if values else ""
        row[f"{side}_repeats"] = len(values)
    return row | {"wanted": wanted}


def _measured(job: tuple[tuple[str, int, int, str], int]) -> Row:
    return measure(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=60, help="per check, size and kind")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, PUBLISHED], help="of curves")
    parser.add_argument("--only", default="", help="checks whose name holds this")
    given = parser.parse_args()
    jobs = [(cell, given.repeats) for cell in cells(given.only, given.kinds)]
    with ProcessPoolExecutor(given.processes) as pool, given.output.open("w", newline="") as file:
        writer = None
        for row in pool.map(_measured, jobs, chunksize=2):
            writer = writer or csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
