"""Speed of an exported model against the whole one, both loaded by sentence-transformers alone.

    python benchmarks/bench_export.py cut whole --texts texts.txt

The two take turns in one process, so other load affects both; a round's
ratio is that of processor time, and what is printed is the median over rounds with the smallest
and the largest. With ``--pairs`` (columns first, second and score) it prints Spearman's
correlation of cosine and score too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def main(arguments: argparse.Namespace) -> dict[str, Any]:
    """Load both, encode in turn, print."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    texts = [t for t in arguments.texts.read_text(encoding="utf-8").splitlines() if t.strip()]
    texts = texts[: arguments.n]
    models = {
        name: SentenceTransformer(
            str(getattr(arguments, name)), trust_remote_code=True, device="cpu"
        )
        for name in ("cut", "whole")
    }
    found: dict[str, Any] = {"texts": len(texts), "rounds": arguments.rounds}
    for name, model in models.items():
        found[f"{name}_parameters"] = sum(p.numel() for p in model.parameters())
        files = getattr(arguments, name).rglob("*.safetensors")
        found[f"{name}_bytes"] = sum(file.stat().st_size for file in files)
        model.encode(texts[:8])  # what the first pass sets up is in no round
    ratios = []
    for number in range(arguments.rounds):
        spent = {}
        for name in sorted(models, reverse=bool(number % 2)):
            start = time.process_time()
            models[name].encode(texts, batch_size=16)
            spent[name] = time.process_time() - start
        ratios.append(spent["cut"] / spent["whole"])
        say(f"round {number + 1}: {spent['cut']:.2f} s against {spent['whole']:.2f} s")
    found |= {"time_ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    if arguments.pairs is not None:
        found |= {f"{name}_spearman": rho for name, rho in scores(models, arguments.pairs).items()}
    say(json.dumps(found))
    return found


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def scores(models: dict[str, Any], pairs: Path) -> dict[str, float]:
    """Spearman's correlation of each model's cosines with the scores of pairs."""
    import numpy as np
    import pandas as pd
    from scipy.stats import spearmanr

    table = pd.read_parquet(pairs)
    found = {}
    for name, model in models.items():
        first, second = (model.encode(table[column].tolist()) for column in ("first", "second"))
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        found[name] = float(spearmanr((first * second).sum(axis=1) / norms, table["score"])[0])
    return found


def parser() -> argparse.ArgumentParser:
    """Options of the command line."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("cut", type=Path, help="folder that `layerwise export` wrote")
    asked.add_argument("whole", type=Path, help="folder of the whole model")
    asked.add_argument("--texts", type=Path, required=True, help="a text a line")
    asked.add_argument("--n", type=int, default=64, help="texts of a round (default: 64)")
    asked.add_argument("--rounds", type=int, default=7, help="default: 7")
    asked.add_argument("--pairs", type=Path, help="a .parquet file of scored pairs")
    return asked


if __name__ == "__main__":
    main(parser().parse_args())
