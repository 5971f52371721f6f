"""Intervals, tests and corrections for curves over layers, on scipy and statsmodels.

Prompts, tasks and models are samples; the layers of a model are not, because neighbours depend on
each other. Tasks that share their texts form a cluster and count as one observation. An interval
needs `FEWEST` observations; below that its ends are NaN. docs/statistics.md says how often each is
wrong and when not to trust it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Observations, or task clusters, below which there is no interval of any kind.
FEWEST = 5
# Prompts below which callers warn: intervals are wide and rest on normality.
FEW = 30
ALPHA = 0.05
N_DRAWS = 2000
# Observations that are too few to estimate the correlation of several means.
BONFERRONI_BELOW = 10
# Observations from which the covariance of several means counts as known.
KNOWN_FROM = 40
N_RESAMPLES = 9999


class Estimate(NamedTuple):
    """An estimate with its interval; floats, or arrays of one shape.

    Attributes
    ----------
    estimate, low, high : float or array
        Confidence interval, NaN for fewer than `FEWEST` observations.
    p : float or array
        Two-sided, of a true value of 0; NaN where there is no interval or no variation.
    stderr : float or array
    n : int
        Number of independent observations (clusters, if there are any).
    """

    estimate: Any
    low: Any
    high: Any
    p: Any
    stderr: Any
    n: int


class Permutation(NamedTuple):
    """Result of a permutation test of k statistics; arrays of shape (k,).

    Attributes
    ----------
    statistic : array
    p, p_adjusted : array
        Two-sided; adjusted for all k by the maximum over them (Westfall & Young 1993).
    """

    statistic: Floats
    p: Floats
    p_adjusted: Floats


def task_clusters(n: int) -> str:
    """A number of task clusters in words."""
    return f"{n} task cluster{'s' * (n != 1)}"


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Add 95% intervals from the column ``stderr``, with the ends ``low`` and ``high``.

    There is none for fewer than `FEWEST` prompts (``n``). A row without a standard error keeps
    the ends that it has.
    """
    margin = 1.959964 * table["stderr"].astype(float)
    if "n" in table:
        margin = margin.where(~table["n"].between(1, FEWEST - 1))
    ends = {"low": table["value"] - margin, "high": table["value"] + margin}
    for name in {*ends} & {*table}:
        ends[name] = table[name].where(table["stderr"].isna(), ends[name])
    return table.assign(**ends)


def holm(p: npt.ArrayLike) -> Floats:
    """Adjust p values for the chance of any false positive (Holm 1979); NaN stays NaN."""
    from statsmodels.stats.multitest import multipletests  # type: ignore[import-untyped]

    values = np.asarray(p, dtype=np.float64)
    adjusted, known = np.full(values.shape, np.nan), np.isfinite(values)
    if known.any():
        adjusted[known] = multipletests(values[known], method="holm")[1]
    return adjusted


def mean_ci(values: npt.ArrayLike, clusters: Iterable[object] | None = None) -> Estimate:
    """Student's interval of the mean over the first axis, shape (n, ...) to (...).

    With clusters, whose members are not independent, the standard error is cluster-robust with the
    CR2 correction, and so are the degrees of freedom (Bell & McCaffrey 2002). For clusters of
    equal size, this equals averaging within clusters and then Student's interval.

    Parameters
    ----------
    values : array, shape (n, ...)
    clusters : iterable, length n, optional
        Cluster of each row, such as the task cluster of a task; by default each its own.
    """
    mean, deviations, freedom = _mean_and_deviations(values, clusters)
    stderr = np.sqrt(np.square(deviations).sum(axis=0))
    half = scipy.stats.t.ppf(1 - ALPHA / 2, freedom) * stderr
    tail = scipy.stats.t.sf(np.abs(_ratio(mean, stderr)), freedom)
    p = np.where(stderr > 0, 2 * tail, np.nan)[()]
    return Estimate(mean, mean - half, mean + half, p, stderr, len(deviations))


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, clusters: Iterable[object] | None = None
) -> Estimate:
    """Mean of a - b over rows that belong together, shapes (n, ...); see `mean_ci`."""
    return mean_ci(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64), clusters)


def simultaneous_ci(
    values: npt.ArrayLike,
    clusters: Iterable[object] | None = None,
    seed: int = 0,
    widening: float = 1.0,
) -> Estimate:
    """Intervals of k means that hold for all of them together, shape (n, k) to (k,).

    Use them for a column that was selected by its mean. The quantile is that of the largest
    Student's t of the k means; p is adjusted by it too. It is Bonferroni's for fewer than
    `BONFERRONI_BELOW` observations, from which correlations cannot be estimated. Otherwise it is
    simulated with the columns' covariance, which counts as known from `KNOWN_FROM` observations on
    and is estimated anew in each simulated sample below.

    Parameters
    ----------
    values : array, shape (n, k)
    clusters : iterable, length n, optional
        As in `mean_ci`.
    widening : float
        Factor on the standard errors, for rows that are less independent than they look.

    Returns
    -------
    Estimate
        NaN for fewer than `FEWEST` observations.
    """
    mean, deviations, freedom = _mean_and_deviations(values, clusters)
    n = len(deviations)
    stderr = widening * np.sqrt(np.square(deviations).sum(axis=0))
    if n < FEWEST:
        return Estimate(mean, stderr, stderr, stderr, stderr, n)  # NaN
    ratio = np.abs(_ratio(mean, stderr))
    if n < BONFERRONI_BELOW:
        k = max(int((stderr > 0).sum()), 1)
        quantile = scipy.stats.t.isf(ALPHA / 2 / k, freedom)
        p = np.minimum(2 * k * scipy.stats.t.sf(ratio, freedom), 1.0)
    else:
        largest = _largest_t(deviations, seed)
        largest *= scipy.stats.t.isf(ALPHA / 2, freedom) / scipy.stats.t.isf(ALPHA / 2, n - 1)
        quantile = np.quantile(largest, 1 - ALPHA)
        p = (1 + (largest[:, None] >= ratio).sum(axis=0)) / (1 + len(largest))
    half = quantile * stderr
    p = np.where(stderr > 0, p, np.nan)
    return Estimate(mean, mean - half, mean + half, p, stderr, n)


