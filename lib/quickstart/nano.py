"""Small language models trained on the spot.

They replace a real checkpoint sweep: seeded, trained in a minute or two, and saved as Hugging Face
folders at log-spaced revisions like Pythia's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.models.source import quiet
from layerwise.progress import Progress

log = logging.getLogger(__name__)

HELD_OUT = 64  # windows of text for the held-out loss


@dataclass(frozen=True)
class Nano:
    """Shape and training of a small model."""

    architecture: Literal["gpt_neox", "mamba2"]
    layers: int = 6
    hidden: int = 64
    vocabulary: int = 2048
    context: int = 128  # tokens in a training window
    batch: int = 8  # windows in a step
    train_steps: int = 512
    learning_rate: float = 0.003  # AdamW's at its peak
    seed: int = 0


MODELS = {
    "pythia-nano": Nano("gpt_neox"),
    "mamba2-nano": Nano("mamba2", batch=4, learning_rate=0.01),
}
REVISIONS = ["step0", *(f"step{2**power}" for power in range(10))]


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer.

    Parameters
    ----------
    texts : the training texts
    vocabulary : number of entries, the 256 bytes and the end-of-text token included
    """
    from transformers import GPT2Tokenizer

    untrained = GPT2Tokenizer(pad_token="<|endoftext|>")
    return untrained.train_new_from_iterator(texts, vocabulary, show_progress=False)


def build(settings: Nano, vocabulary: int) -> Any:
    """Make a causal language model with random weights.

    GPT-NeoX as in Pythia (rotary embeddings, parallel residual), or Mamba-2.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    shape: dict[str, dict[str, Any]] = {
        "gpt_neox": {
            "num_attention_heads": settings.hidden // 32,
            "intermediate_size": 4 * settings.hidden,
            "max_position_embeddings": 4 * settings.context,
            "rotary_pct": 0.25,
            "use_parallel_residual": True,
        },
        "mamba2": {
            "expand": 2,
            "head_dim": 32,
            "num_heads": settings.hidden // 16,
            "state_size": 32,
            "n_groups": 1,
            "chunk_size": 16,  # prompts are padded to a multiple of it
        },
    }
    config = AutoConfig.for_model(
        settings.architecture,
        vocab_size=vocabulary,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **shape[settings.architecture],
    )
    return AutoModelForCausalLM.from_config(config)


def train(
    texts: Sequence[str], settings: Nano, folders: Mapping[int, Path]
) -> list[dict[str, float]]:
    """Train a model and save it at some steps.

    AdamW with linear warm-up and cosine decay to a tenth over ``settings.train_steps``. The
    weights at a step do not depend on which other steps are saved.

    Parameters
    ----------
    settings : Nano
    folders : mapping of int to Path
        Where to save each step; step 0 is the untrained model.

    Returns
    -------
    list of dict
        For each saved step: ``step``, ``train_loss`` (of that step's batch; the held-out loss at
        step 0), ``held_out_loss``; in nats per token.

    Raises
    ------
    LayerwiseError
        If there is too little text.
    """
    from transformers import get_cosine_with_min_lr_schedule_with_warmup

    quiet()
    context, batch = settings.context, settings.batch
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    end = tokenizer.eos_token_id
    stream = torch.tensor([t for ids in tokenizer(list(texts))["input_ids"] for t in (*ids, end)])
    windows = stream[: len(stream) // context * context].view(-1, context)
    if len(windows) < HELD_OUT + batch:
        raise LayerwiseError(
            f"The text has {len(windows)} windows of {context} tokens; training needs at least "
            f"{HELD_OUT + batch}. Give more text or a shorter context.",
            code="too_few",
        )
    torch.manual_seed(settings.seed)
    model = build(settings, len(tokenizer))
    generator = torch.Generator().manual_seed(settings.seed)
    shuffled = windows[torch.randperm(len(windows), generator=generator)]
    held_out, pool = shuffled[:HELD_OUT], shuffled[HELD_OUT:]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, max(1, settings.train_steps // 50), settings.train_steps, min_lr_rate=0.1
    )
    history = []
    batches = _batches(pool, batch, generator)
    train_loss = math.nan
    with Progress(max(folders), f"train {settings.architecture}", "step") as bar:
        for step in range(max(folders) + 1):
            if step > 0:
                model.train()
                loss = _loss(model, next(batches))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                train_loss = float(loss.detach())
                bar.update()
            # Before the first step there are no gradients, and only the learning rate begins.
            optimizer.step()
            schedule.step()
            if step in folders:
                held = _held_out_loss(model, held_out, batch)
                losses = {"train_loss": train_loss if step else held, "held_out_loss": held}
                history.append({"step": step, **losses})
                log.info("step %d: held-out loss %.3f nats a token", step, held)
                model.save_pretrained(folders[step])
                tokenizer.save_pretrained(folders[step])
    return history


def _batches(pool: Tensor, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(len(pool), generator=generator)
        for start in range(0, len(pool) - batch + 1, batch):
            yield pool[order[start : start + batch]]


def _loss(model: Any, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


@torch.no_grad()
def _held_out_loss(model: Any, windows: Tensor, batch: int) -> float:
    model.eval()
    parts = torch.split(windows, batch)
    return sum(float(_loss(model, part)) * len(part) for part in parts) / len(windows)
