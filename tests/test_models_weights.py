"""Every weight of a model's files is read as what it is, or the model is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import tiny
from helpers.refused import refused
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from layerwise import embed
from layerwise.models.load import load
from layerwise.models.opening import open_model
from layerwise.models.texts import Texts


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save("llama", tmp_path / "llama")


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a folder's file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def opened(folder: Path) -> None:
    load("m", tiny.entry(folder), "main", device="cpu")


def named(tensors: dict[str, torch.Tensor], ending: str) -> str:
    return next(name for name in tensors if name.endswith(ending))


def with_bias(tensors: dict[str, torch.Tensor]) -> None:
    name = named(tensors, "q_proj.weight")
    tensors[name.replace("weight", "bias")] = torch.ones(len(tensors[name]))


def with_scale(tensors: dict[str, torch.Tensor]) -> None:
    name = named(tensors, "q_proj.weight")
    tensors[f"{name}_scale_inv"] = torch.ones(1)


def in_integers(tensors: dict[str, torch.Tensor]) -> None:
    name = named(tensors, "q_proj.weight")
    tensors[name] = (100 * tensors[name]).to(torch.int8)


@pytest.mark.parametrize("change", [with_bias, with_scale, in_integers])
def test_weights_that_the_config_does_not_name(llama: Path, change: Any) -> None:
    rewrite(llama, change)
    with refused("mismatch"):
        opened(llama)


def test_weights_that_nothing_reads(llama: Path) -> None:
    """A head, another tower, and positions that older versions of transformers saved."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        block = named(tensors, "q_proj.weight").split("self_attn")[0]
        tensors["lm_head.weight"] = torch.ones(2, 2)
        tensors["vision_tower.layers.0.norm.weight"] = torch.ones(2)
        tensors[f"{block}self_attn.rotary_emb.inv_freq"] = torch.ones(2)

    rewrite(llama, change)
    opened(llama)


def shards(folder: Path) -> dict[str, str]:
    """Save the model again in shards; the file of each tensor."""
    model = transformers.AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    files: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())[
        "weight_map"
    ]
    return files


def test_a_tensor_in_two_shards(llama: Path) -> None:
    files = shards(llama)
    opened(llama)
    name = named(dict.fromkeys(files, torch.ones(1)), "q_proj.weight")
    other = llama / max(set(files.values()) - {files[name]})
    save_file({**load_file(other), name: torch.ones(2, 2)}, other, {"format": "pt"})
    with refused("mismatch"):
        opened(llama)


def test_a_single_file_beside_shards(llama: Path) -> None:
    single = load_file(llama / "model.safetensors")
    shards(llama)
    save_file(single, llama / "model.safetensors", {"format": "pt"})
    with refused("conflict"):
        opened(llama)


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_learned_prompts_in_memory(llama: Path, kind: type) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    tuned = get_peft_model(model, kind(task_type="CAUSAL_LM", num_virtual_tokens=4))
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    with refused("unsupported"), open_model(tuned, tokenizer):
        pass


def reader(llama: Path) -> Texts:
    words = {"<unk>": 0, "<s>": 1, "river": 2, "stone": 3}
    model = models.WordLevel(words, unk_token="<unk>")
    of_words = Tokenizer(model)
    of_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    of_words.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=of_words, unk_token="<unk>", bos_token="<s>", pad_token="<s>"
    )
    network = transformers.AutoModel.from_pretrained(llama)
    return Texts("m", fast, tiny.entry(llama), network)


def test_texts_of_unknown_tokens(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with refused("unsupported"):
        reader(llama).prompts([f"word{n}" for n in range(30)])
    reader(llama).prompts(["river stone"] * 30)
    assert not caplog.messages
    reader(llama).prompts(["river stone", "river bank", "river shore"])
    assert (
        "22% of the tokens are unknown" in caplog.text and "3 texts are read as 2" in caplog.text
    )


def test_texts_that_begin_twice(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = reader(llama)
    for _ in range(2):
        texts.prompts(["<s> river", "<s> stone"])
    assert [message.count("twice") for message in caplog.messages] == [1]


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_weights_that_give_no_numbers(llama: Path, value: float, dtype: str) -> None:
    rewrite(llama, lambda tensors: tensors[named(tensors, "down_proj.weight")].fill_(value))
    with refused("not_finite"):
        load("m", tiny.entry(llama), "main", device="cpu", dtype=dtype)


def test_a_tokenizer_class_that_reads_otherwise_than_its_file(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(llama)
    assert not caplog.messages
    path = llama / "tokenizer_config.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"tokenizer_class": "RobertaTokenizer"}))
    opened(llama)
    assert "RobertaTokenizer reads 'the quick brown fox' as" in caplog.text
    caplog.clear()
    # As the line says.
    path.write_text(json.dumps(about | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    opened(llama)
    assert not caplog.messages


def test_tuples_and_parallel_copies_are_read(llama: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    expected = embed(llama, ["the quick fox"]).values
    path = llama / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"return_dict": False}))
    network = transformers.AutoModel.from_pretrained(llama)
    assert (embed(llama, ["the quick fox"]).values == expected).all()
    parallel = torch.nn.DataParallel(network)
    assert (embed(parallel, ["the quick fox"], tokenizer).values == expected).all()
    assert network.config.return_dict is False
