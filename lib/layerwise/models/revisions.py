"""Checkpoints of models that publish theirs by a rule, so that a config need not list them.

Pythia's branches (Biderman et al. 2023, arXiv 2304.01373): step0, then powers of two up to
step512, then every thousandth step up to step143000: 154 in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerwise.errors import LayerwiseError

EARLY = (0, *(2**k for k in range(10)))
LATE = tuple(range(1000, 143_001, 1000))

SHORTHANDS: dict[str, tuple[str, ...]] = {
    "all": tuple(f"step{n}" for n in (*EARLY, *LATE)),
    "log": tuple(f"step{n}" for n in (*EARLY, *(1000 * 2**k for k in range(8)), 143_000)),
}


def checkpoints(shorthand: str, hub: str) -> tuple[str, ...]:
    """The checkpoints that ``all`` (154) or ``log`` (20, evenly on a log scale) stand for.

    Parameters
    ----------
    shorthand : {'all', 'log'}
    hub : str
        The model's name on the hub; empty for a model from elsewhere.

    Raises
    ------
    ValueError
        If it is no shorthand, or the model is not one of Pythia's.
    """
    if shorthand not in SHORTHANDS:
        raise ValueError(f"a list of revisions, or one of {', '.join(map(repr, SHORTHANDS))}")
    if not hub.lower().startswith("eleutherai/pythia"):
        raise ValueError(
            f"{shorthand!r} is known for the models EleutherAI/pythia-… alone; list the "
            f"revisions{f' of {hub}' if hub else ''} by name"
        )
    return SHORTHANDS[shorthand]


def expand(name: str, source: Mapping[str, Any], revisions: str | Sequence[str]) -> list[str]:
    """The checkpoints that ``all`` (154) or ``log`` (20, evenly on a log scale) stand for.

    Raises
    ------
    LayerwiseError
        If a shorthand came for a model that is not one of Pythia's.
    """
    if not isinstance(revisions, str):
        return list(revisions)
    hub = str(source.get("hub", ""))
    if not hub.lower().startswith("eleutherai/pythia"):
        raise LayerwiseError(
            f"models.{name}.revisions: {revisions!r} came, which is known for the models "
            f"EleutherAI/pythia-… alone; list the revisions of {hub or name} by name."
        )
    return list(SHORTHANDS[revisions])
