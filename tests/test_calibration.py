"""Error rates of the intervals and tests on simulated curves (slow).

Each case simulates one use many times and gives the share of samples in which an interval misses
the truth, a test rejects a true null hypothesis, or a layer is recommended that is no better.
`docs/statistics.md` states these rates; `python tests/test_calibration.py` prints them.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.probes_of_layers import layer_scores, predictions, scores_of
from scipy.interpolate import CubicSpline
from scipy.stats import binomtest
from test_metrics_literature import layer_of, realistic, values_and_errors

from layerwise import stats
from layerwise.association import null_level, strengths
from layerwise.association.scores import best_elsewhere
from layerwise.association.selection import regret_of_rule_of_others
from layerwise.choosing import compare
from layerwise.errors import LayerwiseError
from layerwise.tasks.evaluate import Score
from layerwise.tasks.labelled import Labels, layer_score, pairs_score
from layerwise.tasks.probes import FOLDS, OF_KIND
from papers import shapes

pytestmark = pytest.mark.slow

N_SAMPLES = 400
DEPTHS = (7, 13, 31)
Rng = np.random.Generator


def walks(rng: Rng, *shape: int) -> np.ndarray:
    """Smooth curves over layers, the last axis."""
    return np.cumsum(rng.normal(size=shape), axis=-1)


def curve(rng: Rng, n: int, kind: str) -> np.ndarray:
    """A smooth curve over n layers, shape (1, n).

    A random walk, a spline through random knots, or a stationary Gaussian curve with a correlation
    length of a tenth of the depth.
    """
    if kind == "walk":
        return walks(rng, 1, n)
    if kind.startswith("spline"):
        knots = int(kind.removeprefix("spline "))
        through = CubicSpline(np.linspace(0, 1, knots), rng.normal(size=knots))
        return through(np.linspace(0, 1, n))[None]
    apart = np.abs(np.subtract.outer(*2 * (np.linspace(0, 5, n),)))
    slower = np.sqrt(float(kind[-3]) if kind[0] == "m" else 1.0) * apart
    shape = {"ar": 1.0, "matern 3/2": 1 + slower, "matern 5/2": 1 + slower + slower**2 / 3}
    covariance = shape[kind] * np.exp(-slower)
    return rng.normal(size=(1, n)) @ np.linalg.cholesky(covariance + 1e-9 * np.eye(n)).T


def misses(low: object, high: object, truth: float = 0.0) -> bool:
    return not np.all((np.asarray(low) <= truth) & (truth <= np.asarray(high)))


def mean_of_tasks(rng: Rng) -> bool:
    found = stats.mean_ci(rng.normal(size=5))
    return misses(found.low, found.high)


def mean_of_clustered_tasks(rng: Rng) -> bool:
    clusters = [0, 0, 0, 1, 2, 3, 4]
    found = stats.mean_ci(rng.normal(size=5)[clusters] + rng.normal(size=7), clusters)
    return misses(found.low, found.high)


def ratio_of_five(rng: Rng) -> bool:
    wholes = rng.normal(10, 3, size=5)
    found = stats.ratio_ci(0.4 * wholes + rng.normal(size=5), wholes)
    return misses(found.low, found.high, 0.4)


def valley_in_flat_curves(rng: Rng) -> bool:
    return shapes.valley(walks(rng, 40, 13)).depth.p < 0.05


def metrics_paired_with_models(rng: Rng) -> bool:
    x, y = walks(rng, 2, 7, 13)
    x, y = (c - c.mean(axis=0) for c in (x, y))
    table = (x / np.linalg.norm(x, axis=1)[:, None]) @ (y / np.linalg.norm(y, axis=1)[:, None]).T
    return stats.pairing_test(table[None], 500).p[0] < 0.05


def beyond_the_null_level(rng: Rng, kind: str, n: int = 25, measure: str = "r") -> bool:
    """True if two unrelated curves are."""
    x, y = (curve(rng, n, kind) for _ in range(2))
    return abs(float(strengths(measure, x, y)[0])) > null_level(measure, x, y)


def best_rule_in_models_it_was_not_selected_on(rng: Rng) -> bool:
    regrets = rng.exponential(size=(10, 8))
    return regret_of_rule_of_others(regrets).mean() < 1


Case = Callable[[Rng], bool]
CASES: dict[str, tuple[Case, float, float]] = {
    "mean of tasks": (mean_of_tasks, 0.03, 0.08),
    # Tasks of one source that share less or more than their texts.
    "mean of clustered tasks": (mean_of_clustered_tasks, 0.0, 0.08),
    "ratio of five": (ratio_of_five, 0.02, 0.08),
    "valley in flat curves": (valley_in_flat_curves, 0.0, 0.12),
    "metrics paired with models": (metrics_paired_with_models, 0.02, 0.08),
    "walks": (partial(beyond_the_null_level, kind="walk"), 0.03, 0.08),
    "distances of walks": (
        partial(beyond_the_null_level, kind="walk", n=13, measure="dcor"),
        0.03,
        0.08,
    ),
    "autoregressions": (partial(beyond_the_null_level, kind="ar"), 0.03, 0.08),
    "Matern curves": (partial(beyond_the_null_level, kind="matern 3/2"), 0.03, 0.12),
    # No rule is better than another, so that half of the means are below the true one.
    "rule of other models": (best_rule_in_models_it_was_not_selected_on, 0.4, 0.62),
}


@pytest.mark.parametrize(("case", "low", "high"), CASES.values(), ids=CASES)
def test_error_rates(case: Case, low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    rate = np.mean([case(rng) for _ in range(N_SAMPLES)])
    assert low <= rate <= high, f"{rate:.3f}"


# Choosing a layer by labels


def vectors(rng: Rng, n: int, signal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Layers of n rows that differ more the farther apart, and what the labels rest on.

    With a signal, all layers know it equally well.
    """
    size = np.arange(1, 49) ** -0.3
    known = rng.normal(size=(n, 48))
    if signal:
        return 0.7 * (known + rng.normal(size=(31, n, 48))), known @ rng.normal(size=48) / 7
    layers = [known * size]
    while len(layers) < 31:
        layers.append(0.9 * layers[-1] + np.sqrt(0.19) * size * rng.normal(size=(n, 48)))
    return np.stack(layers), np.zeros(n)


