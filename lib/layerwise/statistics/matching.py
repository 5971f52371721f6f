"""Does a metric's curve know which model's scores it belongs to?

All models share a shape over depth, so a metric goes with the scores of *another* model nearly as
well as with those of its own. What a metric knows beyond depth shows when the two are matched: the
curves of metric and score, less their mean over models at each depth, are set against one another,
and the strength is compared with that under all permutations of which model's scores meet which
model's metric. That null is exact wherever models can be exchanged, whatever the curves are like:
smooth, trended or monotone.

The same holds for any other unit in the place of a model: the tasks of one model, each with the
metric of its own texts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]

FEWEST_MODELS = 6
"""With 5 the test exists (120 permutations), and misses an r of .5 in most cases."""


@dataclass(frozen=True)
class Match:
    """Strength of k metrics and its p, arrays of shape (k,).

    Attributes
    ----------
    value
        Mean over models of the correlation between a model's metric and its own scores, both less
        the mean curve over models; in [-1, 1], and about 0 for a metric that knows no more than
        depth.
    strangers
        The same with the scores of other models.
    p
        Two-sided permutation p of each metric by itself; NaN where there is none.
    p_all
        Corrected for all metrics at once (largest strength over metrics, single step, Westfall &
        Young 1993).
    reason : str
        Why there is no p; empty where there is.
    models : int
    """

    value: Floats
    strangers: Floats
    p: Floats
    p_all: Floats
    reason: str
    models: int


def on_common_depths(curves: Sequence[npt.ArrayLike], points: int | None = None) -> Floats:
    """Curves of models with different numbers of layers, interpolated at the same depths.

    Parameters
    ----------
    curves : sequence of M arrays, shape (..., L_m)
    points : int, optional
        By default the smallest number of layers.

    Returns
    -------
    array, shape (M, ..., points)
    """
    arrays = [np.asarray(c, dtype=np.float64) for c in curves]
    points = points or min(a.shape[-1] for a in arrays)
    at = np.linspace(0.0, 1.0, points)
    return np.stack(
        [
            np.apply_along_axis(lambda c: np.interp(at, np.linspace(0, 1, len(c)), c), -1, a)
            for a in arrays
        ]
    )


def match(
    metrics: npt.ArrayLike,
    scores: npt.ArrayLike,
    strata: Sequence[object] | None = None,
    *,
    permutations: int = 5000,
    fewest: int = FEWEST_MODELS,
    seed: int = 0,
) -> Match:
    """Set the curves of metrics against those of the scores, model by model.

    Parameters
    ----------
    metrics : array, shape (k, M, P)
        k metrics (or readings of them) of M models at P common depths.
    scores : array, shape (M, P) or (k, M, P)
        Mean score over tasks; of each reading where readings have scores of their own.
    strata : sequence, length M, optional
        Models are exchanged within a stratum only (a family, a type of task).
    permutations : int
        All permutations are taken if there are no more than these, else so many at random.
    fewest : int
        With fewer models there is a value, and no p.

    Raises
    ------
    LayerwiseError
        If the shapes do not go together, or a value is not finite.
    """
    x = np.asarray(metrics, dtype=np.float64)
    y = np.asarray(scores, dtype=np.float64)
    if x.ndim != 3 or y.shape[-2:] != x.shape[1:] or (y.ndim == 3 and len(y) != len(x)):
        raise LayerwiseError(
            f"Metrics of shape (k, models, depths) and scores of shape (models, depths) are "
            f"wanted; these are {x.shape} and {y.shape}."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise LayerwiseError("A curve to be matched holds a NaN or infinity; leave it out.")
    models = x.shape[1]
    u, v = apart_from_mean(x), apart_from_mean(y)
    v = np.broadcast_to(v, u.shape)
    table = np.einsum("kip,kjp->kij", u, v)
    own = np.arange(models)
    value = table[:, own, own].mean(axis=1)
    strangers = (table.sum(axis=(1, 2)) - value * models) / max(models * (models - 1), 1)
    none = np.full(len(x), np.nan)
    groups = [0] * models if strata is None else list(strata)
    orders, exact = _orders(groups, permutations, np.random.default_rng(seed))
    if models < fewest or len(orders) < 40:
        reason = (
            f"{models} models, where a test of which scores belong to which metric needs {fewest}"
            if models < fewest
            else f"only {len(orders)} ways to exchange models within their groups"
        )
        return Match(value, strangers, none, none, reason, models)
    null = np.abs(table[:, own, orders].mean(axis=2))
    observed = np.abs(value)
    p = _p(observed, null, exact)
    # Metrics differ in how far they reach by chance; on the scale of their own spread they are
    # on a par.
    scale = np.sqrt(np.square(null).mean(axis=1))
    scale = np.where(scale > 0, scale, 1.0)
    largest = (null / scale[:, None]).max(axis=0)
    p_all = _p(observed / scale, np.broadcast_to(largest, null.shape), exact)
    return Match(value, strangers, p, p_all, "", models)


def apart_from_mean(curves: Floats) -> Floats:
    """Curves to unit variance each, less their mean over models, to unit length; (..., M, P)."""
    centred = curves - curves.mean(axis=-1, keepdims=True)
    apart = _unit(centred)
    return _unit(apart - apart.mean(axis=-2, keepdims=True))


def _unit(curves: Floats) -> Floats:
    norms = np.linalg.norm(curves, axis=-1, keepdims=True)
    return np.asarray(np.divide(curves, norms, out=np.zeros_like(curves), where=norms > 1e-12))


def _p(observed: Floats, null: Floats, exact: bool) -> Floats:
    reached = (null >= observed[:, None] - 1e-12).sum(axis=1)
    count = null.shape[1]
    return np.asarray(reached / count if exact else (1 + reached) / (1 + count))


def _orders(
    groups: Sequence[object], count: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.intp], bool]:
    """Orders of the models within groups, all of them or a sample."""
    members = [[i for i, g in enumerate(groups) if g == group] for group in dict.fromkeys(groups)]
    if math.prod(math.factorial(len(m)) for m in members) <= count:
        rows = []
        for parts in itertools.product(*(itertools.permutations(m) for m in members)):
            order = np.empty(len(groups), dtype=np.intp)
            for own, part in zip(members, parts, strict=True):
                order[own] = part
            rows.append(order)
        return np.array(rows), True
    orders = np.tile(np.arange(len(groups)), (count, 1))
    for own in members:
        orders[:, own] = rng.permuted(orders[:, own], axis=1)
    return orders, False
