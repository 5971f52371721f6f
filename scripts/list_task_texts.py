"""List the distinct texts that a task's evaluators ask for.

python scripts/list_task_texts.py --task STS12 --output results/tasks/STS12.texts.parquet
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from layerwise.cli import json_argument, parser, run
from layerwise.tasks import catalog, texts

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Load the task, take its texts down, write them."""
    logging.getLogger("mteb").setLevel(logging.WARNING)
    task = catalog.load(catalog.get_task(arguments.task, arguments.folders))
    found = texts.distinct_texts(task)
    texts.write_texts(arguments.output, arguments.task, found)
    words = sum(len(text.split()) for text in found)
    log.info("%s: %d distinct texts, %d words", arguments.task, len(found), words)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--task", required=True, help="name of the task")
    options.add_argument(
        "--folders", type=json_argument, default={}, metavar="JSON",
        help='local folders of tasks, such as \'{"STS12": "mirror/STS12"}\'',
    )  # fmt: skip
    options.add_argument("--output", type=Path, required=True, help="the list (parquet)")
    run(main, options.parse_args())
