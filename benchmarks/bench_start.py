"""Shares of a job that scores one checkpoint: start, load, recording, tokenising, pass, writing.

Made-up weights of the shapes of Pythia-70m and Pythia-410m, on the mirrored tasks. All is measured
in processor seconds of one core, but the pass, which is computed for a GPU as in `layerwise plan`.
Tokenising and recording are scaled to the texts of the paper's 32 tasks.

python benchmarks/bench_start.py --tasks ../shared/tasks --tokenizer folder/with/a/tokenizer.json
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)

from layerwise.tasks.catalog import PAPER
from layerwise.tasks.mteb_task import MtebTask
from tools.forecast import task_size

SHAPES = {"pythia-70m": (512, 6, 8, 70e6), "pythia-410m": (1024, 24, 16, 410e6)}
START = "import layerwise.tasks.mteb_task, layerwise.models.opening, layerwise.tasks.evaluate"
START += ", transformers; from transformers import AutoModel, AutoTokenizer"


def make(folder: Path, tokenizer: Path, width: int, layers: int, heads: int) -> None:
    """Write random weights in half precision, as on the hub, and a tokenizer."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXModel

    config = GPTNeoXConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    GPTNeoXModel(config).to(torch.float16).save_pretrained(folder)
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder)


def seconds_of_start() -> float:
    """Processor seconds of starting Python and importing what a job needs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", START], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each shape."""
    from layerwise.models.opening import open_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True, help="folder of mirrored tasks")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--tflops", type=float, default=30)
    options = parser.parse_args()
    sizes = [size for name in PAPER if (size := task_size(name))]
    n_texts, n_tokens = (sum(values) for values in list(zip(*sizes, strict=True))[:2])
    start = seconds_of_start()
    begun = time.process_time()
    names = sorted({path.name for path in options.tasks.iterdir()} & set(PAPER))
    texts: list[str] = []
    for name in names:
        units = MtebTask(name, str((options.tasks / name).resolve())).units(10**9)
        texts += [text for unit in units for _, text in unit.keys]
    recording = time.process_time() - begun
    sys.stdout.write(
        f"start {start:.1f} s; recording {recording:.1f} s ({len(names)} tasks, {len(texts)} "
        f"texts; all 32 have {n_texts:.0f})\n"
    )
    for name, (width, layers, heads, parameters) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            if os.fork() == 0:  # its memory and time do not count
                make(Path(folder), options.tokenizer, width, layers, heads)
                os._exit(0)
            os.wait()
            begun = time.process_time()
            with open_model(folder, device="cpu") as loaded:
                load = time.process_time() - begun
                begun = time.process_time()
                ids, _ = loaded.reader.prompts(texts)
                n_read = sum(map(len, ids))
                tokenising = (time.process_time() - begun) / n_read * n_tokens
        sys.stdout.write(
            f"{name}: load {load:.1f} s, tokenising {tokenising:.0f} s, pass "
            f"{2 * parameters * n_tokens / (options.tflops * 1e12):.0f} s\n"
        )


if __name__ == "__main__":
    main()
