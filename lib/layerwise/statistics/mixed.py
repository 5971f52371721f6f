"""How much each metric adds beyond depth, over models and tasks, with partial pooling.

The model is ``score = level of (model, task) + shape over depth + β_m · metric + noise``, where
the shape is one that all models share, whatever it is like, and ``β_m = β`` plus a model's own
departure. Its fit comes in two steps: curves less their mean over models at each depth give a
slope for each model, with its error over tasks; then a random-effects mean of the slopes (REML for
the variance between models; Hartung & Knapp's interval, which holds its coverage for few models),
and each model's own slope drawn towards it by how noisy it is. No library for mixed models is
needed for that, and none has an interval fit for four models.

A polynomial of depth in place of the shared shape would not do: a step after the first layer,
which many metrics and scores have, is none, and 95 of 100 unrelated metrics with one then pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.statistics.matching import on_common_depths
from layerwise.statistics.sampling import design, mean_and_error

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pooled:
    """A mean over models of something estimated in each.

    Attributes
    ----------
    value, low, high, p : float
        The mean in the population of models, its interval, two-sided p of 0.
    between : float
        Standard deviation of the true values between models.
    new_low, new_high : float
        Prediction interval: where the true value of a new model lies.
    own : array, shape (M,)
        Each model's value, drawn towards the mean.
    """

    value: float
    low: float
    high: float
    p: float
    between: float
    new_low: float
    new_high: float
    own: Floats


@dataclass(frozen=True)
class LeftOut:
    """Share of the variance over layers that is predicted where nothing was fitted, R².

    Attributes
    ----------
    depth, with_metric : array, shape (U,)
        Of each unit left out (a model, a task, a type of task); below 0 if worse than its mean.
    """

    depth: Floats
    with_metric: Floats

    @property
    def increment(self) -> Floats:
        """What the metric adds, shape (U,)."""
        return np.asarray(self.with_metric - self.depth)


def pool(
    values: npt.ArrayLike, errors: npt.ArrayLike, level: float = 0.95, lost: int = 1
) -> Pooled:
    """Random-effects mean of estimates with known errors.

    Parameters
    ----------
    values, errors : array, shape (M,)
        Estimates of M ≥ 3 models and their standard errors.
    lost : int
        Degrees of freedom that the M models do not have: 2 for curves less their mean over models.

    Raises
    ------
    LayerwiseError
        For fewer than three models.
    """
    from scipy.optimize import minimize_scalar
    from scipy.stats import t

    x, s2 = np.asarray(values, dtype=np.float64), np.square(np.asarray(errors, dtype=np.float64))
    models = len(x)
    if models < 3 or s2.shape != x.shape:
        raise LayerwiseError(
            f"A mean over models needs three of them, each with an error; these are {models} "
            f"with {len(s2)} errors."
        )
    s2 = np.maximum(s2, 1e-12 * max(float(np.var(x)), float(s2.max()), 1e-300))

    def minus_reml(log_variance: float) -> float:
        weight = 1 / (s2 + np.exp(log_variance))
        mean = (weight * x).sum() / weight.sum()
        return float(
            -np.log(weight).sum() + np.log(weight.sum()) + (weight * (x - mean) ** 2).sum()
        )

    scale = float(np.var(x) + s2.mean())
    bounds = np.log(scale) + np.array([-16.0, 4.0])
    between2 = float(np.exp(minimize_scalar(minus_reml, bounds=bounds, method="bounded").x))
    if between2 < 1e-6 * scale:
        between2 = 0.0
    weight = 1 / (s2 + between2)
    mean = float((weight * x).sum() / weight.sum())
    spread = float((weight * (x - mean) ** 2).sum() / (models - 1))
    # Hartung & Knapp's factor may be below 1 by luck; never shorter than the normal error.
    error = float(np.sqrt(max(spread, 1.0) / weight.sum()))
    factor = float(t.isf((1 - level) / 2, models - lost))
    new = float(t.isf((1 - level) / 2, max(models - lost - 1, 1)))
    new *= np.sqrt(between2 + error**2)
    own = mean + between2 / (between2 + s2) * (x - mean)
    p = 2 * float(t.sf(abs(mean) / error, models - lost))
    return Pooled(
        mean, mean - factor * error, mean + factor * error, p, float(np.sqrt(between2)),
        mean - new, mean + new, own,
    )  # fmt: skip


def beyond_depth_over_models(
    metrics: Sequence[npt.ArrayLike],
    scores: Sequence[npt.ArrayLike],
    sources: Sequence[object] | None = None,
    level: float = 0.95,
) -> Pooled:
    """Points of score per standard deviation of the metric, beyond what models share over depth.

    The interval is for a mean over models like these, so its width comes from how the slopes of
    the models differ: four models give a wide one, whatever the number of tasks.

    Parameters
    ----------
    metrics : sequence of M ≥ 4 arrays, shape (L_m,)
        Each is put to unit standard deviation over its layers.
    scores : sequence of M arrays, shape (T, L_m)
        The same tasks in all models.
    sources : sequence, length T, optional
        Text source of each task.

    Raises
    ------
    LayerwiseError
        For fewer than four models.
    """
    if len(metrics) < 4:
        raise LayerwiseError(
            f"What a metric adds to the shape that models share takes four of them; these are "
            f"{len(metrics)}."
        )
    points = min(np.shape(m)[-1] for m in metrics)
    x = _apart(on_common_depths([_standardised(m) for m in metrics], points))
    y = _apart(on_common_depths(scores, points))
    each = np.einsum("mp,mtp->mt", x, y) / max(float(np.square(x).sum(axis=1).mean()), 1e-300)
    slopes, errors = mean_and_error(each[:, :, None], design(each.shape[1], sources))
    return pool(slopes[:, 0], errors[:, 0], level, lost=2)


def reliability_over_models(
    metrics: Sequence[npt.ArrayLike], errors: Sequence[npt.ArrayLike]
) -> float:
    """Share of what `beyond_depth_over_models` regresses on that is not error of measurement.

    Errors in a metric flatten its slope by this share, and leave the test of a slope of 0 as it
    is: the slope divided by it is that of a metric known without error (Fuller 1987, section 1.1).

    Parameters
    ----------
    metrics, errors : sequences of M arrays, shape (L_m,)
        Curves and their standard errors, as independent from layer to layer. Those of the same
        prompts go together, and what they share over depth drops out of the slope: the share then
        comes out too low.

    Returns
    -------
    float
        In [0, 1]; NaN where an error is unknown.
    """
    points = min(np.shape(m)[-1] for m in metrics)
    x = _apart(on_common_depths([_standardised(m) for m in metrics], points))
    scales = [max(float(np.asarray(m, dtype=np.float64).std()), 1e-300) for m in metrics]
    scaled = [np.asarray(e) / s for e, s in zip(errors, scales, strict=True)]
    # Each model's own level and the mean over models take their share of the noise with them.
    noise = float(np.square(on_common_depths(scaled, points)).sum(axis=-1).mean())
    noise *= (1 - 1 / points) * (1 - 1 / len(metrics))
    total = float(np.square(x).sum(axis=-1).mean())
    return float(np.clip(1 - noise / max(total, 1e-300), 0.0, 1.0))


def leave_out_models(metrics: Sequence[npt.ArrayLike], scores: Sequence[npt.ArrayLike]) -> LeftOut:
    """Predict the curve of a model's mean score from the other models, without and with a metric.

    "Depth" is the mean curve of the others. With the metric, its departure from the mean metric of
    the others is added, times the slope that the others have among themselves.

    Parameters
    ----------
    metrics, scores : sequences of M ≥ 4 arrays, shape (L_m,)
        Each is standardised within its model.

    Raises
    ------
    LayerwiseError
        For fewer than four models.
    """
    if len(scores) < 4:
        raise LayerwiseError(f"To leave a model out takes four models; these are {len(scores)}.")
    points = min(np.shape(m)[-1] for m in metrics)
    x = on_common_depths([_standardised(m) for m in metrics], points)
    y = on_common_depths([_standardised(s) for s in scores], points)
    fits = np.empty((2, len(y)))
    for out in range(len(y)):
        others = np.arange(len(y)) != out
        u, v = _apart(x[others]), _apart(y[others])
        slope = (u * v).sum() / max(float(np.square(u).sum()), 1e-300)
        shape = y[others].mean(axis=0)
        more = slope * (x[out] - x[others].mean(axis=0))
        total = np.square(y[out] - y[out].mean()).sum()
        for row, fit in enumerate((shape, shape + more)):
            fits[row, out] = 1 - np.square(y[out] - fit).sum() / total
    return LeftOut(fits[0], fits[1])


def leave_out_tasks(
    metric: npt.ArrayLike, scores: npt.ArrayLike, groups: Sequence[object] | None = None
) -> LeftOut:
    """Predict the curves of left-out tasks (or groups of them) from the other tasks of one model.

    "Depth" is a quadratic fitted to the mean of the other tasks; with the metric, that is added.
    For one model; says nothing of others.

    Parameters
    ----------
    metric : array, shape (L,)
    scores : array, shape (T, L)
    groups : sequence, length T, optional
        What is left out at a time: text sources, types of task. By default each task.
    """
    values = np.asarray(scores, dtype=np.float64)
    values = values - values.mean(axis=1, keepdims=True)
    names = list(range(len(values))) if groups is None else list(groups)
    x = _standardised(metric)
    found: list[list[float]] = [[], []]
    for group in dict.fromkeys(names):
        out = np.array([n == group for n in names])
        if out.all():
            raise LayerwiseError("All tasks are of one group, and none is left to fit.")
        for which, part in enumerate(found):
            rows = _terms(x, bool(which))
            fit = rows @ np.linalg.lstsq(rows, values[~out].mean(axis=0), rcond=None)[0]
            total = np.square(values[out]).sum()
            part.append(float(1 - np.square(values[out] - fit).sum() / total))
    return LeftOut(np.array(found[0]), np.array(found[1]))


def _apart(curves: Floats) -> Floats:
    """Curves of models, shape (M, ..., P), less each one's level and the mean over models."""
    centred = curves - curves.mean(axis=-1, keepdims=True)
    return np.asarray(centred - centred.mean(axis=0))


def _standardised(curve: npt.ArrayLike) -> Floats:
    values = np.asarray(curve, dtype=np.float64)
    scale = values.std()
    return np.asarray((values - values.mean()) / (scale if scale > 0 else 1.0))


def _terms(metric: Floats, with_metric: bool) -> Floats:
    # A quadratic in depth, for models of any number of layers alike.
    smooth = np.vander(np.linspace(-1.0, 1.0, len(metric)), 3, increasing=True)
    return np.column_stack([smooth, metric]) if with_metric else smooth
