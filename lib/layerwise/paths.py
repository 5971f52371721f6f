"""Names of models, revisions, corpora and tasks as parts of a path, one to one and back."""

from __future__ import annotations

from urllib.parse import quote, unquote

from layerwise.errors import LayerwiseError

# File systems take 255 bytes; a suffix, and the mark of a file that is being written, come on top.
LONGEST = 150


def encode(name: str) -> str:
    """A name as one path component: slashes, spaces and the like percent-encoded.

    `decode` gives the name back. Letters, digits and ``_ - ~ .`` stay readable; a leading dot is
    encoded, so that nothing is hidden.

    Raises
    ------
    LayerwiseError
        For an empty name, one with a NUL, one that tries to climb (a ``..`` component) or is too
        long for a file's name.
    """
    if not name or "\0" in name or ".." in name.replace("\\", "/").split("/"):
        raise LayerwiseError(
            f"{name!r} cannot be the name of a model, revision, corpus, task or study: "
            "it must not be empty or contain '..' as a part."
        )
    quoted = quote(name, safe="", errors="surrogatepass")
    quoted = "%2E" + quoted[1:] if quoted.startswith(".") else quoted
    if len(quoted) > LONGEST:
        raise LayerwiseError(
            f"{name[:40] + '…'!r} is too long for the name of a model, revision, corpus, task or "
            f"study: it takes {len(quoted)} characters in a path; accepted are up to {LONGEST}."
        )
    return quoted


def trained(model: str, revision: str) -> str:
    """The folder below the results folder of a checkpoint of a model that the workflow trains."""
    return f"nano/{encode(model)}/{revision}"


def decode(component: str) -> str:
    """The name that `encode` turned into this path component."""
    return unquote(component, errors="surrogatepass")
