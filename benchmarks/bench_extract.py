"""Cost of `extract` relative to the bare forward pass of the same prompts, in one process.

The bare pass runs the same tokenised prompts in the same batches through the same model and
throws everything away. Runs of both take turns, and the fastest of each counts, so another
program's load touches both; with --cpu-clock and one thread it touches neither. Printed, as JSON
lines:

- ratios to the bare pass: an extraction of one kind (protocol `paper`, all tokens), of two (with
  and without the first token), of four (both protocols), and the floor of each: Gram matrices and
  eigenvalues alone; and of one kind that keeps two arrays more
- seconds a token from few prompts to many, with the memory's high-water mark
- pads as a share of all tokens computed; bytes of the file, and of the token states it replaces
- with --profile, where the time of one extraction goes

python benchmarks/bench_extract.py --model smollm2-135m results/converted/smollm2-135m/main \\
    --words 0 160 --threads 1 --cpu-clock
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
import pandas as pd
import torch

from layerwise.activations import eigen, forward
from layerwise.activations.extract import extract
from layerwise.config.models import Model
from layerwise.config.settings import ExtractSettings
from layerwise.metrics.registry import all_metrics
from layerwise.models.load import LoadedModel, load
from layerwise.section import parse

PLANS = {
    "one_kind": ExtractSettings(),
    "two_kinds": ExtractSettings(tokens=("all", "drop_first")),
    "four_kinds": ExtractSettings(tokens=("all", "drop_first"), protocols=("paper", "reference")),
    "one_kind_and_arrays": ExtractSettings(arrays=("dimension", "prefix_spectrum")),
}

# The protocol `reference` has a matrix for each selection of tokens.
FLOORS = {
    "floor_of_one": (False,),
    "floor_of_two": (True,),
    "floor_of_four": (True, False, False),
}


clock = time.perf_counter


def bare(loaded: LoadedModel, ids: list[list[int]], budget: int) -> float:
    """Seconds of the model alone."""
    pad = int(loaded.texts.tokenizer.pad_token_id)
    start = clock()
    with torch.inference_mode():
        for batch in forward.batches([len(p) for p in ids], budget):
            longest = len(ids[batch[0]])
            tokens = torch.tensor([ids[i] + [pad] * (longest - len(ids[i])) for i in batch])
            sizes = torch.tensor([len(ids[i]) for i in batch])
            inputs: dict[str, Any] = {"input_ids": tokens.to(loaded.device)}
            if int(sizes.min()) < longest:
                mask = (torch.arange(longest) < sizes[:, None]).long()
                inputs["attention_mask"] = mask.to(loaded.device)
            config: Any = loaded.model.config
            if "use_cache" in config.to_dict():
                inputs["use_cache"] = False
            loaded.model(**inputs)
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def spectra_alone(
    loaded: LoadedModel, ids: list[list[int]], budget: int, without_first: Sequence[bool]
) -> float:
    """Seconds for Gram matrices and eigenvalues, and nothing else: the floor of an extraction.

    Parameters
    ----------
    without_first : sequence of bool
        Of each matrix that is decomposed for a prompt and layer, see `eigen.eigenvalues`.
    """
    seconds, (layers, hidden) = 0.0, (loaded.anatomy.n_layers, loaded.anatomy.hidden)
    for batch in forward.batches([len(p) for p in ids], budget):
        states = torch.randn(len(batch), len(ids[batch[0]]), hidden, device=loaded.device)
        start = clock()
        grams = [eigen.gram(states) for _ in range(layers)]
        for also in without_first:
            eigen.eigenvalues(torch.cat(grams), also)
        seconds += clock() - start
    return seconds


def ours(loaded: LoadedModel, texts: list[str], plan: ExtractSettings, target: Path) -> float:
    """Seconds of an extraction: tokenising, the passes, the statistics, the file."""
    start = clock()
    extract(
        loaded,
        corpus="bench",
        prompts=[str(i) for i in range(len(texts))],
        views=[texts],
        settings=plan,
        target=target,
        attributes={},
    )
    return clock() - start


def waste(ids: list[list[int]], budget: int) -> float:
    """Pads as a share of all that is computed."""
    cut = list(forward.batches([len(p) for p in ids], budget))
    computed = sum(len(batch) * len(ids[batch[0]]) for batch in cut)
    return 1 - sum(map(len, ids)) / computed


def say(**facts: Any) -> None:
    """Print a line of results."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in facts.items()}
    sys.stdout.write(json.dumps(rounded) + "\n")
    sys.stdout.flush()


