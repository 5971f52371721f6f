"""Time the scoring of one layer with mteb's main scores alone, and with all of its scores.

python benchmarks/bench_scoring.py results/quickstart/tasks  folder of the quickstart's tasks
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from layerwise.config.settings import ScoringSettings
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import Vectors, one_thread
from quickstart.tasks import TYPES

WIDTH, LAYERS = 576, 3


def main() -> None:
    """Print the processor time of each task and of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path)
    folder = parser.parse_args().tasks
    warnings.simplefilter("ignore")
    rng, totals = np.random.default_rng(0), np.zeros(2)
    for name, kind in TYPES.items():
        task = MtebTask(name, str(folder / name), kind)
        (unit,) = task.units(10**9)
        values = rng.normal(size=(len(unit.keys), WIDTH)).astype(np.float32)
        vectors = Vectors(values, {key: row for row, key in enumerate(unit.keys)})
        seconds = []
        for sub_scores in (False, True):
            settings = ScoringSettings(sub_scores=sub_scores)
            with one_thread():
                task.score(unit.selection, vectors, settings)
                started = time.process_time()
                for _ in range(LAYERS):
                    task.score(unit.selection, vectors, settings)
                seconds.append((time.process_time() - started) / LAYERS)
        totals += seconds
        sys.stdout.write(f"{name:28s} {seconds[0]:.3f} : {seconds[1]:.3f} s\n")
    sys.stdout.write(f"main scores alone : all scores = {totals[0] / totals[1]:.2f}\n")


if __name__ == "__main__":
    main()
