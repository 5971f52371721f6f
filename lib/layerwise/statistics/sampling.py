"""What a sample of tasks tells of a mean over all tasks: its error, clusters of tasks included.

Tasks are taken as draws from a population of tasks. Tasks made of the same texts are not separate
draws: `sources` says which share one, and the error of the mean then comes from the sums over
sources (CR2, Bell & McCaffrey 2002; Pustejovsky & Tipton 2018). With few sources even that is too
small, and its distribution far from normal, so both its bias and its degrees of freedom are worked
out under a working model in which tasks of one source have a correlation of `SHARED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]

# Correlation of tasks that share their texts, in the working model. 1 would be the safest; a
# half keeps coverage within .92 and .97 for true correlations of 0 to .9 (see docs/statistics.md).
SHARED = 0.5
DRAWS = 2000


@dataclass(frozen=True)
class Design:
    """How a mean over tasks is weighed against its error, whatever the scores are.

    Attributes
    ----------
    members : array, shape (G, T)
        1 where a task is of a source.
    weights : array, shape (G,)
        CR2 weights of the squared sums of residuals, ``1 / (1 - n_g / T) / T²``.
    scale : float
        What the CR2 variance is multiplied by to be unbiased under the working model; 1 without
        shared sources.
    df : float
        Degrees of freedom (Satterthwaite); T - 1 without shared sources.
    """

    members: Floats
    weights: Floats
    scale: float
    df: float

    @property
    def tasks(self) -> int:
        """Number T of tasks."""
        return self.members.shape[1]

    @property
    def sources(self) -> int:
        """Number G of text sources."""
        return self.members.shape[0]


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
    # The variance is a quadratic form r' M r of the tasks; under correlation Ω its mean is
    # tr(MΩ) and its variance 2 tr(MΩMΩ).
    centre = np.eye(tasks) - 1 / tasks
    form = centre @ (members.T @ (weights[:, None] * members)) @ centre
    omega = (1 - SHARED) * np.eye(tasks) + SHARED * members.T @ members
    product = form @ omega
    mean = float(np.trace(product))
    truth = float(omega.sum()) / tasks**2
    df = mean**2 / float((product * product.T).sum())
    return Design(members, weights, truth / mean, df)


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
    weighted = sums * (how.weights * how.scale)[:, None]
    return mean, np.swapaxes(weighted, -1, -2) @ sums


def mean_and_error(values: Floats, how: Design) -> tuple[Floats, Floats]:
    """Mean over tasks and its standard error, shapes (..., T, K) to (..., K)."""
    mean = values.mean(axis=-2)
    sums = _sums(values - mean[..., None, :], how)
    variance = ((how.weights * how.scale)[:, None] * sums**2).sum(axis=-2)
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
    noise = rng.normal(size=(count, tasks, len(root)))
    if how.sources < tasks:
        common = rng.normal(size=(count, how.sources, len(root)))
        noise = np.sqrt(1 - SHARED) * noise + np.sqrt(SHARED) * (how.members.T @ common)
    return np.asarray(noise.reshape(-1, len(root)) @ root).reshape(count, tasks, columns)


def ratio(values: Floats, errors: Floats) -> Floats:
    """Value over error; 0 where both are 0, infinite where only the error is."""
    small = 1e-12 * np.max(np.abs(values), initial=0.0) + 1e-300
    values = np.where(np.abs(values) <= small, 0.0, values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(values == 0, 0.0, values / errors))
