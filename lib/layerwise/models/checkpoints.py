"""Which checkpoints of a sweep have the same weights.

Pythia's step0 and step1 are equal on the hub, and more of its branches were wrong over time: two
revisions with one hash are one model, whatever they are called. Goes by what the files made from
them say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from layerwise.errors import LayerwiseError


@dataclass(frozen=True)
class Checkpoint:
    """The weights that a file was made with."""

    model: str
    revision: str
    dtype: str
    sha256: str


def checkpoint_of(path: Path) -> Checkpoint:
    """What a table of metrics or scores says of the weights it was made with.

    Raises
    ------
    LayerwiseError
        If it is not such a file.
    """
    from layerwise import tables

    facts = tables.facts(path)
    try:
        return Checkpoint(
            *(facts[name] for name in ("model", "revision", "dtype", "weights_sha256"))
        )
    except KeyError as error:
        raise LayerwiseError(
            f"{path} does not say which weights it was made with ({error}); delete it and run "
            "snakemake again."
        ) from error


def check_weights(tables: Iterable[Path]) -> None:
    """Make sure that tables which are joined are of the same weights, model by model.

    A branch of the hub may move between the making of one and of the other.

    Parameters
    ----------
    tables : iterable of paths
        Of metrics and scores, published ones too, which name no weights.

    Raises
    ------
    LayerwiseError
        Naming two files that differ.
    """
    from layerwise.tables import facts

    seen: dict[tuple[str, ...], tuple[str, Path]] = {}
    for path in tables:
        told = facts(path)
        if "weights_sha256" in told:
            one = tuple(told.get(name, "") for name in ("model", "revision", "dtype"))
            weights, first = seen.setdefault(one, (told["weights_sha256"], path))
            if weights != told["weights_sha256"]:
                raise LayerwiseError(
                    f"{first} and {path} were made with different weights of {one[0]} at "
                    f"{one[1]}: the model has changed in between. Delete the older one, and what "
                    "it was made from, and run snakemake again."
                )


def same_weights(checkpoints: Iterable[Checkpoint]) -> list[Sequence[Checkpoint]]:
    """Groups of two or more different revisions of one model whose weights are equal.

    Revisions stand in the order they came in; so do the groups.
    """
    distinct = list(dict.fromkeys(checkpoints))
    order = {checkpoint: place for place, checkpoint in enumerate(distinct)}

    def weights(checkpoint: Checkpoint) -> tuple[str, str, str]:
        return checkpoint.model, checkpoint.dtype, checkpoint.sha256

    groups = [tuple(g) for _, g in groupby(sorted(distinct, key=weights), key=weights)]
    return sorted((g for g in groups if len(g) > 1), key=lambda g: order[g[0]])


def table(checkpoints: Iterable[Checkpoint]) -> list[dict[str, str]]:
    """One row a checkpoint: its hash, and which others of its model have the same weights."""
    distinct = list(dict.fromkeys(checkpoints))
    twins = {one: group for group in same_weights(distinct) for one in group}
    return [
        {
            "model": one.model,
            "revision": one.revision,
            "dtype": one.dtype,
            "weights_sha256": one.sha256,
            "same_as": " ".join(o.revision for o in twins.get(one, ()) if o != one),
        }
        for one in distinct
    ]
