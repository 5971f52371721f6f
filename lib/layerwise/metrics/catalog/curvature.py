"""Curvature: mean turning angle of the path of a prompt's token states."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, as_numpy, check_matrix
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt, metric


def turning_angles(Z: npt.ArrayLike) -> Array:
    """Angles between successive differences of paths.

    ``v_k = z_{k+1} - z_k``; ``arccos(clamp(cos(v_{k+1}, v_k), -1, 1))`` (Hosseini & Fedorenko
    2023).

    Differences are taken first: from inner products of the states, small steps between large
    states would be lost. All is float64; the extraction has the same in float32 where that
    suffices (`layerwise.activations.eigen`).

    Parameters
    ----------
    Z : array, shape (..., T, D)
        T ≥ 3.

    Returns
    -------
    array, shape (..., T - 2), float64
        In radians, 0 to π; NaN where one of the two differences is zero.
    """
    states = as_numpy(Z).astype(np.float64, copy=False)
    steps = states[..., 1:, :] - states[..., :-1, :]
    lengths = np.sqrt(np.vecdot(steps, steps))
    dots = np.vecdot(steps[..., 1:, :], steps[..., :-1, :])
    with np.errstate(all="ignore"):
        cosine = dots / lengths[..., 1:] / lengths[..., :-1]
    return np.asarray(np.arccos(np.clip(cosine, -1.0, 1.0)))


def curvature(Z: npt.ArrayLike) -> float:
    """Mean turning angle of one prompt's token states (Hosseini & Fedorenko 2023).

    Parameters
    ----------
    Z : array, shape (T, D)

    Returns
    -------
    float
        In radians, 0 (a straight line) to π. Angles next to a repeated state are
        left out, because it has no direction.

    Raises
    ------
    UndefinedMetricError
        If there is no angle: fewer than three states, or all equal.

    Examples
    --------
    >>> curvature([[0, 0], [1, 0], [1, 1]])  # one right angle: π / 2
    1.5707963267948966
    """
    angles = turning_angles(check_matrix(Z))
    defined = angles[np.isfinite(angles)]
    if not defined.size:
        raise UndefinedMetricError(
            "Curvature needs three states with two different steps between them."
        )
    return float(defined.mean())


@metric(
    label="Curvature",
    unit="rad",
    direction=-1,
    range="0 to π",
    source="Hosseini & Fedorenko 2023; Skean et al. 2025",
    inputs=("curvature",),
    per_prompt=True,
    function=curvature,
    normalizations={"reference": ("raw", "logD")},
    note="Under ``reference``: of the centred unit rows, and of the absolute cosine, so at most "
    "π/2; a zero step counts as angle 0.",
)
def compute(layer: Layer) -> Iterator[PerPrompt]:
    """Mean over prompts of each prompt's mean turning angle, made in the extraction."""
    yield PerPrompt(layer.curvature)
