"""Texts that a model writes itself: its greedy answers to prompts in its chat template."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from layerwise.config.corpora import GeneratedTexts
from layerwise.config.models import Model
from layerwise.corpora.sources import GENERATED, open_texts
from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.models import devices
from layerwise.models.load import read
from layerwise.models.source import Location
from layerwise.progress import Progress

log = logging.getLogger(__name__)

# Prompts that are answered at once.
BATCH = 32


def write_texts(
    target: Path,
    source: GeneratedTexts,
    model: Model,
    revision: str,
    *,
    device: str = "auto",
    dtype: str = "float32",
    **facts: Any,
) -> None:
    """Let a model answer the prompts of a source, and write prompts and answers.

    Parameters
    ----------
    target : Path
        Parquet table with a row for each prompt that is not empty: ``id``, and ``text``, the
        prompt in the chat template followed by the answer without special tokens.
    model : Model
        The entry of the model that `source` names.
    device, dtype : str
        As for `layerwise.models.load.load`.
    **facts
        Key and provenance, for the file's metadata.

    Raises
    ------
    LayerwiseError
        If the model is missing, writes no text, or has no chat template.
    """
    settings = source.generate
    pairs, about = open_texts(settings.prompts)
    asked = [(name, prompt) for name, prompt in pairs if prompt.strip()]
    claim = devices.pick(device, spread=model.device_map is not None)
    network, tokenizer = _load(settings.model, model, revision, dtype)
    if model.device_map is None:
        network.to(claim.device)
    chats = [_in_template(tokenizer, prompt) for _, prompt in asked]
    made = dict(_answers(network, tokenizer, chats, settings.max_new_tokens))
    rows = [(name, chats[place] + made[place]) for place, (name, _) in enumerate(asked)]
    facts |= {**about, "model": settings.model, "revision": revision}
    tables.write(target, pd.DataFrame(rows, columns=["id", "text"]), kind=GENERATED, **facts)


def _load(name: str, model: Model, revision: str, dtype: str) -> tuple[Any, Any]:
    """The language model, set to greedy decoding, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    def reader(location: Location, _: Any, **options: Any) -> Any:
        return AutoTokenizer.from_pretrained(location.name, **options)

    who = f"Model {name!r} at {revision!r}"
    network, tokenizer, found = read(who, model, revision, AutoModelForCausalLM, reader, dtype)
    unfit = [*found["missing_keys"], *(weight for weight, *_ in found["mismatched_keys"])]
    if unfit:
        raise LayerwiseError(
            f"{who} cannot write texts: its files lack {min(unfit)!r}; name a "
            "language model with all its weights.",
            code="unsupported",
        )
    if not tokenizer.chat_template:
        raise LayerwiseError(
            f"{who} has no chat template, which generated texts need; name a model that was "
            "trained on conversations (…-Instruct).",
            code="unsupported",
        )
    # Its own settings may sample, or punish repetitions.
    end = network.generation_config.eos_token_id
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise LayerwiseError(
            f"{who} has no token that ends an answer; set eos_token_id in its "
            "generation_config.json.",
            code="unsupported",
        )
    padding = end[0] if isinstance(end, list) else end
    network.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=padding)
    return network.eval(), tokenizer


def _in_template(tokenizer: Any, prompt: str) -> str:
    """A prompt as the user's first message, up to where the model's answer begins."""
    message = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return text


@torch.inference_mode()
def _answers(
    network: Any, tokenizer: Any, chats: Iterable[str], max_new_tokens: int
) -> Iterator[tuple[int, str]]:
    """The place of each chat and the answer to it.

    Only chats of the same number of tokens share a batch: without padding, which not all models
    ignore exactly, an answer does not depend on the other prompts.
    """
    ids = [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]
    by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    n_cut, end = 0, network.generation_config.eos_token_id
    ends = torch.tensor(end if isinstance(end, list) else [end], device=network.device)
    with Progress(len(ids), "generating", "texts") as progress:
        for length, alike in groupby(by_length, key=lambda place: len(ids[place])):
            places = list(alike)
            for start in range(0, len(places), BATCH):
                part = places[start : start + BATCH]
                given = torch.tensor([ids[place] for place in part], device=network.device)
                new = network.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                )[:, length:]
                n_cut += int((~torch.isin(new, ends).any(dim=1)).sum())
                yield from zip(part, _decoded(tokenizer, new), strict=True)
                progress.update(len(part))
    if n_cut:
        log.warning("%d of %d answers end after max_new_tokens", n_cut, len(ids))


def _decoded(tokenizer: Any, ids: Any) -> list[str]:
    decoded: list[str] = tokenizer.batch_decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return decoded
