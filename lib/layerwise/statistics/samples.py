"""Metrics below their sample size: what decides a value, the data or the number of them?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

DECIDED = 0.1
"""Share of a value from its regulariser above which a layer is not to be chosen by it.

Where this bound and the next two stand is held to simulations in docs/statistics.md."""
CHANGED = 0.1
"""Relative change from half the prompts above which a value is one of the sample."""
STABLE = 0.8
"""Share of subsamples with the same pick (give or take a layer) below which a pick is chance."""


@dataclass(frozen=True)
class Stability:
    """How a metric's pick fares on fewer prompts.

    Attributes
    ----------
    pick : int
        Layer picked by all prompts.
    same, near : float
        Share of half-samples that pick that layer, and one within a tenth of the depth of it.
    change_from_half : float
        Median over layers of |value on half the prompts / value on all - 1|.
    """

    pick: int
    same: float
    near: float
    change_from_half: float

    @property
    def stable(self) -> bool:
        """Whether a layer may be chosen by the metric at this number of prompts."""
        return self.near >= STABLE


def share_decided_by_delta(views: npt.ArrayLike, delta: float = 1e-4) -> float:
    """Share of LiDAR's discriminant mass that is set by δ and not by the prompts.

    With u_i the discriminant directions, ``u_iᵀ (Σ_w + δI) u_j = [i = j]``, the part of each
    denominator that is the regulariser is ``δ |u_i|²``; weighted by ``λ_i / Σλ``. It is also
    ``- d log Σλ / d log δ``: by how many per cent the mass falls when δ grows by one per cent. In
    directions that the N (V - 1) contrasts between views do not reach, it is 1.

    Parameters
    ----------
    views : array, shape (V, N, D)
        V ≥ 2 augmented views of N prompts.
    delta : float
        δ, in squared units of activation.

    Returns
    -------
    float
        0 (the scatter of views decides) to 1 (δ decides).

    Raises
    ------
    LayerwiseError
        For fewer than two views or prompts.
    """
    array = np.asarray(views, dtype=np.float64)
    if array.ndim != 3 or min(array.shape[:2]) < 2:
        raise LayerwiseError(
            f"LiDAR's share of δ needs two views of two prompts, shape (V, N, D); this is "
            f"{array.shape}."
        )
    v, n, d = array.shape
    means = array.mean(axis=0)
    between = (means - means.mean(axis=0)).T / np.sqrt(n)
    apart = (array - means).reshape(v * n, d) / np.sqrt(n * v)
    # Σλ = tr(Σ_b Σ_w⁻¹), and its derivative by δ is - tr(Σ_b Σ_w⁻²).
    within = apart.T @ apart
    within[np.diag_indices(d)] += delta
    solved = np.linalg.solve(within, between)
    mass = float(np.einsum("dn,dn->", between, solved))
    return float(delta * np.square(solved).sum() / mass) if mass > 0 else float("nan")


def enough_for_lidar(prompts: int, views: int, hidden: int) -> bool:
    """Whether the contrasts between views can reach every direction: N (V - 1) ≥ D."""
    return prompts * (views - 1) >= hidden


def pick_stability(
    curve_on: Callable[[Ints], Floats],
    prompts: int,
    direction: int,
    *,
    repeats: int = 20,
    seed: int = 0,
) -> Stability:
    """The pick of a metric on random halves of the prompts against that on all of them.

    Parameters
    ----------
    curve_on : callable
        From indices of prompts to the metric at every layer, shape (L,).
    prompts : int
        Number N.
    direction : int
        +1 if higher is better, else -1.
    """
    whole = curve_on(np.arange(prompts))
    rng = np.random.default_rng(seed)
    halves = np.stack(
        [curve_on(np.sort(rng.permutation(prompts)[: prompts // 2])) for _ in range(repeats)]
    )
    return stability_of(whole, halves, direction)


def stability_of(whole: npt.ArrayLike, halves: npt.ArrayLike, direction: int) -> Stability:
    """`pick_stability` of curves at hand: shapes (L,) and (repeats, L)."""
    full, parts = np.asarray(whole, dtype=np.float64), np.asarray(halves, dtype=np.float64)
    pick = int(np.nanargmax(direction * full))
    picks = np.nanargmax(direction * parts, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(parts.mean(axis=0) / full - 1)
    return Stability(
        pick,
        float((picks == pick).mean()),
        float((np.abs(picks - pick) <= max(0.1 * (len(full) - 1), 0)).mean()),
        float(np.nanmedian(change)),
    )
