"""Find each model's best layer by its scores, and write the first page of the report.

    python scripts/find_best_layers.py --scores results/scores/*/*/*.parquet \\
        --output best_layers.csv --page best_layers.rst
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.association.best import best_layers
from layerwise.association.tables import read_tables
from layerwise.cli import json_argument, parser, run
from layerwise.figures.first_page import first_page
from layerwise.files import replacing


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--scores", type=Path, nargs="+", required=True, help="tables of scores")
    made.add_argument("--order", type=json_argument, default=[], help="all models, as JSON")
    made.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    made.add_argument("--output", type=Path, required=True, help="table to write, CSV")
    made.add_argument("--page", type=Path, required=True, help="page to write, reStructuredText")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Read, find, write."""
    best = best_layers(read_tables(given.scores, "scores"), seed=given.seed)
    with replacing(given.output) as partial:
        best.to_csv(partial, index=False)
    with replacing(given.page) as partial:
        partial.write_text(first_page(best, given.order), encoding="utf-8")


if __name__ == "__main__":
    run(main, arguments())
