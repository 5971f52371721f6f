"""The extraction's arithmetic against numpy routes of its own, and what float32 and bf16 cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import tiny
from helpers.in_memory import Arrays

from layerwise.activations import eigen, representation
from layerwise.activations.reduce import Needs, Reduced, complete
from layerwise.config.settings import MetricsSettings
from layerwise.metrics import registry
from layerwise.metrics.catalog.curvature import curvature
from layerwise.metrics.formulas import entropy, entropy_from_eigenvalues, gram_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt


def states_with_a_sink(length: int, seed: int, sink: float = 25_000.0) -> np.ndarray:
    """Token states as decoders have them: the first of norm 25,000, the others about 150."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(length, 64)) * 150 / 8
    states[0] *= sink / np.linalg.norm(states[0])
    return states.astype(np.float32)


def packed(prompts: list[np.ndarray]) -> representation.Packed:
    lengths = torch.tensor([len(p) for p in prompts])
    longest = int(lengths.max())
    padded = np.full((len(prompts), longest, prompts[0].shape[1]), 1e3, dtype=np.float32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    return representation.pack(torch.from_numpy(padded), lengths)


ULP = 2.0**-23  # spectra are rounded to float32
PROMPTS = [states_with_a_sink(n, n) for n in (3, 40, 17, 80)]


def reduced(chosen: representation.Packed, protocol: str) -> dict[str, np.ndarray]:
    """What the extraction keeps of a batch at one layer."""
    kept = Reduced(chosen, Needs(protocols=(protocol,), tokens=("all",)))
    complete([kept])
    return {
        k: (v if k == "norm" else v[0, 0]).numpy()
        for k, v in kept.arrays.items()
        if k != "n_tokens"
    }


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_spectra_are_numpys_whatever_the_threads_and_the_batch(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = reduced(packed(PROMPTS), "paper")["spectrum"]
        for states, spectrum in zip(PROMPTS, together, strict=True):
            expected = gram_spectrum(states)
            assert spectrum.dtype == np.float32
            np.testing.assert_allclose(spectrum[: len(expected)], expected, rtol=1e-7, atol=1e-6)
            assert not spectrum[len(states) :].any(), "nothing beyond the prompt's tokens"
            alone = reduced(packed([states]), "paper")["spectrum"][0]
            np.testing.assert_allclose(alone, spectrum[: len(alone)], rtol=ULP)
            for alpha in (0.1, 0.5, 1.0, 2.0, 10.0, math.inf):
                exact = entropy(states, alpha)
                assert entropy_from_eigenvalues(spectrum, alpha) == pytest.approx(exact, abs=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("longest", [20, 50, 64, 65, 66, 80])
@pytest.mark.parametrize("tokens", [("all", "drop_first"), ("drop_first", "drop_sinks", "all")])
def test_selections_together_are_as_each_alone(tokens: tuple[str, ...], longest: int) -> None:
    """``all`` and ``drop_first`` share a decomposition while there are at most as many tokens as
    features, 64: rounding must be that of the smaller matrix, without the sink."""
    batch = packed([states_with_a_sink(n, n) for n in (longest, 1, 2, longest - 17)])
    needs = Needs(tokens=tokens, arrays=(*Needs().arrays, *tiny.PREFIXES))
    together = Reduced(batch, needs)
    alone = {name: Reduced(batch, replace(needs, tokens=(name,))) for name in tokens}
    complete([together, *alone.values()])
    for array, axis in (("spectrum", 1), ("prefix_spectrum", 0)):
        names = tokens if array == "spectrum" else needs.prefix_tokens
        for k, name in enumerate(names):
            expected = alone[name].arrays[array].select(axis, 0)
            error = (together.arrays[array].select(axis, k) - expected).abs()
            assert (error <= ULP * expected.abs()).all(), (array, name)


def test_rounding_leaves_no_eigenvalue_below_zero() -> None:
    """Of prompts that repeat themselves, whose Gram matrices are singular."""
    repeated = np.tile(states_with_a_sink(15, 1), (3, 1))
    assert np.linalg.eigvalsh(repeated.astype(np.float64) @ repeated.T).min() < 0
    assert reduced(packed([repeated]), "paper")["spectrum"].min() == 0


@pytest.mark.parametrize("without_first", [False, True])
def test_a_decomposition_that_fails_is_an_error(without_first: bool) -> None:
    with pytest.raises(np.linalg.LinAlgError):
        eigen.eigenvalues(torch.full((1, 40, 40), torch.nan, dtype=torch.float64), without_first)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_nearly_straight_paths_are_as_exact_in_float32(scale: float) -> None:
    """Where the arc cosine magnifies rounding, and where squares leave float32's range."""
    rng = np.random.default_rng(0)
    line = np.arange(1, 12)[:, None] * rng.normal(size=64) * scale
    bent = line + 1e-4 * scale * rng.normal(size=line.shape)
    for path in (line, bent, bent * np.array([[1], [-1]])[np.arange(11) % 2]):
        states = path.astype(np.float32)
        found = reduced(packed([states, states[:5]]), "paper")["curvature"]
        for value, part in zip(found, (states, states[:5]), strict=True):
            assert value == pytest.approx(curvature(part.astype(np.float64)), abs=2e-6)


Arithmetic = Callable[[torch.Tensor, str], dict[str, np.ndarray]]


def extracted(states: torch.Tensor, protocol: str) -> dict[str, np.ndarray]:
    """What the extraction keeps of one prompt."""
    one = representation.pack(states[None], torch.tensor([len(states)]))
    return {name: values[0] for name, values in reduced(one, protocol).items()}


def exact(states: torch.Tensor, protocol: str) -> dict[str, np.ndarray]:
    """The same in float64 throughout."""
    Z = states.double().numpy()
    found = {"norm": np.linalg.norm(Z, axis=1), "pooled": Z.mean(axis=0)}
    if protocol == "paper":
        spectrum, turns = gram_spectrum(Z), np.asarray(curvature(Z))
    else:
        Z = Z - Z.mean(axis=0)
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        spectrum = np.linalg.eigvalsh(np.maximum(Z @ Z.T, 0))[::-1]
        steps = np.diff(Z, axis=0)
        steps /= np.linalg.norm(steps, axis=1, keepdims=True)
        turns = np.arccos(np.minimum(np.abs(np.vecdot(steps[1:], steps[:-1])), 1)).mean()
    return {**found, "spectrum": spectrum, "curvature": turns}


def all_values(
    prompts: list[torch.Tensor], arithmetic: Arithmetic, protocol: str
) -> dict[tuple[str, float | None], float]:
    """All metrics; views are the prompts with every third, fourth or fifth token left out."""
    views = [
        [arithmetic(p[torch.arange(len(p)) % step != 1], protocol) for p in prompts]
        for step in (1, 3, 4, 5)
    ]
    pooled = np.stack([[one["pooled"] for one in view] for view in views])

    def padded(name: str, end: float = 0.0) -> np.ndarray:
        rows = (np.append(one[name], np.full(128 - len(one[name]), end)) for one in views[0])
        return np.stack([*rows])

    arrays = Arrays(
        pooled,
        spectrum=padded("spectrum"),
        norms=padded("norm", np.nan),
        curvature=[one["curvature"] for one in views[0]],
        n_tokens=[[len(p) for p in prompts]] * 4,
        ends=(pooled[1], pooled[2]),
    )
    settings = MetricsSettings(settings={"alpha_req": {"ranks": [3, 500]}})
    layer = Layer(arrays, settings, protocol)
    return {
        (name, result.alpha): float(
            np.nanmean(result.values if isinstance(result, PerPrompt) else result.value)
        )
        for name, metric in registry.all_metrics().items()
        if protocol in metric.protocols
        for result in metric.on(layer)
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("sink", [150.0, 25_000.0])
def test_states_in_low_precision_cost_less_than_1e_4(
    dtype: torch.dtype, protocol: str, sink: float
) -> None:
    """Of states as they are stored, all metrics are those of float64 arithmetic to 1e-4."""
    prompts = [
        torch.from_numpy(states_with_a_sink(20 + i % 30, i, sink)).to(dtype) for i in range(40)
    ]
    found, expected = (all_values(prompts, how, protocol) for how in (extracted, exact))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
