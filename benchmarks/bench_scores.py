"""Time the scoring of all layers against mteb's own evaluation of each, and compare the numbers.

mteb's own is `mteb.evaluate`, which loads the task's data and runs the evaluators, with an
encoder that looks the same embeddings up (so that no model's time is in it), layer by layer in
one process. It gets one thread: with more, its k-means gains nothing, and loses much where other
programs run. Its time for `--layers` layers is scaled to all of them. With `--cpu-clock` times are
the processor's, of all processes: for a machine that has other things to do.

python benchmarks/bench_scores.py --embeddings m.h5 --task STS12 --threads 2
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from layerwise.workflow import script as cli
from layerwise.files import replacing, sha256_text
from layerwise.tasks import catalog
from layerwise.tasks.encoders import model_meta
from layerwise.tasks.layout import Embeddings
from layerwise.tasks.score import normalized, one_thread, score_task

log = logging.getLogger("layerwise")


def plain(task: Any, keys: tuple[str, ...], embeddings: np.ndarray) -> list[float]:
    """mteb's own evaluation of embeddings; main scores by split and subset."""
    import mteb
    from mteb.models.abs_encoder import AbsEncoder

    rows = {key: row for row, key in enumerate(keys)}

    class Lookup(AbsEncoder):
        mteb_model_meta = model_meta("plain", "main")

        def encode(self, inputs: Any, **_: Any) -> np.ndarray:
            texts = [text for batch in inputs for text in batch["text"]]
            return embeddings[[rows[sha256_text(text)] for text in texts]]

    with catalog.own_cache(task):
        result = mteb.evaluate(
            Lookup(), task, cache=None, co2_tracker=False, show_progress_bar=False
        ).task_results[0]
    return [s["main_score"] for split in result.scores.values() for s in split]


def processor_seconds() -> float:
    """What this process and those that it has waited for have taken."""
    return sum(os.times()[:4])


def main(arguments: argparse.Namespace) -> None:
    """Run both, report times, ratio and the largest difference."""
    import pandas as pd

    warnings.simplefilter("ignore")
    logging.getLogger("mteb").setLevel(logging.ERROR)
    task, folders = arguments.task, arguments.folders
    clock = processor_seconds if arguments.cpu_clock else time.monotonic
    with Embeddings(arguments.embeddings, task=task) as file:
        reading = file.readings[0]
        n_layers, n_readings = file.n_layers, len(file.readings)
        picked = np.unique(np.linspace(0, n_layers - 1, arguments.layers).astype(int)).tolist()
        slabs = {layer: normalized(file.layer(reading, layer)) for layer in picked}
        keys = file.keys
    # Imports and the data set's first copy into the cache are in neither time: both run at least
    # twice, and the fastest run counts. Ours goes first: as in a job, the process has loaded no
    # task yet.
    seconds = []
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            started = clock()
            score_task(
                arguments.embeddings, task, Path(folder, "table.parquet"),
                Path(folder, "layers"), folders=folders, threads=arguments.threads,
            )  # fmt: skip
            seconds.append(clock() - started)
            table = pd.read_parquet(Path(folder, "table.parquet"))
    ours = min(seconds)
    theirs: dict[int, list[float]] = {}
    seconds = []
    with one_thread():
        for _ in range(arguments.repeats):
            started = clock()
            for layer in picked:
                theirs[layer] = plain(catalog.get_task(task, folders), keys, slabs[layer])
            seconds.append(clock() - started)
    own = min(seconds) / len(picked) * n_layers * n_readings
    same = table[(table["tokens"] == reading.tokens) & (table["pooling"] == reading.pooling)]
    difference = max(
        float(np.abs(same[same["layer"] == layer]["main_score"] - np.array(scores)).max())
        for layer, scores in theirs.items()
    )
    report = {
        "task": task,
        "layers": n_layers,
        "readings": n_readings,
        "texts": len(keys),
        "mteb_s": round(own, 2),
        "layerwise_s": round(ours, 2),
        "ratio": round(ours / own, 3),
        "largest_difference": difference,
    }
    log.info("%s", json.dumps(report))
    if arguments.output:
        with replacing(arguments.output) as partial:
            partial.write_text(json.dumps(report, indent=2), encoding="utf-8")


if __name__ == "__main__":
    options = cli.parser(__doc__)
    options.add_argument("--embeddings", type=Path, required=True, help="embeddings file (HDF5)")
    options.add_argument("--task", required=True, help="name of the task")
    options.add_argument(
        "--folders", type=json.loads, default={}, help="JSON: local folders of tasks"
    )
    options.add_argument("--layers", type=int, default=3, help="layers that mteb is timed on")
    options.add_argument("--repeats", type=int, default=2, help="runs of both (default 2)")
    options.add_argument("--cpu-clock", action="store_true", help="time by the processor's clock")
    options.add_argument("--output", type=Path, help="also write the report here (JSON)")
    cli.run(main, options.parse_args())
