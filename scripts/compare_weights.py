"""Compare the weights of checkpoints by the hashes in the tables made from them.

Pythia's step0 and step1 are equal on the hub, and other branches have been wrong at times.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from layerwise.io import tables
from layerwise.run import script

log = logging.getLogger(__name__)

COLUMNS = ["model", "revision", "dtype", "weights_sha256"]


def main(job: script.Job) -> None:
    """Read the hashes, warn of equal ones, write the table."""
    tables.write_csv(Path(job.output[0]), compare(map(Path, job.input)), job.key)


def compare(paths: Iterable[Path]) -> pd.DataFrame:
    """Compare the weights of checkpoints, and log which are equal.

    Parameters
    ----------
    paths : iterable of Path
        Tables of metrics or scores, whose metadata name the weights.

    Returns
    -------
    DataFrame
        One row per checkpoint: `COLUMNS` and ``same_as``, other revisions of the model with the
        same weights, separated by spaces.
    """
    table = pd.DataFrame([tables.facts(path) for path in paths])
    table = table[COLUMNS].drop_duplicates(ignore_index=True)
    equal = table.groupby([name for name in COLUMNS if name != "revision"])["revision"]
    table["same_as"] = equal.transform(lambda all_: [" ".join(all_[all_ != one]) for one in all_])
    for row in table[table["same_as"] != ""].itertuples():
        log.warning("%s: %s has the same weights as %s", row.model, row.revision, row.same_as)
    return table


if __name__ == "__main__":
    script.run(main, snakemake)
