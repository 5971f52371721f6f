"""The procedures that the calibration suite found wanting, as they were: for the table's "before".

Percentile bootstrap over tasks; share of resamples as certainty; permutations and circular shifts
of layers as nulls of a distance correlation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layerwise.association.measures import embed, strengths

Floats = npt.NDArray[np.float64]
RESAMPLES = 500


def resamples(tasks: int, rng: np.random.Generator) -> Floats:
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES) / tasks


def percentile(samples: Floats) -> tuple[Floats, Floats]:
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    return low, high


def mean_interval(differences: Floats, rng: np.random.Generator) -> tuple[float, float]:
    low, high = percentile(resamples(len(differences), rng) @ differences)
    return float(low), float(high)


def band(scores: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    layers = scores.shape[1]
    mean = scores.mean(axis=0)
    apart = scores - mean
    apart -= apart.mean(axis=1, keepdims=True)
    within = mean + apart * np.sqrt(layers / (layers - 1))
    return percentile(resamples(len(scores), rng) @ within)


def best(scores: Floats, rng: np.random.Generator) -> tuple[float, float, float, int, int]:
    """Interval of the best layer's lead over the last, certainty, likely range."""
    samples = resamples(len(scores), rng) @ scores
    top = int(scores.mean(axis=0).argmax())
    low, high = percentile(samples[:, top] - samples[:, -1])
    winners = samples.argmax(axis=1)
    first, last = np.quantile(winners, [0.025, 0.975], method="nearest")
    return float(low), float(high), float((winners == top).mean()), int(first), int(last)


def dcor_interval(metric: Floats, scores: Floats, rng: np.random.Generator) -> tuple[float, float]:
    curves = resamples(len(scores), rng)[:200] @ scores
    left = embed("dcor", metric[None])
    low, high = percentile(strengths("dcor", left, embed("dcor", curves))[0])
    return float(low), float(high)


def layer_p(metric: Floats, score: Floats, null: str, rng: np.random.Generator) -> float:
    """p of a distance correlation from permuted layers, or from all circular shifts."""
    n = len(score)
    if null == "permutation":
        orders = rng.permuted(np.tile(np.arange(n), (199, 1)), axis=1)
    else:
        orders = (np.arange(n) + np.arange(n)[:, None]) % n
    left = embed("dcor", metric[None])
    value = strengths("dcor", left, embed("dcor", score[None]))[0, 0]
    found = strengths("dcor", left, embed("dcor", score[orders]))[0]
    reached = int((found >= value - 1e-12).sum())
    return (1 + reached) / 200 if null == "permutation" else reached / n


def pooled_p(metrics: Floats, scores: Floats, rng: np.random.Generator) -> float:
    """p from circular shifts within each model, curves ranked and laid end to end."""
    from scipy.stats import rankdata

    models, n = scores.shape
    x, y = rankdata(metrics, axis=1), rankdata(scores, axis=1)
    offsets = rng.integers(n, size=(199, models))
    turned = np.stack([y[m][(np.arange(n) + offsets[:, [m]]) % n] for m in range(models)], axis=1)
    left = embed("dcor", x.reshape(1, -1))
    value = strengths("dcor", left, embed("dcor", y.reshape(1, -1)))[0, 0]
    null = strengths("dcor", left, embed("dcor", turned.reshape(199, -1)))[0]
    return (1 + int((null >= value - 1e-12).sum())) / 200
