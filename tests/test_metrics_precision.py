"""The extraction's arithmetic against numpy routes of its own, and what float32 and bf16 cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from in_memory import Arrays

from layerwise.activations import representation
from layerwise.activations.reduce import Needs, Reduced, decompose
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics import registry
from layerwise.metrics.catalog.curvature import curvature
from layerwise.metrics.formulas.entropy import entropy, entropy_from_eigenvalues
from layerwise.metrics.formulas.spectra import gram_spectrum
from layerwise.metrics.layer import Layer
from layerwise.metrics.registry import PerPrompt


def state_angles(Z: np.ndarray) -> float:
    """Mean angle between successive centred states, the reference protocol's curvature."""
    states = np.asarray(Z, dtype=np.float64)
    states = states - states.mean(axis=0)
    rows = states / np.linalg.norm(states, axis=1, keepdims=True)
    cosines = np.einsum("ij,ij->i", rows[1:], rows[:-1])
    return float(np.nanmean(np.arccos(np.clip(cosines, -1, 1))))


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


PROMPTS = [states_with_a_sink(n, n) for n in (3, 40, 17, 80)]


def reduced(chosen: representation.Packed, protocol: str) -> dict[str, np.ndarray]:
    """What the extraction keeps of a batch at one layer."""
    kept = Reduced(chosen, Needs(protocols=(protocol,), tokens=("all",)))
    decompose([kept])
    return {
        k: (v if k == "norm" else v[0, 0]).numpy()
        for k, v in kept.arrays.items()
        if k != "n_tokens"
    }


def test_paper_spectra_of_the_extraction_are_numpys() -> None:
    spectra = reduced(packed(PROMPTS), "paper")["spectrum"]
    for found, states in zip(spectra, PROMPTS, strict=True):
        expected = gram_spectrum(states)
        assert found[: len(expected)] == pytest.approx(expected, rel=1e-9, abs=1e-6)
        assert not found[len(states) :].any(), "nothing beyond the prompt's tokens"
        for alpha in (0.5, 1.0, 2.0):
            value = float(entropy_from_eigenvalues(found, alpha))
            assert value == pytest.approx(entropy(states, alpha), abs=1e-10)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_spectra_do_not_depend_on_threads_or_on_the_batch(threads: int) -> None:
    together = reduced(packed(PROMPTS), "paper")["spectrum"]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for prompt, expected in zip(PROMPTS, together, strict=True):
            alone = reduced(packed([prompt]), "paper")["spectrum"][0]
            assert alone == pytest.approx(expected[: len(alone)], abs=1e-14 * expected.max())
    finally:
        torch.set_num_threads(before)


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


def layer_from_states(prompts: list[torch.Tensor], exact: bool, protocol: str) -> Layer:
    """A layer's inputs from token states, by the extraction or in float64 throughout.

    Views are the prompts' tokens with every third, or every fourth, left out.
    """
    pooled, spectra, paths, norms = [], [], [], []
    for view, step in enumerate((0, 3, 4, 5)):
        kept = [p if step == 0 else p[torch.arange(len(p)) % step != 1] for p in prompts]
        if exact:
            means = []
            for states in kept:
                Z = states.double().numpy()
                if protocol == "reference":
                    Z = Z - Z.mean(axis=0)
                    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
                means.append(Z.mean(axis=0))
                if view == 0:
                    norms.append(np.linalg.norm(states.double().numpy(), axis=1))
                    clamped = np.linalg.eigvalsh(np.maximum(Z @ Z.T, 0))[::-1]
                    found = gram_spectrum(Z) if protocol == "paper" else clamped
                    spectra.append(np.pad(found, (0, 128 - len(found))))
                    path = curvature(Z) if protocol == "paper" else state_angles(states.double())
                    paths.append(path)
            pooled.append(np.stack(means))
            continue
        rows = []
        for states in kept:
            chosen = representation.pack(states[None], torch.tensor([len(states)]))
            values = reduced(chosen, protocol)
            rows.append(values["pooled"][0])
            if view == 0:
                norms.append(values["norm"][0])
                found = values["spectrum"][0]
                spectra.append(np.pad(found, (0, 128 - len(found))))
                paths.append(values["curvature"][0])
        pooled.append(np.stack(rows))
    views = np.stack(pooled)
    arrays = Arrays(
        views,
        spectra=np.stack(spectra),
        norms=np.stack([np.pad(n, (0, 128 - len(n))) for n in norms]),
        curvature=np.asarray(paths),
        n_tokens=np.stack([[len(p) for p in prompts]] * 4),
        ends=(views[1], views[2]),
    )
    return Layer(arrays, MetricsSettings(settings={"alpha_req": {"ranks": [3, 500]}}), protocol)


def all_values(layer: Layer) -> dict[tuple[str, float | None], float]:
    values = {}
    for name, metric in registry.all_metrics().items():
        if layer.protocol not in metric.protocols:
            continue
        for result in metric.on(layer):
            value = (
                float(np.nanmean(result.values)) if isinstance(result, PerPrompt) else result.value
            )
            values[name, result.alpha] = value
    return values


def compare(prompts: list[torch.Tensor], protocol: str) -> None:
    ours = all_values(layer_from_states(prompts, exact=False, protocol=protocol))
    exact = all_values(layer_from_states(prompts, exact=True, protocol=protocol))
    assert set(ours) == set(exact)
    for key, value in exact.items():
        assert ours[key] == pytest.approx(value, rel=1e-4, abs=1e-4), key


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
    compare(prompts, protocol)
