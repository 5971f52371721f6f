"""Time and memory of each metric as the prompts become more: one layer, one core, made-up arrays.

Prints a table: processor seconds, and the memory that the metric's own arrays take at their
highest beside those it reads. The prompts behind the value are the table's n: fewer than all where
a metric takes a sample.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc

import layerwise.cli  # isort: skip  # noqa: F401
import numpy as np
from threadpoolctl import threadpool_limits

from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.registry import Metric, Overall, all_metrics


def make_arrays(n: int, d: int, v: int) -> Arrays:
    """A layer of N prompts with V augmented views, D wide, with a spectrum that decays."""
    rng = np.random.default_rng(0)
    scale = (np.arange(1, d + 1) ** -0.5).astype(np.float32)
    views = 0.3 * rng.standard_normal((v + 1, n, d), dtype=np.float32)
    views += rng.standard_normal((n, d), dtype=np.float32) + 1
    views *= scale
    return Arrays(
        views,
        spectra=rng.random((n, 150)),
        curvature=rng.random(n),
        ends=(views[1], views[2]),
    )


def measure(metric: Metric, layer: Layer) -> tuple[float, float, int]:
    """Processor seconds, MiB at the highest, prompts behind the value."""
    tracemalloc.start()
    start = time.process_time()
    results = list(metric.on(layer))
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    (result, *_) = results
    n = result.n if isinstance(result, Overall) else int(np.isfinite(result.values).sum())
    return seconds, peak, n


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--protocol", default="paper")
    parser.add_argument("--metrics", nargs="+", default=list(all_metrics()))
    arguments = parser.parse_args()
    cells: dict[str, list[str]] = {name: [] for name in arguments.metrics}
    small = Layer(make_arrays(50, 20, 3), MetricsSettings(), arguments.protocol)
    for name in cells:  # imports that a metric pays for when it is first used
        if arguments.protocol in all_metrics()[name].protocols:
            measure(all_metrics()[name], small)
    for n in arguments.prompts:
        arrays = make_arrays(n, arguments.hidden, arguments.views)
        for name in cells:
            metric = all_metrics()[name]
            if arguments.protocol not in metric.protocols:
                continue
            # A layer of its own: no metric finds what another has left.
            layer = Layer(arrays, MetricsSettings(), arguments.protocol)
            with threadpool_limits(1, "blas"):
                seconds, peak, used = measure(metric, layer)
            sample = "" if used == n else f", n = {used}"
            cells[name].append(f"{seconds:.3g} s, {peak:.0f} MiB{sample}")
    head = [f"{n:,} prompts" for n in arguments.prompts]
    lines = [["metric", *head], ["---"] * (len(head) + 1)]
    lines += [[name, *cell] for name, cell in cells.items() if cell]
    sys.stdout.writelines("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    main()
