"""What a sample of prompts tells of a curve over layers, and of the difference of two curves.

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
FEWEST = 8  # prompts


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


@dataclass(frozen=True)
class Valley:
    """The dip of a curve over layers.

    Attributes
    ----------
    depth : Estimate
        How far the lowest layer inside lies below the lower of its two shoulders, in the units of
        the curve; below 0 for a curve without a dip.
    layer, place : int, float
        Where the dip is: the layer, and 0 (first layer) to 1 (last).
    place_low, place_high : float
        95 % bootstrap interval of the place over prompts.
    """

    depth: Estimate
    layer: int
    place: float
    place_low: float
    place_high: float


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


def dips(values: Floats) -> Floats:
    """How far each layer lies below the lower of its shoulders; shape (..., L), ends at -inf.

    A layer's shoulders are the highest layer before it and the highest after it.
    """
    found = np.full(values.shape, -np.inf)
    before = np.maximum.accumulate(values, axis=-1)[..., :-2]
    after = np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1][..., 2:]
    found[..., 1:-1] = np.minimum(before, after) - values[..., 1:-1]
    return found


def curves_of(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A curve of each prompt over layers, shape (N, L), of which a valley can be looked for.

    Raises
    ------
    LayerwiseError
        For fewer than `FEWEST` prompts or three layers.
    """
    array = np.asarray(values, dtype=np.float64)
    n, layers = array.shape
    if n < FEWEST or layers < 3:
        raise LayerwiseError(
            f"A valley is looked for over three layers and {FEWEST} prompts or more; "
            f"{layers} layers and {n} prompts came."
        )
    return array


def valley(
    values: npt.ArrayLike, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
) -> Valley:
    """The dip of the mean curve: its depth and place with intervals.

    The depth is made of differences between layers, ``max_j min(max_{a<j} d_aj, max_{b>j} d_bj)``
    with ``d_aj = m_a - m_j``; an interval that holds for all pairs of layers together holds for
    it, wherever the dip is.

    Parameters
    ----------
    values : array, shape (N, L)
        Of each prompt at each layer, first layer first.
    level : float
        Confidence of the depth's interval.

    Raises
    ------
    LayerwiseError
        For fewer than `FEWEST` prompts or three layers.
    """
    array = curves_of(values)
    n, layers = array.shape
    mean = array.mean(axis=0)
    gaps, errors = _gaps(array)
    draws = _draws(array, seed)
    apart = draws[:, :, None] - draws[:, None, :]
    largest = np.divide(apart, errors, out=np.zeros_like(apart), where=errors > 0).max(axis=(1, 2))
    depth = _estimate(gaps, errors, largest, level, _depth)
    layer = int(np.argmax(dips(mean)))
    places = np.argmax(dips(resampled(n, resamples, seed) @ array), axis=1) / (layers - 1)
    low, high = np.quantile(places, [0.025, 0.975])
    return Valley(depth, layer, layer / (layers - 1), float(low), float(high))


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
    gaps, errors = _gaps(array)
    draws = _draws(array, seed)
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


def _gaps(values: Floats) -> tuple[Floats, Floats]:
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
    draws = _draws(array, seed)
    most = np.divide(draws, errors, out=np.zeros_like(draws), where=errors > 0).max(axis=1)
    return _estimate(mean, errors, most, level, np.max), int(mean.argmax())


def _depth(gaps: Floats) -> float:
    layers = len(gaps)
    inside = range(1, layers - 1)
    return float(max(min(gaps[:j, j].max(), gaps[j + 1 :, j].max()) for j in inside))


def _draws(values: Floats, seed: int) -> Floats:
    """Errors of the mean as they may be: multivariate t with the prompts' covariance."""
    n = len(values)
    rng = np.random.default_rng(seed)
    centred = (values - values.mean(axis=0)) / np.sqrt(n * (n - 1))
    scale = np.sqrt(rng.chisquare(n - 1, size=(DRAWS, 1)) / (n - 1))
    return np.asarray(rng.normal(size=(DRAWS, n)) @ centred / scale)


def _estimate(
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