def ratio_ci(parts: npt.ArrayLike, wholes: npt.ArrayLike) -> Estimate:
    """Mean of parts over mean of wholes, shape (n,) each, with Student's interval.

    The standard error is that of the ratio to first order (the delta method). p is that of a mean
    of parts of 0.
    """
    a, b = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    ratio = a.mean() / b.mean()
    about = mean_ci((a - ratio * b) / b.mean())
    return about._replace(
        estimate=ratio, low=ratio + about.low, high=ratio + about.high, p=mean_ci(a).p
    )


def pairing_test(
    strengths: npt.ArrayLike, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Permutation:
    """Test if units go with their own partners, by permuting which partner each unit gets.

    Parameters
    ----------
    strengths : array, shape (k, m, m)
        Strength of the association of unit i with partner j; the statistic is the mean over
        i = j.
    """
    table = np.asarray(strengths, dtype=np.float64)
    k, m = table.shape[:2]
    found = scipy.stats.permutation_test(
        (np.tile(np.arange(m), (k, 1)),),
        lambda order, axis: table[np.arange(k)[:, None], np.arange(m), order].mean(axis=axis),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=n_resamples,
        axis=-1,
        rng=np.random.default_rng(seed),
    )
    null = found.null_distribution
    # Each statistic relative to its spread under the null, for a maximum over comparable ones.
    scale = np.sqrt(np.square(null).mean(axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    # All pairings were tried where there are few.
    extra = 0 if len(null) < n_resamples else 1
    observed, reached = np.abs(found.statistic / scale) - 1e-12, np.abs(null / scale)
    p = (extra + (reached >= observed).sum(axis=0)) / (extra + len(null))
    largest = reached.max(axis=1)[:, None]
    adjusted = (extra + (largest >= observed).sum(axis=0)) / (extra + len(null))
    return Permutation(np.asarray(found.statistic), np.asarray(p), np.asarray(adjusted))


def _mean_and_deviations(
    values: npt.ArrayLike, clusters: Iterable[object] | None
) -> tuple[Any, Floats, float]:
    """Mean, one row per cluster whose products sum to its covariance, and degrees of freedom."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    labels = list(range(n) if clusters is None else clusters)
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    member = np.array([codes[label] for label in labels])
    mean = array.mean(axis=0)
    if len(codes) < FEWEST:
        return mean, np.full((len(codes), *array.shape[1:]), np.nan), 1.0
    # Rounding is no variation.
    apart = array - mean
    apart[np.abs(apart) < 1e-13 * np.abs(array).max(initial=0.0)] = 0.0
    sizes = np.bincount(member)
    weights = 1 / (n * np.sqrt(1 - sizes / n))
    deviations = np.zeros((len(codes), *array.shape[1:]))
    np.add.at(deviations, member, apart)
    deviations *= weights.reshape(-1, *[1] * (array.ndim - 1))
    # Satterthwaite's, of the covariance C of the deviations if all values are independent:
    # its trace is 1 / n, and the squares of its diagonal are those of the sizes over n².
    shares = (weights * sizes) ** 2
    squares = np.square(sizes / n**2).sum() + (shares.sum() ** 2 - (shares**2).sum()) / n**2
    return mean, deviations, float(1 / n**2 / squares)


def _largest_t(deviations: Floats, seed: int) -> Floats:
    """Largest absolute t of k means that are 0, in simulated samples; shape (draws,)."""
    n, rng = len(deviations), np.random.default_rng(seed)
    varying = deviations[:, np.square(deviations).sum(axis=0) > 0]
    if not varying.shape[1]:
        return np.zeros(N_DRAWS)
    if n > varying.shape[1]:
        varying = np.asarray(np.linalg.qr(varying, mode="r"))  # the same products
    if n >= KNOWN_FROM:
        means = rng.normal(size=(N_DRAWS, len(varying))) @ varying
        stderr = np.sqrt(rng.chisquare(n - 1, size=(N_DRAWS, 1)) / (n - 1))
        stderr = stderr * np.sqrt(np.square(varying).sum(axis=0))
    else:
        samples = rng.normal(size=(N_DRAWS * n, len(varying))) @ varying
        samples = samples.reshape(N_DRAWS, n, -1)
        means, stderr = samples.mean(axis=1), samples.std(axis=1, ddof=1) / np.sqrt(n)
    return np.asarray(np.abs(means / stderr).max(axis=1))


def _ratio(values: Floats, stderr: Floats) -> Floats:
    """Value over standard error; where that is 0, 0 or infinity with the value's sign."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values == 0, 0.0, np.asarray(values) / stderr)
