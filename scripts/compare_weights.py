"""List the weight hash of every checkpoint, and report checkpoints of a model that are equal."""

from __future__ import annotations

import argparse
import csv
import logging
from pathlib import Path

from layerwise import cli

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Read the files' attributes, write the table, warn of equal weights by name."""
    from layerwise.files import replacing
    from layerwise.models import checkpoints

    found = [checkpoints.checkpoint_of(path) for path in arguments.files]
    for group in checkpoints.same_weights(found):
        names = ", ".join(one.revision for one in group)
        log.warning("%s: the weights of %s are the same", group[0].model, names)
    rows = checkpoints.table(found)
    with replacing(arguments.output) as partial, partial.open("w", newline="") as handle:
        writer = csv.DictWriter(
            handle, ["model", "revision", "dtype", "weights_sha256", "same_as"]
        )
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--files", type=Path, nargs="+", required=True,
        help="activations or embeddings files (HDF5), in the order of training",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, help="the table (CSV)")
    cli.run(main, parser.parse_args())
