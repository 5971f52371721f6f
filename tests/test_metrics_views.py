"""Invariance under augmentation: InfoNCE, LiDAR and DiME against routes written out in full."""

import dataclasses
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from helpers.in_memory import Arrays, get
from helpers.refused import refused
from scipy import linalg
from scipy.special import logsumexp

from layerwise.config.settings import MetricsSettings
from layerwise.metrics import layer as layer_module
from layerwise.metrics.catalog import infonce as infonce_module
from layerwise.metrics.catalog.dime import dime, permutations_of
from layerwise.metrics.catalog.infonce import infonce, infonce_losses
from layerwise.metrics.catalog.lidar import eigenvalues, lidar
from layerwise.metrics.formulas import UndefinedMetricError, entropy_from_eigenvalues
from layerwise.metrics.layer import PARTS, Layer
from layerwise.metrics.registry import OnParts, Overall, all_metrics
from layerwise.metrics.table import compute_layer

RNG = np.random.default_rng(7)


def two_views(n: int, d: int, noise: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(n, d)) + 0.3
    return base + noise * rng.normal(size=(n, d)), base + noise * rng.normal(size=(n, d))


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


# InfoNCE


def mean_loss(Z: np.ndarray, tau: float) -> float:
    """Of 2N embeddings; those of a prompt are N rows apart."""
    scaled = Z @ Z.T / tau
    np.fill_diagonal(scaled, -np.inf)
    positive = np.tile(np.diag(scaled, len(Z) // 2), 2)
    return float(np.mean(logsumexp(scaled, axis=1) - positive))


@pytest.mark.parametrize("tau", [0.001, 0.05, 0.1, 1.0])
@pytest.mark.parametrize("block", [1, 7, 46, 100])
def test_infonce_is_its_formula(tau: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infonce_module, "BLOCK", block)
    A, B = two_views(23, 9)
    found = infonce(A, B, tau)
    assert found == pytest.approx(mean_loss(np.concatenate([unit(A), unit(B)]), tau), abs=1e-10)


@pytest.mark.parametrize("tau", [0.001, 0.1])
@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_infonce_on_parts_is_that_of_their_prompts(
    tau: float, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infonce_module, "BLOCK", 7)
    views = np.stack([RNG.normal(size=(30, 6)), *two_views(30, 6)])
    views[1, 4] = 0
    counts = np.ones((3, 30))
    counts[0, 2] = counts[2, 9] = 0  # the pair is of the other two views
    settings = MetricsSettings(settings={"infonce": {"temperature": tau}})
    layer = Layer(Arrays(views, n_tokens=counts), settings, protocol)
    for name in ("infonce", "infonce_mi_bound"):
        assert_parts(name, layer)
    (losses,) = get("infonce").on(layer)
    assert np.flatnonzero(np.isnan(losses.values)).tolist() == [4, 9]
    if protocol == "paper":  # the other scales the vectors
        kept = np.delete(np.arange(30), [4, 9])
        alone = infonce_losses(unit(views[1][kept]), unit(views[2][kept]), tau)[:, 0]
        np.testing.assert_allclose(losses.values[kept], alone, rtol=1e-9)


def assert_parts(name: str, layer: Layer, rel: float = 1e-11) -> None:
    """Values on parts are those of the metric on the parts' prompts."""
    (result,) = get(name).on(layer)
    assert len(result.parts.values) == PARTS
    for value, n, part in zip(*result.parts, layer.on_parts(), strict=True):
        (alone,) = get(name).on(part)
        own = alone.value if isinstance(alone, Overall) else np.nanmean(alone.values)
        assert value == pytest.approx(own, rel=rel, abs=1e-11)
        count = alone.n if isinstance(alone, Overall) else np.isfinite(alone.values).sum()
        assert n == count


def test_zero_vectors_have_no_cosine_and_are_left_out() -> None:
    A, B = two_views(20, 8)
    A[3] = 0
    B[11] = 0
    kept = np.delete(np.arange(20), [3, 11])
    assert infonce(A, B) == pytest.approx(infonce(A[kept], B[kept]), abs=1e-12)
    assert dime(A, B) == pytest.approx(dime(A[kept], B[kept]), abs=1e-12)
    (loss,) = get("infonce").on(Layer(Arrays(np.stack([A, A, B]))))
    assert np.flatnonzero(np.isnan(loss.values)).tolist() == [3, 11]


# LiDAR


def lidar_spectrum(views: np.ndarray, delta: float) -> np.ndarray:
    """Generalised eigenvalues of the scatter between prompts and that within them."""
    v, n, d = views.shape
    means = views.mean(axis=0)
    rest = (views - means).reshape(-1, d)
    within = rest.T @ rest / (n * v) + delta * np.eye(d)
    return linalg.eigh(np.cov(means.T, bias=True), within, eigvals_only=True)


@pytest.mark.parametrize(
    ("v", "n", "d"),
    [
        *[(8, 30, 12), (16, 10, 40), (4, 12, 12), (2, 10, 40), (3, 5, 11), (2, 6, 6), (5, 2, 3)],
        (2, 2100, 3),
    ],
    ids=[
        *["N>D", "N<D<NV", "N=D", "NV<D", "N(V-1)<D<NV", "N(V-1)=D", "two prompts"],
        "more rows than are multiplied at once",
    ],
)
@pytest.mark.parametrize("delta", [1e-4, 1.0])
def test_lidar_is_its_formula(v: int, n: int, d: int, delta: float) -> None:
    rng = np.random.default_rng(v * n * d)
    views = rng.normal(size=(1, n, d)) + 0.5 * rng.normal(size=(v, n, d))
    expected = math.exp(entropy_from_eigenvalues(lidar_spectrum(views, delta)))
    # Directions without residuals are weighed by 1/δ, so rounding is 1/δ times larger in them.
    tolerance = 1e-10 if n * (v - 1) >= d or delta == 1.0 else 1e-7
    assert lidar(views, delta) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_lidar_on_parts_and_from_single_views(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    views = rng.normal(size=(1, 131, 7)) + 0.5 * rng.normal(size=(5, 131, 7))
    counts = np.ones((5, 131))
    counts[2, 17] = 0
    layer = Layer(Arrays(views, n_tokens=counts), MetricsSettings(alphas=(1.0,)), protocol)
    assert_parts("lidar", layer, rel=1e-9)
    (at_once,) = get("lidar").on(layer)
    monkeypatch.setattr(layer_module, "VIEWS_BYTES", 0)
    (one_by_one,) = get("lidar").on(
        Layer(Arrays(views, n_tokens=counts), layer.settings, protocol)
    )
    assert one_by_one.value == pytest.approx(at_once.value, rel=1e-12)
    assert (one_by_one.n, at_once.n) == (130, 130)


class OnDisk(Arrays):
    """Each view is a copy made when it is read; all of them at once are too many."""

    def views(self, *_: Any) -> np.ndarray:
        raise AssertionError("all views at once")

    def pooled(self, *at: Any) -> np.ndarray:
        return super().pooled(*at).copy()


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_many_views_take_no_more_memory_than_two(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("VIEWS_BYTES", "KEPT_BYTES"):
        monkeypatch.setattr(layer_module, limit, 0)
    of_views = [m for m in all_metrics().values() if {"pair", "views"} & {*m.inputs}]
    views, peaks = RNG.normal(size=(17, 150, 40)).astype(np.float32), []
    for used in (views[:3], views):
        compute_layer(Layer(OnDisk(used), protocol=protocol), of_views)
        tracemalloc.start()
        rows = compute_layer(Layer(OnDisk(used), protocol=protocol), of_views)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert "lidar" in {row["metric"] for row in rows.values}
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize(
    ("name", "most"),
    [("infonce", 10_000), ("infonce_mi_bound", 10_000), ("dime", 2_000), ("two_nn", 5_000)],
)
def test_what_grows_with_the_square_of_prompts_is_of_a_sample(name: str, most: int) -> None:
    none = OnParts(np.empty(0), np.empty(0, dtype=np.intp))
    counted = dataclasses.replace(
        get(name),
        compute=lambda layer, *_: [Overall(0.0, len(layer.prompts), parts=none)],
        per_prompt=False,
    )
    (row, *_) = compute_layer(Layer(Arrays(np.ones((3, most + 5, 2)))), [counted]).values
    assert (row["n"], row["n_left_out"]) == (most, 5)


def test_whitening_keeps_what_lies_far_below_the_largest_scatter() -> None:
    """Views differ by 1e5 along one direction and by 1e-2 along others, whose squares float64
    cannot hold side by side."""
    rng = np.random.default_rng(8)
    n, spread = 4, np.array([1e5, 1e-2, 1e-2, 1e-2])
    means = np.linalg.qr(rng.normal(size=(n, n)) - 0.5)[0]
    means -= means.mean(axis=0)
    rotation = np.linalg.qr(rng.normal(size=(9, 9)))[0][:n]
    views = np.stack([means + np.diag(spread), means - np.diag(spread)]) @ rotation
    within = np.sqrt(spread**2 / n + 1e-6)
    expected = np.linalg.svd(means / within, compute_uv=False)[: n - 1] ** 2 / n
    assert np.allclose(eigenvalues(views, 1e-6)[::-1][: n - 1], expected, rtol=1e-6)


def test_a_delta_that_rounding_swallows_is_said() -> None:
    along = np.random.default_rng(0).normal(size=(4, 20, 1)) * np.array([1, 0.7, 0.3]) * 1e8
    with pytest.raises(UndefinedMetricError):
        lidar(along)
    assert lidar(along, delta=1e4) == pytest.approx(1.0)


# DiME


def mean_gap(KA: np.ndarray, KB: np.ndarray, alpha: float) -> float:
    """Entropy that the joint kernel gains if one of the two is permuted."""
    orders = [np.arange(len(KA)), *permutations_of(len(KA), 10, seed=0)]
    joint = (np.linalg.eigvalsh(KA * KB[np.ix_(order, order)]) for order in orders)
    own, *permuted = (entropy_from_eigenvalues(values, alpha) for values in joint)
    return float(np.mean(permuted) - own)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize(("n", "d"), [(30, 8), (8, 30)])
def test_dime_is_its_formula(alpha: float, n: int, d: int) -> None:
    A, B = two_views(n, d)
    expected = mean_gap(unit(A) @ unit(A).T, unit(B) @ unit(B).T, alpha)
    assert dime(A, B, alpha) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("protocol", ["paper", "reference"])
def test_dime_on_parts_is_that_of_their_prompts(protocol: str) -> None:
    settings = MetricsSettings(alphas=(1.0,), settings={"dime": {"permutations": 2}})
    views = np.stack([RNG.normal(size=(20, 30)), *two_views(20, 30)])
    views[2, 3] = 0
    assert_parts("dime", Layer(Arrays(views), settings, protocol))


def test_dime_on_parts_of_many_prompts_takes_one_permutation() -> None:
    layer = Layer(Arrays(np.stack([np.ones((300, 8)), *two_views(300, 8)])))
    shannon, *_ = get("dime").on(layer)
    assert shannon.value == pytest.approx(dime(*layer.pair), abs=1e-12)
    expected = [dime(*part.pair, permutations=1) for part in layer.on_parts()]
    assert shannon.parts.values == pytest.approx(expected, abs=1e-12)


def test_dime_has_the_alphas_and_the_seed_of_its_settings() -> None:
    A, B = two_views(30, 6)
    layer = Layer(Arrays(np.stack([A, A, B])), MetricsSettings(alphas=(1.0, 2.0)))
    shannon, collision = get("dime").on(layer)
    assert shannon.value == pytest.approx(dime(A, B), abs=1e-10)
    assert collision.value == pytest.approx(dime(A, B, 2.0), abs=1e-10)
    other = Layer(Arrays(np.stack([A, A, B])), MetricsSettings(alphas=(1.0,), seed=1))
    (of_other,) = get("dime").on(other)
    assert of_other.value == pytest.approx(dime(A, B, seed=1), abs=1e-10) != shannon.value


# Which views


def test_the_pair_is_the_first_two_augmented_views() -> None:
    views = np.arange(4 * 3 * 2, dtype=float).reshape(4, 3, 2)
    for shown, expected in ((views, (1, 2)), (views[:2], (0, 1))):
        layer = Layer(Arrays(shown))
        for view, number in zip(layer.pair, expected, strict=True):
            assert np.array_equal(view, views[number])


# Degenerate input


def test_too_few_prompts_or_views_say_so() -> None:
    A, B = two_views(1, 5)
    for compute in (infonce, dime):
        with pytest.raises(UndefinedMetricError):
            compute(A, B)
    for shape in ((1, 5, 3), (4, 1, 3)):
        with pytest.raises(UndefinedMetricError):
            lidar(np.random.default_rng(0).normal(size=shape))


def test_equal_embeddings_are_undefined_for_lidar_and_chance_for_the_others() -> None:
    same = np.ones((6, 4))
    with pytest.raises(UndefinedMetricError):
        lidar(np.stack([same, same]))
    assert infonce(same, same) == pytest.approx(math.log(11), abs=1e-12)
    assert dime(same, same) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_in_views_name_the_row(bad: float) -> None:
    A, B = two_views(6, 4)
    B[2, 1] = bad
    for compute in (lambda: infonce(A, B), lambda: dime(A, B), lambda: lidar(np.stack([A, B]))):
        with refused("not_finite"):
            compute()


def test_views_of_different_prompts_are_refused() -> None:
    A, B = two_views(6, 4)
    with refused("wrong_shape"):
        infonce(A, B[:5])
    with refused("wrong_shape"):
        lidar(A)
