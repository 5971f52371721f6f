"""Associate every metric with the task scores over layers, per model and pooled over models.

Reads tidy tables of metrics and scores, writes one tidy table of associations: distance
correlation, Spearman's rho and Kendall's tau-b, each with an interval over tasks, a permutation
p-value and a circular-shift p-value.

    python scripts/associate_metrics.py --metrics results/metrics/*/*/*.parquet \\
        --scores results/scores/*/*/*.parquet --output results/associations.parquet
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from layerwise.association.settings import AssociationSettings
from layerwise.association.table import associate
from layerwise.association.tables import read_tables, write_table
from layerwise.cli import json_argument, parser, run

log = logging.getLogger("layerwise")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--metrics", type=Path, nargs="+", required=True, help="tables of metrics")
    made.add_argument("--scores", type=Path, nargs="+", required=True, help="tables of scores")
    made.add_argument(
        "--settings", type=json_argument, default={}, help="the config's `association`, as JSON"
    )
    made.add_argument("--output", type=Path, required=True, help="table to write, parquet")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Read, associate, write."""
    settings = AssociationSettings.from_dict(given.settings)
    table = associate(
        read_tables(given.metrics, "metrics"), read_tables(given.scores, "scores"), settings
    )
    log.info("%d associations of %d metrics", len(table), table["metric"].nunique())
    write_table(given.output, table, settings=given.settings)


if __name__ == "__main__":
    run(main, arguments())
