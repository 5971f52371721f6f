"""Valleys over layers: where they are, how deep, and whether there is one.

One notion: a layer dips as far as it lies below the lower of its two shoulders, which are the
highest layer before it and the highest after it; the valley is the deepest dip. Three questions
are answered: how deep it is, with an interval that holds wherever it is (`valley`, of every
prompt's curve); how deep it is for each prompt at a place that this prompt had no say in
(`places`, `depths`), so that shares of it can be taken and a flat curve has a depth of 0 on
average; and whether there is one in a curve of which means and errors are all there is
(`of_means`). How they do where the truth is known: docs/studies/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from layerwise.errors import LayerwiseError
from layerwise.statistics.prompts import (
    RESAMPLES,
    Estimate,
    draws_of_means,
    estimate,
    pairwise,
    resampled,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

FEWEST = 8  # prompts
FOLDS = 10
SHALLOW = 0.1  # of a curve's largest absolute value: what is less is no valley of means


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


@dataclass(frozen=True)
class Place:
    """Where a valley is, as nine tenths of the prompts have it.

    Attributes
    ----------
    rows : array of int
        The prompts that had no say in it.
    left, shoulder, low : int
        The highest layer before it, the lower of that and the highest after it, and its lowest.
    """

    rows: Ints
    left: int
    shoulder: int
    low: int


def dips(values: Floats) -> Floats:
    """How far each layer lies below the lower of its shoulders; shape (..., L), ends at -inf.

    A layer's shoulders are the highest layer before it and the highest after it.
    """
    found = np.full(values.shape, -np.inf)
    before = np.maximum.accumulate(values, axis=-1)[..., :-2]
    after = np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1][..., 2:]
    found[..., 1:-1] = np.minimum(before, after) - values[..., 1:-1]
    return found


def lowest(curve: npt.ArrayLike) -> tuple[int, int, int]:
    """Left shoulder, lower shoulder and lowest layer of a curve's deepest dip; L ≥ 3 layers."""
    values = np.asarray(curve, dtype=np.float64)
    low = int(np.argmax(dips(values)))
    left, right = int(np.argmax(values[:low])), low + 1 + int(np.argmax(values[low + 1 :]))
    return left, (left if values[left] <= values[right] else right), low


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
    gaps, errors = pairwise(array)
    draws = draws_of_means(array, seed)
    apart = draws[:, :, None] - draws[:, None, :]
    largest = np.divide(apart, errors, out=np.zeros_like(apart), where=errors > 0).max(axis=(1, 2))
    depth = estimate(gaps, errors, largest, level, _depth)
    layer = int(np.argmax(dips(mean)))
    places = np.argmax(dips(resampled(n, resamples, seed) @ array), axis=1) / (layers - 1)
    low, high = np.quantile(places, [0.025, 0.975])
    return Valley(depth, layer, layer / (layers - 1), float(low), float(high))


def places(values: npt.ArrayLike, *, seed: int = 0) -> list[Place]:
    """Where the valley of the mean curve is, for each tenth of the prompts by the others.

    The lowest layer is the one furthest below the lower of the highest layers before and after it;
    that is its shoulder.

    Parameters
    ----------
    values : array, shape (N, L)
        Of each prompt at each layer, first layer first.

    Raises
    ------
    LayerwiseError
        For fewer than `FEWEST` prompts or three layers.
    """
    array = curves_of(values)
    n = len(array)
    fold = np.random.default_rng(seed).permutation(n) % min(FOLDS, n)
    found = []
    for f in range(fold.max() + 1):
        found.append(Place(np.flatnonzero(fold == f), *lowest(array[fold != f].mean(axis=0))))
    return found


def depths(values: npt.ArrayLike, where: list[Place], *, left: bool = False) -> Floats:
    """How far each prompt's lowest layer lies below the shoulder, both chosen without it; (N,).

    With `left`, below the shoulder on the left: how far the curve falls.
    """
    array = np.asarray(values, dtype=np.float64)
    found = np.full(len(array), np.nan)
    for place in where:
        top = place.left if left else place.shoulder
        found[place.rows] = array[place.rows, top] - array[place.rows, place.low]
    return found


def of_means(
    values: npt.ArrayLike, errors: npt.ArrayLike | None = None, level: float = 0.95
) -> int | None:
    """Layer of the deepest dip of a curve of which only means and standard errors are known.

    It counts where it is deeper than `SHALLOW` of the curve's largest absolute value, and than
    independent errors of measurement let any two layers differ in one direction by chance in
    ``(1 - level) / 2`` of cases (Bonferroni over ordered pairs).

    Parameters
    ----------
    values : array, shape (L,)
        NaN where there is none.
    errors : array, shape (L,), optional
        By default none, and the size alone decides; a layer without one beside others is left out.

    Returns
    -------
    int or None
        Its place; None without such a dip.
    """
    v = np.asarray(values, dtype=np.float64)
    e = np.zeros(len(v)) if errors is None else np.asarray(errors, dtype=np.float64)
    e = e if np.isfinite(e).any() else np.zeros(len(v))
    there = np.flatnonzero(np.isfinite(v) & np.isfinite(e))
    if len(there) < 3:
        return None
    v, e = v[there], e[there]
    _, shoulder, low = lowest(v)
    least = SHALLOW * float(np.abs(v).max())
    tail = (1 - level) / 2 / (len(v) * (len(v) - 1))
    least = max(least, float(stats.norm.isf(tail)) * float(np.hypot(e[low], e[shoulder])))
    return int(there[low]) if v[shoulder] - v[low] > least else None


def _depth(gaps: Floats) -> float:
    layers = len(gaps)
    inside = range(1, layers - 1)
    return float(max(min(gaps[:j, j].max(), gaps[j + 1 :, j].max()) for j in inside))
