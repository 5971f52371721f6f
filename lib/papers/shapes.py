"""Shapes that the papers speak of: valleys of curves over layers, and two groups of values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from layerwise import stats


class Valley(NamedTuple):
    """The deepest valley of a mean curve.

    Attributes
    ----------
    layer, left, right : int
        Index of the lowest layer, and of the highest ones before and after it.
    depth : stats.Estimate
        How far the lowest layer lies below the lower shoulder. Each half of the prompts is
        measured at the layers that the other half selects; a flat curve then has a depth of 0 on
        average.
    depths : array, shape (n,)
        The depth of each prompt.
    """

    layer: int
    left: int
    right: int
    depth: stats.Estimate
    depths: stats.Floats


def prominences(curve: npt.ArrayLike) -> stats.Floats:
    """Depth of each valley below the lower of its shoulders, 0 at other layers; shape (L,)."""
    values = -np.asarray(curve, dtype=np.float64)
    peaks = scipy.signal.find_peaks(values)[0]
    found = np.zeros(len(values))
    found[peaks] = scipy.signal.peak_prominences(values, peaks)[0]
    return found


def valley(curves: npt.ArrayLike, seed: int = 0) -> Valley:
    """Find the deepest valley of the mean curve and estimate its depth.

    Parameters
    ----------
    curves : array, shape (n, L)
        A row a prompt, L ≥ 3 layers.
    """
    values = np.asarray(curves, dtype=np.float64)
    n = len(values)
    depths = np.full(n, np.nan)
    half = np.random.default_rng(seed).permutation(n) % 2 == 0
    for out in (half, ~half) if n >= stats.FEWEST else ():
        mean = values[~out].mean(axis=0)
        low, left, right = _deepest(mean)
        shoulder = left if mean[left] <= mean[right] else right
        depths[out] = values[out, shoulder] - values[out, low]
    return Valley(*_deepest(values.mean(axis=0)), stats.mean_ci(depths), depths)


def _deepest(curve: stats.Floats) -> tuple[int, int, int]:
    """Layer of the highest prominence, or closest to one, and the highest before and after it."""
    before = np.maximum.accumulate(curve)[:-2]
    after = np.maximum.accumulate(curve[::-1])[::-1][2:]
    low = 1 + int(np.argmax(np.minimum(before, after) - curve[1:-1]))
    return low, int(np.argmax(curve[:low])), low + 1 + int(np.argmax(curve[low + 1 :]))


def dip_test(values: npt.ArrayLike) -> tuple[float, float]:
    """Hartigan's dip and p of a single mode; NaN for fewer than four values or constant ones."""
    from diptest import diptest

    x = np.ascontiguousarray(values, dtype=np.float64)
    if len(x) < 4 or np.ptp(x) == 0:
        return np.nan, np.nan
    dip, p = diptest(x)
    return float(dip), float(p)


def two_groups(values: npt.ArrayLike) -> stats.Flags:
    """Members of the upper of two Gaussian components, shape (n,), for values that vary."""
    from sklearn.mixture import GaussianMixture

    x = np.asarray(values, dtype=np.float64)[:, None]
    mixture = GaussianMixture(2, n_init=3, random_state=0).fit((x - x.mean()) / x.std())
    upper = mixture.predict((x - x.mean()) / x.std()) == int(np.argmax(mixture.means_))
    # The wider component reaches beyond the other on both sides; a group lies on one.
    low, high = sorted(mixture.means_[:, 0] * x.std() + x.mean())
    return np.asarray(np.where((x[:, 0] < low) | (x[:, 0] > high), x[:, 0] > high, upper))


def group_effect(values: npt.ArrayLike, upper: stats.Flags) -> stats.Estimate:
    """Cliff's delta of the upper group against the lower, in [-1, 1], with the Mann-Whitney p.

    The interval is a percentile bootstrap over both groups. NaN with fewer than
    `layerwise.stats.FEWEST` values in a group.
    """
    x = np.asarray(values, dtype=np.float64)
    a, b = x[upper], x[~upper]
    if min(len(a), len(b)) < stats.FEWEST:
        return stats.Estimate(np.nan, np.nan, np.nan, np.nan, np.nan, len(x))

    def delta(one: stats.Floats, other: stats.Floats) -> float:
        u = scipy.stats.mannwhitneyu(one, other, method="asymptotic").statistic
        return float(2 * u / (len(one) * len(other)) - 1)

    found = scipy.stats.bootstrap(
        (a, b),
        delta,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    p = float(scipy.stats.mannwhitneyu(a, b).pvalue)
    low, high = found.confidence_interval
    return stats.Estimate(delta(a, b), low, high, p, found.standard_error, len(x))
