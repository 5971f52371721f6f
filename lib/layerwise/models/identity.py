"""Identity of a model, for the keys of the workflow.

A model on the hub is identified by its name and revision. A local model is identified by the
SHA-256 of its files, which notices a change of a single weight. Hashes are cached by
path, size and modification time (a gigabyte takes about a second).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from layerwise.config.models import HubAdapter, HubSource, Model
from layerwise.io.files import sha256_file, sha256_text, user_cache
from layerwise.models.source import AnySource, locate

# Files in a model's folder that nothing reads.
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
EXPORTS = {".h5", ".msgpack", ".ot", ".onnx", ".tflite"}
NOTES = {".lock", ".md", ".log"}
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


def cached_sha256(path: Path, cache: Path | None = None) -> str:
    """SHA-256 of a file's bytes, computed once for each path, size and modification time.

    Parameters
    ----------
    path : Path
    cache : Path, optional
        Folder of the cached hashes; by default ``layerwise/hashes`` in the user's cache folder.
    """
    cache = cache or user_cache() / "hashes"
    state = path.stat()
    entry = cache / sha256_text(str(path.resolve()), str(state.st_size), str(state.st_mtime_ns))
    with contextlib.suppress(OSError):
        found = entry.read_text("ascii")
        if len(found) == 64:  # a write that was cut off is shorter
            return found
    found = sha256_file(path)
    # A cache that cannot be written costs time and nothing else.
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        entry.write_text(found, "ascii")
    return found


def _identity(source: AnySource, revision: str) -> str:
    if isinstance(source, HubAdapter):
        revision = source.revision
    if isinstance(source, HubAdapter | HubSource):
        return sha256_text("hub", source.hub, revision, getattr(source, "gguf_file", None) or "")
    location = locate(source, revision)
    if location.gguf_file:
        return sha256_text("gguf", cached_sha256(Path(location.name, location.gguf_file)))
    hashes = folder_hashes(Path(location.name))
    return sha256_text("folder", *(part for item in hashes.items() for part in item))
