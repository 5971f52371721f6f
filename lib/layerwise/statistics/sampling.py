"""What a sample of tasks tells of a mean over all tasks: its error, clusters of tasks included.

Tasks are taken as draws from a population of tasks. Tasks made of the same texts are not separate
draws: `sources` says which share one, and the error of the mean then comes from the sums over
sources (CR2, Bell & McCaffrey 2002; Pustejovsky & Tipton 2018). With few sources even that is too
small, and mean over error far from Student's t, so that its distribution is drawn under a working
model in which tasks of one source have a correlation of `SHARED`. (Satterthwaite's degrees of
freedom for the same model cover .98 of a nominal .95 where three of five tasks share their texts.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]

# Correlation of tasks that share their texts, in the working model. 1 would be the safest; a
# half keeps coverage within .92 and .97 for true correlations of 0 to .9 (see docs/statistics.md).
SHARED = 0.5
DRAWS = 2000
PIVOTS = 40_000


@dataclass(frozen=True)
class Design:
    """How a mean over tasks is weighed against its error, whatever the scores are.

    Attributes
    ----------
    members : array, shape (G, T)
        1 where a task is of a source.
    weights : array, shape (G,)
        CR2 weights of the squared sums of residuals, ``1 / (1 - n_g / T) / T²``.
    """

    members: Floats
    weights: Floats

    @property
    def tasks(self) -> int:
        """Number T of tasks."""
        return int(self.members.shape[1])

    @property
    def sources(self) -> int:
        """Number G of text sources."""
        return int(self.members.shape[0])

    def critical(self, tail: float) -> float:
        """What mean over error exceeds with the chance `tail`, under a mean of 0."""
        if self.sources == self.tasks:
            from scipy.stats import t

            return float(t.isf(tail, self.tasks - 1))
        return float(np.quantile(self._pivots, 1 - tail))

    def exceeds(self, ratios: Floats) -> Floats:
        """The chance that mean over error exceeds each of `ratios`, under a mean of 0."""
        if self.sources == self.tasks:
            from scipy.stats import t

            return np.asarray(t.sf(ratios, self.tasks - 1))
        drawn = self._pivots
        above = len(drawn) - np.searchsorted(drawn, ratios, side="left")
        return np.asarray((1 + above) / (1 + len(drawn)))

    @property
    def _pivots(self) -> Floats:
        return _pivots(tuple(int(n) for n in self.members.sum(axis=1)))


def design(tasks: int, sources: Sequence[object] | None = None) -> Design:
    """The design of a mean over tasks.

    Parameters
    ----------
    tasks : int
        Number T of tasks.
    sources : sequence, length T, optional
        The text source of each task; tasks with equal entries share their texts. By default each
        has its own.

    Raises
    ------
    LayerwiseError
        For fewer than two sources, of which no error can be had.
    """
    labels = list(range(tasks)) if sources is None else list(sources)
    if len(labels) != tasks:
        raise LayerwiseError(
            f"There are {len(labels)} text sources for {tasks} tasks; give one for each task."
        )
    order = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    if len(order) < 2:
        raise LayerwiseError(
            f"An interval over tasks needs two tasks of different texts; these are {tasks} tasks "
            f"of {len(order)} source{'s' if len(order) != 1 else ''}."
        )
    members = np.zeros((len(order), tasks))
    members[[order[label] for label in labels], np.arange(tasks)] = 1.0
    sizes = members.sum(axis=1)
    weights = 1 / (1 - sizes / tasks) / tasks**2
    return Design(members, weights)


@lru_cache(maxsize=64)
def _pivots(sizes: tuple[int, ...]) -> Floats:
    """Mean over error for sources of these sizes, drawn and in ascending order."""
    how = design(sum(sizes), np.repeat(np.arange(len(sizes)), sizes).tolist())
    rng = np.random.default_rng(0)
    noise = _noise((PIVOTS,), 1, how, rng)
    mean, error = mean_and_error(noise, how)
    return np.asarray(np.sort(mean[:, 0] / error[:, 0]))


def mean_and_covariance(values: Floats, how: Design) -> tuple[Floats, Floats]:
    """Mean over tasks and the covariance matrix of that mean.

    Parameters
    ----------
    values : array, shape (..., T, K)

    Returns
    -------
    mean : array, shape (..., K)
    covariance : array, shape (..., K, K)
    """
    mean = values.mean(axis=-2)
    sums = _sums(values - mean[..., None, :], how)
    weighted = sums * how.weights[:, None]
    return mean, np.swapaxes(weighted, -1, -2) @ sums


def mean_and_error(values: Floats, how: Design) -> tuple[Floats, Floats]:
    """Mean over tasks and its standard error, shapes (..., T, K) to (..., K)."""
    mean = values.mean(axis=-2)
    sums = _sums(values - mean[..., None, :], how)
    variance = (how.weights[:, None] * sums**2).sum(axis=-2)
    return mean, np.sqrt(variance)


def _sums(residuals: Floats, how: Design) -> Floats:
    return residuals if how.sources == how.tasks else how.members @ residuals


def draws_like(values: Floats, how: Design, count: int, rng: np.random.Generator) -> Floats:
    """Normal samples of tasks with mean zero, and the covariance over columns of `values`.

    Parameters
    ----------
    values : array, shape (T, K)
    count : int
        Number B of samples.

    Returns
    -------
    array, shape (B, T, K)
    """
    tasks, columns = values.shape
    deviations = (values - values.mean(axis=0)) / np.sqrt(tasks - 1)
    _, scale, basis = np.linalg.svd(deviations, full_matrices=False)
    root = scale[:, None] * basis
    noise = _noise((count,), len(root), how, rng)
    return np.asarray(noise.reshape(-1, len(root)) @ root).reshape(count, tasks, columns)


def _noise(shape: tuple[int, ...], columns: int, how: Design, rng: np.random.Generator) -> Floats:
    """Standard normal draws, shape (*shape, T, columns), those of one source correlated."""
    noise = rng.normal(size=(*shape, how.tasks, columns))
    if how.sources < how.tasks:
        common = rng.normal(size=(*shape, how.sources, columns))
        noise = np.sqrt(1 - SHARED) * noise + np.sqrt(SHARED) * (how.members.T @ common)
    return noise


def ratio(values: Floats, errors: Floats) -> Floats:
    """Value over error; 0 where both are 0, infinite where only the error is."""
    small = 1e-12 * np.max(np.abs(values), initial=0.0) + 1e-300
    values = np.where(np.abs(values) <= small, 0.0, values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(values == 0, 0.0, values / errors))
