"""On a GPU: the same values as on the CPU. Skipped where there is none."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers import tiny

from layerwise.activations import eigen
from layerwise.activations.embedding import embed, words_of
from layerwise.activations.representation import Representation
from layerwise.io import hdf5
from layerwise.models.load import load

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

FAMILIES = ["llama", "gpt_neox", "gemma3_text", "bert", "mamba", "t5"]
ALL_KINDS = {
    "protocols": ("paper", "reference"),
    "tokens": ("all", "drop_first"),
    "token_states": True,
    "arrays": ("first_token_attention",),
}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with hdf5.readable(path), h5py.File(path) as file:
        return {name: item[...] for name, item in file.items() if isinstance(item, h5py.Dataset)}


@pytest.mark.parametrize("size", [1, 2, 3, 33, 70, 160, 400, 1500])
def test_eigenvalues_are_those_of_lapack(size: int) -> None:
    states = torch.randn(3, size, 2 * size, dtype=torch.float64, device="cuda")
    states[0, 0] *= 1000
    states[1, size // 2 + 1 :] = 0
    grams = states @ states.transpose(1, 2)
    expected = [np.linalg.eigvalsh(grams[:, k:, k:].cpu().numpy()) for k in range(2)]
    for values, right in zip(
        eigen.eigenvalues_on_card(grams, without_first=True), expected, strict=True
    ):
        assert np.abs(values.cpu().numpy() - right).max(initial=0) <= 1e-13 * right.max(initial=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_extraction_has_the_values_of_the_cpu(family: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path / "model")
    texts = tiny.texts(40)
    paths = {}
    for device in ("cpu", "cuda"):
        model = load(family, tiny.entry(folder), "main", device=device, dtype="float32")
        path = tmp_path / f"{device}.h5"
        paths[device] = tiny.extracted(model, path, texts, batch_tokens=300, **ALL_KINDS)
    on_gpu = arrays(paths["cuda"])
    for name, expected in arrays(paths["cpu"]).items():
        if expected.dtype.kind == "f":
            scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            np.testing.assert_allclose(
                on_gpu[name], expected, rtol=1e-3, atol=1e-4 * scale, err_msg=name
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_texts_and_words_are_those_of_the_cpu(family: str, tmp_path: Path) -> None:
    folder = tiny.save(family, tmp_path)
    texts = tiny.texts(40)
    words = [word for text in texts[:8] for word in words_of(text.split())]
    readings = [Representation("all", "mean"), Representation("drop_first", "last")]
    vectors = {}
    for device in ("cpu", "cuda"):
        model = load(family, tiny.entry(folder), "main", device=device, dtype="float32")
        vectors[device] = [embed(model, inputs, readings) for inputs in (texts, words)]
    for on_gpu, on_cpu in zip(vectors["cuda"], vectors["cpu"], strict=True):
        scale = np.abs(on_cpu).max()
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-3, atol=1e-4 * scale)
