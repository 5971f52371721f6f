"""The exceptions that users read: one sentence each.

The sentence says what is wrong, where, and how to fix it. Scripts print it without a traceback.
Any other exception is a bug. Programs and tests look at an error's `code`, not at its words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

Code: TypeAlias = Literal[
    # names and files
    "unknown_name",
    "unknown_key",
    "unknown_value",
    "ambiguous",
    "duplicate",
    "bad_name",
    "missing_file",
    "unreadable",
    "exists",
    "mismatch",  # of another model, corpus or version than expected
    "unsafe",
    # values
    "invalid",
    "wrong_type",
    "wrong_shape",
    "out_of_range",
    "one_of",
    "control_character",
    "missing",
    "conflict",
    "too_few",
    "not_finite",
    "undefined",
    # what a model or a machine cannot do
    "unsupported",
    "no_device",
    "no_memory",
    "disk",
    "missing_extra",
]
"""The kinds of mistakes."""

LONGEST = 780
TAIL = 200


class LayerwiseError(Exception):
    """A mistake in the input, in one sentence.

    Line breaks and control characters are escaped, and a long message loses its middle.

    Parameters
    ----------
    message : str
    code : Code, optional
        The kind of mistake; by default that of the class.
    """

    code: Code = "invalid"

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        text = printable(message)
        if len(text) > LONGEST:
            text = f"{text[: LONGEST - TAIL - 5]} […] {text[-TAIL:]}"
        super().__init__(text)
        self.code = code or self.code


class ConfigError(LayerwiseError):
    """A mistake in a config.

    Parameters
    ----------
    where : str
        The key, such as ``extract.tokens`` or ``models.a.revisions[2]``; empty for the whole.
    problem : str
        What is wrong and how to fix it, as a sentence that follows a colon.
    code : Code, optional
    file : str
        The config's file, if it came from one.
    """

    def __init__(
        self, where: str, problem: str, *, code: Code | None = None, file: str = ""
    ) -> None:
        super().__init__(": ".join(filter(None, (file, where, problem))), code=code)
        self.where, self.problem = where, problem

    def in_file(self, file: str) -> ConfigError:
        """Return the same error with the name of the config's file."""
        return ConfigError(self.where, self.problem, code=self.code, file=file)


class DiskError(LayerwiseError):
    """A file could not be written.

    After a failed write HDF5 may end the process, so it should write nothing more.
    """

    code = "disk"


def printable(text: str) -> str:
    """Text in one line, with control characters escaped (``\\x1b``)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def closest(name: str, names: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(str(name), [str(each) for each in names], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def in_any_case(name: str, known: Iterable[str]) -> str:
    """Return the known name that is equal, else one that differs in case only, else `name`."""
    names = list(known)
    if name in names:
        return name
    return next((each for each in names if each.casefold() == name.casefold()), name)


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and the errors that led to it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or the error's type."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def listed(names: Iterable[object], most: int = 12) -> str:
    """Names for a sentence: the first `most`, and the number of further ones."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return (", ".join(map(repr, every[:most])) or "none") + more


def check_name(what: str, name: object, known: Iterable[object]) -> None:
    """Refuse a name that is not known, with the closest one that is."""
    names = list(known)
    if name not in names:
        raise LayerwiseError(
            f"Unknown {what} {name!r}{closest(str(name), map(str, names))}; "
            f"choose from {listed(dict.fromkeys(names))}.",
            code="unknown_name",
        )
