"""Small language models trained on the spot, for the quickstart and the tests.

They stand in for a real checkpoint sweep: seeded, a few minutes on two cores, saved as ordinary
Hugging Face folders at log-spaced revisions, as Pythia's are. Nothing else in the project knows
that they were made here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.config.models import Nano
from layerwise.errors import LayerwiseError, closest
from layerwise.models.adapters import attend_both_ways
from layerwise.models.quiet import quiet
from layerwise.progress import Progress

log = logging.getLogger(__name__)

END = "<|endoftext|>"
MASK = "<|mask|>"
HELD_OUT = 64  # windows of text kept for the loss that is reported
# As BERT hides tokens (Devlin et al. 2019): so many of all; of these so many by the mask token,
# and so many by a random one; the rest stay.
HIDDEN, MASKED, RANDOM = 0.15, 0.8, 0.1


def train_tokenizer(texts: Sequence[str], vocabulary: int, *, mask: bool = False) -> Any:
    """Train a byte-level BPE tokenizer.

    Parameters
    ----------
    texts : the training texts
    vocabulary : number of entries, the 256 bytes and the end-of-text token included
    mask : whether one of them is a token that stands for a hidden one
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, MASK] if mask else [END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    more = {"mask_token": MASK} if mask else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END, unk_token=END,
        **more,
    )  # fmt: skip


def build(architecture: str, *, layers: int, hidden: int, vocabulary: int, context: int) -> Any:
    """A causal language model with random weights.

    Parameters
    ----------
    architecture : {'gpt_neox', 'mamba2'}
        GPT-NeoX as Pythia has it (rotary, parallel residual), or Mamba-2.

    Raises
    ------
    LayerwiseError
        If the architecture is another.
    """
    from transformers import (
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        Mamba2Config,
        Mamba2ForCausalLM,
    )

    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if architecture == "gpt_neox":
        return GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=vocabulary,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=max(1, hidden // 32),
                intermediate_size=4 * hidden,
                max_position_embeddings=4 * context,
                rotary_pct=0.25,
                use_parallel_residual=True,
                **tokens,
            )
        )
    if architecture == "mamba2":
        return Mamba2ForCausalLM(
            Mamba2Config(
                vocab_size=vocabulary,
                hidden_size=hidden,
                num_hidden_layers=layers,
                expand=2,
                head_dim=32,
                num_heads=hidden // 16,
                state_size=32,
                n_groups=1,
                chunk_size=16,  # prompts are padded to a multiple of it
                **tokens,
            )
        )
    known = ("gpt_neox", "mamba2")
    raise LayerwiseError(
        f"No nano architecture is called {architecture!r}{closest(architecture, known)}; "
        f"there are {', '.join(known)}."
    )


