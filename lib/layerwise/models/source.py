"""Where a model comes from, as the config says it, and what that means for a revision."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerwise.errors import LayerwiseError

KINDS = ("hub", "folder", "package")


@dataclass(frozen=True)
class Location:
    """What `transformers` is to load: a hub name or a folder, a revision, perhaps a GGUF file."""

    name: str
    revision: str | None
    gguf_file: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder, if the model is a local one."""
        return Path(self.name) if self.revision is None else None


def locate(source: Mapping[str, Any], revision: str) -> Location:
    """Resolve a model's source at a revision.

    Parameters
    ----------
    source : mapping
        One of ``{"hub": name}``, ``{"folder": path}`` (``{revision}`` in the path stands for the
        revision) and ``{"package": distribution, "path": inside}``; with ``gguf_file`` where the
        weights are a GGUF file.

    Raises
    ------
    LayerwiseError
        If the package is not installed, or the folder or file is not there.
    """
    gguf = source.get("gguf_file")
    if "hub" in source:
        return Location(str(source["hub"]), revision, gguf)
    if "folder" in source:
        folder = Path(str(source["folder"]).format(revision=revision))
    else:
        folder = package_folder(str(source["package"])) / str(source.get("path", "."))
    if not folder.is_dir():
        raise LayerwiseError(
            f"There is no model folder {folder}; check the model's source in the config."
        )
    if gguf and not (folder / gguf).is_file():
        there = sorted(p.name for p in folder.glob("*.gguf"))
        raise LayerwiseError(f"There is no GGUF file {gguf!r} in {folder}; it holds {there}.")
    return Location(str(folder), None, gguf)


def package_folder(module: str) -> Path:
    """The folder of an installed Python package, found without importing it.

    Raises
    ------
    LayerwiseError
        If it is not installed.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise LayerwiseError(
            f"The Python package {module!r} is not installed; "
            f"run: pip install --no-deps {module.replace('_', '-')}"
        )
    return Path(next(iter(spec.submodule_search_locations)))
