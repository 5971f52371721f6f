"""Identity of a model, for the keys of the workflow.

A model on the hub is identified by its name and revision. A local model is identified by the
SHA-256 of its files, which notices a change of a single weight. Hashes are cached (a gigabyte
takes about a second).
"""

from __future__ import annotations

from pathlib import Path

from layerwise.config.models import (
    FolderSource,
    HubAdapter,
    HubSource,
    Model,
    PackageSource,
    StatesSource,
)
from layerwise.errors import LayerwiseError
from layerwise.io.files import cached_sha256, is_file, sha256_text
from layerwise.models.source import AnySource, locate

# Files in a model's folder that nothing reads.
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
EXPORTS = {".h5", ".msgpack", ".ot", ".onnx", ".tflite"}
NOTES = {".lock", ".md", ".log"}
ADAPTER = "adapter_config.json"
UNREAD = PICKLES | EXPORTS | NOTES


def identity(entry: Model, revision: str = "main") -> str:
    """Identify a model with its adapters.

    Settings other than the source (dtype, bidirectional attention, …) are not included. Do not
    call this for a model that the workflow trains: its identity is the key of its training.

    Parameters
    ----------
    entry : Model
        The model's entry in the config. `entry.source` may name a GGUF file; only that file
        counts then.
    revision : str
        One of its checkpoints.

    Returns
    -------
    str
        SHA-256, hexadecimal.

    Raises
    ------
    LayerwiseError
        If a local folder, package or file is missing.
    """
    return sha256_text(
        _identity(entry.source, revision), *(_identity(a, "main") for a in entry.adapters)
    )


def folder_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in a model's folder by its relative path, `UNREAD` ones left out."""
    next(folder.iterdir(), None)  # rglob silently skips folders that it may not read
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in UNREAD)
    return {path.relative_to(folder).as_posix(): cached_sha256(path) for path in files}


def _identity(source: AnySource, revision: str) -> str:
    if isinstance(source, HubAdapter):
        revision = source.revision
    if isinstance(source, HubAdapter | HubSource):
        return sha256_text("hub", source.hub, revision, getattr(source, "gguf_file", None) or "")
    location = locate(source, revision)
    if isinstance(source, StatesSource):
        return sha256_text("states", cached_sha256(Path(location.name)))
    if location.gguf_file:
        return sha256_text("gguf", cached_sha256(Path(location.name, location.gguf_file)))
    if pickled := getattr(source, "pickled", None):
        files = filter(None, (pickled.file, "config.json", pickled.vocabulary))
        hashes = {file: cached_sha256(Path(location.name, file)) for file in files}
        return sha256_text("pickled", pickled.model_dump_json(), *hashes.values())
    folder = Path(location.name)
    card = "config.json" if isinstance(source, FolderSource | PackageSource) else ADAPTER
    if not is_file(folder / card):
        raise LayerwiseError(
            f"{folder} holds no model: it has no {card}; name the folder that has it.",
            code="missing_file",
        )
    hashes = folder_hashes(folder)
    return sha256_text("folder", *(part for item in hashes.items() for part in item))
