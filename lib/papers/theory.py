"""Theorems and propositions of arXiv 2502.02013 (version 1), each with a check in numbers.

A check computes the example that the page gives. It returns the example in words and whether the
numbers show what the verdict says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from layerwise.metrics.catalog.infonce import infonce
from layerwise.metrics.formulas import effective_ranks, entropy, entropy_from_eigenvalues

ORDERS = (0.5, 1.0, 2.0, math.inf)


class Example(NamedTuple):
    """An example in words, and whether its numbers show what the verdict says."""

    words: str
    shown: bool


@dataclass(frozen=True)
class Statement:
    """A theorem of the paper.

    Attributes
    ----------
    name, says : str
    verdict : str
    example : callable
    """

    name: str
    says: str
    verdict: str
    example: Callable[[], Example]


def effective_rank_bounds_entropy() -> Example:
    values = np.array([4.0, 1.0])
    rank, bound = float(effective_ranks(values)), math.exp(entropy_from_eigenvalues(values))
    words = f"Singular values 2 and 1: EffRank {rank:.2f}, exp(S₁) {bound:.2f}. The proof infers "
    words += "majorisation from σ ≥ λ, but once both sum to 1 the squares are more concentrated"
    return Example(words, bound < rank)


def entropy_is_schur_concave() -> Example:
    """Averaging a spectrum by a doubly stochastic matrix never lowers an entropy."""
    rng = np.random.default_rng(0)
    spectra = rng.dirichlet(np.ones(6), size=200)
    shares = rng.dirichlet(np.ones(6), size=200)
    permutations = rng.permuted(np.tile(np.arange(6), (200, 6, 1)), axis=2)
    permuted = np.take_along_axis(spectra[:, None].repeat(6, axis=1), permutations, axis=2)
    flatter = (shares[:, :, None] * permuted).sum(axis=1)
    gains = [
        entropy_from_eigenvalues(flatter, order) - entropy_from_eigenvalues(spectra, order)
        for order in ORDERS
    ]
    words = "No entropy of 200 random spectra falls when they are flattened, for α = ½, 1, 2, ∞. "
    return Example(
        f"{words}With λ majorising σ it turns Theorem 1 round", bool(np.min(gains) > -1e-12)
    )


def two_sided_tail(dimensions: int, epsilon: float) -> float:
    """Chance that the cosine of two random directions is beyond ±ε."""
    return float(beta.sf(epsilon**2, 0.5, (dimensions - 1) / 2))


def proposition_bound(dimensions: int, epsilon: float) -> float:
    """Bound of Proposition 1's proof on a cosine beyond ε, without the factor m²."""
    return math.sqrt(2 * math.pi) * math.exp(-dimensions * epsilon**2 / 2)


def random_directions_are_orthogonal() -> Example:
    grid = [(d, e) for d in (3, 10, 100, 1024) for e in np.linspace(0.01, 0.9, 60)]
    # m² pairs in the bound, m (m - 1) / 2 of them are different.
    holds = all(two_sided_tail(d, e) / 2 <= proposition_bound(d, e) for d, e in grid)
    half, bound = two_sided_tail(1024, 0.05), 2 * proposition_bound(1024, 0.1)
    words = "Its proof bounds a band of half that width, for which the bound fails: in 1,024 "
    words += f"dimensions a cosine is beyond ±0.05 with a chance of {half:.2f}, and the bound for "
    return Example(f"{words}ε = 0.1 gives {bound:.2f}", holds and half > bound)


def theorem_5_promises_nothing() -> Example:
    n, dimensions = 1000, 1024
    needed = n * math.sqrt(2 * math.log(n**2 * math.sqrt(2 * math.pi)) / dimensions)
    words = f"For {n:,} prompts in {dimensions:,} dimensions its probability is above 0 only for "
    return Example(f"{words}ε > {needed:.0f}, while exp(−S₂) is at most 1", needed > 1)


def pooled(n: int, length: int, dimensions: int, *, maximal: bool) -> npt.NDArray[np.float64]:
    """Means of n prompts whose tokens are orthonormal (maximal entropy) or equal (minimal)."""
    rng = np.random.default_rng(0)
    if not maximal:
        rows = rng.normal(size=(n, dimensions))
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    tokens = np.linalg.qr(rng.normal(size=(n, dimensions, length)))[0]
    return np.asarray(tokens.mean(axis=2))


