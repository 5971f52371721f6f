"""Score every layer of a model on a task with mteb's evaluators, from stored embeddings.

python scripts/score_task.py --embeddings m.h5 --task STS12 --layers scores/STS12 \\
    --output scores/STS12.parquet
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.cli import json_argument, parser, run
from layerwise.tasks.results import Settings
from layerwise.tasks.score import Job, score_task


def main(arguments: argparse.Namespace) -> None:
    """Score, and write MTEB's JSON for every layer and one tidy table."""
    job = Job(
        embeddings=arguments.embeddings,
        task=arguments.task,
        layers=arguments.layers,
        folders=arguments.folders,
        settings=Settings.of(arguments.settings),
    )
    score_task(
        job,
        arguments.output,
        model=arguments.model,
        revision=arguments.revision,
        threads=arguments.threads,
    )


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--embeddings", type=Path, required=True, help="embeddings file (HDF5)")
    options.add_argument("--model", help="refuse a file about another model")
    options.add_argument("--revision", help="refuse a file about another revision")
    options.add_argument("--task", required=True, help="name of the task")
    options.add_argument(
        "--folders", type=json_argument, default={}, metavar="JSON",
        help='local folders of tasks, such as \'{"STS12": "mirror/STS12"}\'',
    )  # fmt: skip
    options.add_argument(
        "--settings", type=json_argument, default={}, metavar="JSON",
        help="scoring settings: normalize, bootstrap, confidence, seed",
    )  # fmt: skip
    options.add_argument("--layers", type=Path, required=True, help="folder for MTEB's JSON")
    options.add_argument("--output", type=Path, required=True, help="the tidy table (parquet)")
    run(main, options.parse_args())
