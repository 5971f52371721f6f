"""Time of the k-means of the paper's six clusterings: scikit-learn's, and with our first centres.

One set of each in 1,024 dimensions; printed are processor seconds, their ratio for the set and for
all sets of the task, and the V-measures against the labels that the vectors were made with.

python benchmarks/bench_clustering.py
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)
import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import v_measure_score

from layerwise.tasks.mteb_task import k_means
from layerwise.tasks.task import one_thread

# Sets, texts and labels of a set.
SHAPES = {
    "ArxivClusteringS2S": (31, 23_600, 130),
    "RedditClustering": (25, 16_800, 50),
    "StackExchangeClustering": (25, 15_000, 121),
    "BiorxivClusteringS2S": (10, 7_500, 26),
    "MedrxivClusteringS2S": (10, 3_750, 51),
    "TwentyNewsgroupsClustering": (10, 5_955, 20),
}


def timed(make: Callable[..., Any], n_clusters: int, x: Any) -> tuple[float, Any]:
    """Processor seconds of a fit as mteb has it, and its labels."""
    start = time.process_time()
    fit = make(n_clusters=n_clusters, batch_size=500, n_init="auto", random_state=42).fit(x)
    return time.process_time() - start, fit.labels_


def main() -> None:
    """Print a line for each task, and one for all."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rng, totals = np.random.default_rng(0), np.zeros(2)
    for name, (n_sets, n, k) in SHAPES.items():
        labels = rng.integers(k, size=n)
        x = rng.normal(size=(n, 1024)) + 0.2 * rng.normal(size=(k, 1024))[labels]
        x = x.astype(np.float32)
        with one_thread():
            fits = [
                timed(make, k, x) for make in (MiniBatchKMeans, k_means, k_means, MiniBatchKMeans)
            ]
        seconds = [(fits[0][0] + fits[3][0]) / 2, (fits[1][0] + fits[2][0]) / 2]
        totals += np.multiply(seconds, n_sets)
        scores = [v_measure_score(labels, found) for _, found in fits[:2]]
        sys.stdout.write(
            f"{name:28s} {seconds[0]:.2f} : {seconds[1]:.2f} s, {seconds[0] / seconds[1]:.2f} "
            f"times; V-measure {scores[0]:.4f} {scores[1]:.4f}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(
        f"all sets: {totals[0]:.0f} : {totals[1]:.0f} s, {totals[0] / totals[1]:.2f} times\n"
    )


if __name__ == "__main__":
    main()
