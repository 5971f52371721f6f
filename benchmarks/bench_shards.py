"""A corpus in shards as it grows: seconds a prompt, memory of a job, time to join and to read.

Each shard is extracted by a process of its own, one after the other, as jobs of the workflow are;
pooled embeddings alone, of short made-up prompts. The processor's seconds leave out the start of a
process and loading the model, which do not grow.

python benchmarks/bench_shards.py --model minilm-l6 FOLDER --prompts 1000 5000 20000
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.cli  # isort: skip  # noqa: F401
import numpy as np

WORDS = (
    "the", "of", "a", "river", "light", "stone", "seven", "old", "open", "under", "music", "green",
    "north", "small", "paper",
)  # fmt: skip


def make_prompts(n: int, words: int) -> list[str]:
    """Prompts of some so many common words."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(words - 2, words + 3, size=n)
    return [" ".join(WORDS[i] for i in rng.integers(len(WORDS), size=size)) for size in sizes]


def one_shard(job: dict[str, Any]) -> tuple[float, float]:
    """Extract a shard; processor seconds and the process' highest memory in MiB."""
    from layerwise.activations.extract import set_threads
    from layerwise.activations.shards import extract_shard
    from layerwise.section import parse
    from layerwise.config.extraction import ExtractSettings
    from layerwise.config.models import Model
    from layerwise.models.load import load

    set_threads(job["threads"])
    entry = parse(Model, {"source": {"folder": job["folder"]}})
    loaded = load(job["name"], entry, "main", device="cpu")
    texts = make_prompts(job["prompts"], job["words"])
    start = time.process_time()
    extract_shard(
        loaded, corpus="made-up", prompts=[str(i) for i in range(len(texts))], views=[texts],
        settings=ExtractSettings(spectra=False, curvature=False, shards=job["shards"]),
        shard=job["shard"], target=job["target"], attributes={},
    )  # fmt: skip
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print a row a size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs=2, required=True, metavar=("NAME", "FOLDER"))
    parser.add_argument("--prompts", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--per-shard", type=int, default=5000, help="prompts in a shard")
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    from layerwise.activations.shards import join
    from layerwise.activations.store import Activations

    spawn = multiprocessing.get_context("spawn")
    sys.stdout.write(
        "| prompts | shards | ms a prompt | largest job, MiB | join, s | read a layer, s |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
    )
    for n in arguments.prompts:
        shards = -(-n // arguments.per_shard)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            paths = [folder / "c.shards" / f"{k}.h5" for k in range(shards)]
            costs = []
            for k, path in enumerate(paths):
                job = {
                    "name": arguments.model[0], "folder": arguments.model[1], "prompts": n,
                    "words": arguments.words, "shards": shards, "shard": k, "target": path,
                    "threads": arguments.threads,
                }  # fmt: skip
                with spawn.Pool(1) as pool:
                    costs.append(pool.apply(one_shard, (job,)))
            start = time.perf_counter()
            join(paths, folder / "c.h5", {})
            joined = time.perf_counter()
            with Activations(folder / "c.h5") as activations:
                assert activations.pooled("paper", "all", 1).shape[0] == n
            read = time.perf_counter()
            seconds, memory = (list(column) for column in zip(*costs, strict=True))
            sys.stdout.write(
                f"| {n:,} | {shards} | {1e3 * sum(seconds) / n:.2f} | {max(memory):,.0f} "
                f"| {joined - start:.2f} | {read - joined:.2f} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
