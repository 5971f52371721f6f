"""Curves over layers of which the truth is known: what the calibration suite is run on."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layerwise.statistics.matching import on_common_depths

Floats = npt.NDArray[np.float64]

# How a task's (or a model's) curve departs from the common one, over layers.
KINDS = ("iid", "smooth", "walk", "trended", "monotone")
# Resamples of the authors' published scores, where their tables are at hand.
PUBLISHED = "published"
TABLES = Path(__file__).parents[3] / "shared" / "published"
TASKS = (5, 10, 32)
LAYERS = (7, 13, 25, 31)


def curves(kind: str, n: int, layers: int, rng: np.random.Generator) -> Floats:
    """Independent curves with mean zero over draws, shape (n, layers), standard deviation ~ 1.

    iid: each layer by itself. smooth: a Gaussian process with length-scale .25 of the depth.
    walk: Brownian motion over depth. trended: a line of random slope, and half as much iid noise.
    monotone: a power of the depth, increasing or decreasing, with a little iid noise.
    published: how tasks drawn from the published ones depart from the mean over all 32, each of
    a model drawn for all of them.
    """
    if kind == PUBLISHED:
        table = published(layers)
        apart = table[rng.integers(len(table))]
        apart = apart - apart.mean(axis=1, keepdims=True)
        apart = apart - apart.mean(axis=0)
        return np.asarray(apart[rng.integers(len(apart), size=n)] / apart.std())
    depth = np.linspace(0.0, 1.0, layers)
    noise = rng.normal(size=(n, layers))
    if kind == "iid":
        return noise
    if kind == "smooth":
        gaps = depth[:, None] - depth[None, :]
        values, vectors = np.linalg.eigh(np.exp(-0.5 * (gaps / 0.25) ** 2))
        return np.asarray(noise @ (vectors * np.sqrt(np.maximum(values, 0))).T)
    if kind == "walk":
        return np.asarray(np.cumsum(noise, axis=1) / np.sqrt(layers) * np.sqrt(2.0))
    if kind == "trended":
        slope = rng.normal(size=(n, 1)) * 2
        return np.asarray(slope * (depth - 0.5) + noise / 2)
    if kind == "monotone":
        power = np.exp(rng.uniform(np.log(0.3), np.log(3.0), size=(n, 1)))
        sign = rng.choice([-1.0, 1.0], size=(n, 1))
        return np.asarray(sign * (depth**power - 0.5) * 2 + 0.1 * noise)
    raise ValueError(kind)


@lru_cache(maxsize=8)
def published(layers: int) -> Floats:
    """The published scores in [0, 1], shape (3 models, 32 tasks, layers), drawn out over depth."""
    from layerwise.association.curves import score_curves
    from layerwise.association.published import published_scores, read_table

    tables = score_curves(published_scores(read_table(TABLES / "mteb_scores.csv.gz")))
    return np.stack([on_common_depths([c.values], layers)[0] for c in tables])


def scores(
    kind: str,
    tasks: int,
    layers: int,
    rng: np.random.Generator,
    *,
    peak: float = 0.0,
    spread: float = 0.03,
    sources: npt.NDArray[np.intp] | None = None,
    shared: float = 0.0,
) -> tuple[Floats, Floats]:
    """Scores of tasks drawn from a population, and the population's mean curve.

    Parameters
    ----------
    peak : float
        Height of the population's hump at 60 % of the depth above its ends. Of the published
        scores, 0 takes the differences between layers off, and any other leaves them as they are.
    spread : float
        Standard deviation of a task's departure from the mean curve.
    sources, shared
        Text source of each task, and the share of the departure's variance that tasks of one
        source have in common.

    Returns
    -------
    scores : array, shape (tasks, layers)
    truth : array, shape (layers,)
    """
    if kind == PUBLISHED and sources is None:
        table = published(layers)
        model = table[rng.integers(len(table))]
        drawn, truth = model[rng.integers(len(model), size=tasks)], model.mean(axis=0)
        return (drawn, truth) if peak else (drawn - truth + truth.mean(), truth * 0 + truth.mean())
    depth = np.linspace(0.0, 1.0, layers)
    truth = 0.5 + peak * np.exp(-0.5 * ((depth - 0.6) / 0.2) ** 2)
    own = curves(kind, tasks, layers, rng)
    if sources is not None:
        common = curves(kind, int(sources.max()) + 1, layers, rng)[sources]
        own = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    level = rng.normal(size=(tasks, 1)) * 0.15
    return level + truth + spread * own, truth
