"""Where the uncertainty of a difference between layers comes from, and what would lessen it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError

Floats = npt.NDArray[np.float64]
RESIDUAL = "residual"


@dataclass(frozen=True)
class Components:
    """Variance of a difference by source.

    Attributes
    ----------
    variance : dict
        From source to its variance (squared units of the difference), at least 0; "residual"
        last: what no source accounts for, interactions between them included.
    levels : dict
        From source to how many of it there are.
    error : float
        Standard error of the mean over all sources together.
    """

    variance: dict[str, float]
    levels: dict[str, int]
    error: float

    def error_with(self, **levels: int) -> float:
        """Standard error of the mean with other numbers of some sources (a full crossing)."""
        unknown = set(levels) - set(self.levels)
        if unknown:
            raise LayerwiseError(
                f"There is no source {sorted(unknown)[0]!r}; there are {', '.join(self.levels)}."
            )
        return _error(self.variance, {**self.levels, **levels})


def components(differences: npt.ArrayLike, sources: Mapping[str, Sequence[object]]) -> Components:
    """Variance components of a difference between two layers, by the method of moments.

    A random effect for each level of each source, all crossed; the expected squares of sums are
    solved for the variances (MINQUE(0), Rao 1971), which is exact for balanced tables and
    unbiased for others. Negative ones are set to 0.

    Parameters
    ----------
    differences : array, shape (n,)
        Score at one layer less that at another, one for each task, model, checkpoint, seed, ….
    sources : mapping from name to sequence, length n
        Level of each source: ``{"task": [...], "text source": [...], "seed": [...]}``. A source
        with one level cannot be told from the mean and is refused.
    """
    y = np.asarray(differences, dtype=np.float64)
    n = len(y)
    kernels: dict[str, Floats] = {}
    levels: dict[str, int] = {}
    for name, labels in sources.items():
        if len(labels) != n:
            raise LayerwiseError(f"{name} has {len(labels)} levels for {n} differences.")
        codes = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        if len(codes) < 2:
            raise LayerwiseError(
                f"All differences are of one {name}, which has no variance then; leave it out."
            )
        at = np.array([codes[label] for label in labels])
        kernels[name] = (at[:, None] == at[None, :]).astype(np.float64)
        levels[name] = len(codes)
    kernels[RESIDUAL] = np.eye(n)
    centre = np.eye(n) - 1 / n
    forms = [centre @ k @ centre for k in kernels.values()]
    system = np.array([[float((a * b).sum()) for b in forms] for a in forms])
    squares = np.array([float(y @ a @ y) for a in forms])
    solved, *_ = np.linalg.lstsq(system, squares, rcond=None)
    variance = {k: float(max(v, 0.0)) for k, v in zip(kernels, solved, strict=True)}
    return Components(variance, levels, _error(variance, levels))


def _error(variance: Mapping[str, float], levels: Mapping[str, int]) -> float:
    cells = float(np.prod(list(levels.values())))
    total = sum(variance[name] / count for name, count in levels.items())
    return float(np.sqrt(total + variance[RESIDUAL] / cells))
