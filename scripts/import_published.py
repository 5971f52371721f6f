"""Turn tables published elsewhere into this workflow's tidy tables of metrics and scores.

They can then be associated and drawn like any others, without running a model.

    python scripts/import_published.py --published-scores mteb_scores.csv.gz \\
        --published-metrics metrics.csv.gz --scores scores.parquet --metrics metrics.parquet
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.association.published import published_metrics, published_scores, read_table
from layerwise.association.tables import write_table
from layerwise.cli import parser, run
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_file


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument(
        "--published-scores", type=Path, help="CSV or parquet, MTEB results by layer"
    )
    made.add_argument("--published-metrics", type=Path, help="CSV or parquet, metrics by layer")
    made.add_argument("--scores", type=Path, help="tidy scores to write, parquet")
    made.add_argument("--metrics", type=Path, help="tidy metrics to write, parquet")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Read, convert, write."""
    pairs = (
        (given.published_scores, given.scores, published_scores, "scores"),
        (given.published_metrics, given.metrics, published_metrics, "metrics"),
    )
    if not any(source for source, *_ in pairs):
        raise LayerwiseError("Give --published-scores, --published-metrics, or both.")
    for source, target, convert, name in pairs:
        if (source is None) != (target is None):
            raise LayerwiseError(f"--published-{name} and --{name} go together; give both.")
        if source is not None:
            table = convert(read_table(source))
            write_table(target, table, source=source.name, sha256=sha256_file(source))


if __name__ == "__main__":
    run(main, arguments())
