"""Curves over layers of which the truth is known: what the calibration suite is run on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# How a task's (or a model's) curve departs from the common one, over layers.
KINDS = ("iid", "smooth", "walk", "trended", "monotone")
TASKS = (5, 10, 32)
LAYERS = (7, 13, 25, 31)


def curves(kind: str, n: int, layers: int, rng: np.random.Generator) -> Floats:
    """Independent curves with mean zero over draws, shape (n, layers), standard deviation ~ 1.

    iid: each layer by itself. smooth: a Gaussian process with length-scale .25 of the depth.
    walk: Brownian motion over depth. trended: a line of random slope, and half as much iid noise.
    monotone: a power of the depth, increasing or decreasing, with a little iid noise.
    """
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
        Height of the population's hump at 60 % of the depth above its ends.
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
    depth = np.linspace(0.0, 1.0, layers)
    truth = 0.5 + peak * np.exp(-0.5 * ((depth - 0.6) / 0.2) ** 2)
    own = curves(kind, tasks, layers, rng)
    if sources is not None:
        common = curves(kind, int(sources.max()) + 1, layers, rng)[sources]
        own = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    level = rng.normal(size=(tasks, 1)) * 0.15
    return level + truth + spread * own, truth
