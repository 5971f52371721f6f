"""Weights that PyTorch pickled: only tensors are read, and the model is the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.refused import refused
from helpers.scripts import script
from safetensors.torch import load_file

from layerwise.config.models import FolderSource, Model, Pickled
from layerwise.models.source import identity

convert = script("convert_model").convert_pickled

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDEFG"]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder as old releases have it: a pickle, no tokenizer, no model_type."""
    folder = tiny.save("bert", tmp_path / "old")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    config.pop("model_type")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (tmp_path / "letters.txt").write_text("\n".join(LETTERS))
    return folder


SETTINGS = Pickled(model_type="bert", vocabulary="../letters.txt", token="[A-Z]")


def test_the_converted_model_has_its_tensors_and_tokens(old: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    (tmp_path / "new").mkdir()
    convert(old, SETTINGS, tmp_path / "new")
    expected = torch.load(old / "pytorch_model.bin", weights_only=True)
    torch.testing.assert_close(load_file(tmp_path / "new" / "model.safetensors"), expected)
    assert AutoModel.from_pretrained(tmp_path / "new").config.model_type == "bert"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("C A-G X")["input_ids"])
    assert tokens == ["[CLS]", "C", "A", "G", "[UNK]", "[SEP]"]


class Harm:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_what_is_not_a_tensor_is_refused_and_runs_nothing(old: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harmed"
    for content in ({"weight": Harm(harm)}, [1, 2], {"weight": 1}):
        torch.save(content, old / "pytorch_model.bin")
        with refused("unreadable"):
            convert(old, SETTINGS, tmp_path / "new")
    (old / "pytorch_model.bin").write_bytes(b"no pickle")
    with refused("unreadable"):
        convert(old, SETTINGS, tmp_path / "new")
    (old / "pytorch_model.bin").unlink()
    with refused("missing_file"):
        convert(old, SETTINGS, tmp_path / "new")
    assert not harm.exists()


def test_identity_counts_all_that_is_read(old: Path, tmp_path: Path) -> None:
    def current(settings: Pickled = SETTINGS) -> str:
        return identity(Model(source=FolderSource(folder=str(old), pickled=settings)))

    found = [current(), current(SETTINGS.model_copy(update={"token": "[A-C]"}))]
    for file, content in (
        ("pytorch_model.bin", b"1"),
        ("config.json", b"{}"),
        ("../letters.txt", b""),
    ):
        (old / file).write_bytes(content)
        found.append(current())
    assert len(set(found)) == len(found)
