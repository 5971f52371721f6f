"""Source of a model, resolved for a revision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from layerwise.config.models import (
    FetchedSource,
    FolderAdapter,
    FolderSource,
    HubAdapter,
    HubSource,
    PackageSource,
    StatesSource,
)
from layerwise.errors import LayerwiseError
from layerwise.extras import package_folder, require
from layerwise.io.files import is_file, is_folder
from layerwise.section import parse

TIMEOUT_S = 10.0

# Endings of files of states.
STATES = (".h5", ".hdf5", ".safetensors")

AnySource = HubSource | FolderSource | PackageSource | StatesSource | HubAdapter | FolderAdapter


@dataclass(frozen=True)
class Location:
    """Location of a model: hub name, folder or file of states; revision; GGUF file."""

    name: str
    revision: str | None
    gguf_file: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of a local model, or the file of states."""
        return Path(self.name) if self.revision is None else None

    def options(self) -> dict[str, Any]:
        """Arguments of `from_pretrained` in addition to the name.

        Without a network we read only the cache, since huggingface_hub would try each file for
        half a minute.
        """
        found: dict[str, Any] = {}
        if self.folder is None:
            found |= {"revision": self.revision, "local_files_only": not hub_answers()}
        if self.gguf_file is not None:
            require("gguf", "gguf")
            found["gguf_file"] = self.gguf_file
        return found


def quiet() -> None:
    """Show only errors of transformers, and no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@cache
def hub_answers() -> bool:
    """True if the hub can be reached; asked once."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_S)
    except Exception:  # offline mode, no network, a proxy's refusal
        return False
    return True


def locate(source: AnySource, revision: str = "main") -> Location:
    """Resolve the source of a model or an adapter at a revision.

    Parameters
    ----------
    source : a model's source or an adapter, as `layerwise.config.models` has them
    revision : str
        The model's revision. An adapter on the hub has its own.

    Raises
    ------
    LayerwiseError
        If the package is not installed, the folder or file does not exist, or a hub name is also
        a local folder.
    """
    if isinstance(source, HubSource | HubAdapter):
        # transformers would read the folder, and a change in it would go unnoticed.
        if is_folder(source.hub):
            raise LayerwiseError(
                f"hub: {source.hub!r} came, but there is a folder of that name here; write "
                f"folder: {source.hub!r} for it, or move it away for the model on the hub.",
                code="ambiguous",
            )
        if isinstance(source, HubAdapter):
            return Location(source.hub, source.revision)
        at = source.commit if isinstance(source, FetchedSource) else revision
        return Location(source.hub, at, source.gguf_file)
    if isinstance(source, StatesSource):
        file = source.states.replace("{revision}", revision)
        if not is_file(file):
            raise LayerwiseError(
                f"There is no file of states {file}; check the model's source in the config.",
                code="missing_file",
            )
        return Location(file, None)
    if isinstance(source, PackageSource):
        folder = package_folder(source.package) / source.path
    else:
        folder = Path(source.folder.replace("{revision}", revision))
    if not is_folder(folder):
        raise LayerwiseError(
            f"There is no model folder {folder}; check the model's source in the config.",
            code="missing_file",
        )
    gguf = None if isinstance(source, FolderAdapter) else source.gguf_file
    if gguf and not is_file(folder / gguf):
        there = sorted(p.name for p in folder.glob("*.gguf"))
        raise LayerwiseError(
            f"There is no GGUF file {gguf!r} in {folder}; it holds {there}.", code="missing_file"
        )
    return Location(str(folder), None, gguf)


def named(text: str) -> HubSource | FolderSource | PackageSource | StatesSource:
    """Parse a model on the command line.

    Parameters
    ----------
    text : str
        An existing folder, ``package:NAME`` or ``package:NAME/path``, a file of states, or a name
        on the hub. The name of a GGUF file may follow after a ``#``.

    Raises
    ------
    LayerwiseError
        If it is none of these.
    """
    where, _, file = text.partition("#")
    gguf = file or None
    if where.startswith("package:"):
        package, _, path = where.removeprefix("package:").partition("/")
        given = {"package": package, "path": path or ".", "gguf_file": gguf}
        return parse(PackageSource, given)
    if is_file(where) and Path(where).suffix in STATES:
        return StatesSource(states=where)
    if where and is_folder(where):
        return FolderSource(folder=where, gguf_file=gguf)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", where) and not where.startswith("."):
        return HubSource(hub=where, gguf_file=gguf)
    raise LayerwiseError(
        f"Model {text!r}: expected an existing folder, package:NAME[/path] or a name on the hub "
        "(owner/name).",
        code="missing_file",
    )
