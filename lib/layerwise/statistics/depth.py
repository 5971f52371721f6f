"""Association of two curves over layers, given depth.

Any two smooth curves over the same layers go together more or less, and how much more than chance
cannot be told from one pair of them: the layers of a model are not draws. What one model gives is
therefore a size, with what a smooth curve that knows nothing reaches beside it (`chance_level`);
a p needs several models (`layerwise.statistics.matching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.statistics.tasks import Interval, interval

Floats = npt.NDArray[np.float64]
Measure = Literal["r", "spearman", "kendall", "dcor", "bcdcor"]

FEWEST_LAYERS = 6  # a quadratic in depth and a metric leave two degrees of freedom


@dataclass(frozen=True)
class Beyond:
    """What a metric says of a score that depth does not; arrays of the shape of the scores' rows.

    Attributes
    ----------
    r : array
        Partial correlation given the smooth of depth, in [-1, 1]; its sign is the direction.
    increment : array
        Share of the score's variance over layers that the metric adds to depth, in [0, 1].
    by_depth : array
        Share that the smooth of depth explains, in [0, 1].
    """

    r: Floats
    increment: Floats
    by_depth: Floats


def smooth_of_depth(layers: int) -> Floats:
    """Orthonormal polynomials of depth, constant first: quadratic, cubic from 12 layers on.

    Returns
    -------
    array, shape (layers, degree + 1)
    """
    depth = np.linspace(-1.0, 1.0, layers)
    degree = 2 if layers < 12 else 3
    return np.asarray(np.linalg.qr(np.vander(depth, degree + 1, increasing=True))[0])


def residuals(curves: npt.ArrayLike) -> Floats:
    """Curves with the smooth of depth taken off, shape (..., L) to (..., L)."""
    values = np.asarray(curves, dtype=np.float64)
    if values.shape[-1] < FEWEST_LAYERS:
        raise LayerwiseError(
            f"An association given depth needs {FEWEST_LAYERS} layers; these curves have "
            f"{values.shape[-1]}."
        )
    basis = smooth_of_depth(values.shape[-1])
    return np.asarray(values - (values @ basis) @ basis.T)


def beyond_depth(metric: npt.ArrayLike, scores: npt.ArrayLike) -> Beyond:
    """Partial correlation of a metric with scores, given depth.

    Parameters
    ----------
    metric : array, shape (L,)
    scores : array, shape (L,) or (T, L)
        Curves of which each gets a value.
    """
    y = np.asarray(scores, dtype=np.float64)
    x = _unit(residuals(metric), np.asarray(metric, dtype=np.float64))
    apart = residuals(y)
    r = np.clip(_unit(apart, y) @ x, -1.0, 1.0)
    centred = y - y.mean(axis=-1, keepdims=True)
    total = np.square(centred).sum(axis=-1)
    left = np.divide(
        np.square(apart).sum(axis=-1), total, out=np.ones_like(total), where=total > 0
    )
    return Beyond(r, r**2 * left, 1 - left)


def slope_beyond_depth(
    metric: npt.ArrayLike,
    scores: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
    metric_reliability: float = 1.0,
) -> Interval:
    """Points of score that go with one standard deviation of the metric, depth held fixed.

    The regression of each task's scores on smooth of depth and metric, averaged over tasks. It is
    linear in the scores, so that Student's interval over tasks is right where that of a
    correlation near 1 is not. It says how far other tasks would agree *for this model*, and is no
    test of the metric.

    Parameters
    ----------
    metric : array, shape (L,) or (T, L)
        One curve, or one for each task, on its own texts.
    scores : array, shape (T, L)
    metric_reliability : float
        See `reliability`; the slope is divided by it, for noise in a regressor flattens the line.

    Returns
    -------
    Interval
        In units of the scores, per standard deviation over layers of what depth leaves of the
        metric; 0 for a metric that is a smooth of depth.
    """
    if not 0 < metric_reliability <= 1:
        raise LayerwiseError(
            f"A metric's reliability of {metric_reliability:g} is not in (0, 1]; a curve that is "
            "all error has no slope."
        )
    return interval(slopes_of_tasks(metric, scores) / metric_reliability, sources, level)


def slopes_of_tasks(metric: npt.ArrayLike, scores: npt.ArrayLike) -> Floats:
    """The slope of `slope_beyond_depth` of each task by itself, shape (T,)."""
    x = _unit(residuals(metric), np.asarray(metric, dtype=np.float64))
    y = np.asarray(scores, dtype=np.float64)
    one_sd = np.sqrt(y.shape[-1] - smooth_of_depth(y.shape[-1]).shape[1])
    return np.asarray((residuals(y) * x).sum(axis=-1) / one_sd)


def bias_corrected_dcor(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Bias-corrected squared distance correlation (Székely & Rizzo 2013), in [-1, 1].

    0 in expectation for independent draws, where the plain one reaches .3 with 25. Without a sign
    of its own: give a rank correlation beside it.

    Parameters
    ----------
    x, y : array, shape (n,), n ≥ 4

    Raises
    ------
    LayerwiseError
        For fewer than four layers or curves of different length.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 4:
        raise LayerwiseError(
            f"A bias-corrected distance correlation needs two curves over the same four or more "
            f"layers; these have the shapes {a.shape} and {b.shape}."
        )
    u, v = _u_centred(a), _u_centred(b)
    norm = np.sqrt((u * u).sum() * (v * v).sum())
    return float(np.clip((u * v).sum() / norm, -1.0, 1.0)) if norm > 0 else 0.0


def _u_centred(x: Floats) -> Floats:
    n = len(x)
    d = np.abs(x[:, None] - x[None, :])
    rows = d.sum(axis=1)
    centred = (
        d - rows[:, None] / (n - 2) - rows[None, :] / (n - 2) + rows.sum() / ((n - 1) * (n - 2))
    )
    np.fill_diagonal(centred, 0.0)
    return np.asarray(centred)


@lru_cache(maxsize=256)
def chance_level(
    layers: int, measure: Measure, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> float:
    """The strength that this share of pairs of unrelated curves stays below.

    Curves are Brownian motions over depth, as smooth as a stream that adds up can be expected to
    be. A tick for the eye, not a test: real curves may be smoother, and reach more.

    Parameters
    ----------
    layers : int
    measure : {"r", "spearman", "kendall", "dcor", "bcdcor"}
        "r" is the partial correlation given depth; "dcor" the plain distance correlation, "bcdcor"
        the bias-corrected one. In absolute value.
    """
    from layerwise.association.measures import null_level

    return null_level(measure, layers, level, draws, seed)


def reliability(values: npt.ArrayLike, errors: npt.ArrayLike) -> Floats:
    """Share of a curve's variance over layers that is not error of measurement.

    ``1 - mean(stderr²) / variance over layers`` of what depth leaves, in [0, 1].

    Parameters
    ----------
    values, errors : array, shape (..., L)
        A curve and its standard errors, as independent from layer to layer: the same prompts at
        all layers make errors go together, and the reliability then comes out too low.
    """
    apart = residuals(values)
    layers = apart.shape[-1]
    left = layers - smooth_of_depth(layers).shape[1]
    variance = np.square(apart).sum(axis=-1) / left
    noise = np.square(np.asarray(errors, dtype=np.float64)).mean(axis=-1)
    share = np.divide(noise, variance, out=np.ones_like(variance), where=variance > 0)
    return np.asarray(np.clip(1 - share, 0.0, 1.0))


def without_error(
    r: float, metric_reliability: float, score_reliability: float, lowest: float = 0.3
) -> float:
    """Correlation that the curves would have if both were measured without error (Spearman 1904).

    ``r / sqrt(reliability of x · reliability of y)``, held within [-1, 1]; NaN where either
    reliability is below `lowest`, since the correction then makes more of noise than of signal.
    """
    if min(metric_reliability, score_reliability) < lowest:
        return float("nan")
    return float(np.clip(r / np.sqrt(metric_reliability * score_reliability), -1.0, 1.0))


def _unit(curves: Floats, before: Floats) -> Floats:
    """Curves of unit length; 0 where nothing but rounding of what they were is left."""
    norms = np.linalg.norm(curves, axis=-1, keepdims=True)
    scale = np.linalg.norm(before, axis=-1, keepdims=True)
    some = norms > 1e-10 * np.maximum(scale, 1e-300)
    return np.asarray(np.divide(curves, norms, out=np.zeros_like(curves), where=some))
