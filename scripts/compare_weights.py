"""Compare the weights of checkpoints, by what the tables made from them say."""

from __future__ import annotations

import csv
import logging

from layerwise import cli

log = logging.getLogger("layerwise")


def main(run: cli.Run) -> None:
    """Read the hashes, warn of equal ones, write the table."""
    from layerwise.files import replacing
    from layerwise.models import checkpoints
    from layerwise.workflow import stamps

    found = [checkpoints.checkpoint_of(path) for path in run.inputs["tables"]]
    for group in checkpoints.same_weights(found):
        log.warning(
            "%s: the revisions %s have the same weights",
            group[0].model, ", ".join(checkpoint.revision for checkpoint in group),
        )  # fmt: skip
    rows = checkpoints.table(found)
    with replacing(run.files["table"]) as partial, partial.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    stamps.write(run.files["stamp"], run.stamp)


if __name__ == "__main__":
    cli.run_job("compare_weights", main, __doc__)
