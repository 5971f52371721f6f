"""Curvature and the metrics from the literature: closed forms, routes, and standard errors."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.in_memory import Arrays, get
from helpers.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from layerwise.activations.store import ARRAYS, BASE
from layerwise.config.settings import MetricsSettings
from layerwise.metrics import formulas
from layerwise.metrics.catalog import spectrum
from layerwise.metrics.catalog.curvature import curvature, turning_angles
from layerwise.metrics.catalog.pairs import cka, distances, self_cluster, two_nn
from layerwise.metrics.formulas import (
    UndefinedMetricError,
    covariance_spectrum,
    entropy,
    unit_centred,
)
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import Overall
from layerwise.metrics.table import compute_layer, stderr_of_mean

RNG = np.random.default_rng(11)


def value_of(name: str, X: np.ndarray, **settings: object) -> Overall:
    layer = Layer(Arrays(X), MetricsSettings(**settings))  # type: ignore[arg-type]
    (result,) = get(name).on(layer)
    assert isinstance(result, Overall)
    return result


# Curvature


def mean_angle(Z: np.ndarray) -> float:
    steps = np.diff(Z, axis=0)
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    return float(np.arccos(np.clip(np.vecdot(steps[1:], steps[:-1]), -1, 1)).mean())


@given(st.integers(3, 12), st.integers(1, 8), st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_curvature_is_the_mean_angle_and_knows_no_scale_shift_or_rotation(
    t: int, d: int, seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(t, d))
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    expected = mean_angle(Z)
    # The arc cosine of 1 - 1e-16 is 1e-8.
    assert curvature(Z) == pytest.approx(expected, abs=1e-7)
    moved = scale * Z @ rotation + rng.normal(size=d)
    assert curvature(moved) == pytest.approx(expected, abs=1e-6)
    assert curvature(Z[::-1]) == pytest.approx(expected, abs=1e-7)


def test_small_steps_between_large_states_keep_their_angles() -> None:
    Z = RNG.normal(size=(30, 5))
    assert curvature(Z * 1e-3 + 1e5) == pytest.approx(curvature(Z), abs=1e-5)


def test_a_repeated_state_has_no_angle_and_is_left_out() -> None:
    Z = np.array([[0.0, 0], [1, 0], [1, 0], [1, 1], [1, 2], [2, 2]])
    angles = turning_angles(Z)
    assert np.isnan(angles).tolist() == [True, True, False, False]
    assert curvature(Z) == pytest.approx(math.pi / 4)


@pytest.mark.parametrize("Z", [np.eye(1), np.eye(2), np.ones((8, 4))])
def test_too_few_or_equal_states_have_no_curvature(Z: np.ndarray) -> None:
    with pytest.raises(UndefinedMetricError):
        curvature(Z)


@pytest.mark.parametrize("n", [7, 10, 33, 100])
def test_equal_embeddings_have_no_spectrum_of_rounding(n: int) -> None:
    # Their mean is not always quite the row that all of them are.
    row = np.random.default_rng(0).normal(size=64)
    layer = Layer(Arrays(np.tile(row, (4, n, 1))))
    for name in ("nesum", "participation_ratio", "lidar"):
        with pytest.raises(UndefinedMetricError):
            list(get(name).on(layer))
    with pytest.raises(UndefinedMetricError):
        cka(np.tile(row, (n, 1)), RNG.normal(size=(n, 5)))


# Each against a plain route


def test_anisotropy_is_the_mean_over_pairs() -> None:
    X = RNG.normal(size=(12, 5)) + 0.5
    X[4] = 0
    rows = np.delete(X, 4, axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = [float(a @ b) for i, a in enumerate(rows) for b in rows[:i]]
    found = value_of("anisotropy", X)
    assert found.value == pytest.approx(np.mean(pairs), abs=1e-12)
    assert found.n == 11
    assert value_of("anisotropy", np.ones((5, 3))).value == pytest.approx(1)


@pytest.mark.parametrize(("n", "d"), [(30, 8), (8, 30)])
def test_self_cluster_is_its_formula(n: int, d: int) -> None:
    X = RNG.normal(size=(n, d)) + 0.4
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    norm = np.linalg.norm(rows @ rows.T, "fro") ** 2
    expected = (d * norm - n * (d + n - 1)) / ((d - 1) * (n - 1) * n)
    assert value_of("self_cluster", X).value == pytest.approx(expected, abs=1e-10)
    assert value_of("self_cluster", np.ones((n, d))).value == pytest.approx(1)


@pytest.mark.parametrize(("n", "d"), [(40, 9), (9, 40)])
def test_covariance_metrics_are_their_formulas(n: int, d: int) -> None:
    X = RNG.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.5 + 2
    values = np.linalg.eigvalsh(np.atleast_2d(np.cov(X.T)))[::-1]
    assert value_of("nesum", X).value == pytest.approx(values.sum() / values[0], abs=1e-10)
    expected = values.sum() ** 2 / np.square(values).sum()
    assert value_of("participation_ratio", X).value == pytest.approx(expected, abs=1e-10)
    centred = X - X.mean(axis=0)
    assert math.exp(entropy(centred, 2.0)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.5])
def test_alpha_req_recovers_a_power_law(exponent: float) -> None:
    values = 3.0 * np.arange(1, 401.0) ** -exponent
    assert spectrum.decay(values) == pytest.approx(exponent, abs=1e-10)
    # Another law outside the range of ranks does not matter.
    values[:10] = 100
    values[300:] = np.linspace(values[299], 0, 101)[1:] ** 2
    assert spectrum.decay(values, (11, 300)) == pytest.approx(exponent, abs=1e-10)


def test_alpha_req_from_embeddings_uses_the_covariance() -> None:
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.normal(size=(200, 60)))[0]
    U -= U.mean(axis=0)
    U = np.linalg.qr(U)[0]
    X = U * np.arange(1, 61.0) ** -0.5 + 5
    assert value_of("alpha_req", X).value == pytest.approx(1.0, abs=1e-8)
    with pytest.raises(UndefinedMetricError):
        value_of("alpha_req", rng.normal(size=(12, 60)))


def test_cka_closed_forms_and_both_sides() -> None:
    X = RNG.normal(size=(40, 12))
    rotation = np.linalg.qr(RNG.normal(size=(12, 12)))[0]
    assert cka(X, 3 * X @ rotation + 7) == pytest.approx(1, abs=1e-12)
    # In one dimension it is the squared correlation.
    assert cka([[1], [-1], [0], [0]], [[1], [-1], [1], [-1]]) == pytest.approx(0.5, abs=1e-12)
    for other in (RNG.normal(size=(40, 7)), RNG.normal(size=(40, 90))):
        Xc, Yc = X - X.mean(axis=0), other - other.mean(axis=0)
        expected = np.linalg.norm(Xc.T @ Yc) ** 2
        expected /= np.linalg.norm(Xc.T @ Xc) * np.linalg.norm(Yc.T @ Yc)
        assert cka(X, other) == pytest.approx(expected, abs=1e-12)
        assert cka(other, X) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(UndefinedMetricError):
        cka(X, np.ones((40, 3)))
    with refused("wrong_shape"):
        cka(X, X[:39])


def test_two_nn_finds_the_dimension_of_a_manifold() -> None:
    rng = np.random.default_rng(0)
    for dimension in (1, 2, 5):
        flat = rng.uniform(size=(1500, dimension)) @ rng.normal(size=(dimension, 30)) + 10
        assert two_nn(flat) == pytest.approx(dimension, rel=0.12)


def test_two_nn_leaves_out_duplicates_and_needs_ten_points() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 3)) + 50
    doubled = np.concatenate([X, X[:100]])
    found = value_of("two_nn", doubled)
    assert found.n == 300
    assert found.value == pytest.approx(two_nn(X), rel=1e-9)
    for points, discard in ((np.ones((50, 4)), 0.1), (X, 0.999), (np.eye(20), 0.1)):
        with pytest.raises(UndefinedMetricError):
            two_nn(points, discard=discard)


def test_distances_keep_their_digits_far_from_the_origin() -> None:
    X = RNG.normal(size=(20, 6))
    plain = np.linalg.norm(X[:, None] - X[None], axis=2)
    np.fill_diagonal(plain, np.inf)
    assert np.allclose(distances(X), plain, rtol=1e-9)
    assert np.allclose(distances(X + 1e4), plain, rtol=1e-6)


def test_what_float32_rounds_away_is_no_value() -> None:
    rng = np.random.default_rng(0)
    flat = (1 + 1e-7 * rng.normal(size=(20, 64))).astype(np.float32)
    for name in ("participation_ratio", "nesum", "alpha_req"):
        with pytest.raises(UndefinedMetricError):
            value_of(name, flat)
    # Copies, up to rounding, are no neighbours and span no volume of their own.
    X = rng.normal(size=(24, 64)) + 3
    copies = X[:8] * (1 + 2e-7 * rng.normal(size=(8, 64)))
    both = np.concatenate([X, copies]).astype(np.float32)
    found = value_of("two_nn", both)
    assert (found.n, found.value) == (24, pytest.approx(two_nn(X), rel=1e-4))
    assert value_of("logdet_entropy", both).value > -24 * math.log(2 * 24 * 24)
    spectrum = covariance_spectrum(both)
    assert (spectrum > 0).sum() == 23
    for exact, near in zip(covariance_spectrum(np.concatenate([X, X[:8]])), spectrum, strict=True):
        assert near == pytest.approx(exact, rel=1e-5)


def test_two_prompts_under_reference_point_opposite_ways() -> None:
    X = np.random.default_rng(1).normal(size=(2, 12)).astype(np.float32) + 5
    layer = Layer(Arrays(X), protocol="reference")
    found = {
        name: next(iter(get(name).on(layer))).value for name in ("anisotropy", "logdet_entropy")
    }
    assert found == pytest.approx({"anisotropy": -1, "logdet_entropy": -math.log(2)})
    # A prompt that equals the mean has no direction.
    middle = np.vstack([X, X.mean(axis=0)])
    assert not Layer(Arrays(middle), protocol="reference").pooled[2].any()


def test_parts_cut_their_pairs_from_the_whole() -> None:
    views = realistic(36, 40)
    views[0, ::9] = 0
    layer = layer_of(views)
    part = next(layer.on_parts())
    assert len(part.pooled) == 24
    (aligned,) = get("cka_first").on(layer)
    assert aligned.parts.values[0] == pytest.approx(cka(part.pooled, part.end(0)), rel=1e-9)
    (clustered,) = get("self_cluster").on(part)
    assert clustered.value == pytest.approx(self_cluster(part.pooled), rel=1e-9)
    assert clustered.n == part.pooled.any(axis=1).sum() < 24
    (dimension,) = get("two_nn").on(layer)
    assert dimension.parts.values[0] == pytest.approx(two_nn(part.pooled), rel=1e-8)


def test_rows_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    views = realistic(40, 9)
    names = ("nesum", "cka_first", "anisotropy", "self_cluster", "lidar")
    found = [values_and_errors(layer_of(views), name) for name in names]
    monkeypatch.setattr(formulas, "ROWS_AT_ONCE", 7)
    for name, before in zip(names, found, strict=True):
        assert values_and_errors(layer_of(views), name) == pytest.approx(before, rel=1e-9), name


def test_prompts_without_tokens_count_for_no_mean() -> None:
    views = np.random.default_rng(2).normal(size=(3, 30, 6)) + 2
    views[:, 4] = 0
    counts = np.ones((3, 30))
    counts[:, 4] = 0
    layer = Layer(Arrays(views, n_tokens=counts), protocol="reference")
    assert np.allclose(layer.pooled, unit_centred(np.delete(views[0], 4, axis=0)))


# Every metric: what its declaration promises


def layer_of(views: np.ndarray, protocol: str = "paper", rows: np.ndarray | None = None) -> Layer:
    views = views if rows is None else views[:, rows]
    arrays = Arrays(
        views,
        spectrum=np.abs(views[0]) + 0.1,
        norms=np.abs(views[0]) + 0.1,
        curvature=np.abs(views[0, :, 0]),
        **dict.fromkeys(ARRAYS.keys() - {*BASE}, np.abs(views[0])),
        n_tokens=np.full(views.shape[:2], 9),
        ends=(views[1], views[2]),
    )
    settings = MetricsSettings(settings={"alpha_req": {"ranks": [3, 500]}})
    return Layer(arrays, settings, protocol)


def realistic(n: int, d: int, seed: int = 0, sigma: float = 0.0) -> np.ndarray:
    """Five views of prompts; log-normal differences between them if sigma is above 0."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, d + 1) ** -0.5
    base = rng.normal(size=(1, n, d)) * scale + 0.5 * scale[0]
    apart = 0.3 * np.exp(sigma * rng.normal(size=(1, n, 1))) if sigma else 0.3
    return base + apart * rng.normal(size=(5, n, d)) * scale


