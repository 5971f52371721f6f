"""Time and memory of a reranking with the shape of MindSmallReranking, on made-up texts.

Scale 1 has 97 million candidates: 71,000 queries with 33 subqueries each, over 41 of 5,277
documents. Vectors are noise of 1,024 dimensions. Printed are seconds and peak memory of recording
(mteb loads the data, which takes most), and seconds for each layer.

python benchmarks/bench_reranking.py --scale 0.1
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import layerwise.run.script  # isort: skip  # noqa: F401  (before numpy: it sets threads)
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerwise.config.settings import ScoringSettings
from layerwise.tasks.mteb_task import MtebTask
from layerwise.tasks.task import Vectors, one_thread

QUERIES, SUBQUERIES, CANDIDATES, DOCUMENTS, TEXTS = 71_000, 33, 41, 5_277, 37_162


def write(folder: Path, scale: float) -> None:
    """Write the data in mteb's schema."""
    rng, n = np.random.default_rng(0), int(QUERIES * scale)
    names = [f"{query}_{number}" for query in range(n) for number in range(SUBQUERIES)]
    ranked = np.array([rng.choice(DOCUMENTS, CANDIDATES, replace=False) for _ in range(n)])
    documents = pa.array([f"d{number}" for number in range(DOCUMENTS)])
    ids = documents.take(pa.array(np.repeat(ranked, SUBQUERIES, axis=0).ravel()))
    offsets = np.arange(len(names) + 1) * CANDIDATES
    texts = [f"headline {number} that was read" for number in rng.integers(TEXTS, size=len(names))]
    tables = {
        "queries/queries": {"_id": names, "text": texts},
        "corpus/corpus": {"_id": documents, "text": [f"news {d}" for d in range(DOCUMENTS)]},
        "qrels/test": {
            "query-id": np.repeat(names, 2),
            "corpus-id": documents.take(
                pa.array(np.repeat(ranked[:, :2], SUBQUERIES, axis=0).ravel())
            ),
            "score": np.ones(2 * len(names), np.int32),
        },
        "top_ranked/test": {
            "query-id": names,
            "corpus-ids": pa.LargeListArray.from_arrays(offsets, ids),
        },
    }

    configs = ""
    for path, table in tables.items():
        config, _, split = path.partition("/")
        (folder / config).mkdir(parents=True)
        pq.write_table(pa.table(table), folder / f"{path}.parquet")
        config = "default" if config == "qrels" else config
        split = "test"
        configs += f"- config_name: {config}\n  data_files:\n  - split: {split}\n"
        configs += f"    path: {path}.parquet\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


def main() -> None:
    """Write, record and score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Another process: its memory does not count.
        if (pid := os.fork()) == 0:
            write(Path(folder), options.scale)
            os._exit(0)
        os.waitpid(pid, 0)
        task = MtebTask("MindSmallReranking", folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        (unit,) = task.units(10**9)
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sys.stdout.write(f"recording: {seconds:.0f} s, +{peak / 1e6:.1f} GB; ")
    rng = np.random.default_rng(0)
    rows = {key: row for row, key in enumerate(unit.keys)}
    start = time.process_time()
    for _ in range(options.layers):
        values = rng.standard_normal((len(rows), 1024), dtype=np.float32)
        with one_thread():
            task.score(unit.selection, Vectors(values, rows), ScoringSettings())
    seconds = (time.process_time() - start) / options.layers
    sys.stdout.write(f"{len(rows)} texts, {seconds:.1f} s a layer\n")


if __name__ == "__main__":
    main()
