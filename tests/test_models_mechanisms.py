"""What a model computes is what transformers computes for each text alone, or it is refused."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers import tiny
from helpers.refused import refused
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import layerwise as lw
from layerwise.config.models import FolderAdapter
from layerwise.models.opening import open_model
from quickstart.nano import train_tokenizer

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0, 4.0, 8.0, 16.0],
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
BIGBIRD = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
MECHANISMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "sparse blocks": (
        hf.BigBirdConfig(**tiny.ENCODER, **BIGBIRD, max_position_embeddings=512),
        (28,),
    ),
    "sliding window": (
        hf.MistralConfig(**tiny.GROUPED, sliding_window=8, max_position_embeddings=512),
        (8,),
    ),
    "local attention": (
        hf.ModernBertConfig(
            **tiny.ENCODER, local_attention=8, cls_token_id=0, sep_token_id=0, bos_token_id=0
        ),
        (8,),
    ),
    "longrope": (
        hf.Phi3Config(
            **tiny.GROUPED,
            max_position_embeddings=512,
            original_max_position_embeddings=32,
            rope_parameters=LONGROPE,
        ),
        (32,),
    ),
    "dynamic NTK": (
        hf.LlamaConfig(
            **tiny.GROUPED,
            max_position_embeddings=64,
            rope_parameters=DYNAMIC | {"original_max_position_embeddings": 64},
        ),
        (),
    ),
    "expert capacity": (
        hf.SwitchTransformersConfig(
            vocab_size=300,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=3,
            num_decoder_layers=3,
            num_heads=4,
            num_experts=4,
            expert_capacity=4,
            pad_token_id=0,
        ),
        (4,),
    ),
}


def alone(folder: Path, text: str, **options: Any) -> np.ndarray:
    """The mean of a text's output, by transformers alone, of a model that has read nothing."""
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModel.from_pretrained(folder).eval()
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        return (
            model(**tokenizer(text, return_tensors="pt", **options))
            .last_hidden_state[0]
            .mean(0)
            .numpy()
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_texts_on_both_sides_of_a_threshold(tmp_path: Path, mechanism: str) -> None:
    config, thresholds = MECHANISMS[mechanism]
    folder = tiny.save(config, tmp_path)
    texts = [" ".join(tiny.WORDS[:n]) for n in (3, 6, 7, 9, 20, 21, 30, 33)]
    texts.append(texts[0] + " fox")
    with open_model(folder) as loaded:
        assert set(thresholds) <= set(loaded.anatomy.thresholds)
        cut = {"truncation": True, "max_length": min(loaded.max_length, 10**6)}
    values = lw.embed(folder, texts).values[-1]
    expected = np.stack([alone(folder, text, **cut) for text in texts])
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=2e-5)


def test_an_earlier_pass_leaves_no_trace() -> None:
    config, _ = MECHANISMS["dynamic NTK"]
    torch.manual_seed(0)
    model, tokenizer = hf.AutoModel.from_config(config).eval(), train_tokenizer(tiny.WORDS, 300)
    text = " ".join(tiny.WORDS[:30])
    expected = lw.embed(model, [text], tokenizer).values
    with torch.no_grad():
        model(torch.arange(200)[None])
    np.testing.assert_array_equal(lw.embed(model, [text], tokenizer), expected)


def test_autocast_of_the_caller_changes_nothing(tmp_path: Path) -> None:
    folder = tiny.save("llama", tmp_path)
    texts = tiny.texts(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = lw.embed(folder, texts).values
    np.testing.assert_array_equal(values, lw.embed(folder, texts).values)


def words_tokenizer(single: str, **settings: Any) -> Any:
    """A tokenizer of whole words with a template of special tokens."""
    names = ["<pad>", "<unk>", "</s>", "<sep>", "<cls>", *sorted(set(tiny.WORDS))]
    words = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, names.index(name)) for name in names[2:5]]
    )
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **settings)


