"""Tiny random models of several families, built from configs, saved as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf

from layerwise.models import nano

WORDS = (
    "the quick brown fox jumps over a lazy dog while seven old sailors watch from the pier and "
    "sing about storms they never saw nor feared in all their long and uneventful lives at sea"
).split()
VOCABULARY = 300

COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "intermediate_size": 48}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}

FAMILIES: dict[str, Any] = {
    "gpt_neox": lambda: hf.GPTNeoXConfig(**COMMON, **HEADS, **TOKENS),
    "llama": lambda: hf.LlamaConfig(**COMMON, **HEADS, **TOKENS, num_key_value_heads=2),
    "bert": lambda: hf.BertConfig(**COMMON, **HEADS, pad_token_id=0),
    "mamba2": lambda: hf.Mamba2Config(
        **COMMON, **TOKENS, expand=2, head_dim=8, num_heads=8, state_size=8, n_groups=1,
        chunk_size=16,
    ),
    "mamba": lambda: hf.MambaConfig(**COMMON, **TOKENS, state_size=8),
}  # fmt: skip


def texts(n: int, seed: int = 0, shortest: int = 4, longest: int = 30) -> list[str]:
    """Sentences of random words and lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(n):
        size = int(torch.randint(shortest, longest + 1, (1,), generator=generator))
        picks = torch.randint(len(WORDS), (size,), generator=generator)
        made.append(" ".join(WORDS[int(i)] for i in picks))
    return made


def save(family: str, folder: Path, seed: int = 0) -> Path:
    """Save a tiny random model of a family with a tokenizer, and return its folder."""
    torch.manual_seed(seed)
    model = hf.AutoModel.from_config(FAMILIES[family]())
    for parameter in model.parameters():
        # Freshly built models have zero biases and tiny weights; real ones don't.
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    nano.train_tokenizer(WORDS, VOCABULARY).save_pretrained(folder)
    return folder


def spec(folder: Path) -> dict[str, Any]:
    """A config entry for a model in a folder."""
    return {"source": {"folder": str(folder)}}
