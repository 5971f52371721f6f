"""Adapters are merged as PEFT merges them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import tiny
from helpers.refused import refused
from peft import LoraConfig, get_peft_model

import layerwise as lw
from layerwise.config.models import FolderAdapter
from layerwise.models.load import load
from layerwise.models.source import identity


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("llama"))


def adapter(base: Path, folder: Path, head: bool = False, **config: Any) -> Path:
    """Save an adapter with random matrices, of the model alone or with its head."""
    kind = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    settings = {"target_modules": ["up_proj", "q_proj"], "r": 4, "lora_alpha": 8, **config}
    model = get_peft_model(kind.from_pretrained(base), LoraConfig(**settings))
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_()
    model.save_pretrained(folder)
    return folder


def merged(base: Path, *folders: Path) -> dict[str, torch.Tensor]:
    adapters = tuple(FolderAdapter(folder=str(folder)) for folder in folders)
    return load("m", tiny.entry(base, adapters=adapters), "main", device="cpu").model.state_dict()


def products(folder: Path, scale: float) -> dict[str, torch.Tensor]:
    """``scale * B A`` by the name of the weight, from the adapter's file."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for key, a in tensors.items():
        if ".lora_A." in key:
            b = tensors[key.replace("lora_A", "lora_B")]
            name = key.removeprefix("base_model.model.").removeprefix("model.")
            found[name.replace(".lora_A", "")] = scale * b @ a
    return found


@pytest.mark.parametrize(
    ("config", "head", "scale"),
    [
        ({}, False, 2.0),
        ({"use_rslora": True, "task_type": "FEATURE_EXTRACTION"}, False, 4.0),
        ({"task_type": "CAUSAL_LM"}, True, 2.0),
        ({"target_modules": r"model\.layers\.1\..*(up|q)_proj"}, True, 2.0),
    ],
)
def test_the_result_is_base_plus_scaled_product(
    llama: Path, tmp_path: Path, config: dict[str, Any], head: bool, scale: float
) -> None:
    made = products(adapter(llama, tmp_path / "a", head, **config), scale)
    base, found = merged(llama), merged(llama, tmp_path / "a")
    assert len(made) == (2 if isinstance(config.get("target_modules"), str) else 6)
    assert list(base) == list(found)
    for name, weight in base.items():
        torch.testing.assert_close(found[name], weight + made.get(name, 0))


def test_several_are_merged_one_after_another(llama: Path, tmp_path: Path) -> None:
    one = adapter(llama, tmp_path / "a")
    two = adapter(llama, tmp_path / "b", head=True, lora_alpha=4)
    name = "layers.1.mlp.up_proj.weight"
    expected = merged(llama)[name] + products(one, 2.0)[name] + products(two, 1.0)[name]
    torch.testing.assert_close(merged(llama, one, two)[name], expected)


def test_an_adapter_of_another_model_is_refused(llama: Path, tmp_path: Path) -> None:
    deeper = tiny.save("qwen2", tmp_path / "qwen2")
    folder = adapter(deeper, tmp_path / "a", target_modules=["up_proj"])
    path = folder / "adapter_model.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    renamed = {key.replace("layers.1", "layers.9"): value for key, value in tensors.items()}
    save_file(renamed, path)
    with refused("unreadable"):
        merged(llama, folder)
    save_file({key: value[:3].contiguous() for key, value in tensors.items()}, path)
    with refused("unreadable"):
        merged(llama, folder)


def test_damaged_and_pickled_adapters_are_refused(llama: Path, tmp_path: Path) -> None:
    folder = adapter(llama, tmp_path / "a")
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with refused("unreadable"):
        merged(llama, folder)
    path.rename(folder / "adapter_model.bin")
    with refused("unreadable"):
        merged(llama, folder)


def test_an_adapter_alone_is_named(llama: Path, tmp_path: Path) -> None:
    """Also one that sentence-transformers saved, which is read in memory."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(llama), device="cpu")
    model.add_adapter(LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj"]))
    model.save(str(tmp_path / "st"))
    for folder in (adapter(llama, tmp_path / "a"), tmp_path / "st"):
        with refused("conflict"):
            merged(folder)
        with refused("conflict"):
            identity(tiny.entry(folder))
    found = lw.embed(model, ["the quick fox"]).values[-1]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(model.encode(["the quick fox"])))
