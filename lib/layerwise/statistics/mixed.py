"""How much each metric adds beyond depth, over models and tasks, with partial pooling.

The model is ``score = level of (model, task) + smooth of depth + β_m · metric + noise``, with the
smooth free for each model and task, and ``β_m = β`` plus a model's own departure. Its fit comes in
two steps, which for the same smooth at all tasks is that of the mixed model: each model's slope
with its error over tasks (`layerwise.statistics.depth.slope_beyond_depth`), then a random-effects
mean of the slopes (REML for the variance between models; Hartung & Knapp's interval, which holds
its coverage for few models), and each model's own slope drawn towards it by how noisy it is. No
library for mixed models is needed for that, and none has an interval fit for four models.

"Beyond depth" is beyond a polynomial of depth here. A shape that all models share and that is no
polynomial (a step after the first layer) counts as the metric's; only
`layerwise.statistics.matching` is proof against that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.statistics.depth import residuals, slope_beyond_depth, smooth_of_depth
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


def pool(values: npt.ArrayLike, errors: npt.ArrayLike, level: float = 0.95) -> Pooled:
    """Random-effects mean of estimates with known errors.

    Parameters
    ----------
    values, errors : array, shape (M,)
        Estimates of M ≥ 3 models and their standard errors.

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
    factor = float(t.isf((1 - level) / 2, models - 1))
    new = float(t.isf((1 - level) / 2, max(models - 2, 1))) * np.sqrt(between2 + error**2)
    own = mean + between2 / (between2 + s2) * (x - mean)
    p = 2 * float(t.sf(abs(mean) / error, models - 1))
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
    """Points of score per standard deviation of the metric beyond depth, over models.

    The interval is for a mean over models like these, so its width comes from how the slopes of
    the models differ: four models give a wide one, whatever the number of tasks.

    Parameters
    ----------
    metrics : sequence of M arrays, shape (L_m,)
    scores : sequence of M arrays, shape (T, L_m)
        The same tasks in all models.
    """
    slopes, errors = [], []
    for x, y in zip(metrics, scores, strict=True):
        values = np.asarray(y, dtype=np.float64)
        slopes.append(slope_beyond_depth(x, values, sources, level).value)
        errors.append(_error(x, values, sources))
    return pool(slopes, errors, level)


def leave_out_models(metrics: Sequence[npt.ArrayLike], scores: Sequence[npt.ArrayLike]) -> LeftOut:
    """Predict the curve of a model's mean score from the other models, without and with a metric.

    Parameters
    ----------
    metrics, scores : sequences of M arrays, shape (L_m,)
        Each is standardised within its model, and the smooth of depth is that of the others.
    """
    if len(scores) < 3:
        raise LayerwiseError(f"To leave a model out takes three models; these are {len(scores)}.")
    x = [_standardised(m) for m in metrics]
    y = [_standardised(s) for s in scores]
    fits: list[list[float]] = [[], []]
    for out in range(len(y)):
        others = [i for i in range(len(y)) if i != out]
        for which, fit in enumerate(fits):
            rows = np.concatenate([_terms(x[i], bool(which)) for i in others])
            beta = np.linalg.lstsq(rows, np.concatenate([y[i] for i in others]), rcond=None)[0]
            error = y[out] - _terms(x[out], bool(which)) @ beta
            fit.append(float(1 - np.square(error).sum() / np.square(y[out]).sum()))
    return LeftOut(np.array(fits[0]), np.array(fits[1]))


def leave_out_tasks(
    metric: npt.ArrayLike, scores: npt.ArrayLike, groups: Sequence[object] | None = None
) -> LeftOut:
    """Predict the curves of left-out tasks (or groups of them) from the other tasks of one model.

    "Depth" is the smooth fitted to the mean of the other tasks, and with the metric that is added.

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


def _error(metric: npt.ArrayLike, scores: Floats, sources: Sequence[object] | None) -> float:
    x = residuals(metric)
    norm = np.linalg.norm(x)
    layers = scores.shape[1]
    one_sd = np.sqrt(layers - smooth_of_depth(layers).shape[1])
    each = residuals(scores) @ (x / norm) / one_sd if norm > 0 else np.zeros(len(scores))
    return float(mean_and_error(each[:, None], design(len(scores), sources))[1][0])


def _standardised(curve: npt.ArrayLike) -> Floats:
    values = np.asarray(curve, dtype=np.float64)
    scale = values.std()
    return np.asarray((values - values.mean()) / (scale if scale > 0 else 1.0))


def _terms(metric: Floats, with_metric: bool) -> Floats:
    # A quadratic in depth, for models of any number of layers alike.
    smooth = np.vander(np.linspace(-1.0, 1.0, len(metric)), 3, increasing=True)
    return np.column_stack([smooth, metric]) if with_metric else smooth
