"""Several mean differences over one sample at once, by flipping the signs of its members.

If nothing differs, a member's differences are as likely with the opposite sign, all of them
together. Flipped in all ways, or in many drawn ways, they show what the largest of several t
statistics does by chance, however the differences go together (Westfall & Young 1993).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST = 14
"""Flips of more members than this are drawn."""
DRAWN, BLOCK = 2**12, 2**10


@dataclass(frozen=True)
class Flips:
    """The t statistics of K mean differences under B flips, the first of which flips nothing.

    Attributes
    ----------
    mean, error : array, shape (K,)
        Of the differences as they are.
    t : array, shape (B, K)
        Mean over its error; 0 where all differences are 0.
    """

    mean: Floats
    error: Floats
    t: Floats

    def low(self, level: float = 0.95) -> Floats:
        """Lower ends that hold for all K means at once with a chance of (1 + level) / 2."""
        largest = self.t.max(axis=1)
        reach = float(np.quantile(largest, (1 + level) / 2, method="higher"))
        return np.asarray(self.mean - reach * self.error)


def flips(differences: npt.ArrayLike, seed: int = 0) -> Flips:
    """Flip the signs of the members of a sample.

    Parameters
    ----------
    differences : array, shape (K, n)
        NaN where a member lacks one; a flip then flips the others.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = values.shape[1]
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    count = known.sum(axis=1)
    squares = (filled**2).sum(axis=1) / count
    found, t = [], []
    for signs in _signs(n, np.random.default_rng(seed)):
        mean = signs @ filled.T / count
        mean[np.abs(mean) < 1e-12 * np.sqrt(squares)] = 0.0
        variance = np.maximum(squares - mean**2, 1e-12 * squares)
        error = np.sqrt(variance / count)
        found.append((mean[0], error[0]))
        t.append(np.divide(mean, error, out=np.zeros_like(mean), where=error > 0))
    return Flips(*found[0], np.concatenate(t))


def _signs(n: int, rng: np.random.Generator) -> Iterator[Floats]:
    if n <= MOST:
        yield np.array(list(itertools.product([1.0, -1.0], repeat=n)))
        return
    for start in range(0, DRAWN, BLOCK):
        signs = rng.choice([1.0, -1.0], size=(BLOCK, n))
        if start == 0:
            signs[0] = 1
        yield signs
