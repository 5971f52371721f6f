"""Compare the weights of checkpoints by the hashes in the tables made from them."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pandas as pd

from layerwise.files import replacing
from layerwise.workflow import script

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Read the hashes, warn of equal ones, write the table."""
    from layerwise.models import checkpoints
    from layerwise.workflow import studies

    config = script.config_of(arguments)
    found = [checkpoints.checkpoint_of(Path(p)) for p in studies.swept_tables(config)]
    for group in checkpoints.same_weights(found):
        log.warning(
            "%s: the revisions %s have the same weights",
            group[0].model,
            ", ".join(checkpoint.revision for checkpoint in group),
        )
    with replacing(arguments.output) as partial:
        pd.DataFrame(checkpoints.table(found)).to_csv(partial, index=False)


if __name__ == "__main__":
    script.run(main, script.files(script.parser(__doc__), output="CSV table to write"))
