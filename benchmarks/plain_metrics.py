"""The metrics as a straightforward script would write them: prompt by prompt, in loops.

They follow the definitions, not anybody's code, and are what `bench_metrics.py` measures against.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def shannon(eigenvalues: Array) -> float:
    """Entropy of eigenvalues made to sum to 1, those above rounding."""
    p = eigenvalues[eigenvalues > 1e-14 * eigenvalues.max()]
    p = p / p.sum()
    return float(-(p * np.log(p)).sum())


def prompt_entropy(prompts: list[Array]) -> float:
    """Mean entropy of token Gram matrices, each by a full eigendecomposition."""
    values = []
    for states in prompts:
        Z = states.astype(np.float64)
        K = Z @ Z.T
        eigenvalues, _ = np.linalg.eigh(K / np.trace(K))
        values.append(shannon(eigenvalues))
    return float(np.mean(values))


def curvature(prompts: list[Array]) -> float:
    """Mean turning angle, token by token."""
    values = []
    for states in prompts:
        Z = states.astype(np.float64)
        total = 0.0
        for k in range(len(Z) - 2):
            a, b = Z[k + 1] - Z[k], Z[k + 2] - Z[k + 1]
            cosine = np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
            total += np.arccos(np.clip(cosine, -1.0, 1.0))
        values.append(total / (len(Z) - 2))
    return float(np.mean(values))


def lidar(views: Array, delta: float = 1e-4) -> float:
    """Scatter matrices by outer products, the inverse square root by a full decomposition."""
    v, n, d = views.shape
    X = views.astype(np.float64)
    means = X.mean(axis=0)
    center = means.mean(axis=0)
    between, within = np.zeros((d, d)), np.zeros((d, d))
    for i in range(n):
        between += np.outer(means[i] - center, means[i] - center)
        for j in range(v):
            within += np.outer(X[j, i] - means[i], X[j, i] - means[i])
    within = within / (n * v) + delta * np.eye(d)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    eigenvalues, _ = np.linalg.eigh(root @ (between / n) @ root)
    return math.exp(shannon(eigenvalues))


def infonce(A: Array, B: Array, temperature: float = 0.1) -> float:
    """Anchor by anchor, its similarities with all others."""
    Z = np.concatenate([A, B]).astype(np.float64)
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    n, total = len(A), 0.0
    for i in range(2 * n):
        similarity = np.exp(Z @ Z[i] / temperature)
        similarity[i] = 0.0
        total -= math.log(similarity[(i + n) % (2 * n)] / similarity.sum())
    return total / (2 * n)


def infonce_at_once(A: Array, B: Array, temperature: float = 0.1) -> float:
    """The whole 2N x 2N matrix at once, as most training code has it."""
    Z = np.concatenate([A, B]).astype(np.float64)
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    n = len(A)
    similarity = np.exp(Z @ Z.T / temperature)
    np.fill_diagonal(similarity, 0.0)
    positive = similarity[np.arange(2 * n), (np.arange(2 * n) + n) % (2 * n)]
    return float(-np.log(positive / similarity.sum(axis=1)).mean())


def dime(A: Array, B: Array, orders: npt.NDArray[np.intp]) -> float:
    """Every Hadamard product by a full eigendecomposition."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    KA, KB = A @ A.T, B @ B.T
    KA /= np.sqrt(np.outer(np.diag(KA), np.diag(KA)))
    KB /= np.sqrt(np.outer(np.diag(KB), np.diag(KB)))
    permuted = [shannon(np.linalg.eigh(KA * KB[order][:, order])[0]) for order in orders]
    return float(np.mean(permuted)) - shannon(np.linalg.eigh(KA * KB)[0])
