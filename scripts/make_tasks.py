"""Make the folders of the quickstart's tasks from package data and the Wikipedia paragraphs.

python scripts/make_tasks.py --wikipedia results/texts/wikipedia.parquet --output results/tasks
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.cli import parser, run
from layerwise.corpora.paragraphs import read_paragraphs
from layerwise.tasks.names import QUICKSTART
from layerwise.tasks.quickstart import make_tasks


def main(arguments: argparse.Namespace) -> None:
    """Read the paragraphs, make the tasks."""
    paragraphs, _ = read_paragraphs(arguments.wikipedia)
    make_tasks(paragraphs, arguments.tasks, arguments.output)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--wikipedia", type=Path, required=True, help="paragraphs (parquet)")
    options.add_argument(
        "--tasks", nargs="+", default=list(QUICKSTART), metavar="NAME",
        help=f"which to make (default: {', '.join(QUICKSTART)})",
    )  # fmt: skip
    options.add_argument(
        "--output", type=Path, required=True, help="folder for the tasks' folders"
    )
    run(main, options.parse_args())
