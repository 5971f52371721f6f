"""Checkpoints of a sweep that have the same weights.

Pythia's step0 and step1 are equal on the hub, and other branches have been wrong at times.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise.errors import LayerwiseError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

COLUMNS = ["model", "revision", "dtype", "weights_sha256"]


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

    Raises
    ------
    LayerwiseError
        If a table does not name its weights.
    """
    import pandas as pd

    from layerwise.io import tables

    rows = []
    for path in paths:
        facts = tables.facts(path)
        if not facts.keys() >= set(COLUMNS):
            raise LayerwiseError(
                f"{path} does not say which weights it was made with; delete it and run again."
            )
        rows.append([facts[name] for name in COLUMNS])
    table = pd.DataFrame(rows, columns=COLUMNS).drop_duplicates(ignore_index=True)
    table["same_as"] = ""
    weights = [name for name in COLUMNS if name != "revision"]
    for (model, *_), group in table.groupby(weights, sort=False):
        if len(group) > 1:
            log.warning(
                "%s: the revisions %s have the same weights", model, ", ".join(group["revision"])
            )
        for place, own in group["revision"].items():
            table.loc[place, "same_as"] = " ".join(r for r in group["revision"] if r != own)
    return table
