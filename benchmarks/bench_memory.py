"""Peak memory and time of all metrics at one layer of many prompts, with standard errors.

The activations file is made up, and written some prompts at a time. `--parts 2` computes standard
errors from two parts of the prompts instead of ten, which takes a third of the time and as much
memory.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from layerwise.activations import store
from layerwise.config.settings import MetricsSettings
from layerwise.metrics import layer as layers
from layerwise.metrics import table

TOKENS, AT_ONCE = 60, 2000


def write(path: Path, prompts: int, hidden: int, views: int) -> None:
    """Write the activations of one layer, with a spectrum that decays."""
    labels = {
        "protocol": ("paper",),
        "tokens": ("all",),
        "layer": range(1),
        "view": range(views + 1),
        "prompt": [str(i) for i in range(prompts)],
        "hidden": range(hidden),
        "rank": range(TOKENS),
    }
    rng = np.random.default_rng(0)
    scale = np.arange(1, hidden + 1, dtype=np.float32) ** -0.5
    with store.create(path, labels, {"model": "m", "revision": "r", "corpus": "c"}) as file:
        for start in range(0, prompts, AT_ONCE):
            rows = slice(start, min(start + AT_ONCE, prompts))
            base = scale * (1 + rng.standard_normal((rows.stop - start, hidden), np.float32))
            for view in range(views + 1):
                noise = 0.3 * scale * rng.standard_normal(base.shape, np.float32)
                file["pooled"][0, 0, 0, view, rows] = base + noise
        file["spectrum"][0, 0, 0] = 1.0 / np.arange(1, TOKENS + 1)
        file["norm"][0] = 1.0
        file["curvature"][0, 0, 0] = 1.0
        file["n_tokens"][0, 0, 0] = TOKENS


def peak() -> float:
    """Most resident memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Write the file, compute the metrics, print the peak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=100_000, help="N (default 100000)")
    parser.add_argument("--hidden", type=int, default=1024, help="D (default 1024)")
    parser.add_argument("--views", type=int, default=2, help="V (default 2)")
    parser.add_argument("--parts", type=int, default=layers.PARTS, help="parts (default 10)")
    options = parser.parse_args()
    layers.PARTS = options.parts
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1, "blas"):
        path = Path(folder) / "activations.h5"
        write(path, options.prompts, options.hidden, options.views)
        before, started = peak(), time.process_time()
        with store.Activations(path) as activations:
            rows, _ = table.compute(activations, MetricsSettings())
    sys.stdout.write(
        f"{options.prompts} prompts, {options.hidden} dimensions, {options.views} views, "
        f"{rows['metric'].nunique()} metrics: peak {peak():.2f} GB (before: {before:.2f} GB), "
        f"{time.process_time() - started:.0f} s of processor time\n"
    )


if __name__ == "__main__":
    main()
