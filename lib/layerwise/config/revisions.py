"""Checkpoints that a config names by a rule: all branches of a model on the hub, or some."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from layerwise.section import Section

LOG = 20
"""Checkpoints of ``log``, about evenly on a log scale."""

# Pythia's branches (Biderman et al. 2023, arXiv 2304.01373): step0, powers of two up to step512,
# then every thousandth step up to step143000.
_EARLY = (0, *(2**k for k in range(10)))
PYTHIA: dict[str, tuple[str, ...]] = {
    "all": tuple(f"step{n}" for n in (*_EARLY, *range(1000, 143_001, 1000))),
    "log": tuple(f"step{n}" for n in (*_EARLY, *(1000 * 2**k for k in range(8)), 143_000)),
}


def _with_step(pattern: str) -> str:
    """Refuse a pattern without one {step}."""
    if pattern.count("{step}") != 1:
        raise ValueError(
            f"{pattern!r} needs {{step}} once, in place of the number that orders the branches, "
            "such as 'stage1-step{step}-tokens*'"
        )
    return pattern


class Branches(Section):
    """Branches of a repository on the hub."""

    pattern: Annotated[str, AfterValidator(_with_step)]
    """Names of the branches: {step} stands for the number that orders them, * for anything."""
    which: Literal["all", "log"] = "log"
    """All of them, or about 20, evenly on a log scale."""


def chosen(branches: Branches, names: Sequence[str]) -> tuple[str, ...]:
    """Branches that match, in order of their number.

    Examples
    --------
    >>> names = ["main", "step-2000", "step-1000", "step-1000-extra"]
    >>> chosen(Branches(pattern="step-{step}", which="all"), names)
    ('step-1000', 'step-2000')

    Raises
    ------
    ValueError
        If none matches.
    """
    before, after = (
        re.escape(part).replace(r"\*", ".*") for part in branches.pattern.split("{step}")
    )
    pattern = re.compile(rf"{before}(\d+){after}")
    steps = {name: int(match[1]) for name in names if (match := pattern.fullmatch(name))}
    if not steps:
        some = ", ".join(sorted(names)[:3]) or "none"
        raise ValueError(f"no branch matches {branches.pattern!r}; there are {some}")
    found = sorted(steps, key=lambda name: (steps[name], name))
    if branches.which == "all" or len(set(steps.values())) <= LOG:
        return tuple(found)
    # Steps are shifted by one so that step 0 has a logarithm.
    logs = [math.log1p(steps[name]) for name in found]
    # Where steps are equally spaced, several early points have the same nearest checkpoint, so
    # that more points are needed for as many checkpoints.
    kept: tuple[str, ...] = ()
    for n_points in itertools.count(LOG):
        width = (logs[-1] - logs[0]) / (n_points - 1)
        nearest = dict.fromkeys(_nearest(logs, logs[0] + width * k) for k in range(n_points))
        if len(nearest) > LOG:
            break
        kept = tuple(found[n] for n in nearest)
    return kept


def _nearest(numbers: Sequence[float], number: float) -> int:
    """Place of the nearest of some ascending numbers."""
    after = bisect.bisect_left(numbers, number, 1, len(numbers) - 1)
    return min(after - 1, after, key=lambda n: abs(numbers[n] - number))


def branches_of(hub: str) -> list[str]:
    """Names of a repository's branches: the hub's, or offline those in the local cache.

    Raises
    ------
    ValueError
        If there are none, or the hub does not answer.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name

    if not constants.is_offline_mode():
        try:
            return [branch.name for branch in HfApi().list_repo_refs(hub).branches]
        except Exception as error:  # of the client and of the HTTP library below it
            raise ValueError(
                f"the hub lists no branches of {hub} ({error}); list the revisions by name"
            ) from error
    folder = repo_folder_name(repo_id=hub, repo_type="model")
    refs = Path(constants.HF_HUB_CACHE) / folder / "refs"
    found = [path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file()]
    if not found:
        raise ValueError(f"the local cache has no branch of {hub}; list the revisions by name")
    return found


def pythia(shorthand: str, hub: str) -> tuple[str, ...]:
    """The checkpoints of ``all`` (154) or ``log`` (20, evenly on a log scale) of a Pythia model.

    Parameters
    ----------
    shorthand : {'all', 'log'}
    hub : str
        The model's name on the hub; empty for a model from elsewhere.

    Raises
    ------
    ValueError
        If there is no such shorthand, or the model is not one of Pythia's.
    """
    if shorthand not in PYTHIA:
        known = ", ".join(map(repr, PYTHIA))
        raise ValueError(f"expected a list of revisions or one of {known}, got {shorthand!r}")
    if not hub.lower().startswith("eleutherai/pythia"):
        raise ValueError(
            f"{shorthand!r} alone is for EleutherAI/pythia-…; list the revisions, or give the "
            "pattern of the branches: {pattern: 'step{step}', which: " + shorthand + "}"
        )
    return PYTHIA[shorthand]
