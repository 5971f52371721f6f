"""Let a model answer the prompts of a corpus in its chat template, by greedy decoding.

The table has a row for each prompt that is not empty: ``id``, and ``text``, the prompt in the chat
template followed by the answer without special tokens.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError
from layerwise.run import script

log = logging.getLogger(__name__)

# Prompts that are answered at once.
BATCH = 32


def main(job: script.Job) -> None:
    """Load the model, write prompts and answers."""
    import pandas as pd
    import torch

    from layerwise.corpora.sources import GENERATED, open_texts
    from layerwise.io import tables
    from layerwise.models import devices

    torch.set_num_threads(job.threads)
    settings = job.config.corpora[job.names["corpus"]].source.generate
    pairs, facts = open_texts(settings.prompts)
    asked = [(name, prompt) for name, prompt in pairs if prompt.strip()]
    model, extraction = settings.model, job.config.extraction(settings.model)
    revision = job.config.models[model].revisions[-1]
    entry = script.entry_of(job.plan, model, revision)
    claim = devices.pick(extraction.device, spread=entry.device_map is not None)
    network, tokenizer = _load(model, entry, revision, extraction.dtype)
    if entry.device_map is None:
        network.to(claim.device)
    chats = [_in_template(tokenizer, prompt) for _, prompt in asked]
    answers = dict(_answers(network, tokenizer, chats, settings.max_new_tokens))
    rows = [(name, chats[i] + answers[i]) for i, (name, _) in enumerate(asked)]
    facts |= {"key": job.key, "model": model, "revision": revision}
    frame = pd.DataFrame(rows, columns=["id", "text"])
    tables.write(Path(job.output[0]), frame, kind=GENERATED, **facts)


def _load(name: str, model: Any, revision: str, dtype: str) -> tuple[Any, Any]:
    """The language model, set to greedy decoding, and its tokenizer."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    from layerwise.models.load import read
    from layerwise.models.source import locate

    who, location = f"Model {name!r} at {revision!r}", locate(model.source, revision)
    network, tokenizer, info = read(who, model, location, AutoModelForCausalLM, dtype)
    unfit = [*info["missing_keys"], *(weight for weight, *_ in info["mismatched_keys"])]
    # Its own settings may sample, or punish repetitions.
    end = network.generation_config.eos_token_id
    end = tokenizer.eos_token_id if end is None else end
    if unfit:
        problem = f"its files lack {min(unfit)!r}; name a language model with all its weights"
    elif not tokenizer.chat_template:
        problem = (
            "it has no chat template; name a model that was trained on conversations (…-Instruct)"
        )
    elif end is None:
        problem = (
            "it has no token that ends an answer; set eos_token_id in its generation_config.json"
        )
    else:
        padding = end[0] if isinstance(end, list) else end
        network.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=padding)
        return network.eval(), tokenizer
    raise LayerwiseError(f"{who} cannot write texts: {problem}.", code="unsupported")


def _in_template(tokenizer: Any, prompt: str) -> str:
    """A prompt as the user's first message, up to where the model's answer begins."""
    message = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return text


def _answers(
    network: Any, tokenizer: Any, chats: Iterable[str], max_new_tokens: int
) -> Iterator[tuple[int, str]]:
    """The number of each chat and the answer to it.

    Only chats of the same number of tokens share a batch: without padding, which not all models
    ignore exactly, an answer does not depend on the other prompts.
    """
    import torch

    from layerwise.progress import Progress

    ids = [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]
    by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    n_cut, end = 0, network.generation_config.eos_token_id
    ends = torch.tensor(end if isinstance(end, list) else [end], device=network.device)
    with Progress(len(ids), "generating", "texts") as progress:
        for length, alike in groupby(by_length, key=lambda i: len(ids[i])):
            numbers = list(alike)
            for start in range(0, len(numbers), BATCH):
                batch = numbers[start : start + BATCH]
                inputs = torch.tensor([ids[i] for i in batch], device=network.device)
                new = network.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                )[:, length:]
                n_cut += int((~torch.isin(new, ends).any(dim=1)).sum())
                texts = tokenizer.batch_decode(
                    new, skip_special_tokens=True, clean_up_tokenization_spaces=False
                )
                yield from zip(batch, texts, strict=True)
                progress.update(len(batch))
    if n_cut:
        log.warning("%d of %d answers end after max_new_tokens", n_cut, len(ids))


if __name__ == "__main__":
    script.run(main, snakemake)
