"""What an association over layers would be by chance: permutations, circular shifts, resamples.

A permutation of the layers destroys the smoothness that all curves over depth share, so nearly
everything beats that null. Circular shifts keep each curve's autocorrelation and only break the
alignment of the two curves; with n layers there are n of them, so that p cannot fall below 1/n.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

# Two routes to the same statistic differ in the last bits; a tie must count as a tie.
TIE = 1e-12


def generator(seed: int, *key: object) -> np.random.Generator:
    """A random generator for one cell of a table, whatever other cells the table has."""
    digest = hashlib.sha256(repr((seed, *key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def permutations(
    sizes: Sequence[int], count: int, rng: np.random.Generator
) -> tuple[Indices, bool]:
    """Orders of the layers, shuffled within each block (model) and never between blocks.

    Parameters
    ----------
    sizes : sequence of int
        Number of layers of each block, in the order in which the blocks stand in the curve.
    count : int
        How many to draw. If there are no more than `count` different ones, all of them are
        given once instead, the identity included.

    Returns
    -------
    orders : array of int, shape (m, sum(sizes))
    exact : bool
        Whether `orders` is the full set.
    """
    _check(sizes, count)
    if len(sizes) == 1 and sizes[0] <= 12 and math.factorial(sizes[0]) <= count:
        return np.array(list(itertools.permutations(range(sizes[0]))), dtype=np.intp), True
    drawn = [rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1) for n in sizes]
    return _side_by_side(drawn, sizes), False


def circular_shifts(
    sizes: Sequence[int], count: int, rng: np.random.Generator
) -> tuple[Indices, bool]:
    """Orders of the layers in which each block is rotated by some number of layers.

    Parameters and results as in `permutations`: the full set if it is no larger than `count`
    (always so for one block of at most `count` layers).
    """
    _check(sizes, count)
    exact = math.prod(sizes) <= count
    if exact:
        offsets = np.array(list(itertools.product(*(range(n) for n in sizes))), dtype=np.intp)
    else:
        offsets = np.stack([rng.integers(n, size=count) for n in sizes], axis=1)
    turned = [(np.arange(n) + offsets[:, [i]]) % n for i, n in enumerate(sizes)]
    return _side_by_side(turned, sizes), exact


def p_values(observed: Floats, null: Floats, *, exact: bool) -> Floats:
    """Share of the null that is at least as far from 0 as what was observed.

    (1 + #) / (1 + m) for a random sample of the null, # / m where the null is complete, since the
    identity is then among it (Phipson & Smyth 2010). In (0, 1], never 0.

    Parameters
    ----------
    observed : array, shape (k,)
    null : array, shape (k, m)
    """
    reached = (np.abs(null) >= np.abs(observed)[:, None] - TIE).sum(axis=1)
    m = null.shape[1]
    result: Floats = reached / m if exact else (1 + reached) / (1 + m)
    return result


def task_resamples(n_tasks: int, count: int, rng: np.random.Generator) -> Floats:
    """Weights of `count` bootstrap samples of the tasks, shape (count, n_tasks), rows sum to 1."""
    if n_tasks < 1 or count < 1:
        raise LayerwiseError(
            f"A bootstrap over tasks needs a task and a sample; these are {n_tasks} tasks and "
            f"{count} samples."
        )
    return rng.multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), size=count) / n_tasks


def interval(samples: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Percentile interval along the last axis."""
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail], axis=-1)
    return low, high


def _check(sizes: Sequence[int], count: int) -> None:
    if not sizes or min(sizes) < 1 or count < 1:
        raise LayerwiseError(
            f"A null distribution needs at least one layer in each block and one draw; these are "
            f"blocks of {list(sizes)} layers and {count} draws."
        )


def _side_by_side(blocks: Sequence[Indices], sizes: Sequence[int]) -> Indices:
    starts = np.cumsum([0, *sizes[:-1]])
    return np.concatenate([b + s for b, s in zip(blocks, starts, strict=True)], axis=1)