def both_cases_are_alike() -> Example:
    n = 50
    most, least = (entropy(pooled(n, 20, 512, maximal=m), 2) for m in (True, False))
    words = f"{n} prompts in 512 dimensions: S₂ {most:.2f} with prompts of maximal entropy, "
    words += f"{least:.2f} with minimal, log N {math.log(n):.2f}. The proofs leave out the trace "
    words += "that Eq. 1 divides by"
    return Example(words, abs(most - least) < 0.05 and abs(most - math.log(n)) < 0.2)


def mean_of_equal_rows() -> Example:
    n, row = 50, np.eye(1, 8)[0]
    norm = float(np.linalg.norm(np.tile(row, (n, 1)).mean(axis=0)))
    words = f"The mean of {n} equal rows of unit length has length {norm:.0f}, and not N/D or D/N "
    return Example(f"{words}times it; N³/D² becomes N", abs(norm - 1) < 1e-12)


def entropy_bounds_infonce() -> Example:
    n = 16
    angles = 2 * np.pi * np.arange(n) / n
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    information = math.log(n) - infonce(circle, circle, temperature=0.01)
    words = f"{n} prompts on a circle, views alike, τ = 0.01: log N − InfoNCE {information:.2f}, "
    words += f"matrix-based entropy {entropy(circle):.2f}, which is at most log D. The discrete "
    return Example(
        f"{words}entropy of Z is not the matrix-based one", information > entropy(circle)
    )


def larger_orders_see_less() -> Example:
    whole, split = np.array([0.9, 0.1]), np.array([0.9, 0.05, 0.05])
    gains = [
        float(entropy_from_eigenvalues(split, a) - entropy_from_eigenvalues(whole, a))
        for a in (0.5, 1.0, 2.0)
    ]
    words = "Splitting the small eigenvalue of (0.9, 0.1) in two adds "
    words += ", ".join(f"{gain:.3f}" for gain in gains)
    return Example(f"{words} for α = ½, 1, 2", gains[0] > gains[1] > gains[2])


def log_determinant() -> Example:
    unit, large = np.eye(2) / 2, 100 * np.eye(2)
    bound, scaled = (np.linalg.slogdet(K)[1] - math.log(2) for K in (unit, large))
    value = float(entropy_from_eigenvalues(np.array([0.5, 0.5])))
    words = f"K = ½ I: {bound:.2f} ≤ {value:.2f}. K = 100 I, which has the same entropy by Eq. 1: "
    words += f"{scaled:.2f} > {value:.2f}".replace("-", "−")
    return Example(words.replace("-", "−"), bound <= value < scaled)


STATEMENTS = (
    Statement(
        "Theorems 1 and 4",
        "EffRank(Z) ≤ exp(S₁(Z))",
        "the other way round: exp(S₁) ≤ EffRank ≤ rank",
        effective_rank_bounds_entropy,
    ),
    Statement(
        "Lemma 1",
        "S_α is Schur-concave for α > 0",
        "holds, α = ∞ included",
        entropy_is_schur_concave,
    ),
    Statement(
        "Proposition 1",
        "all cosines of m random directions in D dimensions are at most ε with a chance of at "
        "least 1 − m² √(2π) exp(−D ε² / 2)",
        "holds; its proof doesn't",
        random_directions_are_orthogonal,
    ),
    Statement(
        "Theorem 5",
        "for prompts of maximal entropy, exp(−S₂) of the dataset is within ε of N / D²",
        "says nothing at sizes in use",
        theorem_5_promises_nothing,
    ),
    Statement(
        "Theorems 2, 5 and 6",
        "dataset entropy grows as log(D²/N) where prompt entropy is maximal, and as log(D²/N³) "
        "where it is minimal",
        "doesn't hold for Eq. 1: both are about log N",
        both_cases_are_alike,
    ),
    Statement(
        "Theorem 6, proof",
        "the mean of a prompt's equal rows is N/D times the row",
        "wrong",
        mean_of_equal_rows,
    ),
    Statement(
        "Theorems 3 and 7",
        "log N − InfoNCE ≤ I(X; Z) ≤ H(Z), with H the matrix-based dataset entropy",
        "the first part holds, the second not for matrix-based entropy",
        entropy_bounds_infonce,
    ),
    Statement(
        "Appendix B (Figure 7)",
        "for larger α smaller eigenvalues contribute more",
        "they contribute less",
        larger_orders_see_less,
    ),
    Statement(
        "Appendix B, LogDet",
        "log det K − log 2 is a lower bound of S₁",
        "holds if K has trace 1, not for K = Z Zᵀ",
        log_determinant,
    ),
)
