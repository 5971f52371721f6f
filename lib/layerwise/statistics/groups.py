"""One hump or two, and what tells two groups apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FEWEST = 5  # in the smaller group, for an effect to be given


@dataclass(frozen=True)
class Effect:
    """How far one group lies above the other.

    Attributes
    ----------
    delta : float
        Cliff's: chance that one of the upper group exceeds one of the lower, less the chance of
        the opposite; -1 to 1.
    low, high : float
        95 % interval (DeLong 1988, through the inverse hyperbolic tangent).
    p : float
        Two-sided, of a delta of 0: the Brunner-Munzel test, which needs no equal spread;
        where the groups are apart without exception, the Mann-Whitney test.
    """

    delta: float
    low: float
    high: float
    p: float


def dip_p(values: Floats) -> tuple[float, float]:
    """Hartigan's dip and its p; NaN for fewer than four values or where all are the same."""
    from diptest import diptest

    if len(values) < 4 or np.ptp(values) == 0:
        return np.nan, np.nan
    dip, p = diptest(np.ascontiguousarray(values, dtype=np.float64))
    return float(dip), float(p)


def split(values: npt.ArrayLike, rounds: int = 200) -> Bools:
    """Which values belong to the upper of two normal components, by expectation-maximisation.

    Starts at the two halves that have the least variance within (Otsu 1979), so that it needs no
    seed. A value belongs to the component it is more probably of, with a single threshold between
    the two means.

    Raises
    ------
    LayerwiseError
        If all values are the same.
    """
    x = np.asarray(values, dtype=np.float64)
    if np.ptp(x) == 0:
        raise LayerwiseError("Values that are all the same have no two groups.")
    ordered = np.sort(x)
    n = len(x)
    sums, k = np.cumsum(ordered)[:-1], np.arange(1, n)
    between = k * (n - k) * (sums / k - (ordered.sum() - sums) / (n - k)) ** 2
    at = int(between.argmax())
    upper = (x > ordered[at]).astype(float)
    floor = 1e-3 * x.std()
    for _ in range(rounds):
        weight = np.array([1 - upper.mean(), upper.mean()])
        # The first split has at least one value on each side, up to rounding.
        if weight.min() * n < 1 - 1e-9:
            break
        means = np.array([np.average(x, weights=1 - upper), np.average(x, weights=upper)])
        sds = np.array([
            max(np.sqrt(np.average((x - m) ** 2, weights=w)), floor)
            for m, w in zip(means, (1 - upper, upper), strict=True)
        ])  # fmt: skip
        logs = np.log(weight) + stats.norm.logpdf(x[:, None], means, sds)
        new = np.exp(logs[:, 1] - np.logaddexp(logs[:, 0], logs[:, 1]))
        done = np.abs(new - upper).max() < 1e-8
        upper = new
        if done:
            break
    # The wider component reaches beyond the other on both sides; a hump lies on one.
    inside = (x >= means.min()) & (x <= means.max())
    likely = (upper > 0.5) == (means[1] >= means[0])
    found = np.where(inside, likely, x > means.mean())
    return np.asarray(found, dtype=bool)


def effect(values: npt.ArrayLike, upper: Bools) -> Effect:
    """How far the upper group lies above the lower in a property.

    Parameters
    ----------
    values : array, shape (n,)
    upper : array of bool, shape (n,)
        The group of each.

    Returns
    -------
    Effect
        NaN with fewer than `FEWEST` in a group; p = 1 where all values are the same.
    """
    x = np.asarray(values, dtype=np.float64)
    a, b = x[upper], x[~upper]
    if min(len(a), len(b)) < FEWEST:
        return Effect(np.nan, np.nan, np.nan, np.nan)
    signs = np.sign(a[:, None] - b[None, :])
    delta = float(signs.mean())
    if not signs.any():
        return Effect(0.0, 0.0, 0.0, 1.0)
    variance = signs.mean(axis=1).var(ddof=1) / len(a) + signs.mean(axis=0).var(ddof=1) / len(b)
    held = float(np.clip(delta, -1 + 1e-9, 1 - 1e-9))
    # Apart without exception has no spread of its own; one exception more would have had this.
    error = max(np.sqrt(variance), (1 - held**2 + 1 / len(x)) / np.sqrt(len(a) * len(b)))
    half = stats.norm.isf(0.025) * error / max(1 - held**2, 4 / len(x))
    low, high = np.tanh(np.arctanh(held) + np.array([-half, half]))
    if abs(delta) == 1:  # no spread for Brunner and Munzel to divide by
        p = float(stats.mannwhitneyu(a, b).pvalue)
    else:
        p = float(stats.brunnermunzel(a, b).pvalue)
    return Effect(delta, float(low), float(high), p)
