"""The one exception a user should ever read.

A `LayerwiseError` carries one sentence: what came, what is accepted, where it was, how to mend it.
Scripts print it without a traceback; anything else that is raised is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LayerwiseError(Exception):
    """A mistake in the input, said in one sentence."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
