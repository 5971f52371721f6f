"""Cost of extraction, spectra and embedding on a GPU, compared with the model's bare pass.

A random model of Pythia-410m's shape in bfloat16, prompts of random words. Everything is a ratio:
to a bare pass of the same batches in the same run, and to the card's peak, which is the maker's
where it is known here and else the rate of a large matrix product. Prints the table for
benchmarks/README.md.

Without a GPU, or with --tiny, a small model on the CPU shows that it works; those numbers say
nothing about a GPU.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
import numpy as np
import torch
from bench_extract import bare, ours

from layerwise.activations import eigen, forward
from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.config.models import Model
from layerwise.config.settings import ExtractSettings
from layerwise.models.load import LoadedModel, load
from layerwise.section import parse
from quickstart import nano

# Layers, width, heads, width of the MLP, vocabulary.
SHAPES = {"pythia-410m": (24, 1024, 16, 4096, 50304), "tiny": (3, 64, 4, 256, 2000)}
# Multiplications and additions a second in bfloat16, dense, as the makers state them.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
# Times the bare pass, or the last layer alone; share of the card's peak.
WANTED = {"one kind": 1.25, "all four": 2.5, "embed": 1.05}
WANTED_SHARE = 0.45

PLANS = {
    "one kind": ExtractSettings(),
    "all four": ExtractSettings(tokens=("all", "drop_first"), protocols=("paper", "reference")),
}
READINGS = [
    Representation("all", "mean", "residual"),
    Representation("drop_first", "mean", "residual"),
]


@torch.inference_mode()
def last_layer(loaded: LoadedModel, texts: list[str]) -> np.ndarray:
    """Embeddings of the last layer, shape (N, D), and nothing else."""
    ids, _ = loaded.texts.prompts(texts)
    result = np.empty((len(texts), loaded.anatomy.hidden), np.float32)
    pad = int(loaded.texts.tokenizer.pad_token_id)
    for batch in forward.batches(
        [len(p) for p in ids], forward.budget_of(loaded.device.type, loaded.anatomy.hidden)
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


def make_model(shape: str, folder: Path) -> Path:
    """Save a random GPT-NeoX with a tokenizer of made-up words."""
    from transformers import GPTNeoXConfig, GPTNeoXModel

    layers, hidden, heads, inner, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    GPTNeoXModel(config).to(torch.bfloat16).save_pretrained(folder)
    nano.train_tokenizer(make_texts(200, 150), 300).save_pretrained(folder)
    return folder


def make_texts(count: int, tokens: int) -> list[str]:
    """Texts of some so many tokens: two random letters and a space give about two."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    sizes = rng.integers(tokens * 2 // 5, tokens * 3 // 5, size=count)
    return [" ".join(map("".join, letters[rng.integers(26, size=(n, 2))])) for n in sizes]


