"""Cost of pooled image features at all layers, compared with the bare forward pass.

The bare pass runs the same images, decoded and preprocessed beforehand, in the same batches
through the same model and throws everything away. Ours starts from the JPEG files' bytes:
decoding, scaling and normalising, in threads of their own while the batch before is in the pass,
all layers' pooled vectors, and for `extract` the file. Runs take turns in one process, and the
fastest of each counts; with --cpu-clock and one thread another program's load touches neither, and
nothing is hidden by overlap. The images are crops of the two photographs in scikit-learn.

python benchmarks/bench_images.py --model dinov2-small ../shared/models/dinov2-small --cpu-clock
"""

from __future__ import annotations

import argparse
import io
import json
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
from PIL import Image

from layerwise.activations import forward
from layerwise.activations.embedding import embed
from layerwise.activations.extract import extract
from layerwise.activations.representation import Representation
from layerwise.config.models import Model
from layerwise.config.settings import ExtractSettings
from layerwise.models.hooks import pass_options
from layerwise.models.load import LoadedModel, load
from layerwise.section import parse
from media.images import Picture

CROP = (500, 375)
READINGS = {
    "pooled, patches": [Representation("patches")],
    "pooled, patches and class": [Representation("patches"), Representation("class")],
}

clock: Callable[[], float] = time.perf_counter


def photographs(n: int) -> list[Picture]:
    """Crops of scikit-learn's photographs, as JPEG files of ImageNet's usual size."""
    from sklearn.datasets import load_sample_images

    whole = load_sample_images().images
    rng = np.random.default_rng(0)
    made = []
    for number in range(n):
        values = whole[number % len(whole)]
        high, wide = values.shape[:2]
        left, top = int(rng.integers(1 + wide - CROP[0])), int(rng.integers(1 + high - CROP[1]))
        file = io.BytesIO()
        crop = values[top : top + CROP[1], left : left + CROP[0]]
        Image.fromarray(crop).save(file, "JPEG", quality=90)
        made.append(Picture(f"photo {number}", file.getvalue()))
    return made


@torch.inference_mode()
def bare(loaded: LoadedModel, pixels: torch.Tensor, cut: list[list[int]]) -> float:
    """Seconds of the model alone."""
    start = clock()
    for batch in cut:
        inputs = {"pixel_values": pixels[batch].to(loaded.device)}
        loaded.model(**inputs, **pass_options(loaded.model, None))
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def measure(loaded: LoadedModel, n: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Ratios to the bare pass."""
    pictures, images = photographs(n), loaded.reader
    budget = forward.budget_of(loaded.device.type, loaded.anatomy.hidden)
    cut = list(forward.batches([images.max_length] * n, budget))
    pixels = torch.stack([images.read(picture) for picture in pictures])

    def reading() -> float:
        start = clock()
        for picture in pictures:
            images.read(picture)
        return clock() - start

    def pooled(readings: list[Representation]) -> float:
        start = clock()
        embed(loaded, pictures, readings)
        return clock() - start

    def extracted() -> float:
        start = clock()
        extract(
            loaded,
            corpus="bench",
            prompts=[p.name for p in pictures],
            views=[pictures],
            settings=ExtractSettings(tokens=("patches",)),
            target=folder / "e.h5",
            attributes={},
        )
        return clock() - start

    jobs: dict[str, Callable[[], float]] = {"bare": lambda: bare(loaded, pixels, cut)}
    jobs["decoding and preprocessing alone"] = reading
    jobs |= {name: lambda r=r: pooled(r) for name, r in READINGS.items()}
    jobs["extract"] = extracted
    bare(loaded, pixels, cut[:1])
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(repeats):
        for name, job in jobs.items():
            best[name] = min(best[name], job())
    return {
        "model": loaded.name,
        "images": n,
        "tokens": images.max_length,
        "batch": len(cut[0]),
        "threads": torch.get_num_threads(),
        "clock": "processor" if clock is time.process_time else "wall",
        "bare_milliseconds_an_image": round(1000 * best["bare"] / n, 1),
        **{name: round(s / best["bare"], 3) for name, s in best.items() if name != "bare"},
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs=2, required=True, metavar=("NAME", "FOLDER"))
    parser.add_argument("--size", type=int, default=224, help="side in pixels after scaling")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu-clock", action="store_true", help="CPU time of this process")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.cpu_clock:
        global clock
        clock = time.process_time
    name, folder = given.model
    preprocess = {"size": given.size, "resize": given.size * 8 // 7}
    spec = parse(Model, {"source": {"folder": folder}, "preprocess": preprocess})
    loaded = load(name, spec, "main", device=given.device)
    with tempfile.TemporaryDirectory() as temporary:
        row = measure(loaded, given.images, given.repeats, Path(temporary))
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
