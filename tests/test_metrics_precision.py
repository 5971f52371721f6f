"""The extraction's arithmetic against numpy routes of its own, and what float32 and bf16 cost."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import tiny

from layerwise.activations import eigen, representation
from layerwise.activations.reduce import Needs, Reduced, complete
from layerwise.metrics.catalog.curvature import curvature
from layerwise.metrics.formulas import entropy, entropy_from_eigenvalues, gram_spectrum


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
RTOL = 1e-6
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


def exact(states: torch.Tensor, protocol: str) -> dict[str, np.ndarray]:
    """What the extraction keeps of one prompt, in float64 throughout."""
    Z = states.double().numpy()
    found = {"norm": np.linalg.norm(Z, axis=1), "pooled": Z.mean(axis=0)}
    if protocol == "paper":
        spectrum, turns = gram_spectrum(Z), np.asarray(curvature(Z))
    else:
        Z = Z - Z.mean(axis=0)
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        spectrum = np.linalg.eigvalsh(np.maximum(Z @ Z.T, 0))
        spectrum = spectrum[np.abs(spectrum).argsort()[::-1]]
        steps = np.diff(Z, axis=0)
        steps /= np.linalg.norm(steps, axis=1, keepdims=True)
        turns = np.arccos(np.minimum(np.abs(np.vecdot(steps[1:], steps[:-1])), 1)).mean()
    return {**found, "spectrum": spectrum, "curvature": turns}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("sink", [150.0, 25_000.0])
def test_arrays_of_states_in_low_precision_are_those_of_float64(
    dtype: torch.dtype, protocol: str, sink: float
) -> None:
    for seed in range(12):
        states = torch.from_numpy(states_with_a_sink(20 + 3 * seed, seed, sink)).to(dtype)
        one = representation.pack(states[None], torch.tensor([len(states)]))
        found = {name: values[0] for name, values in reduced(one, protocol).items()}
        for name, expected in exact(states, protocol).items():
            rounding = RTOL * np.abs(expected).max()
            np.testing.assert_allclose(found[name], expected, RTOL, rounding, err_msg=name)