def synchronised(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds until a device has done some work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def best_of(jobs: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The fastest of each, the jobs taking turns."""
    best = dict.fromkeys(jobs, float("inf"))
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            seconds = job()
            if repeat:  # the first is a warm-up
                best[name] = min(best[name], seconds)
    return best


def flops(shape: str, ids: list[list[int]]) -> float:
    """Multiplications and additions of the pass: the matrices of each layer, and attention."""
    layers, hidden, _, inner, _ = SHAPES[shape]
    per_token = 2 * layers * (4 * hidden**2 + 2 * hidden * inner)
    return sum(len(p) * per_token + 4 * layers * hidden * len(p) ** 2 for p in ids)


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int, repeats: int) -> float:
    """Multiplications and additions a second of a large matrix product."""
    a = torch.randn(size, size, device=device, dtype=dtype)
    seconds = best_of({"": lambda: synchronised(lambda: a @ a, device)}, repeats)[""]
    return 2 * size**3 / seconds


def spectra_of(device: torch.device, size: int, count: int, repeats: int) -> dict[str, float]:
    """Seconds for eigenvalues of a batch of Gram matrices: by our kernels and torch's routine,
    where there is a GPU, and by the cores."""
    grams = eigen.gram(torch.randn(count, size, 2 * size, device=device))
    ways: dict[str, Callable[[], Any]] = {"the cores": lambda: eigen.on_cores(grams)}
    if device.type == "cuda":
        ways["kernels of our own"] = lambda: eigen.eigenvalues_on_card(grams.clone())
        ways["torch.linalg.eigvalsh"] = lambda: torch.linalg.eigvalsh(grams)
    jobs = {name: lambda way=way: synchronised(way, device) for name, way in ways.items()}
    return best_of(jobs, repeats)


def measure(shape: str, device: str, prompts: int, tokens: int, repeats: int) -> list[list[str]]:
    """The rows of the table: what, the value, what is wanted."""
    # In memory if possible: the speed of a disk says nothing about the GPU.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as temporary:
        folder = Path(temporary)
        made = make_model(shape, folder / "model")
        entry = parse(Model, {"source": {"folder": str(made)}})
        loaded = load(shape, entry, "main", device=device, dtype="bfloat16")
        return rows_of(loaded, shape, make_texts(prompts, tokens), tokens, repeats, folder)


def rows_of(
    loaded: LoadedModel, shape: str, texts: list[str], tokens: int, repeats: int, folder: Path
) -> list[list[str]]:
    """Measure on a loaded model."""
    where, budget = loaded.device, forward.BUDGET[loaded.device.type]
    ids, _ = loaded.texts.prompts(texts)
    jobs: dict[str, Callable[[], float]] = {"bare": lambda: bare(loaded, ids, budget)}
    for name, plan in PLANS.items():
        jobs[name] = lambda plan=plan: ours(loaded, texts, plan, folder / "bench.h5")
    jobs["last"] = lambda: synchronised(lambda: last_layer(loaded, texts), where)
    jobs["embed"] = lambda: synchronised(lambda: embed(loaded, texts, READINGS), where)
    best = best_of(jobs, repeats)
    n = sum(map(len, ids))
    matmul = matmul_rate(where, torch.bfloat16, 8192 if where.type == "cuda" else 512, repeats)
    card = torch.cuda.get_device_name() if where.type == "cuda" else ""
    peak, whose = next(
        ((p, "stated") for c, p in PEAKS.items() if c in card), (matmul, "measured")
    )
    share = flops(shape, ids) / best["bare"] / peak
    rows = [
        ["bare pass, tokens a second", f"{n / best['bare']:,.0f}", ""],
        [
            f"bare pass, share of the {whose} peak in bfloat16",
            f"{share:.0%}",
            f"{WANTED_SHARE:.0%}",
        ],
    ]
    for name in PLANS:
        times = f"{best[name] / best['bare']:.2f} x"
        rows.append([f"extraction: {name}", times, f"{WANTED[name]}"])
    share = flops(shape, ids) / best["all four"] / peak
    rows += [
        ["extraction, all four: share of that peak", f"{share:.0%}", f"{WANTED_SHARE:.0%}"],
        [
            "embedding all layers, two readings, to the last layer alone",
            f"{best['embed'] / best['last']:.2f} x",
            f"{WANTED['embed']}",
        ],
    ]
    count = 2000 if where.type == "cuda" else 20
    spectra = spectra_of(where, tokens, count, repeats)
    for name, seconds in spectra.items():
        text = f"{1e6 * seconds / count:,.1f} µs each"
        rows.append([f"eigenvalues of {count} matrices {tokens} x {tokens}: {name}", text, ""])
    megabytes = (folder / "bench.h5").stat().st_size / 1e6
    rows.append(["file of the last extraction", f"{megabytes:,.0f} MB", ""])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--prompts", type=int, help="default 2000, or 40 with --tiny")
    parser.add_argument("--tokens", type=int, default=160, help="in a prompt, about (default 160)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(arguments.threads)
    gpu = torch.cuda.is_available() and not arguments.tiny
    shape, device = ("pythia-410m", "cuda") if gpu else ("tiny", "cpu")
    prompts = arguments.prompts or (2000 if gpu else 40)
    what = torch.cuda.get_device_name() if gpu else "the CPU, as a trial: no figure for a GPU"
    rows = measure(shape, device, prompts, arguments.tokens, arguments.repeats)
    lines = [[f"{shape}, {what}", "measured", "wanted"], ["---"] * 3, *rows]
    sys.stdout.writelines("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    main()
