"""Peak memory and scratch of an evaluation of a clustering with the shape of ArxivClusteringS2S.

A model that returns noise takes no time, so only vectors count: 31 sets, 25 layers, 1,024 wide.
Texts, and the limit on vectors that wait, are scaled down together.

python benchmarks/bench_evaluate.py --texts 7327 --waiting-gb 0.04
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from layerwise.activations import embedding
from layerwise.config.models import FolderSource, Model
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.tasks import evaluate as module
from layerwise.tasks.mteb_task import MtebTask

N_SETS, N_LAYERS, WIDTH, N_LABELS = 31, 25, 1024, 20


def noise(_loaded: Any, texts: Any, into: Any, *_: Any, **__: Any) -> Iterator[int]:
    """Stand in for `embed_into`."""
    rng = np.random.default_rng(0)
    for layer in range(N_LAYERS):
        into[0, layer] = rng.standard_normal((len(texts), WIDTH), dtype=np.float32)
    yield len(texts)


def main() -> None:
    """Write the task's data, evaluate, and print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=7327)
    parser.add_argument("--waiting-gb", type=float, default=0.04)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    scratch: list[int] = []
    allocate = module._allocate

    def watched(path: Path, shape: tuple[int, ...]) -> Any:
        into = allocate(path, shape)
        scratch.append(sum(file.stat().st_size for file in path.parent.iterdir()))
        return into

    module._allocate = watched
    embedding.embed_into = noise
    layout = SimpleNamespace(streams=1)
    anatomy = SimpleNamespace(n_layers=N_LAYERS, hidden=WIDTH, kind="noise", layout=layout)
    loaded: Any = SimpleNamespace(
        name="noise",
        revision="main",
        dtype="float32",
        weights="",
        device="cpu",
        anatomy=anatomy,
        width=WIDTH,
        embedder=SimpleNamespace(normalizes=False),
        check_tokens=lambda _: None,
        entry=Model(source=FolderSource(folder="none")),
    )
    rng = np.random.default_rng(0)
    sets = np.array_split(np.arange(options.texts), N_SETS)
    data = [([f"text {i}" for i in own], rng.integers(0, N_LABELS, len(own))) for own in sets]
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        pd.DataFrame(data, columns=["sentences", "labels"]).to_parquet(root / "test.parquet")
        task = MtebTask("ArxivClusteringS2S", str(root))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.monotonic()
        module.evaluate(
            lambda: loaded,
            {"arxiv": task},
            extraction=ExtractSettings(),
            scoring=ScoringSettings(waiting_gb=options.waiting_gb),
            keys={"arxiv": ""},
            key="",
            output=root / "s.parquet",
            threads=options.threads,
        )
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    per_text = 4 * N_LAYERS * WIDTH
    sys.stdout.write(
        f"all vectors {options.texts * per_text / 1e6:.0f} MB, limit "
        f"{options.waiting_gb * 1e3:.0f} MB, peak scratch {max(scratch) / 1e6:.0f} MB in "
        f"{len(scratch)} units; memory of this process +{own / 1e3:.0f} MB, of a scoring "
        f"process {child / 1e3:.0f} MB; {time.monotonic() - started:.0f} s\n"
    )


if __name__ == "__main__":
    main()
