"""The one exception a user should ever read.

A `LayerwiseError` carries one sentence: what came, what is accepted, where it was, how to mend it.
Scripts print it without a traceback; anything else that is raised is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 780
ENDS = 200


class LayerwiseError(Exception):
    """A mistake in the input, said in one sentence.

    What it quotes may be anyone's: line breaks and control characters are written out, and what
    is endless loses its middle.
    """

    def __init__(self, message: str) -> None:
        said = printable(message)
        if len(said) > LONGEST:
            said = f"{said[: LONGEST - ENDS - 5]} […] {said[-ENDS:]}"
        super().__init__(said)


class DiskError(LayerwiseError):
    """A file could not be written. What failed once will fail again, and HDF5 may be left in a
    state in which it ends the process: nothing more is to be written in this one."""


def printable(text: str) -> str:
    """Text in one line, whose control characters and the like are written out (``\\x1b``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def closest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def first_line(error: BaseException) -> str:
    """What another library says of an error, in short."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a sentence: the first of many, and how many more there are."""
    known = list(map(str, names))
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return (", ".join(map(repr, known[:most])) or "none") + more
