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

    table = pd.DataFrame([tables.facts(path) for path in paths])
    if not set(COLUMNS) <= set(table) or table[COLUMNS].isna().any(axis=None):
        raise LayerwiseError(
            "A table does not name the weights it was made with; delete it and run again.",
            code="missing",
        )
    table = table[COLUMNS].drop_duplicates(ignore_index=True)
    table["same_as"] = ""
    weights = [name for name in COLUMNS if name != "revision"]
    for (model, *_), group in table.groupby(weights, sort=False):
        revisions = list(group["revision"])
        if len(revisions) > 1:
            log.warning("%s: the revisions %s have the same weights", model, ", ".join(revisions))
        for place, own in group["revision"].items():
            table.loc[place, "same_as"] = " ".join(r for r in revisions if r != own)
    return table
