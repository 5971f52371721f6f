"""What a sample of prompts tells of means over layers, and of the difference of two curves.

Prompts are draws; every layer is measured on the same ones, so that differences between layers,
and between models, are taken prompt by prompt. What the intervals do on curves of which the truth
is known: docs/studies/README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]

RESAMPLES = 1000
DRAWS = 2000


@dataclass(frozen=True)
class Means:
    """Student's intervals of means over prompts, column by column; arrays of shape (K,).

    Attributes
    ----------
    value, low, high : array
        Mean and its interval.
    p : array
        Two-sided, of a mean of 0; 1 where all values are 0.
    """

    value: Floats
    low: Floats
    high: Floats
    p: Floats


@dataclass(frozen=True)
class Estimate:
    """Something read off a mean curve at layers that the same prompts chose.

    Attributes
    ----------
    value, low, high : float
        With an interval that holds whatever layers are chosen.
    p : float
        One-sided, of a value of 0 or less; in (0, 1].
    """

    value: float
    low: float
    high: float
    p: float


def means(values: npt.ArrayLike, level: float = 0.95) -> Means:
    """Student's interval of the mean of each column.

    Parameters
    ----------
    values : array, shape (N, K) or (N,)
        A row a prompt.

    Raises
    ------
    LayerwiseError
        For fewer than two prompts.
    """
    array = np.asarray(values, dtype=np.float64)
    array = array[:, None] if array.ndim == 1 else array
    n = len(array)
    if n < 2:
        raise LayerwiseError(f"An interval over prompts needs two or more of them; {n} came.")
    mean = array.mean(axis=0)
    # Rounding is no spread: values that are all alike have none.
    scale = np.abs(array).max(axis=0)
    error = array.std(axis=0, ddof=1) / np.sqrt(n)
    error = np.where(error > 1e-12 * scale, error, 0.0)
    half = stats.t.ppf((1 + level) / 2, n - 1) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, np.abs(mean) / error)
    return Means(mean, mean - half, mean + half, 2 * stats.t.sf(t, n - 1))


def squared(values: npt.ArrayLike) -> Floats:
    """Each prompt's pseudo-value of the squared mean of each column, noise taken off.

    A mean that is squared is too large by its own variance, so that what is noisy seems to differ
    more. The mean over pairs of different prompts of the product of their values is not (a
    U-statistic, Hoeffding 1948). Its pseudo-values (jackknife, Arvesen 1969) can be added,
    subtracted and given to `means`; where the true means are about 0, intervals are too wide.

    Parameters
    ----------
    values : array, shape (..., N, K)
        A row a prompt.

    Returns
    -------
    array, shape (..., N, K)
        In squared units; the mean over N is the estimate, which may be below 0.

    Raises
    ------
    LayerwiseError
        For fewer than three prompts.
    """
    x = np.asarray(values, dtype=np.float64)
    n = x.shape[-2]
    if n < 3:
        raise LayerwiseError(f"The square of a mean needs three prompts or more; {n} came.")
    total, squares = x.sum(axis=-2, keepdims=True), np.square(x).sum(axis=-2, keepdims=True)
    every = (total**2 - squares) / (n * (n - 1))
    without = ((total - x) ** 2 - (squares - x**2)) / ((n - 1) * (n - 2))
    return np.asarray(n * every - (n - 1) * without)


def may_be_best(
    values: npt.ArrayLike, level: float = 0.95, *, seed: int = 0
) -> npt.NDArray[np.bool_]:
    """The layers that may have the highest mean: together they hold it with this confidence.

    As `layerwise.statistics.tasks.best_set` (Hsu 1984), over prompts.

    Parameters
    ----------
    values : array, shape (N, L)

    Returns
    -------
    array of bool, shape (L,)
        The layer with the highest mean is always among them.
    """
    array = np.asarray(values, dtype=np.float64)
    gaps, errors = pairwise(array)
    draws = draws_of_means(array, seed)
    kept = np.empty(array.shape[1], dtype=bool)
    for layer in range(len(kept)):
        e = errors[:, layer]
        drawn = draws - draws[:, [layer]]
        most = np.divide(drawn, e, out=np.zeros_like(drawn), where=e > 0).max(axis=1)
        lead = gaps[:, layer]
        t = np.divide(lead, e, out=np.where(lead > 0, np.inf, 0.0), where=e > 0)
        kept[layer] = t.max() <= np.quantile(most, level)
    kept[int(array.mean(axis=0).argmax())] = True
    return kept


def pairwise(values: Floats) -> tuple[Floats, Floats]:
    """Mean of layer a less that of layer b, and its standard error, both (L, L)."""
    mean = values.mean(axis=0)
    covariance = np.cov(values, rowvar=False) / len(values)
    spread = np.diagonal(covariance)
    errors = np.sqrt(np.maximum(spread[:, None] + spread[None, :] - 2 * covariance, 0))
    errors[errors < 1e-9 * np.sqrt(spread.max())] = 0  # rounding
    return mean[:, None] - mean[None, :], errors


def largest(values: npt.ArrayLike, level: float = 0.95, *, seed: int = 0) -> tuple[Estimate, int]:
    """The largest mean of all columns, with an interval that pays for the choice, and its place.

    Parameters
    ----------
    values : array, shape (N, K)
    """
    array = np.asarray(values, dtype=np.float64)
    mean = array.mean(axis=0)
    errors = array.std(axis=0, ddof=1) / np.sqrt(len(array))
    draws = draws_of_means(array, seed)
    most = np.divide(draws, errors, out=np.zeros_like(draws), where=errors > 0).max(axis=1)
    return estimate(mean, errors, most, level, np.max), int(mean.argmax())


def draws_of_means(values: Floats, seed: int) -> Floats:
    """Errors of the mean as they may be: multivariate t with the prompts' covariance."""
    n = len(values)
    rng = np.random.default_rng(seed)
    centred = (values - values.mean(axis=0)) / np.sqrt(n * (n - 1))
    scale = np.sqrt(rng.chisquare(n - 1, size=(DRAWS, 1)) / (n - 1))
    return np.asarray(rng.normal(size=(DRAWS, n)) @ centred / scale)


def estimate(
    gaps: Floats, errors: Floats, draws: Floats, level: float, of: Callable[[Floats], float]
) -> Estimate:
    """A monotone function of means, with the interval that all means give together.

    Both ends may be chosen, so each side gets half of what is left of the level.
    """
    critical = float(np.quantile(draws, (1 + level) / 2))
    value, low, high = (float(of(gaps + k * critical * errors)) for k in (0, -1, 1))
    t = np.divide(gaps, errors, out=np.where(gaps > 0, np.inf, 0.0), where=errors > 0)
    reached = int((draws >= float(of(t))).sum())
    return Estimate(value, low, high, (1 + reached) / (1 + len(draws)))


def resampled(n: int, count: int = RESAMPLES, seed: int = 0) -> Floats:
    """Weights of bootstrap samples of the prompts, shape (count, n); rows sum to 1."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n, np.full(n, 1 / n), size=count) / n
