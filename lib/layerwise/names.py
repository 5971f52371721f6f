"""Names of models, revisions, corpora, tasks and studies: in paths, and the numbers in them."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from layerwise.errors import LayerwiseError

# File systems take 255 bytes; a suffix, and the mark of a file that is being written, come on top.
LONGEST = 150


def encode(name: str) -> str:
    """Percent-encode a name as one path component; `decode` is the inverse.

    Letters, digits and ``_ - ~ .`` stay readable. A leading dot is encoded, so no file is hidden.

    Raises
    ------
    LayerwiseError
        For an empty name, one with a NUL or a ``..`` component, or one too long for a file name.
    """
    quoted = quote(name, safe="", errors="surrogatepass")
    quoted = "%2E" + quoted[1:] if quoted.startswith(".") else quoted
    if not 0 < len(quoted) <= LONGEST or "\0" in name or ".." in re.split(r"[/\\]", name):
        raise LayerwiseError(
            f"{name[:40]!r} cannot be the name of a model, revision, corpus, task or study: it "
            f"must have 1 to {LONGEST} characters in a path, and no '..' as a part.",
            code="bad_name",
        )
    return quoted


def decode(component: str) -> str:
    """The name that `encode` turned into this path component."""
    return unquote(component, errors="surrogatepass")


PATHS = {
    "metrics": "metrics/{model}/{revision}/{corpus}.parquet",
    "prompts": "metrics/{model}/{revision}/{corpus}.prompts.parquet",
    "positions": "metrics/{model}/{revision}/{corpus}.positions.parquet",
    "scores": "scores/{model}/{revision}.parquet",
    "texts": "corpora/{corpus}.parquet",
    "associations": "associations/{study}.parquet",
    "selections": "selections/{study}.parquet",
    "similarities": "similarities/{study}.parquet",
    "activations": "activations/{model}/{revision}/{corpus}.h5",
}
"""The files that studies read, below the results folder: those of the rules in workflow/rules."""
RESERVED = (".views", ".prompts", ".positions")
"""Endings of the files that belong to a corpus or its metrics."""


def path_of(table: str, **names: str) -> str:
    """A path of `PATHS`, for names of the config."""
    return PATHS[table].format(**{kind: encode(name) for kind, name in names.items()})


# Steps of training

_STEP = re.compile(r"step[-_]?(\d+)", re.IGNORECASE)
_CHECKPOINT = re.compile(r"(?:(?:checkpoint|ckpt|iter|global_step)[-_]?)?(\d+)", re.IGNORECASE)


def step_of(revision: str) -> int | None:
    """The training step in a revision's name, or None.

    ``step512``, ``checkpoint-512``, ``512`` and ``stage1-step512-tokens3B`` give 512. ``main``,
    versions such as ``v2`` and names such as ``e5`` give None.
    """
    found = _STEP.search(revision) or _CHECKPOINT.fullmatch(revision)
    return int(found.group(1)) if found else None


def order_key(revision: str) -> tuple[bool, int, str]:
    """Sort key: by step; names without a step (``main``) come last, as the finished model."""
    step = step_of(revision)
    return step is None, step or 0, revision


# Numbers of parameters

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s?([mb])(?![A-Za-z])", re.IGNORECASE)
UNITS = {"m": 1e6, "b": 1e9}


def size_of(name: str) -> float | None:
    """The number of parameters in a model's name, ``pythia-410m`` or ``Llama-3-8B``.

    None if the name has no such number, or several: one may be a number of tokens.
    """
    found = {float(number) * UNITS[unit.lower()] for number, unit in _SIZE.findall(name)}
    return found.pop() if len(found) == 1 else None
