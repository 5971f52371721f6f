"""What a pass asks of a GPU, counted on the CPU: operators, waits, and copies to the host."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from layerwise.activations import eigen, embedding
from layerwise.activations import extract as extraction
from layerwise.activations.representation import Representation
from layerwise.io import hdf5

# Methods that return only when a GPU has done all that it was given.
WAITS = {"cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__"}
N_LAYERS = 4


class Waits(TorchFunctionMode):
    """Counts the calls that wait for a device."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["waits"] += getattr(func, "__name__", "") in WAITS
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Counts the operators that compute something: views cost a GPU nothing."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["operators"] += not func.is_view
        return func(*args, **(kwargs or {}))


def gram(states: torch.Tensor) -> torch.Tensor:
    """As on a GPU."""
    wide = states.double()
    return wide @ wide.transpose(1, 2)


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of the passes from here on, which take the GPU's way through the code."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(extraction, "AT_ONCE", ())
    monkeypatch.setitem(extraction.WAITING_BYTES, "cpu", 20_000)
    monkeypatch.setattr(eigen, "gram", gram)

    def in_modes(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            with Waits(counts), Operators(counts):
                method(*args, **options)

        return call

    for name in ("take", "finish"):
        monkeypatch.setattr(extraction.Batch, name, in_modes(getattr(extraction.Batch, name)))

    to_host_of_eigen = eigen.to_host

    def to_host(tensors: list[torch.Tensor]) -> Callable[[], list[np.ndarray]]:
        counts["batches"] += 1
        counts["bytes"] += sum(tensor.nbytes for tensor in tensors)
        return to_host_of_eigen(tensors)

    monkeypatch.setattr(eigen, "to_host", to_host)
    return counts


def arrays(path: Path) -> dict[str, np.ndarray]:
    import h5py

    with hdf5.readable(path), h5py.File(path) as file:
        return {name: item[...] for name, item in file.items() if isinstance(item, h5py.Dataset)}


@pytest.mark.parametrize(
    ("settings", "n_operators"),
    [
        ({"protocols": ("paper",), "tokens": ("all",)}, 15),
        (
            {
                "protocols": ("paper", "reference"),
                "tokens": ("all", "drop_first"),
                "arrays": ("first_token_attention",),
            },
            90,
        ),
    ],
)
def test_a_pass_waits_for_nothing_and_is_copied_once_a_batch(
    settings: dict[str, Any], n_operators: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = tiny.loaded("llama", tmp_path), tiny.texts(24)
    options = {**settings, "batch_tokens": 100}
    plain = tiny.extracted(model, tmp_path / "plain.h5", texts, **options)
    counts = counted(monkeypatch)
    path = tiny.extracted(model, tmp_path / "gpu.h5", texts, **options)
    assert counts["batches"] > 2
    assert counts["waits"] == 0

    assert counts["operators"] <= n_operators * N_LAYERS * counts["batches"]
    for name, values in arrays(path).items():
        if values.dtype.kind == "f":
            expected = arrays(plain)[name]
            np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_copies_of_many_types_and_shapes() -> None:
    tensors = [
        torch.arange(3, dtype=torch.int64),
        torch.rand(2, 3).T,
        torch.rand(0, 4, dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.rand(4, dtype=torch.float64).expand(2, 4),
        torch.rand(5, dtype=torch.float16),
    ]
    for tensor, copy in zip(tensors, eigen.to_host(tensors)(), strict=True):
        assert np.array_equal(copy, tensor.numpy()) and copy.dtype == tensor.numpy().dtype


def test_states_that_are_not_finite_are_refused_behind_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.loaded("llama", tmp_path)
    model.anatomy.blocks[1].mlp.down_proj.weight[0, 0] = torch.nan
    counts = counted(monkeypatch)
    with pytest.raises(extraction.LayerwiseError, match="layer 2 for prompt"):
        tiny.extracted(model, tmp_path / "gpu.h5", tiny.texts(24), batch_tokens=100)
    assert counts["waits"] == 0
    assert not (tmp_path / "gpu.h5").exists()


@pytest.mark.parametrize("of_words", [False, True])
def test_embedding_waits_once_a_batch(
    of_words: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one copy of all layers and representations."""
    model, inputs = tiny.loaded("llama", tmp_path), tiny.texts(24)
    if of_words:
        inputs = [word for text in inputs for word in embedding.words_of(text.split())]
    counts: Counter[str] = Counter()

    def in_mode(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            with Waits(counts):
                method(*args)

        return call

    take = in_mode(embedding._Batch.take)
    monkeypatch.setattr(embedding._Batch, "take", take)

    to_host_of_eigen = eigen.to_host

    def to_host(tensors: list[torch.Tensor]) -> Callable[[], list[np.ndarray]]:
        counts["copies"] += 1
        assert len(tensors) == 2 * N_LAYERS
        return to_host_of_eigen(tensors)

    monkeypatch.setattr(eigen, "to_host", to_host)
    ways = [Representation(tokens) for tokens in ("all", "drop_first")]
    embedding.embed(model, inputs, ways, budget=100)
    assert counts["waits"] == 0 and counts["copies"] > 2
