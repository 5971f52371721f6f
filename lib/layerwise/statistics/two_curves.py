"""Two curves over layers of which means and standard errors are known: where do they differ?

The errors of the two count as independent. Curves of the same prompts have errors that go
together, so that intervals come out too wide rather than too narrow (see docs/statistics.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The second curve less the first, at each layer; arrays of shape (L,).

    Attributes
    ----------
    value, low, high : array
        With intervals that hold at all layers of all `comparisons` together.
    """

    value: Floats
    low: Floats
    high: Floats

    @property
    def told(self) -> npt.NDArray[np.bool_]:
        """Where the interval leaves out 0."""
        return np.asarray((self.low > 0) | (self.high < 0))

    @property
    def most(self) -> int:
        """Place of the largest difference, either way."""
        return int(np.nanargmax(np.abs(self.value)))


def difference(
    first: npt.ArrayLike,
    first_error: npt.ArrayLike,
    second: npt.ArrayLike,
    second_error: npt.ArrayLike,
    *,
    n: int | None = None,
    comparisons: int = 1,
    level: float = 0.95,
) -> Difference:
    """The difference of two curves with intervals for all layers at once (Bonferroni).

    Parameters
    ----------
    first, first_error, second, second_error : array, shape (L,)
        Means and standard errors.
    n : int, optional
        How many prompts the errors come from: Student's quantile in place of the normal one.
    comparisons : int
        How many such pairs of curves are looked at together.

    Raises
    ------
    LayerwiseError
        If the curves differ in length.
    """
    a, e, b, f = (np.asarray(x, dtype=np.float64)
                  for x in (first, first_error, second, second_error))  # fmt: skip
    if not a.shape == e.shape == b.shape == f.shape:
        raise LayerwiseError(
            "Two curves are compared layer by layer; these have "
            f"{a.size}, {e.size}, {b.size} and {f.size} values and errors."
        )
    value = b - a
    tail = (1 - level) / 2 / max(np.isfinite(value).sum() * comparisons, 1)
    critical = float(stats.t.isf(tail, n - 1) if n is not None and n > 1 else stats.norm.isf(tail))
    half = critical * np.hypot(e, f)
    return Difference(value, value - half, value + half)
