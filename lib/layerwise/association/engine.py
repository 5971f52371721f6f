"""Value, interval and chance levels of the association of many metrics with one score curve.

The curves of one or more models (blocks) are handled alike. With several blocks every curve is
first turned into mid-ranks within its block, scaled to (0, 1), and the blocks are laid end to
end: levels that differ between models then neither make nor hide an association, and models with
many layers are on the same footing as those with few. Permutations, shifts and ranks never cross
the border between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.association import nulls
from layerwise.association.measures import Measure, embed, paired_strengths, strengths

Floats = npt.NDArray[np.float64]

CHUNK = 4_000_000  # numbers in the largest temporary array, 32 MB


@dataclass(frozen=True)
class Strength:
    """Association of k metrics with a score curve, each array of shape (k,).

    Attributes
    ----------
    value : the measure, on curves averaged over all tasks
    low, high : 95 % bootstrap interval over tasks; NaN with fewer than two tasks
    p_permutation, p_shift : see `layerwise.association.nulls`
    """

    value: Floats
    low: Floats
    high: Floats
    p_permutation: Floats
    p_shift: Floats


def associate_blocks(
    metrics: Sequence[Floats],
    scores: Sequence[Floats],
    measure: Measure,
    *,
    permutations: int,
    resamples: int,
    rng: np.random.Generator,
) -> Strength:
    """Associate k metrics with the mean score over tasks.

    Parameters
    ----------
    metrics : sequence of arrays of shape (k, t, n_i)
        One array a block. A metric that knows no tasks has the same curve for each of them.
    scores : sequence of arrays of shape (t, n_i)
    permutations, resamples : int
        Size of the permutation null and of the bootstrap; with `resamples` 0 there is none.
    """
    sizes = [y.shape[1] for y in scores]
    n_tasks = scores[0].shape[0]
    x = join([m.mean(axis=1) for m in metrics])
    y = join([s.mean(axis=0, keepdims=True) for s in scores])
    left = embed(measure, x)
    value = strengths(measure, left, embed(measure, y))[:, 0]

    p: list[Floats] = []
    for null in (nulls.permutations, nulls.circular_shifts):
        orders, exact = null(sizes, permutations, rng)
        p.append(nulls.p_values(value, _against(measure, left, y[0][orders]), exact=exact))

    low = high = np.full(len(x), np.nan)
    if n_tasks > 1 and resamples:
        weights = nulls.task_resamples(n_tasks, resamples, rng)
        resampled = join([weights @ s for s in scores])
        varies = np.zeros(len(x), dtype=bool)
        for m in metrics:
            varies |= (m != m[:, :1]).any(axis=(1, 2))
        samples = np.empty((len(x), resamples))
        if not varies.all():
            samples[~varies] = _against(measure, left[~varies], resampled)
        for k in np.flatnonzero(varies):
            own = join([weights @ m[k] for m in metrics])
            samples[k] = _alongside(measure, own, resampled)
        low, high = nulls.interval(samples)
    return Strength(value, low, high, p[0], p[1])


def join(blocks: Sequence[Floats]) -> Floats:
    """Lay curves of shapes (k, n_i) end to end; ranked within each block if there are several."""
    if len(blocks) == 1:
        return blocks[0]
    from scipy.stats import rankdata

    scaled = [(rankdata(b, axis=1) - 0.5) / b.shape[1] for b in blocks]
    return np.concatenate(scaled, axis=1)


def _rows_at_once(n: int) -> int:
    return max(1, CHUNK // (n * n))


def _against(measure: Measure, left: Floats, curves: Floats) -> Floats:
    """Every metric against every curve, a chunk of curves at a time; shape (k, p)."""
    step = _rows_at_once(curves.shape[1])
    parts = [
        strengths(measure, left, embed(measure, curves[i : i + step]))
        for i in range(0, len(curves), step)
    ]
    return np.concatenate(parts, axis=1)


def _alongside(measure: Measure, left: Floats, right: Floats) -> Floats:
    """Curve i on the left against curve i on the right; shape (p,)."""
    step = _rows_at_once(right.shape[1])
    parts = []
    for i in range(0, len(right), step):
        chunk = slice(i, i + step)
        parts.append(
            paired_strengths(measure, embed(measure, left[chunk]), embed(measure, right[chunk]))
        )
    return np.concatenate(parts)
