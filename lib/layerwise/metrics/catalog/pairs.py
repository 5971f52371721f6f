"""Pairs of embeddings: their cosines and distances, and how alike those of two layers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from layerwise.errors import LayerwiseError
from layerwise.metrics.formulas import (
    EPSILON,
    ROUNDING,
    Array,
    UndefinedMetricError,
    centred,
    check_matrix,
    cross_gram,
    double_centred,
    gram,
    unit_rows,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import OnParts, Overall, metric

FEWEST_PROMPTS = 10
DISCARD = 0.1
MOST_BY_PAIRS = 2000


def anisotropy(X: npt.ArrayLike) -> float:
    """Mean cosine of the embeddings of two prompts (Ethayarajh 2019).

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts. Zero vectors are left out.

    Returns
    -------
    float
        -1/(N - 1) to 1; 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero.

    Examples
    --------
    >>> round(anisotropy(np.eye(4)), 6), round(anisotropy(np.ones((4, 4))), 6)
    (0.0, 1.0)
    """
    X = check_matrix(X)
    unit = unit_rows(X)
    n = len(unit)
    if n < 2:
        raise UndefinedMetricError("The mean cosine needs two embeddings that are not zero.")
    # Linear in N, though there are N² pairs: ‖Σ x̂‖² is the sum of all cosines.
    return float((np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1)))


@metric(
    label="Anisotropy (mean cosine)",
    direction=-1,
    range="-1/(N - 1) to 1",
    source="Ethayarajh 2019",
    inputs=("pooled",),
    function=anisotropy,
    min_prompts=2,
)
def compute_anisotropy(layer: Layer) -> Iterator[Overall]:
    """Mean cosine of the pooled embeddings of two prompts; zero vectors are left out."""
    yield Overall(anisotropy(layer.pooled), int(layer.pooled.any(axis=1).sum()))


def self_cluster(X: npt.ArrayLike) -> float:
    """``(D‖X̂X̂ᵀ‖_F² - N(D + N - 1)) / ((D - 1)(N - 1)N)`` (Tsitsulin et al. 2023).

    X̂ are the embeddings made to unit length; zero vectors are left out.

    Parameters
    ----------
    X : array, shape (N, D)
        Pooled embeddings of N ≥ 2 prompts, D ≥ 2. Computed in float64.

    Returns
    -------
    float
        About 0 for vectors spread evenly over the sphere, 1 where all point one way.

    Raises
    ------
    UndefinedMetricError
        If fewer than two embeddings differ from zero, or D is 1.

    Examples
    --------
    >>> round(self_cluster(np.ones((4, 3))), 6)
    1.0
    """
    X = check_matrix(X)
    n, d = int(X.any(axis=1).sum()), X.shape[1]
    if min(n, d) < 2:
        raise UndefinedMetricError("Self-Cluster needs two non-zero embeddings of two dimensions.")
    expected = n + n * (n - 1) / d
    K = gram(unit_rows(X))
    return float((np.vdot(K, K) - expected) / (n * n - expected))


@metric(
    label="Self-Cluster",
    range="about 0 (even) to 1 (collapsed)",
    source="Tsitsulin et al. 2023",
    inputs=("pooled",),
    function=self_cluster,
    min_prompts=2,
)
def compute_self_cluster(layer: Layer) -> Iterator[Overall]:
    """Self-Cluster of the pooled embeddings."""
    n = int(layer.pooled.any(axis=1).sum())
    yield Overall(self_cluster(layer.pooled), n)


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
    used = np.partition(matrix, 1, axis=1)[:, :2]
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
def compute_two_nn(layer: Layer) -> Iterator[Overall]:
    """TwoNN on the pooled embeddings; of more prompts a random sample of 5,000."""
    matrix = distances(layer.pooled)
    yield _with_parts(layer, lambda rows: _estimate(matrix[np.ix_(rows, rows)], DISCARD))


def _with_parts(
    layer: Layer, estimate: Callable[[npt.NDArray[np.intp]], tuple[float, int]]
) -> Overall:
    """A metric that is a function of rows, on all of the layer and on each part of its prompts.

    Pairs of rows are then compared once for all parts.
    """
    members = layer.parts.members[:, layer.has_tokens]
    value, n = estimate(np.arange(members.shape[1]))
    try:
        on_parts = np.array([estimate(np.flatnonzero(rows)) for rows in members])
    except UndefinedMetricError:
        on_parts = np.full((len(members), 2), np.nan)
    return Overall(
        value, n, parts=OnParts(on_parts[:, 0], on_parts[:, 1]) if len(members) else None
    )


def cka(X: npt.ArrayLike, Y: npt.ArrayLike) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019).

    ``‖XᵀY‖_F² / (‖XᵀX‖_F ‖YᵀY‖_F)`` of the centred matrices: the biased estimator, which is
    above 0 for unrelated ones too, the more so the fewer rows there are.

    Parameters
    ----------
    X : array, shape (N, D)
    Y : array, shape (N, E)
        The same prompts, row by row. Computed in float64.

    Returns
    -------
    float
        0 to 1; 1 for matrices equal up to rotation, shift and scale.

    Raises
    ------
    UndefinedMetricError
        If all rows of X or of Y are equal.
    LayerwiseError
        If the numbers of rows differ, or a value is NaN or infinite.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> round(cka(X, 3 * X[:, ::-1] + 7), 6)
    1.0
    """
    X, Y = check_matrix(X), check_matrix(Y)
    if len(X) != len(Y):
        raise LayerwiseError(
            f"CKA compares the same prompts, not {len(X)} and {len(Y)}.", code="wrong_shape"
        )
    if len(X) <= max(X.shape[1], Y.shape[1]):
        X, Y = centred(X), centred(Y)
        return _alignment(K := X @ X.T, L := Y @ Y.T, float(np.vdot(K, L)))
    cross = float(np.square(cross_gram(X, Y)).sum())
    return _alignment(cross_gram(X, X), cross_gram(Y, Y), cross)


