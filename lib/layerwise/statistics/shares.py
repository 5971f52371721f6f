"""The share of one thing that goes with another, prompt by prompt.

How the interval does where the truth is known: tests/calibration/test_shares.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layerwise.statistics.tasks import Interval, interval


def share(parts: npt.ArrayLike, wholes: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Mean of the parts over mean of the wholes, prompts being draws: Fieller's interval (1954).

    Parameters
    ----------
    parts, wholes : array, shape (N,)
        Of the same prompts.

    Returns
    -------
    Interval
        `p` is that of a share of 0. Where the mean of the wholes cannot be told from 0, the ends
        are infinite.
    """
    from scipy.stats import t as student

    a, b = (np.asarray(v, dtype=np.float64) for v in (parts, wholes))
    n = len(a)
    p = interval(a).p
    covariance = np.cov(np.stack([a, b]), ddof=1) / n
    critical = float(student.ppf((1 + level) / 2, n - 1)) ** 2
    x, y = a.mean(), b.mean()
    # Shares r for which mean(a - r b) cannot be told from 0: a quadratic in r.
    square = y**2 - critical * covariance[1, 1]
    middle = x * y - critical * covariance[0, 1]
    rest = x**2 - critical * covariance[0, 0]
    if square <= 0:
        return Interval(float(x / y) if y else float("nan"), -np.inf, np.inf, p)
    half = float(np.sqrt(max(middle**2 - square * rest, 0.0)))
    low, high = (float((middle + side * half) / square) for side in (-1, 1))
    return Interval(float(x / y), low, high, p)
