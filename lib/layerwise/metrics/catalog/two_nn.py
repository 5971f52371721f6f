"""TwoNN: the intrinsic dimension of the prompts' embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import Array, UndefinedMetricError, check_matrix
from layerwise.metrics.formulas.spectra import EPSILON, ROUNDING
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall, metric

FEWEST_PROMPTS = 10
DISCARD = 0.1


def distances(X: Array) -> Array:
    """Euclidean distances of rows, shape (N, N), infinite on the diagonal.

    From inner products of the *centred* rows: a mean far from 0 would cost digits. Rows closer
    than float32's rounding of the larger of the two are copies, at distance 0; so are those
    closer than the rounding of the inner products.
    """
    from sklearn.metrics.pairwise import euclidean_distances

    norms = np.linalg.norm(X, axis=1)
    X = X - X.mean(axis=0)
    squares = euclidean_distances(X, squared=True)
    rounding = len(X) * EPSILON * np.square(X).sum(axis=1).max()
    for row, norm in zip(squares, norms, strict=True):
        copies = np.square(ROUNDING * np.maximum(norm, norms))
        row[row <= np.maximum(copies, rounding)] = 0.0
    np.fill_diagonal(squares, np.inf)
    return np.asarray(np.sqrt(squares))


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
    others = matrix.copy()
    np.put_along_axis(others, matrix.argmin(axis=1)[:, None], np.inf, axis=1)
    used = np.stack([matrix.min(axis=1), others.min(axis=1)], axis=1)
    if not (used[:, 1] > used[:, 0]).any():
        raise UndefinedMetricError("TwoNN is not defined where all neighbours are equally near.")
    if int(len(used) * (1 - discard)) < 2:
        raise UndefinedMetricError(
            f"TwoNN needs two ratios, and leaving out {discard:.0%} of {len(used)} leaves fewer: "
            "lower discard."
        )
    fit = TwoNN(discard_fraction=discard, dist=True).fit(used)
    return float(fit.dimension_), len(used)


def two_nn(X: npt.ArrayLike, discard: float = DISCARD) -> float:
    """TwoNN intrinsic dimension (Facco et al. 2017), by scikit-dimension.

    From the ratio of each point's distances to its second and its first neighbour: a line
    through ``-log(1 - F(μ))`` against log μ.

    Parameters
    ----------
    X : array, shape (N, D)
        Computed in float64. Of points that are equal up to float32's rounding one counts.
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
    label="Intrinsic dimension (TwoNN)",
    range="above 0",
    source="Facco et al. 2017; scikit-dimension",
    inputs=("pooled",),
    function=two_nn,
    min_prompts=FEWEST_PROMPTS,
    # Distances are N x N.
    max_prompts={"paper": 5000, "reference": 5000},
    note="Of prompts with one embedding a single one counts, so n can differ by layer.",
)
def compute(layer: Layer) -> Iterator[Overall]:
    """TwoNN on the pooled embeddings; of more prompts a random sample of 5,000."""
    of_pairs = layer.of_pairs("distances", lambda whole: distances(whole.pooled))
    yield Overall(*_estimate(of_pairs, DISCARD))
