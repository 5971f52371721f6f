"""Layers compared over a sample of tasks: intervals, bands, the best layer, equivalence.

All of it is about *differences* from one reference (the output that a model hands its users):
tasks differ far more in level than layers do, and a difference within a task is free of that.
Intervals are Student's, not percentiles of a bootstrap, which are too short for few tasks;
whatever is said of several layers at once, or of the layer that came out best, pays for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.statistics.sampling import (
    DRAWS,
    Design,
    design,
    draws_like,
    mean_and_covariance,
    mean_and_error,
    ratio,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Interval:
    """An estimate of a mean over tasks.

    Attributes
    ----------
    value, low, high : float
        Estimate and confidence interval.
    p : float
        Two-sided, of a mean of 0. In (0, 1].
    """

    value: float
    low: float
    high: float
    p: float

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval leaves out 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class Band:
    """Means over tasks of several layers at once; arrays of shape (L,).

    Attributes
    ----------
    value
        Mean of each layer.
    low, high
        Interval of each layer by itself.
    band_low, band_high
        Simultaneous band: all layers lie within with the confidence of the band.
    """

    value: Floats
    low: Floats
    high: Floats
    band_low: Floats
    band_high: Floats

    def within(self, low: float, high: float) -> Band:
        """The same with all ends held within the range of the scores.

        The true mean lies in that range, so what is cut off never held it, and coverage is that
        of the whole interval.
        """
        ends = (self.low, self.high, self.band_low, self.band_high)
        return Band(self.value, *(np.clip(e, low, high) for e in ends))


@dataclass(frozen=True)
class Gain:
    """What the layer chosen on these tasks brings on a new task.

    Attributes
    ----------
    layer : int
        Place of the layer with the highest mean over all tasks.
    value : float
        Mean over tasks of the chosen layer's lead over the reference on the task that was left
        out of the choice. Unbiased for a choice by T - 1 tasks.
    low, high : float
        Interval for the lead of `layer` on the population of tasks. The choice is part of it.
    apparent : float
        The lead on the very tasks that the layer was chosen by, too high on average.
    rivals : int
        How many layers the choice was between, as far as these tasks tell; see `best_set`.
    """

    layer: int
    value: float
    low: float
    high: float
    apparent: float
    rivals: int

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval leaves out 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def interval(
    differences: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
) -> Interval:
    """Student's interval of a mean over tasks.

    Parameters
    ----------
    differences : array, shape (T,)
        Of each task, for layers that were *not* chosen by these tasks.
    sources : sequence, length T, optional
        Text source of each task, see `layerwise.statistics.sampling`.
    level : float
        Confidence.

    Raises
    ------
    LayerwiseError
        For fewer than two sources, or values that are not finite.
    """
    values = _matrix(np.asarray(differences, dtype=np.float64)[:, None])
    how = design(len(values), sources)
    mean, error = mean_and_error(values, how)
    half = how.critical((1 - level) / 2) * float(error[0])
    p = 2 * float(how.exceeds(np.abs(ratio(mean, error)))[0])
    value = float(mean[0])
    return Interval(value, value - half, value + half, min(p, 1.0))


def band(
    differences: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Band:
    """Intervals of several layers, one by one and all at once.

    The simultaneous band uses the distribution of the largest |t| over layers, drawn with the
    covariance that the tasks show (parametric bootstrap of the maximum).

    Parameters
    ----------
    differences : array, shape (T, L)
        Score of each task and layer less that of the reference (or less the task's own mean over
        layers, times sqrt(L / (L - 1)), for a band about the curve itself).
    """
    values = _matrix(differences)
    how = design(len(values), sources)
    mean, error = mean_and_error(values, how)
    least = how.critical((1 - level) / 2)
    one = least * error
    rng = np.random.default_rng(seed)
    drawn = mean_and_error(draws_like(values, how, DRAWS, rng), how)
    largest = np.abs(_finite_ratio(*drawn, error)).max(axis=1)
    wide = max(float(np.quantile(largest, level)), least) * error
    return Band(mean, mean - one, mean + one, mean - wide, mean + wide)


def within_tasks(scores: npt.ArrayLike) -> Floats:
    """Scores with differences in level between tasks taken off, for a band about the mean curve.

    Each task's mean over layers is moved to the mean of all tasks, and deviations widened by
    sqrt(L / (L - 1)) for that (Cousineau 2005; Morey 2008). Shape (T, L) to (T, L).
    """
    values = _matrix(scores)
    layers = values.shape[1]
    mean = values.mean(axis=0)
    apart = values - mean
    apart -= apart.mean(axis=1, keepdims=True)
    return np.asarray(mean + apart * np.sqrt(layers / max(layers - 1, 1)))


def best_set(
    scores: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Flags:
    """The layers that may be the best: together they hold the best one with this confidence.

    Layer l is kept unless another leads it by more than chance would let the largest of all leads
    over l be (a multiple comparison with the best, Hsu 1984, with the covariance that the tasks
    show, as in a model confidence set).

    Parameters
    ----------
    scores : array, shape (T, L)

    Returns
    -------
    array of bool, shape (L,)
        The layer with the highest mean is always among them.
    """
    values = _matrix(scores)
    how = design(len(values), sources)
    return _best_set(values, how, level, np.random.default_rng(seed))


def gain_new_task(
    scores: npt.ArrayLike,
    reference: npt.ArrayLike,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Gain:
    """The lead over the reference, on a new task, of the layer that these tasks choose.

    The estimate leaves each source of texts out in turn, chooses the layer by the others, and
    reads its lead off what was left out. The interval's upper end is Student's; its lower end
    allows for the choice: the lead of the best of the layers that may be the best (`best_set`),
    were they all equal. Where one layer stands out, that is Student's too.

    Parameters
    ----------
    scores : array, shape (T, L)
        The layers to choose from.
    reference : array, shape (T,)
        What to compare with, as a rule the model's output.

    Raises
    ------
    LayerwiseError
        For fewer than two sources, or values that are not finite.
    """
    leads = _matrix(np.asarray(scores, dtype=np.float64) - np.asarray(reference)[:, None])
    how = design(len(leads), sources)
    rng = np.random.default_rng(seed)
    mean, error = mean_and_error(leads, how)
    best = int(mean.argmax())
    tail = (1 - level) / 2
    rivals = _best_set(leads, how, 1 - tail, rng)
    upper = how.critical(tail)
    lower = upper
    if rivals.sum() > 1:
        drawn_mean, drawn_error = mean_and_error(
            draws_like(leads[:, rivals], how, DRAWS, rng), how
        )
        winner = drawn_mean.argmax(axis=1)[:, None]
        t_winner = _finite_ratio(drawn_mean, drawn_error, error[rivals])
        lower = max(
            lower, float(np.quantile(np.take_along_axis(t_winner, winner, axis=1), 1 - tail))
        )
    apparent, value = float(mean[best]), _left_out(leads, how)
    return Gain(
        layer=best,
        value=value,
        # The estimate is noisier than the choice where layers are equal; it stays inside.
        low=min(value, apparent - lower * float(error[best])),
        high=max(value, apparent + upper * float(error[best])),
        apparent=apparent,
        rivals=int(rivals.sum()),
    )


def regret(
    scores: npt.ArrayLike,
    pick: int,
    sources: Sequence[object] | None = None,
    level: float = 0.95,
    seed: int = 0,
    top: float = np.inf,
) -> Interval:
    """How far the picked layer lies below the best one, on the population of tasks.

    ``max_l μ_l - μ_pick``, at least 0, with the interval of Hsu's comparison with the best: from
    the largest of the lower to the largest of the upper ends of a simultaneous band over the
    leads of all layers over the pick. Its coverage is no less than stated, and more where many
    layers are about equally good. The value is the plain difference, too high on average; what is
    lost on a new task by not choosing on labelled ones is `gain_new_task` with the pick as the
    reference.

    No layer can lead by more than the pick lies below the highest score there is, so the upper end
    is at most `top` less the lower end of the pick's own mean.

    Parameters
    ----------
    scores : array, shape (T, L)
    pick : int
        A layer that was chosen without these scores.
    top : float
        The highest score that a task can have.
    """
    values = _matrix(scores)
    leads = values - values[:, [pick]]
    found = band(leads, sources, level, seed)
    value, room = float(found.value.max()), top - interval(values[:, pick], sources, level).low
    return Interval(
        value=value,
        low=max(0.0, float(found.band_low.max())),
        high=max(min(float(found.band_high.max()), room), value),
        p=float("nan"),
    )


def equivalent(
    differences: npt.ArrayLike,
    margin: float,
    sources: Sequence[object] | None = None,
) -> Floats:
    """p of "differs from the reference by more than the margin", for each layer.

    Two one-sided t tests (Schuirmann 1987): a small p says that the layer is as good as the
    reference, give or take the margin.

    Parameters
    ----------
    differences : array, shape (T, L)
        Score less that of the reference.
    margin : float
        Above 0, in units of the score.

    Returns
    -------
    array, shape (L,)
        In (0, 1], of each layer by itself. Going from the last layer towards the first and
        stopping at the first p above .05 needs no further correction (a fixed sequence).
    """
    if not margin > 0:
        raise LayerwiseError(f"The margin of an equivalence is {margin:g}; give one above 0.")
    values = _matrix(differences)
    how = design(len(values), sources)
    mean, error = mean_and_error(values, how)
    above = how.exceeds(ratio(mean + margin, error))
    below = how.exceeds(ratio(margin - mean, error))
    return np.asarray(np.maximum(above, below))


def _best_set(values: Floats, how: Design, level: float, rng: np.random.Generator) -> Flags:
    mean, covariance = mean_and_covariance(values, how)
    drawn_mean, drawn_covariance = mean_and_covariance(
        draws_like(values, how, DRAWS // 2, rng), how
    )
    scale = np.sqrt(np.maximum(np.diagonal(covariance), 0))
    kept = np.empty(len(mean), dtype=bool)
    for layer in range(len(mean)):
        lead = mean - mean[layer]
        observed = _finite_ratio(lead, _error_of_lead(covariance, layer), scale).max()
        drawn = _finite_ratio(
            drawn_mean - drawn_mean[:, [layer]], _error_of_lead(drawn_covariance, layer), scale
        ).max(axis=1)
        kept[layer] = observed <= np.quantile(drawn, level)
    kept[int(mean.argmax())] = True
    return kept


def _error_of_lead(covariance: Floats, layer: int) -> Floats:
    own = np.diagonal(covariance, axis1=-2, axis2=-1)
    variance = own + own[..., [layer]] - 2 * covariance[..., layer, :]
    return np.sqrt(np.maximum(variance, 0.0))


def _finite_ratio(values: Floats, errors: Floats, scale: Floats) -> Floats:
    """Value over error, 0 where the error is no more than rounding of `scale`."""
    some = errors > 1e-9 * max(float(np.max(scale)), 1e-300)
    return np.divide(values, errors, out=np.zeros_like(values), where=some)


def _left_out(leads: Floats, how: Design) -> float:
    """Mean lead, on each source left out, of the layer that the others choose."""
    of_source = how.members @ leads
    sizes = how.members.sum(axis=1)
    others = (leads.sum(axis=0) - of_source) / (how.tasks - sizes)[:, None]
    chosen = others.argmax(axis=1)
    return float(of_source[np.arange(len(chosen)), chosen].sum() / how.tasks)


def _matrix(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise LayerwiseError(
            f"Scores of shape (tasks, layers) are wanted, these have the shape {array.shape}."
        )
    if not np.isfinite(array).all():
        raise LayerwiseError(
            f"{int((~np.isfinite(array)).sum())} of {array.size} scores are NaN or infinite; "
            "leave those tasks or layers out."
        )
    return array
