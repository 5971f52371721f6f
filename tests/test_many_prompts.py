"""Metrics on many prompts: what goes block by block, by the smaller side, or on a sample."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.catalog import infonce as infonce_module
from layerwise.metrics.catalog.dime import Settings as DimeSettings
from layerwise.metrics.catalog.dime import dime
from layerwise.metrics.catalog.infonce import infonce_losses
from layerwise.metrics.catalog.two_nn import Settings as TwoNNSettings
from layerwise.metrics.catalog.two_nn import distances, two_nn
from layerwise.metrics.formulas.arrays import sample
from layerwise.metrics.formulas.entropy import entropy_from_eigenvalues
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.registry import get
from layerwise.metrics.sample_size import against_n
from layerwise.metrics.table import compute_layer


def arrays(n: int, d: int) -> np.ndarray:
    """Two views of prompts and the prompts themselves, shape (3, N, D)."""
    rng = np.random.default_rng(n)
    base = rng.normal(size=(n, d)) + 0.3
    return np.stack([base, *(base + 0.5 * rng.normal(size=(2, n, d)))])


def test_infonce_in_blocks_is_infonce_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in arrays(90, 12)[1:])
    at_once = infonce_losses(A, B, 0.1, groups=7)
    monkeypatch.setattr(infonce_module, "BLOCK", 16)
    in_blocks = infonce_losses(A, B, 0.1, groups=7)
    np.testing.assert_allclose(in_blocks.own, at_once.own, rtol=1e-12)
    np.testing.assert_allclose(in_blocks.shares, at_once.shares, rtol=1e-5)


def test_infonce_does_not_hold_all_pairs() -> None:
    A, B = (X / np.linalg.norm(X, axis=1, keepdims=True) for X in arrays(1500, 8)[1:])
    tracemalloc.start()
    infonce_losses(A, B, 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000**2 * 4 / 3, "float32 of every pair would be three times that"


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, math.inf])
def test_dataset_entropy_by_columns_is_that_by_rows(alpha: float) -> None:
    X = arrays(300, 7)[0]
    layer = Layer(Arrays(X), MetricsSettings(alphas=(alpha,)))
    (found,) = get("dataset_entropy").on(layer)
    by_rows = float(entropy_from_eigenvalues(np.linalg.eigvalsh(X @ X.T), alpha))
    assert found.value == pytest.approx(by_rows, rel=1e-9 if alpha >= 1 else 1e-4)
    assert len(layer.pooled_spectrum.values) == 7


def test_samples_are_sorted_distinct_and_the_same_each_time() -> None:
    rows = sample(1000, 100, seed=3)
    assert np.array_equal(rows, np.unique(rows))
    assert len(rows) == 100
    assert np.array_equal(rows, sample(1000, 100, seed=3))
    assert not np.array_equal(rows, sample(1000, 100, seed=4))
    assert np.array_equal(sample(5, 100, seed=3), np.arange(5))


def test_dime_and_two_nn_take_the_sample_they_state() -> None:
    views, rows = arrays(80, 6), sample(80, 30, seed=0)
    settings = MetricsSettings(
        alphas=(1.0,), dime=DimeSettings(sample=30), two_nn=TwoNNSettings(sample=30),
        metrics=("dime", "two_nn"), normalizations=("logN",),
    )  # fmt: skip
    layer = Layer(Arrays(views), settings)
    found = compute_layer(layer, [get("dime"), get("two_nn")]).values
    assert {(row["n"], row["n_left_out"]) for row in found} == {(30, 50)}
    values = {(row["metric"], row["normalization"]): row["value"] for row in found}
    expected = dime(*views[1:, rows])
    assert values["dime", "raw"] == pytest.approx(expected, abs=1e-10)
    assert values["dime", "logN"] == pytest.approx(expected / math.log(30), abs=1e-10)
    assert values["two_nn", "raw"] == pytest.approx(two_nn(views[0][rows]), rel=1e-12)


def test_reference_dime_of_features_takes_all_prompts() -> None:
    views = arrays(80, 6)
    few = MetricsSettings(alphas=(1.0,), dime=DimeSettings(sample=30))
    whole = MetricsSettings(alphas=(1.0,))
    (all_of_them,) = get("dime").on(Layer(Arrays(views), whole, "reference"))
    (found,) = get("dime").on(Layer(Arrays(views), few, "reference"))
    assert found.n == 80
    assert found.value == all_of_them.value


def test_distances_in_place_are_distances() -> None:
    X = arrays(60, 5)[0]
    expected = cdist(X, X)
    np.fill_diagonal(expected, np.inf)
    assert np.allclose(distances(X), expected, rtol=1e-9)


def test_against_n_a_metric_ends_where_its_sample_does() -> None:
    settings = MetricsSettings(
        alphas=(1.0,), dime=DimeSettings(sample=40), metrics=("dime", "rankme")
    )
    frame = against_n(Arrays(arrays(120, 200)), settings, repeats=2)
    sizes = frame.groupby("metric")["n"].unique().map(sorted)
    assert sizes["rankme"] == [30, 60, 120]
    assert sizes["dime"] == [30]