def values_and_errors(layer: Layer, name: str) -> np.ndarray:
    rows = compute_layer(layer, [get(name)]).values
    return np.asarray([(r["value"], r["stderr"]) for r in rows if r["normalization"] == "raw"])


@pytest.mark.parametrize(
    "metrics",
    [
        ["dataset_entropy", "infonce", "rankme"],
        pytest.param(["lidar", "cka_last", "dime"], marks=pytest.mark.slow),
    ],
)
def test_standard_errors_are_the_spread_over_fresh_prompts(metrics: list[str]) -> None:
    asked = [get(name) for name in metrics]
    found = [
        {
            (row["metric"], row["alpha"]): (row["value"], row["stderr"])
            for row in compute_layer(layer_of(realistic(150, 12, seed)), asked).values
        }
        for seed in range(30)
    ]
    for key in found[0]:
        values, stderr = np.asarray([each[key] for each in found]).T
        assert stderr.mean() == pytest.approx(values.std(ddof=1), rel=0.5), key


def test_the_standard_error_of_a_mean() -> None:
    values = np.random.default_rng(2).normal(size=60)
    plain = values.std(ddof=1) / math.sqrt(60)
    assert stderr_of_mean(values) == pytest.approx(plain)
    rng = np.random.default_rng(0)
    means = np.array([rng.permutation(values)[20:].mean() for _ in range(400)])
    assert Layer(Arrays(values[:, None])).parts.stderr(means) == pytest.approx(plain, rel=0.15)
    assert math.isnan(stderr_of_mean(values[:1]))
    assert not list(Layer(Arrays(values[:1, None])).on_parts())


