"""How many models, layers and tasks it takes to see something of a size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layerwise.statistics.matching import match

Floats = npt.NDArray[np.float64]


def smooth_curves(count: int, layers: int, rng: np.random.Generator) -> Floats:
    """Brownian motions over depth, the curves that power is worked out for, (count, layers)."""
    return np.asarray(np.cumsum(rng.normal(size=(count, layers)), axis=1) / np.sqrt(layers))


def power_of_matching(
    models: int,
    layers: int,
    r: float,
    *,
    metrics: int = 1,
    alpha: float = 0.05,
    repeats: int = 400,
    seed: int = 0,
) -> float:
    """Chance that `match` finds a metric whose curve goes with the scores at r beyond depth.

    Parameters
    ----------
    models, layers : int
    r : float
        Correlation of the departures of metric and score from the curve that models share.
    metrics : int
        How many are tried; the others know nothing, and the corrected p counts.

    Returns
    -------
    float
        0 to 1; 0 where there are too few models for a test.
    """
    rng = np.random.default_rng(seed)
    found = 0
    for repeat in range(repeats):
        g = smooth_curves(models, layers, rng)
        x = smooth_curves(models * metrics, layers, rng).reshape(metrics, models, layers)
        x[0] = r * g + np.sqrt(1 - r * r) * x[0]
        p = match(x, g, permutations=999, seed=repeat).p_all[0]
        found += bool(p <= alpha)
    return found / repeats


def power_of_gain(
    tasks: int, gain: float, spread: float, *, layers: int = 1, alpha: float = 0.05
) -> float:
    """Chance that an interval over tasks leaves 0 out.

    Parameters
    ----------
    tasks : int
    gain, spread : float
        True mean lead of a layer and its standard deviation between tasks, in the same units.
    layers : int
        From how many rivals the layer is chosen by the same tasks; corrected as if independent
        (Bonferroni), so that the power for smooth curves is higher.
    """
    from scipy.stats import nct, t

    if tasks < 2:
        return 0.0
    df = tasks - 1
    critical = t.isf(alpha / 2 / max(layers, 1), df)
    return float(nct.sf(critical, df, gain / spread * np.sqrt(tasks)))


def tasks_for_gain(
    gain: float, spread: float, *, layers: int = 1, power: float = 0.8, most: int = 2000
) -> int | None:
    """Fewest tasks that give `power_of_gain` this power; None if `most` are too few."""
    low, high = 2, most
    if power_of_gain(high, gain, spread, layers=layers) < power:
        return None
    while low < high:
        middle = (low + high) // 2
        if power_of_gain(middle, gain, spread, layers=layers) >= power:
            high = middle
        else:
            low = middle + 1
    return low
