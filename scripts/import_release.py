"""Import a checkout of https://github.com/OFSkean/information_flow as published tables.

Writes scores.parquet and metrics.parquet, which the section `published` of a config takes:

    python scripts/import_release.py information_flow published
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from layerwise.association import release
from layerwise.errors import LayerwiseError
from layerwise.io import tables

RESULTS = "experiments/results"


def main() -> None:
    """Read the release, write two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help=f"the checkout, which holds {RESULTS}")
    parser.add_argument("out", type=Path, help="folder to write the tables into")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for name, read in (("scores", release.read_scores), ("metrics", release.read_metrics)):
            table = read(arguments.checkout / RESULTS)
            if table.empty:
                raise LayerwiseError(f"{arguments.checkout / RESULTS}: no {name} found.")
            tables.write(arguments.out / f"{name}.parquet", table)
            logging.info("%s.parquet: %d rows", name, len(table))
    except LayerwiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