def train(
    texts: Sequence[str],
    settings: Nano,
    steps: Sequence[int],
    folders: Mapping[int, Path],
) -> list[dict[str, float]]:
    """Train a model and save it at the given steps.

    AdamW, linear warm-up and cosine decay to a tenth over ``settings.train_steps``, so that the
    weights at a step do not depend on which other steps are saved. Losses are nats a token that
    is predicted: every one, or of the masked objective the hidden ones, on the held-out text the
    same at every step.

    Parameters
    ----------
    settings : Nano
        The model's entry in the config.
    steps : increasing steps to save, 0 (untrained) included if wanted
    folders : where to save each of them

    Returns
    -------
    list of dict
        For each saved step: ``step``, ``train_loss`` (of that step's batch; NaN-free: the
        held-out loss at step 0), ``held_out_loss``; nats a token.

    Raises
    ------
    LayerwiseError
        If a step lies beyond ``train_steps`` or there is too little text.
    """
    check_steps(settings, steps)
    quiet()
    seed, context, batch = settings.seed, settings.context, settings.batch
    masked = settings.objective == "masked"
    tokenizer = train_tokenizer(texts, settings.vocabulary, mask=masked)
    stream = torch.tensor(_stream(tokenizer, texts))
    usable = stream[: len(stream) // context * context].view(-1, context)
    if len(usable) < HELD_OUT + batch:
        raise LayerwiseError(
            f"The text has {len(usable)} windows of {context} tokens; training needs at least "
            f"{HELD_OUT + batch}. Give more text or a shorter context."
        )
    torch.manual_seed(seed)
    model = build(
        settings.architecture, layers=settings.layers, hidden=settings.hidden,
        vocabulary=len(tokenizer), context=context,
    )  # fmt: skip
    if masked:
        attend_both_ways(model)
    hide = Hide(tokenizer, seed) if masked else None

    def held_out_loss(windows: Tensor) -> float:
        return _held_out_loss(model, windows, batch, Hide(tokenizer, 0) if masked else None)

    return fit(
        model, usable, settings, steps, folders,
        loss=lambda model, tokens: _loss(model, tokens, hide), held_out_loss=held_out_loss,
        save=tokenizer.save_pretrained, unit="nats a token",
    )  # fmt: skip


def check_steps(settings: Nano, steps: Sequence[int]) -> None:
    """Make sure that training gets as far as the steps that are to be saved.

    Raises
    ------
    LayerwiseError
        If it does not.
    """
    if max(steps) > settings.train_steps:
        raise LayerwiseError(
            f"Step {max(steps)} is to be saved, but training ends at train_steps = "
            f"{settings.train_steps}; raise train_steps or drop the step."
        )


def fit(
    model: Any,
    data: Tensor,
    settings: Nano,
    steps: Sequence[int],
    folders: Mapping[int, Path],
    *,
    loss: Callable[[Any, Tensor], Tensor],
    held_out_loss: Callable[[Tensor], float],
    save: Callable[[Path], Any],
    unit: str,
) -> list[dict[str, float]]:
    """Train a model on some of the data, and save it at steps.

    Parameters
    ----------
    data : Tensor
        One example a row; `HELD_OUT` of them are not trained on.
    loss : function of the model and a batch of the data
    held_out_loss : function of the held-out data
    save : function of a folder
        Writes what is read beside the weights.
    unit : str
        Of losses, in nats.

    Returns
    -------
    list of dict
        See `train`.
    """
    seed, batch = settings.seed, settings.batch
    generator = torch.Generator().manual_seed(seed)
    shuffled = data[torch.randperm(len(data), generator=generator)]
    held_out, pool = shuffled[:HELD_OUT], shuffled[HELD_OUT:]
    model.to(settings.device)
    # On a GPU products take 10-bit mantissas, several times as fast.
    torch.set_float32_matmul_precision("high" if settings.device == "cuda" else "highest")
    pool, held_out = pool.to(settings.device), held_out.to(settings.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    history = []
    batches = _batches(pool, batch, generator)
    wanted = set(steps)
    train_loss = math.nan
    with Progress(max(steps), f"train {settings.architecture}", "step") as bar:
        for step in range(max(steps) + 1):
            if step > 0:
                rate = _rate(step, settings.train_steps) * settings.learning_rate
                for group in optimizer.param_groups:
                    group["lr"] = rate
                train_loss = _step(model, optimizer, next(batches), loss)
                bar.update()
            if step in wanted:
                model.eval()
                with torch.no_grad():
                    found = held_out_loss(held_out)
                entry = {
                    "step": step,
                    "train_loss": found if step == 0 else train_loss,
                    "held_out_loss": found,
                }
                history.append(entry)
                log.info("step %d: held-out loss %.3f %s", step, found, unit)
                folders[step].mkdir(parents=True, exist_ok=True)
                model.save_pretrained(folders[step])
                save(folders[step])
    return history


def _stream(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    stream: list[int] = []
    for ids in tokenizer(list(texts))["input_ids"]:
        stream += ids
        stream.append(tokenizer.eos_token_id)
    return stream


def _batches(pool: Tensor, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(len(pool), generator=generator)
        for start in range(0, len(pool) - batch + 1, batch):
            yield pool[order[start : start + batch]]


def _rate(step: int, total: int) -> float:
    warm_up = max(1, total // 50)
    if step <= warm_up:
        return step / warm_up
    progress = (step - warm_up) / max(1, total - warm_up)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


class Hide:
    """Hides some tokens of a batch, others each time."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.mask, self.size = tokenizer.mask_token_id, len(tokenizer)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens as the model sees them, and which of them it is to predict."""
        # Drawn on the CPU, so that they are the same on any device.
        drawn = torch.rand((2, *tokens.shape), generator=self.generator).to(tokens.device)
        hidden, kind = drawn[0] < HIDDEN, drawn[1]
        other = torch.randint(self.size, tokens.shape, generator=self.generator).to(tokens.device)
        seen = torch.where(hidden & (kind < MASKED), self.mask, tokens)
        at_random = hidden & (kind >= MASKED) & (kind < MASKED + RANDOM)
        return torch.where(at_random, other, seen), hidden


def _loss(model: Any, tokens: Tensor, hide: Hide | None) -> Tensor:
    if hide is None:
        loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return loss
    seen, hidden = hide(tokens)
    logits = model(input_ids=seen, use_cache=False).logits
    return nn.functional.cross_entropy(logits[hidden], tokens[hidden])


def _step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    loss_of: Callable[[Any, Tensor], Tensor],
) -> float:
    model.train()
    loss = loss_of(model, batch)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def _held_out_loss(model: Any, windows: Tensor, batch: int, hide: Hide | None) -> float:
    model.eval()
    total = 0.0
    for start in range(0, len(windows), batch):
        part = windows[start : start + batch]
        total += float(_loss(model, part, hide)) * len(part)
    return total / len(windows)
