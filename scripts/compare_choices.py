"""Hold the layers that metrics pick without labels against the scores.

Writes one row per model, metric and task type (layer picked, its score, regret, gain over the last
layer), and a summary over models (how often it beats the last and the middle layer).

    python scripts/compare_choices.py --metrics results/metrics/*/*/*.parquet \\
        --scores results/scores/*/*/*.parquet --output choices.parquet --summary choices.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.association.choice import choose_layers, summarize
from layerwise.association.curves import select
from layerwise.association.settings import AssociationSettings
from layerwise.association.tables import read_tables, write_table
from layerwise.cli import json_argument, parser, run
from layerwise.files import replacing
from layerwise.metrics.registry import directions


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--metrics", type=Path, nargs="+", required=True, help="tables of metrics")
    made.add_argument("--scores", type=Path, nargs="+", required=True, help="tables of scores")
    made.add_argument(
        "--settings", type=json_argument, default={}, help="the config's `association`, as JSON"
    )
    made.add_argument("--output", type=Path, required=True, help="table to write, parquet")
    made.add_argument("--summary", type=Path, required=True, help="table over models, CSV")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Read, choose, compare, write."""
    settings = AssociationSettings.from_dict(given.settings)
    metrics = select(
        read_tables(given.metrics, "metrics"),
        names=settings.metrics,
        protocols=settings.protocols,
        alphas=settings.alphas,
        normalizations=settings.normalizations,
    )
    choices = choose_layers(
        metrics,
        read_tables(given.scores, "scores"),
        directions(),
        own_texts=settings.own_texts,
        resamples=settings.resamples,
        seed=settings.seed,
    )
    write_table(given.output, choices, settings=given.settings)
    with replacing(given.summary) as partial:
        summarize(choices).to_csv(partial, index=False)


if __name__ == "__main__":
    run(main, arguments())
