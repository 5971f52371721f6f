"""TwoNN: the intrinsic dimension of the prompts' embeddings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pydantic import Field

from layerwise.metrics.formulas import uncertainty
from layerwise.metrics.formulas.arrays import (
    Array,
    Mask,
    UndefinedMetricError,
    check_matrix,
    sample,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric
from layerwise.section import Section

FEWEST_PROMPTS = 10


class Settings(Section):
    """Settings of TwoNN."""

    discard: float = Field(0.1, ge=0, lt=1)
    """Share of the largest distance ratios that is left out."""
    sample: int = Field(5000, ge=FEWEST_PROMPTS, le=100_000)
    """Prompts at most; where there are more, a random sample of so many is taken, and the table's
    n says so."""


def distances(X: Array) -> Array:
    """Euclidean distances of rows, shape (N, N), infinite on the diagonal.

    From inner products of the *centred* rows: a mean far from 0 would cost digits. What is left
    of rounding, N times the machine epsilon of the largest norm squared, counts as 0.
    """
    X = X - X.mean(axis=0)
    gram = X @ X.T
    norms = np.diagonal(gram).copy()
    # In place, one row after the other: no other matrix of that size.
    gram *= 2
    for row, norm in zip(gram, norms, strict=True):
        np.subtract(norm + norms, row, out=row)
    squares = gram
    squares[squares < len(X) * np.finfo(np.float64).eps * norms.max()] = 0.0
    np.fill_diagonal(squares, np.inf)
    return np.asarray(np.sqrt(squares, out=squares))


def _estimate(matrix: Array, discard: float) -> tuple[float, int]:
    # skdim imports numba and matplotlib, which takes 2 s: only this metric should pay for it.
    from skdim.id import TwoNN

    if not matrix.all():
        # Copies are left out: they would be neighbours at distance 0.
        copies = np.tril(matrix == 0, -1).any(axis=1)
        matrix = matrix[np.ix_(~copies, ~copies)]
    if len(matrix) < FEWEST_PROMPTS:
        raise UndefinedMetricError(
            f"TwoNN needs {FEWEST_PROMPTS} embeddings that differ; there are {len(matrix)}."
        )
    used = np.partition(matrix, 1, axis=1)[:, :2]
    if not (used[:, 1] > used[:, 0]).any():
        raise UndefinedMetricError("TwoNN is not defined where all neighbours are equally near.")
    if int(len(used) * (1 - discard)) < 2:
        raise UndefinedMetricError(
            f"TwoNN needs two ratios, and leaving out {discard:.0%} of {len(used)} leaves fewer: "
            "lower metrics.two_nn.discard."
        )
    fit = TwoNN(discard_fraction=discard, dist=True).fit(used)
    return float(fit.dimension_), len(used)


def two_nn(X: npt.ArrayLike, discard: float = 0.1) -> float:
    """TwoNN intrinsic dimension (Facco et al. 2017), by scikit-dimension.

    From the ratio of each point's distances to its second and its first neighbour: a line
    through ``-log(1 - F(μ))`` against log μ.

    Parameters
    ----------
    X : array, shape (N, D)
        Computed in float64. Of equal points one counts.
    discard : float
        Share of the largest ratios that is left out.

    Returns
    -------
    float
        Above 0. Biased low where the dimension is high: it would need N of the order of e^d.

    Raises
    ------
    UndefinedMetricError
        For fewer than ten points that differ.

    Examples
    --------
    >>> flat = np.random.default_rng(0).uniform(size=(500, 2))
    >>> round(two_nn(flat @ np.ones((2, 30)) + flat @ np.eye(2, 30)))
    2
    """
    return _estimate(distances(check_matrix(X)), discard)[0]


@metric(
    name="two_nn",
    label="Intrinsic dimension (TwoNN)",
    unit="",
    direction=None,
    range="above 0",
    source="Facco et al. 2017; scikit-dimension",
    inputs=("pooled",),
    function=two_nn,
    settings=Settings,
    min_prompts=FEWEST_PROMPTS,
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """TwoNN on the pooled embeddings; the standard error from random halves of the prompts."""
    shared = layer.settings
    matrix = distances(layer.pooled[sample(len(layer.pooled), settings.sample, shared.seed)])
    value, n = _estimate(matrix, settings.discard)

    def on(kept: Mask) -> float:
        return _estimate(matrix[np.ix_(kept, kept)], settings.discard)[0]

    stderr = np.nan
    if layer.errors and n >= 2 * FEWEST_PROMPTS:
        # A half may have too few distinct prompts.
        with contextlib.suppress(UndefinedMetricError):
            stderr = uncertainty.of_halves(on, len(matrix), uncertainty.GROUPS, shared.seed)
    yield Overall(value, n, stderr=stderr)