def test_token_types_of_the_tokenizer_reach_the_model(tmp_path: Path) -> None:
    config = hf.XLNetConfig(
        vocab_size=300, d_model=32, n_layer=3, n_head=4, d_inner=48, pad_token_id=0
    )
    folder = tiny.save(config, tmp_path)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    words_tokenizer("$A:0 <sep>:0 <cls>:2", model_input_names=names).save_pretrained(folder)
    texts = ["seven old sailors", "the quick brown fox jumps"]
    expected = np.stack([alone(folder, text) for text in texts])
    np.testing.assert_allclose(lw.embed(folder, texts).values[-1], expected, atol=1e-5)


def test_an_end_of_text_token_that_is_not_added_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.save("llama", tmp_path)
    settings = folder / "tokenizer_config.json"
    asked = json.loads(settings.read_text()) | {"add_eos_token": True}
    settings.write_text(json.dumps(asked))
    with caplog.at_level(logging.WARNING):
        lw.embed(folder, ["a fox"])
    assert "add_eos_token" in caplog.text


def test_the_text_tower_of_siglip_reads_padding_as_in_training() -> None:
    config = hf.SiglipTextConfig(
        **tiny.COMMON, **tiny.HEADS, max_position_embeddings=16, pad_token_id=0
    )
    torch.manual_seed(0)
    model, tokenizer = hf.SiglipTextModel(config).eval(), train_tokenizer(tiny.WORDS, 300)
    texts = ["a fox", "seven old sailors"]
    values = lw.embed(model, texts, tokenizer).values[-1]
    for text, value in zip(texts, values, strict=True):
        ids = tokenizer(text)["input_ids"]
        tokens = torch.tensor([ids + [tokenizer.pad_token_id] * (16 - len(ids))])
        with torch.no_grad():
            expected = model(tokens).last_hidden_state[0, : len(ids)].mean(0)
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_an_end_of_text_beyond_the_table_of_embeddings(tmp_path: Path) -> None:
    folder = tiny.save("llama", tmp_path)
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    assert np.isfinite(lw.embed(folder, ["a fox", "seven old sailors", ""])).all()


def test_static_embeddings_have_no_layers(tmp_path: Path) -> None:
    table = StaticEmbedding(train_tokenizer(tiny.WORDS, 300).backend_tokenizer, embedding_dim=16)
    model = SentenceTransformer(modules=[table], device="cpu")
    with refused("wrong_type"):
        lw.embed(model, ["a fox"])
    model.save(str(tmp_path / "saved"))
    with refused("unsupported"):
        lw.embed(tmp_path / "saved", ["a fox"])


def test_weights_for_the_prediction_of_several_tokens_are_not_read(tmp_path: Path) -> None:
    folder = tiny.save("llama", tmp_path, kind=hf.AutoModelForCausalLM)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.eh_proj.weight"] = torch.zeros(2, 2)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with refused("mismatch"):
        lw.embed(folder, ["a fox"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert lw.embed(folder, ["a fox"]).shape == (4, 1, 32)


def test_an_adapter_that_saves_the_head_is_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = tiny.save("llama", tmp_path / "llama", kind=hf.AutoModelForCausalLM)
    adapted = peft.get_peft_model(
        hf.AutoModelForCausalLM.from_pretrained(folder),
        peft.LoraConfig(
            r=2, init_lora_weights=False, modules_to_save=["lm_head"], task_type="CAUSAL_LM"
        ),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    entry = tiny.entry(folder, adapters=(FolderAdapter(folder=str(tmp_path / "adapter")),))
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    expected = lw.embed(adapted.merge_and_unload(), ["a fox"], tokenizer).values
    np.testing.assert_allclose(lw.embed(entry, ["a fox"]), expected, atol=1e-5)


def test_a_training_with_lora_is_measured(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = tiny.save("llama", tmp_path / "llama", kind=hf.AutoModelForCausalLM)
    tokenizer, texts = hf.AutoTokenizer.from_pretrained(folder), tiny.texts(8, longest=12)
    model = peft.get_peft_model(
        hf.AutoModelForCausalLM.from_pretrained(folder),
        peft.LoraConfig(r=4, task_type="CAUSAL_LM"),
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    found = lw.LayerMetrics(texts, metrics=["rankme"]).values(model.train(), tokenizer)
    assert model.training
    expected = lw.analyse(model.merge_and_unload(), texts, tokenizer, "rankme")["value"]
    assert [*found.values()] == pytest.approx(expected.tolist(), rel=1e-5)