def compare(loaded: LoadedModel, texts: list[str], repeats: int, folder: Path) -> None:
    """Ratios of each plan to the bare pass."""
    budget = forward.budget_of(loaded.device.type, loaded.anatomy.hidden)
    ids, _ = loaded.texts.prompts(texts)
    jobs: dict[str, Callable[[], float]] = {"bare": lambda: bare(loaded, ids, budget)}
    for name, matrices in FLOORS.items():
        jobs[name] = lambda own=matrices: spectra_alone(loaded, ids, budget, own)
    for name, plan in PLANS.items():
        jobs[name] = lambda plan=plan, name=name: ours(loaded, texts, plan, folder / f"{name}.h5")
    bare(loaded, ids[:8], budget)
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            best[name] = min(best[name], job())
    tokens = sum(map(len, ids))
    ratios = {name: seconds / best["bare"] for name, seconds in best.items() if name != "bare"}
    dump = tokens * loaded.anatomy.n_layers * loaded.anatomy.hidden * 2
    say(
        model=loaded.name,
        prompts=len(texts),
        tokens_per_prompt=tokens / len(ids),
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        tokens_per_second=tokens / best["bare"],
        padding=waste(ids, budget),
        **ratios,
        file_bytes=(folder / "four_kinds.h5").stat().st_size,
        float16_dump_bytes=dump,
    )


def scale(loaded: LoadedModel, texts: list[str], counts: list[int], folder: Path) -> None:
    """Seconds a token, and memory, as the prompts become more."""
    for count in counts:
        many = (texts * (count // len(texts) + 1))[:count]
        tokens = sum(map(len, loaded.texts.prompts(many)[0]))
        seconds = ours(loaded, many, ExtractSettings(), folder / "scale.h5")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say(
            model=loaded.name,
            prompts=count,
            microseconds_per_token=1e6 * seconds / tokens,
            peak_MiB=round(peak),
        )


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("results/corpora/wikipedia.parquet")
    parser.add_argument("--corpus", type=Path, default=default, help="parquet with a column text")
    names = ("NAME", "FOLDER")
    parser.add_argument("--model", nargs=2, action="append", metavar=names, required=True)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--words", type=int, nargs="+", default=[0], help="0: texts as they are")
    parser.add_argument("--scale", type=int, nargs="*", default=[], help="e.g. 100 1000 5000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cpu-clock", action="store_true", help="CPU time of this process")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    all_metrics()  # whose files declare arrays
    if arguments.cpu_clock:
        global clock
        clock = time.process_time
    corpus = pd.read_parquet(arguments.corpus)["text"].tolist()
    for name, place in arguments.model:
        spec = parse(Model, {"source": {"folder": place}})
        loaded = load(name, spec, "main", device=arguments.device, dtype=arguments.dtype)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for words in arguments.words:
                texts = corpus[: arguments.prompts]
                if words:
                    # Longer prompts, made of the corpus' own text.
                    flow = " ".join(corpus * (1 + words // 10)).split()
                    texts = [
                        " ".join(flow[i * words : (i + 1) * words])
                        for i in range(max(4, arguments.prompts * 40 // words))
                    ]
                compare(loaded, texts, arguments.repeats, folder)
            scale(loaded, corpus, arguments.scale, folder)
            if arguments.profile:
                profile = cProfile.Profile()
                profile.runcall(
                    ours, loaded, corpus[: arguments.prompts], ExtractSettings(), folder / "p.h5"
                )
                pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
