"""The key and recipe of the job that made a file, in the file itself.

A file is up to date if the key in it is the planned one: so results can be copied from machine to
machine, and nothing stale passes for new. The recipe says what the key was made of, so that a plan
can tell what has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerwise.files import replacing

KEY, RECIPE = "key", "recipe"


@dataclass(frozen=True)
class Stamp:
    """What a file says of the job that made it.

    Attributes
    ----------
    key : str
        16 hexadecimal digits.
    recipe : mapping
        ``settings``, ``code`` (version by module), ``inputs`` (key by path), ``outside`` (hashes
        of what lies outside the workflow) and ``versions`` (of the libraries that computed it and
        what it is made of, each a list).
    """

    key: str
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """Key and recipe as text, for a file's metadata."""
        return {KEY: self.key, RECIPE: json.dumps(self.recipe, sort_keys=True)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Stamp | None:
        """The stamp in a file's metadata; None if there is none."""
        key = facts.get(KEY)
        if not key:
            return None
        try:
            recipe = json.loads(str(facts.get(RECIPE) or "{}"))
        except ValueError:
            recipe = {}
        return cls(str(key), recipe if isinstance(recipe, dict) else {})


def read(path: Path) -> Stamp | None:
    """The stamp of a file, by what kind of file it is; None if it has none or cannot be read.

    A file that cannot be read here is made again: no sentence would help more.
    """
    try:
        return Stamp.of(_facts(Path(path)))
    except Exception:  # on a damaged file libraries raise errors of all kinds
        return None


def _facts(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".h5":
        import h5py

        with h5py.File(path, "r") as file:
            return {name: file.attrs.get(name) for name in (KEY, RECIPE)}
    if path.suffix == ".parquet":
        from layerwise import tables

        return tables.facts(path)
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            return dict(getattr(image, "text", {}))
    document = json.loads(path.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}


def write(path: Path, stamp: Stamp) -> None:
    """Write a stamp as a file of its own, for what can hold none: folders and CSV tables.

    Raises
    ------
    LayerwiseError
        If it cannot be written.
    """
    with replacing(path) as partial:
        partial.write_text(json.dumps(stamp.facts()) + "\n", encoding="utf-8")