def test_prompts_without_tokens_change_no_standard_error() -> None:
    views = realistic(40, 25)[:1]
    counts = np.repeat([[9, 0]], [40, 20], axis=1)
    spoiled = np.concatenate([views, np.zeros((1, 20, 25))], axis=1)
    of_some = Layer(Arrays(spoiled, n_tokens=counts), MetricsSettings())
    of_all = Layer(Arrays(views, n_tokens=counts[:, :40]), MetricsSettings())
    for name in ("rankme", "anisotropy"):
        some, every = (values_and_errors(layer, name) for layer in (of_some, of_all))
        np.testing.assert_allclose(some, every, rtol=1e-9)


def test_of_many_prompts_a_sample_is_taken() -> None:
    few = dataclasses.replace(get("dime"), max_prompts={"paper": 30})
    views = realistic(80, 10)
    (row, *_) = compute_layer(layer_of(views), [few]).values
    rows = np.sort(np.random.default_rng(0).choice(80, 30, replace=False))
    alone = compute_layer(layer_of(views, rows=rows), [get("dime")]).values[0]
    assert (row["n"], row["n_left_out"]) == (30, 50)
    assert (row["value"], row["stderr"]) == (alone["value"], alone["stderr"])
    # Those of DiME, too, are the same in every run and at every layer.
    many = [layer_of(realistic(2500, 2, seed)).sample(2000).prompts for seed in (0, 1)]
    assert many[0] == many[1]
