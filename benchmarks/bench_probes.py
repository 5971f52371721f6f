"""Cost of probes of all layers of a model on many rows.

Features are made up: each class has a centre, and layers differ in the distance of the centres, so
accuracy runs from near chance to near 1. Printed, as a line of JSON for each number of classes:
seconds of the processor a layer and for all layers, and the accuracy at both ends. With --parts,
where they go.

python benchmarks/bench_probes.py --rows 10000 --classes 10 100 --layers 2
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import sys
import time
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
import numpy as np

from layerwise.tasks import probes

SPREADS = (0.05, 0.35)
"""Distance of the classes' centres at the first layer and at the last, in standard deviations."""


def features(labels: Any, width: int, spread: float, seed: int) -> Any:
    """Vectors of shape (N, D), float32, with a spectrum that falls like a layer's."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, width + 1) ** -0.5
    centres = rng.normal(size=(labels.max() + 1, width)) * spread
    values = (rng.normal(size=(len(labels), width)) + centres[labels]) * scale
    return (values @ np.linalg.qr(rng.normal(size=(width, width)))[0]).astype(np.float32)


def measure(rows: int, width: int, classes: int, layers: int, of: int) -> dict[str, Any]:
    """Seconds of some layers, spread over the spreads; those of `of` layers by their mean."""
    labels = np.random.default_rng(0).permutation(rows) % classes
    split = probes.splits(labels)
    spent, found = [], []
    for layer, spread in enumerate(np.linspace(*SPREADS, layers)):
        given = features(labels, width, float(spread), layer)
        start = time.process_time()
        found.append(probes.probe(given, labels, split))
        spent.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "rows": rows,
        "width": width,
        "classes": classes,
        "processor_seconds_a_layer": [round(s, 2) for s in spent],
        f"processor_seconds_of_{of}_layers": round(of * float(np.mean(spent)), 1),
        "accuracy": [round(p.main_score, 3) for p in found],
        "peak_MiB": round(peak),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--layers", type=int, default=3, help="layers that are timed")
    parser.add_argument("--of", type=int, default=13, help="layers of the model")
    parser.add_argument("--parts", action="store_true", help="a profile of the last")
    given = parser.parse_args()
    for classes in given.classes:
        profile = cProfile.Profile()
        call = profile.runcall if given.parts else lambda f, *a: f(*a)
        row = call(measure, given.rows, given.width, classes, given.layers, given.of)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        if given.parts:
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
