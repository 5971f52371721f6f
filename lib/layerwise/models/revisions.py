"""Checkpoints of models that publish theirs by a rule, so that a config need not list them.

Pythia's branches (Biderman et al. 2023, arXiv 2304.01373): step0, then powers of two up to
step512, then every thousandth step up to step143000: 154 in all.
"""

from __future__ import annotations

import re

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


def step_of(revision: str) -> int | None:
    """The step that a revision of a model trained here is saved at: 64 of ``step64``."""
    found = re.fullmatch(r"step(0|[1-9]\d*)", revision)
    return int(found[1]) if found else None
