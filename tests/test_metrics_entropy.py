"""Matrix-based entropy: independent routes, closed forms, invariants."""

import math
from functools import partial

import numpy as np
import pytest
from helpers.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from layerwise.metrics import logdet_entropy
from layerwise.metrics.catalog.spectrum import effective_rank
from layerwise.metrics.formulas import (
    UndefinedMetricError,
    effective_ranks,
    entropy,
    entropy_from_eigenvalues,
    gram_spectrum,
    normalise,
)
from layerwise.metrics.registry import NORMALIZATIONS

ALPHAS = (0.3, 0.5, 1.0, 1.000001, 1.5, 2.0, 3.0, 50.0, math.inf)

matrices = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**31)).map(
    lambda t: np.random.default_rng(t[2]).normal(size=t[:2])
)


def random_matrix(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.3


# Independent routes


@pytest.mark.parametrize(("n", "d"), [(30, 12), (12, 30), (20, 20), (1, 9), (9, 1)])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_rows_columns_and_singular_values_agree(n: int, d: int, alpha: float) -> None:
    Z = random_matrix(n, d)
    routes = [
        np.linalg.eigvalsh(Z @ Z.T),
        np.linalg.eigvalsh(Z.T @ Z),
        np.linalg.svd(Z, compute_uv=False) ** 2,
        np.linalg.eig(Z @ Z.T)[0].real,
    ]
    expected = entropy(Z, alpha)
    for eigenvalues in routes:
        assert entropy_from_eigenvalues(eigenvalues, alpha) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.5, 2 * math.log(0.5**0.5 + 0.5 + 2 * 0.125**0.5)),
        (1.0, 1.75 * math.log(2)),
        (1.01, -100 * math.log(0.5**1.01 + 0.25**1.01 + 2 * 0.125**1.01)),
        (2.0, -math.log(0.34375)),
        (3.0, -math.log(0.125 + 0.015625 + 2 * 0.001953125) / 2),
        (math.inf, math.log(2)),
    ],
)
def test_formula_written_out(alpha: float, expected: float) -> None:
    eigenvalues = 8 * np.array([0.5, 0.25, 0.125, 0.125])
    assert entropy_from_eigenvalues(eigenvalues, alpha) == pytest.approx(expected, abs=1e-12)


# Closed forms


@pytest.mark.parametrize("alpha", ALPHAS)
def test_orthonormal_rows_give_log_n_and_rank_one_gives_zero(alpha: float) -> None:
    Q = np.linalg.qr(random_matrix(16, 16))[0]
    assert entropy(Q[:10], alpha) == pytest.approx(math.log(10), abs=1e-12)
    assert entropy(Q[:, :10], alpha) == pytest.approx(math.log(10), abs=1e-12)
    rank_one = np.outer(np.arange(1, 200), np.arange(1.0, 60.0))
    assert entropy(rank_one, alpha) == pytest.approx(0, abs=1e-10)
    assert effective_rank(rank_one) == pytest.approx(1, abs=1e-6)
    assert effective_rank(Q[:10]) == pytest.approx(10, abs=1e-10)


def test_orders_below_one_do_not_count_rounding() -> None:
    # Rank 3 in 300 dimensions: 297 eigenvalues of rounding noise, each 1e-16, weigh
    # 297 * (1e-16)^0.1 = 7 at order 0.1 if they are let in.
    Z = random_matrix(300, 3) @ random_matrix(3, 300, seed=1)
    assert entropy(Z, 0.1) <= math.log(3) + 1e-9


def test_logdet_entropy_of_equal_eigenvalues_and_below_shannon() -> None:
    Q = np.linalg.qr(random_matrix(12, 12))[0][:8]
    expected = -8 * math.log(8) - math.log(2)
    assert logdet_entropy(3 * Q) == pytest.approx(expected, abs=1e-10)
    for seed in range(50):
        Z = random_matrix(9, 14, seed)
        sign, log_det = np.linalg.slogdet(Z @ Z.T / np.trace(Z @ Z.T))
        assert logdet_entropy(Z) == pytest.approx(log_det - math.log(2), abs=1e-8)
        assert sign == 1
        assert logdet_entropy(Z) <= entropy(Z, 1.0)


# Invariants


@given(matrices, st.sampled_from(ALPHAS), st.floats(1e-6, 1e6), st.integers(0, 2**31))
def test_scale_rotation_order_and_duplication_change_nothing(
    Z: np.ndarray, alpha: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(Z.shape[1], Z.shape[1])))[0]
    expected = entropy(Z, alpha)
    for other in (scale * Z, Z @ rotation, Z[rng.permutation(len(Z))], np.concatenate([Z, Z])):
        assert entropy(other, alpha) == pytest.approx(expected, abs=1e-7)


def test_orders_near_one_join_smoothly() -> None:
    Z = random_matrix(20, 30)
    alphas = 1 + np.array([-1e-2, -1e-3, -1.1e-5, -0.9e-5, -1e-9, 0, 1e-12, 0.9e-5, 1.1e-5, 1e-3])
    values = np.array([entropy(Z, a) for a in alphas])
    slope = (values[-1] - values[0]) / (alphas[-1] - alphas[0])
    assert np.all(np.diff(values) <= 1e-11)
    assert np.allclose(values, values[5] + slope * (alphas - 1), atol=1e-5)
    assert abs(values[2] - values[3]) < 1e-5 * abs(slope)


def test_effective_rank_from_eigenvalues_is_that_of_singular_values() -> None:
    for n, d in [(30, 12), (12, 30)]:
        Z = random_matrix(n, d)
        padded = np.concatenate([gram_spectrum(Z), np.zeros(5)])
        assert effective_ranks(padded) == pytest.approx(effective_rank(Z), abs=1e-10)


# Normalisations


def test_normalisations_divide_by_what_they_name() -> None:
    values = np.array([1.0, 2.0])
    n, d = np.array([10.0, 1000.0]), 100.0
    expected = {
        "raw": values,
        "logN": values / np.log(n),
        "logD": values / math.log(100),
        "logNlogD": values / np.log(n) / math.log(100),
        "maxEntropy": values / [math.log(10), math.log(100)],
    }
    assert set(expected) == set(NORMALIZATIONS)
    for name, wanted in expected.items():
        assert np.allclose(normalise(values, name, n, d), wanted)
        of_one_row = 0.0 if name in ("raw", "logD") else np.nan
        assert normalise(0.0, name, 1, 100) == pytest.approx(of_one_row, nan_ok=True)


# Degenerate input


def test_zeros_have_no_entropy() -> None:
    for function in (entropy, partial(entropy, alpha=2.0), effective_rank, logdet_entropy):
        with pytest.raises(UndefinedMetricError):
            function(np.zeros((3, 4)))
    for alpha in ALPHAS:
        found = entropy_from_eigenvalues(np.array([[1.0, 1.0], [0.0, 0.0]]), alpha)
        assert np.isnan(found).tolist() == [False, True]


def test_only_finite_matrices_are_accepted() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with refused("not_finite"):
            entropy([[1.0, 2.0], [bad, 0.0]])
    for shape in ((0, 4), (4, 0), (4,), (2, 2, 2)):
        with refused("wrong_shape"):
            entropy(np.ones(shape))


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_orders_must_be_above_zero(alpha: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        entropy_from_eigenvalues(np.ones(3), alpha)


def test_a_large_order_neither_under_nor_overflows() -> None:
    values = np.array([1e-200, 1e-201])
    assert entropy_from_eigenvalues(values, 1e6) == pytest.approx(math.log(1.1), rel=1e-5)
