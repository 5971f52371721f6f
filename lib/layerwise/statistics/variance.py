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
    groups : tuple of str
        The sources that are groups of another's levels (text sources of tasks, models of
        checkpoints): more of them are more of that other, too.
    """

    variance: dict[str, float]
    levels: dict[str, int]
    groups: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Standard error of the mean over all sources together."""
        return self.error_with({})

    @property
    def shares(self) -> dict[str, float]:
        """Share of the variance by source; NaN where there is none."""
        total = sum(self.variance.values())
        return {k: v / total if total > 0 else float("nan") for k, v in self.variance.items()}

    def error_with(self, levels: Mapping[str, int]) -> float:
        """Standard error of the mean with other numbers of some sources (a full crossing)."""
        unknown = set(levels) - set(self.levels)
        if unknown:
            raise LayerwiseError(
                f"There is no source {sorted(unknown)[0]!r}; there are {', '.join(self.levels)}."
            )
        counts = {**self.levels, **levels}
        cells = float(np.prod([n for name, n in counts.items() if name not in self.groups]))
        total = sum(self.variance[name] / n for name, n in counts.items())
        return float(np.sqrt(total + self.variance[RESIDUAL] / cells))


def components(differences: npt.ArrayLike, sources: Mapping[str, Sequence[object]]) -> Components:
    """Variance components of a difference between two layers, by the method of moments.

    A random effect for each level of each source; the expected squares of sums are solved for the
    variances (MINQUE(0), Rao 1971), which is exact for balanced tables and unbiased for others.
    Negative ones are set to 0.

    Parameters
    ----------
    differences : array, shape (n,) or (n, K)
        Score at one layer less that at another, one for each task, model, checkpoint, seed, …. Of
        K differences, each less its own mean, the variances are the means over them.
    sources : mapping from name to sequence, length n
        Level of each source: ``{"task": [...], "text source": [...], "seed": [...]}``. A source
        with one level cannot be told from the mean and is refused.
    """
    y = np.asarray(differences, dtype=np.float64)
    y = y[:, None] if y.ndim == 1 else y
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
    squares = np.array([float(np.einsum("ik,ij,jk->", y, a, y)) / y.shape[1] for a in forms])
    solved, *_ = np.linalg.lstsq(system, squares, rcond=None)
    variance = {k: float(max(v, 0.0)) for k, v in zip(kernels, solved, strict=True)}
    return Components(variance, levels, _groups(sources))


def _groups(sources: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
    """The sources each level of which is made of whole levels of another."""

    def within(fine: Sequence[object], coarse: Sequence[object]) -> bool:
        pairs = set(zip(fine, coarse, strict=True))
        return len(pairs) == len(set(fine)) > len(set(coarse))

    return tuple(
        name for name, labels in sources.items()
        if any(within(other, labels) for other in sources.values())
    )  # fmt: skip
