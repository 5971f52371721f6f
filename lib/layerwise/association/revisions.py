"""The order of a model's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable

_STEP = re.compile(r"step[-_]?(\d+)", re.IGNORECASE)
_WORD_AND_NUMBER = re.compile(r"[A-Za-z]*[-_]?(\d+)")


def step_of(revision: str) -> int | None:
    """The training step in a revision's name, or None.

    ``step512``, ``checkpoint-512``, ``512`` and ``stage1-step512-tokens3B`` give 512; ``main``, a
    tag such as ``v1.0`` or a commit's hash give None.
    """
    found = _STEP.search(revision) or _WORD_AND_NUMBER.fullmatch(revision)
    return int(found.group(1)) if found else None


def order_key(revision: str) -> tuple[bool, int, str]:
    """Sort key: by step; names without a step (``main``) come last, as the finished model."""
    step = step_of(revision)
    return step is None, step or 0, revision


def last_revision(revisions: Iterable[str]) -> str:
    """The latest of some revisions of one model."""
    return max(revisions, key=order_key)