def _alignment(K: Array, L: Array, cross: float) -> float:
    scale = float(np.linalg.norm(K) * np.linalg.norm(L))
    if scale <= 0:
        raise UndefinedMetricError("CKA is not defined where all embeddings of a layer are equal.")
    return min(cross / scale, 1.0)


def _with_end(layer: Layer, end: int) -> Overall:
    """CKA with the first or the last layer, 0 or -1."""
    X, Y = layer.pooled, layer.end(end)

    def of_rows(rows: npt.NDArray[np.intp]) -> tuple[float, int]:
        if len(rows) < 3:
            raise UndefinedMetricError("CKA needs three prompts.")
        if not by_pairs:
            return cka(X[rows], Y[rows]), len(rows)
        some = np.ix_(rows, rows)
        K, L = double_centred(of_x[some]), double_centred(of_y[some])
        return _alignment(K, L, float(np.vdot(K, L))), len(rows)

    # Pairs of all prompts, which parts share, cost less than D x D products of each.
    by_pairs = len(X) <= max(layer.hidden, min(4 * layer.hidden, MOST_BY_PAIRS))
    if by_pairs:
        of_x, of_y = (rows @ rows.T for rows in map(centred, (X, Y)))
    return _with_parts(layer, of_rows)


of_ends = partial(
    metric, range="0 to 1", source="Kornblith et al. 2019", function=cka, min_prompts=3
)


@of_ends(name="cka_first", label="CKA with the first layer", inputs=("pooled", "ends"))
def compute_first(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of layer 0."""
    yield _with_end(layer, 0)


@of_ends(name="cka_last", label="CKA with the last layer", inputs=("pooled", "ends"))
def compute_last(layer: Layer) -> Iterator[Overall]:
    """Linear CKA of the pooled embeddings with those of the last layer."""
    yield _with_end(layer, -1)
