"""DiME: information that two views of a prompt share beyond any two prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from layerwise.metrics.formulas import (
    Array,
    UndefinedMetricError,
    entropy_from_eigenvalues,
    unit_pair,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import NORMALIZATIONS, OnParts, Overall, metric
from layerwise.section import Positive, Section

Permutations = npt.NDArray[np.intp]


class Settings(Section):
    """Settings of DiME."""

    permutations: Positive = 10
    """Random permutations of the samples behind the expectation; each costs one spectrum of an N x
    N matrix."""


# From so many prompts on, values of two permutations differ by far less than those of two parts.
MANY = 300


def permutations_of(n: int, count: int, seed: int) -> Permutations:
    """Random permutations of n samples, shape (count, n)."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(n) for _ in range(count)])


def joint_entropies(K: Array, alphas: Sequence[float]) -> Array:
    """Entropies of a Hadamard product of Gram matrices, one for each order.

    Parameters
    ----------
    K : array, shape (N, N)
    alphas : sequence of float

    Returns
    -------
    array, shape (len(alphas),)
        NaN if K is zero.
    """
    values = np.asarray(np.linalg.eigvalsh(K))
    return np.array([float(entropy_from_eigenvalues(values, alpha)) for alpha in alphas])


def difference_of_entropies(
    KA: Array, KB: Array, alphas: Sequence[float], permutations: Permutations
) -> Array:
    """``E_Π[S_α(K_A ∘ Π K_B Πᵀ)] - S_α(K_A ∘ K_B)``, one for each order, shape (len(alphas),)."""
    permuted = [joint_entropies(KA * KB[np.ix_(p, p)], alphas) for p in permutations]
    return np.asarray(np.mean(permuted, axis=0) - joint_entropies(KA * KB, alphas))


def dime(
    A: npt.ArrayLike,
    B: npt.ArrayLike,
    alpha: float = 1.0,
    permutations: int = 10,
    seed: int = 0,
) -> float:
    """Difference of matrix entropies of two views (Skean et al. 2023, arXiv 2301.08164).

    ``E_Π[S_α(K_A ∘ Π K_B Πᵀ)] - S_α(K_A ∘ K_B)``, K_A and K_B the views' Gram matrices with unit
    diagonal (cosine similarities), Π random permutations of the samples.

    Parameters
    ----------
    A, B : array, shape (N, D)
        Pooled embeddings of two views of N prompts, row by row. Prompts with a zero vector are
        left out. Computed in float64.
    alpha : float
        Order of the entropy.
    permutations, seed : int

    Returns
    -------
    float
        In nats: 0 in expectation if the views are independent (single values may be negative), at
        most log N. Largest if they are equal (always for order 2; a handful of prompts can be an
        exception for order 1).

    Raises
    ------
    UndefinedMetricError
        For fewer than two prompts: there is nothing to permute.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, other = rng.normal(size=(2, 50, 8))
    >>> dime(A, A + 0.1 * other) > dime(A, A + other) > dime(A, other)
    True
    """
    A, B, _ = unit_pair(A, B)
    orders = permutations_of(len(A), permutations, seed)
    return float(difference_of_entropies(A @ A.T, B @ B.T, [alpha], orders)[0])


@metric(
    label="DiME",
    unit="nats",
    direction=1,
    range="about 0 to log N",
    source="Skean et al. 2023; Skean et al. 2025",
    inputs=("pair",),
    orders=True,
    function=dime,
    settings=Settings,
    normalizations={"paper": NORMALIZATIONS, "reference": NORMALIZATIONS},
    min_prompts=2,
    # The D x D matrices of ``reference`` cost the same for any number of prompts.
    max_prompts={"paper": 2000, "reference": 10_000},
    min_views=1,
    note="Higher is more shared between views; the paper's own layer choice takes "
    "the lowest. Under ``reference`` features are permuted where N > D.",
)
def compute(layer: Layer, settings: Settings) -> Iterator[Overall]:
    """Difference of entropies for every order.

    The slowest metric: 11 spectra of N x N matrices at 10 permutations, which no D x D matrix
    shares (that of the product of two kernels is D² x D²). So of more than 2,000 prompts a random
    sample is taken.

    Under ``reference``, as in the released code, the matrices are the D x D products ``AᵀA`` and
    ``BᵀB`` where N > D. The permutation is then one of features, and there is no standard error.
    """
    alphas, reference = layer.settings.alphas, layer.protocol == "reference"
    A, B = layer.pair
    places = np.flatnonzero(layer.kept_in_pair)
    if not reference:
        A, B, nonzero = unit_pair(A, B)
        places = places[nonzero]
    n, d = A.shape
    if n < 2 or not (A.any() and B.any()):
        raise UndefinedMetricError("DiME needs at least two prompts with two views each.")
    of_features = reference and n > d
    if of_features:
        A, B = A.T, B.T
    KA, KB, seed = A @ A.T, B @ B.T, layer.settings.seed
    orders = permutations_of(len(KA), settings.permutations, seed)
    values = difference_of_entropies(KA, KB, alphas, orders)
    if not np.isfinite(values).all():
        raise UndefinedMetricError("Too few embeddings differ from zero for a permuted pair.")
    members = layer.parts.among(places)
    if of_features:
        members = members[:0]
    counts = members.sum(axis=1)
    on_parts = np.empty((len(members), len(alphas)))
    count = min(1 if n >= MANY else 2, settings.permutations)
    for part, rows in enumerate(map(np.flatnonzero, members)):
        orders = permutations_of(len(rows), count, seed)
        of_a, of_b = (K.take(rows, axis=0).take(rows, axis=1) for K in (KA, KB))
        on_parts[part] = difference_of_entropies(of_a, of_b, alphas, orders)
    for alpha, value, on_order in zip(alphas, values.tolist(), on_parts.T, strict=True):
        yield Overall(value, n, alpha, parts=OnParts(on_order, counts))
