"""Files that sentence-transformers saves with a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layerwise.models.source import Location

PROMPTS = "config_sentence_transformers.json"
MODULES = "modules.json"


def read(location: Location, name: str) -> Any:
    """A JSON file of a model, from its folder, the cache or the hub; None if there is none."""
    from transformers.utils import cached_file

    file = cached_file(
        location.name,
        name,
        revision=location.revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return file and json.loads(Path(file).read_text(encoding="utf-8"))


def module(location: Location, kind: str) -> dict[str, Any] | None:
    """The entry of a module, such as ``Pooling``, in the list of a model's modules."""
    modules = read(location, MODULES) or []
    return next((m for m in modules if m["type"].rpartition(".")[2] == kind), None)


def normalizes(location: Location) -> bool:
    """True if a model's modules scale its embeddings to unit length."""
    return module(location, "Normalize") is not None