def labelled_rows(rng: Rng, n: int, kind: str, signal: bool) -> tuple[Labels, np.ndarray]:
    """Labels and the vectors of 31 layers.

    Of `copies`, half of the rows are near-copies of the others, with their labels and groups.
    """
    n_own = n // 2 if kind.endswith("copies") else n
    x, shown = vectors(rng, n_own, signal)
    y = shown + rng.normal(size=n_own)
    if not kind.startswith("numbers"):
        n_rare = max(round((0.1 if kind == "rare" else 0.5) * n_own), FOLDS)
        y = (y.argsort().argsort() >= n_own - n_rare).astype(int)
    if kind.endswith("copies"):
        near = 0.1 * x.std(axis=1, keepdims=True) * rng.normal(size=x.shape)
        x, y = np.concatenate([x, x + near], axis=1), np.tile(y, 2)
    rows = [*range(n_own)] * (n // n_own)
    return Labels(KINDS[kind], [rows], y, rows, int(rng.integers(2**31))), x.astype(np.float32)


def of_pairs(rng: Rng, n: int, signal: bool) -> list[Score]:
    texts, judged = [[*range(n)], [*range(n, 2 * n)]], rng.normal(size=n)
    cosines = judged + 0.7 * rng.normal(size=(31, n)) if signal else walks(rng, n, 31).T
    data = Labels("pairs", texts, judged, texts[0])
    shown = (replace(data, labels=judged + signal * rng.normal(size=n)) for _ in cosines)
    return [pairs_score(rows, c) for rows, c in zip(shown, cosines, strict=True)]


KINDS = dict.fromkeys(("classes", "rare", "classes, copies"), "classification")
KINDS |= {"numbers": "regression", "numbers, copies": "regression", "pairs": "pairs"}
"""Kinds of labels, and whether every row has a near-copy."""


def choice_rates(kind: str, n: int, signal: bool, n_samples: int) -> np.ndarray:
    """Shares of samples with a miss and with a recommendation, shape (depths, 2)."""
    rng, measure, found = np.random.default_rng(n), OF_KIND[KINDS[kind]][0], []
    for _ in range(n_samples):
        if kind == "pairs":
            scores = of_pairs(rng, n, signal)
        else:
            scores = layer_scores(*labelled_rows(rng, n, kind, signal))
        tables = [compare(scores[-depth:], measure) for depth in DEPTHS]
        missed = [misses(t["difference_low"], t["difference_high"]) for t in tables]
        found.append([missed, [is_significant(table) for table in tables]])
    return np.mean(found, axis=0).T


def is_significant(table: Any) -> bool:
    """True if the answer is another layer than the output, significantly better."""
    return bool(table["difference_low"][table["difference"].argmax()] > 0)


def grouped_scores(rng: Rng, n: int, kind: str, signal: bool) -> list[Score]:
    """Scores of 7 layers on rows in groups of one, and of five near-copies or pairs of one text.

    With a signal, all layers know it equally well.
    """
    sizes = rng.choice([1, 5], p=[0.85, 0.15], size=n)
    groups = np.repeat(np.arange(n), sizes)[:n]
    k, strength = len(set(groups)), 2 * signal
    if kind == "pairs":
        judged = rng.normal(size=k)[groups] + rng.normal(size=n) / 2
        texts = [[f"first {g}" for g in groups], [f"second {row}" for row in range(n)]]
        data = Labels(kind, texts, judged + rng.normal(size=n) / 2, list(groups))
        noise = (rng.normal(size=(7, k))[:, groups] + rng.normal(size=(7, n))) / np.sqrt(2)
        return [pairs_score(data, cosines) for cosines in strength * judged + noise]
    x, shown = vectors(rng, k, signal)
    y = strength * shown + rng.normal(size=k)
    if kind == "classification":
        y = (y.argsort().argsort() >= k // 2).astype(int)
    x = x[-7:, groups]
    x = x + 0.1 * x.std(axis=1, keepdims=True) * rng.normal(size=x.shape)
    data = Labels(kind, [[*range(n)]], y[groups], list(groups), int(rng.integers(2**31)))
    try:
        return layer_scores(data, x.astype(np.float32))
    except LayerwiseError:  # fewer groups than a probe needs
        return grouped_scores(rng, n, kind, signal)


def score_rates(kind: str, n: int, signal: bool, n_samples: int) -> tuple[float, float]:
    """Shares of samples in which the interval of a score, and of a difference, misses.

    The truth is the mean score over samples and layers.
    """
    rng = np.random.default_rng(n)
    drawn = [grouped_scores(rng, n, kind, signal) for _ in range(n_samples)]
    truth = float(np.mean([[one.main_score for one in scores] for scores in drawn]))
    tables = [compare(scores, OF_KIND[kind][0]) for scores in drawn]
    own = np.mean([misses(t["low"], t["high"], truth) for t in tables])
    return own, np.mean([misses(t["difference_low"], t["difference_high"]) for t in tables])


@pytest.mark.parametrize("kind", ["classification", "regression", "pairs"])
def test_intervals_of_scores_of_groups_hold(kind: str) -> None:
    for missed in score_rates(kind, 200, True, 60):
        assert at_most(missed, 0.05, 60)


def at_most(rate: float, nominal: float, n_samples: int) -> bool:
    """False if a rate is significantly above the nominal one, of some hundred such rates."""
    hits = round(rate * n_samples)
    return bool(binomtest(hits, n_samples, nominal, alternative="greater").pvalue > 1e-3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "pairs"])
def test_simulated_probes_are_those_of_users(kind: str) -> None:
    unlike, about = [], ("n_runs", "n_train", "baseline")
    for n in (40, 200):
        data, x = labelled_rows(np.random.default_rng(n), n, kind, True)
        fast, real = (
            layer_scores(data, x)[::10],
            [layer_score(replace(data, with_values=True), [v]) for v in x[::10]],
        )
        assert [getattr(fast[0], name) for name in about] == pytest.approx(
            [getattr(real[0], name) for name in about], abs=1e-9
        )
        # Vectors are float32; a penalty more or less moves values by 1e-2.
        unlike += [np.abs(a.values - b.values) > 1e-5 for a, b in zip(fast, real, strict=True)]
    # Neither fit of a class ends at the optimum, so rows in between may change.
    assert np.concatenate(unlike).mean() <= (0.01 if KINDS[kind] == "classification" else 0)


@pytest.mark.parametrize("n", [40, 200, 1000])
@pytest.mark.parametrize("signal", [False, True], ids=["noise", "signal"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_are_no_better_are_not_recommended(kind: str, signal: bool, n: int) -> None:
    n_samples = 20 if n == 1000 else 60
    for missed, recommended in choice_rates(kind, n, signal, n_samples):
        assert at_most(missed, 0.05, n_samples) and at_most(recommended, 0.025, n_samples)


# Scores that are asked for


def other_rows(rng: Rng, n: int, kind: str, signal: bool) -> tuple[Labels, np.ndarray]:
    """Labels and vectors of 13 layers of 32 dimensions, made in another way than `labelled_rows`.

    Layers are random projections of 8 causes and of noise that neighbours share. Of classes, 30%
    are of the rarer one.
    """
    causes, noise = rng.standard_t(5, size=(n, 8)), [rng.normal(size=(n, 32))]
    while len(noise) < 13:
        noise.append(0.8 * noise[-1] + 0.6 * rng.normal(size=(n, 32)))
    x = causes @ rng.normal(size=(13, 8, 32)) / 2 + np.stack(noise)
    y = signal * (causes @ rng.normal(size=8)) / 2 + rng.normal(size=n)
    if kind == "classification":
        y = (y.argsort().argsort() >= 0.7 * n).astype(int)
    rows = [*range(n)]
    return Labels(kind, [rows], y, rows, int(rng.integers(2**31))), x.astype(np.float32)


def measure_rates(kind: str, signal: bool, n: int, n_samples: int) -> dict[str, np.ndarray]:
    """By score: shares of samples with a miss of a difference, and with a significant answer."""
    rng, hits = np.random.default_rng(54), {name: [] for name in OF_KIND[kind]}
    for _ in range(n_samples):
        data, x = other_rows(rng, n, kind, signal)
        found = predictions(x, data.labels, data.splits)
        for name, of_name in hits.items():
            scores = scores_of(data, found, name)
            table = compare(scores, name)
            missed = misses(table["difference_low"], table["difference_high"])
            of_name.append([missed, is_significant(table)])
    return {name: np.mean(of_name, axis=0) for name, of_name in hits.items()}


@pytest.mark.parametrize("signal", [False, True], ids=["noise", "signal"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_differences_of_every_score_hold(kind: str, signal: bool) -> None:
    for missed, recommended in measure_rates(kind, signal, 150, 60).values():
        assert at_most(missed, 0.05, 60) and at_most(recommended, 0.025, 60)


# Leads and regrets over tasks


TASK_CLUSTERS = {"5 in 3": (3, 1, 1), "14 in 8": (4, 3, 2, 1, 1, 1, 1, 1)}
TASK_CLUSTERS |= {str(n): (1,) * n for n in (3, 5, 8, 16, 32)}


def task_rates(sizes: tuple[int, ...], depth: int, n_samples: int) -> tuple[float, float]:
    """Share of samples in which the intervals miss, and in which there are intervals."""
    rng, found = np.random.default_rng(sum(sizes)), []
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    for _ in range(n_samples):
        values = walks(rng, len(sizes), depth)[clusters] + walks(rng, len(clusters), depth)
        leads = stats.simultaneous_ci(values - values[:, -1:], clusters)
        shown = bool(np.isfinite(leads.low).all())
        found.append((shown and misses(leads.low, leads.high), shown))
    missed, shown = np.mean(found, axis=0)
    return missed, shown


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("sizes", TASK_CLUSTERS.values(), ids=list(TASK_CLUSTERS))
def test_intervals_over_few_tasks_hold_or_are_not_shown(
    sizes: tuple[int, ...], depth: int
) -> None:
    missed, shown = task_rates(sizes, depth, N_SAMPLES)
    assert at_most(missed, 0.05, N_SAMPLES)
    assert shown == (len(sizes) >= stats.FEWEST)


def leads_over(
    values: np.ndarray, columns: np.ndarray, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean ends of the leads over each task's column, as layer selection has them."""
    leads = [stats.simultaneous_ci(values - values[:, [column]], clusters) for column in columns]
    return np.mean([ci.low for ci in leads], axis=0), np.mean([ci.high for ci in leads], axis=0)


def regret_rates(sizes: tuple[int, ...], depth: int, n_samples: int) -> np.ndarray:
    """Shares of samples in which intervals of selectors miss.

    Of the nested regret of the middle layer, and of the regret and the gain over the output of the
    best layer of the other tasks.
    """
    rng, found = np.random.default_rng(sum(sizes)), []
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    for number in range(n_samples):
        # In every other sample no layer is better.
        truth = (number % 2) * 0.5 * walks(rng, depth)
        values = truth + walks(rng, len(sizes), depth)[clusters] + walks(rng, len(clusters), depth)
        elsewhere = best_elsewhere(values, clusters)
        low, high = leads_over(values, np.full(len(values), depth // 2), clusters)
        nested = truth[elsewhere].mean() - truth[depth // 2]
        regret_low, regret_high = leads_over(values, elsewhere, clusters)
        regret = truth.max() - truth[elsewhere].mean()
        gains = stats.simultaneous_ci(values - values[:, -1:], clusters)
        gain = truth[elsewhere].mean() - truth[-1]
        found.append(
            [
                misses(low[elsewhere].mean(), high[elsewhere].mean(), nested),
                misses(max(regret_low.max(), 0.0), regret_high.max(), regret),
                misses(gains.low[elsewhere].mean(), gains.high[elsewhere].mean(), gain),
            ]
        )
    return np.mean(found, axis=0)


@pytest.mark.parametrize("sizes", ["5", "14 in 8", "8", "16", "32"])
def test_intervals_of_selectors_hold(sizes: str) -> None:
    for missed in regret_rates(TASK_CLUSTERS[sizes], 13, 200):
        assert at_most(missed, 0.05, 200)


# Numbers of docs/statistics.md, in percent


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def print_standard_errors(n_samples: int = 60) -> None:
    """Print the standard errors of metrics over their spread in fresh prompts."""
    names = ["dataset_entropy", "infonce", "rankme", "participation_ratio", "nesum", "anisotropy"]
    names += ["cka_last", "dime", "lidar", "two_nn", "alpha_req"]
    cases = [(n, 0.0, name) for n in (30, 100, 300) for name in names]
    cases += [(n, sigma, "lidar") for sigma in (0.5, 1.0) for n in (30, 100, 300)]
    for n, sigma, name in cases:
        layers = [layer_of(realistic(n, 12, seed, sigma)) for seed in range(n_samples)]
        values, stderr = np.array([values_and_errors(layer, name)[0] for layer in layers]).T
        say(n, f"sigma {sigma}", name, f"{stderr.mean() / values.std(ddof=1):.2f}")


def print_null_rates(n_samples: int = 300) -> None:
    """Print the shares of unrelated curves beyond their null level."""
    rng = np.random.default_rng(0)
    for kind in ("walk", "ar", "matern 3/2", "matern 5/2", "spline 6", "spline 10"):
        for measure in ("r", "spearman", "kendall", "dcor"):
            beyond = [
                [beyond_the_null_level(rng, kind, n, measure) for _ in range(n_samples)]
                for n in DEPTHS
            ]
            say(kind, measure, 100 * np.mean(beyond, axis=1))


def print_score_rates() -> None:
    """Print the rates of every score, as `measure_rates` has them, and of rows in groups."""
    for kind, signal in product(("classification", "regression"), (False, True)):
        for name, rates in measure_rates(kind, signal, 150, 150).items():
            say(name, "signal" if signal else "noise", 100 * rates)
    for kind, signal in product(("classification", "regression", "pairs"), (False, True)):
        for n, n_samples in ((40, 200), (200, 200), (1000, 60)):
            say("groups", kind, signal, n, 100 * np.array(score_rates(kind, n, signal, n_samples)))


def print_cluster_rates(n_samples: int = 800) -> None:
    """Print the misses of leads by the number of layers, and of selectors."""
    for name, sizes in TASK_CLUSTERS.items():
        if len(sizes) >= stats.FEWEST:
            say(name, [100 * task_rates(sizes, depth, n_samples)[0] for depth in DEPTHS])
            for depth in DEPTHS:
                say(name, "selectors", depth, 100 * regret_rates(sizes, depth, n_samples // 2))


if __name__ == "__main__":
    print_standard_errors()
    print_null_rates()
    print_score_rates()
    print_cluster_rates()
