"""Time embedding a task's texts at all layers against embedding them at the last layer alone.

The last layer alone: the same texts in the same batches through the same model, the last hidden
state averaged over each text's tokens, nothing else. Both tokenise. Runs take turns in one
process, and the fastest of each counts.

python benchmarks/bench_embed.py --model smollm2 results/converted/smollm2-135m/main \\
    --texts results/tasks/PangLeePolarity.texts.parquet
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.cli  # isort: skip  # noqa: F401
import numpy as np
import pandas as pd
import torch

from layerwise.activations import batches
from layerwise.activations.embed import embed
from layerwise.section import parse
from layerwise.config.models import Model
from layerwise.models.load import LoadedModel, load
from layerwise.tasks.layout import Reading

CHOICES = {
    "all layers, mean": [Reading("all", "mean", "residual")],
    "all layers, mean and drop_first": [
        Reading("all", "mean", "residual"),
        Reading("drop_first", "mean", "residual"),
    ],
}


@torch.inference_mode()
def last_layer(loaded: LoadedModel, texts: list[str]) -> np.ndarray:
    """Embeddings of the last layer, shape (N, D), and nothing else."""
    ids, _ = loaded.tokenize(texts)
    result = np.empty((len(texts), loaded.anatomy.hidden), np.float32)
    pad = int(loaded.tokenizer.pad_token_id)
    for batch in batches.cut(
        [len(p) for p in ids], batches.budget_of(loaded.device.type, loaded.anatomy.hidden)
    ):
        longest = len(ids[batch[0]])
        tokens = torch.tensor([ids[i] + [pad] * (longest - len(ids[i])) for i in batch])
        sizes = torch.tensor([len(ids[i]) for i in batch])
        mask = torch.arange(longest) < sizes[:, None]
        inputs: dict[str, Any] = {"input_ids": tokens.to(loaded.device)}
        if not mask.all():
            inputs["attention_mask"] = mask.long().to(loaded.device)
        if "use_cache" in loaded.model.config.to_dict():
            inputs["use_cache"] = False
        states = loaded.model(**inputs).last_hidden_state.float()
        weights = mask.to(loaded.device)[..., None]
        pooled = (states * weights).sum(dim=1) / weights.sum(dim=1)
        result[batch] = pooled.cpu().numpy()
    return result


def all_layers(loaded: LoadedModel, texts: list[str], readings: list[Reading]) -> np.ndarray:
    """Embeddings of all layers, shape (R, L + 1, N, D), as the workflow makes them."""
    slabs: list[np.ndarray] = []
    embed(
        loaded,
        texts,
        lambda _start, _stop, found: slabs.append(np.stack(found)),
        readings=readings,
    )
    return np.concatenate(slabs, axis=2)


def main() -> None:
    """Measure and print a line of JSON for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs=2, action="append", metavar=("NAME", "FOLDER"))
    parser.add_argument("--texts", type=Path, required=True, help="parquet with a column text")
    parser.add_argument("--count", type=int, default=100, help="texts (default 100)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = pd.read_parquet(arguments.texts)["text"].tolist()[: arguments.count]
    for name, folder in arguments.model:
        spec = parse(Model, {"source": {"folder": folder}})
        loaded = load(name, spec, "main", device=arguments.device, dtype=arguments.dtype)
        last_layer(loaded, texts[:8])
        jobs: dict[str, Any] = {"last": lambda m=loaded: last_layer(m, texts)}
        for choice, readings in CHOICES.items():
            jobs[choice] = lambda m=loaded, r=readings: all_layers(m, texts, r)
        best = dict.fromkeys(jobs, float("inf"))
        for _ in range(arguments.repeats):
            for choice, job in jobs.items():
                start = time.perf_counter()
                job()
                best[choice] = min(best[choice], time.perf_counter() - start)
        facts = {"model": name, "texts": len(texts), "last_seconds": round(best["last"], 2)}
        facts |= {choice: round(best[choice] / best["last"], 3) for choice in CHOICES}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
