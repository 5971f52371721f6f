"""What files from outside the workflow hold, as hashes that are cheap enough for every start.

The full hash of a model's weights is in every file made from them. Here, each tensor of a
safetensors file is sampled, and any other large file in stretches that lie all over it:
fine-tuning may change some tensors and leave the rest as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from layerwise.errors import LayerwiseError
from layerwise.files import is_file, is_folder, sha256_file

STRETCH = 2**13
PER_TENSOR = 8
PER_FILE = 1024
LARGEST_HEADER = 100 * 2**20


def of_file(path: Path) -> str:
    """Hash of a file's bytes; ``absent`` if it is not there.

    Raises
    ------
    LayerwiseError
        If it cannot be read.
    """
    with _readable(path):
        return sha256_file(path) if is_file(path) else "absent"


def of_folder(folder: Path) -> dict[str, str]:
    """Hashes of a folder's files by name, `sampled`; locks left out.

    Raises
    ------
    LayerwiseError
        If one cannot be read.
    """
    with _readable(folder):
        # rglob leaves out, without a word, what it may not look into.
        next(folder.iterdir(), None)
        files = sorted(p for p in folder.rglob("*") if is_file(p) and p.suffix != ".lock")
    return {path.relative_to(folder).as_posix(): sampled(path) for path in files}


def listing(folder: Path, suffixes: Collection[str]) -> dict[str, int]:
    """Sizes of a folder's files by name, where reading them all would take too long.

    Only files that end in one of `suffixes` count, in capitals or not.

    Raises
    ------
    LayerwiseError
        If it cannot be read.
    """
    if not is_folder(folder):
        return {}
    with _readable(folder):
        next(folder.iterdir(), None)
        files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in suffixes and is_file(p))
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def sampled(path: Path) -> str:
    """Hash of a file's size and of samples of its bytes; of a small file's, of all.

    Raises
    ------
    LayerwiseError
        If it cannot be read.
    """
    with _readable(path), path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        found = hashlib.sha256(str(size).encode())
        for start, stop in _stretches(path, size):
            handle.seek(start)
            found.update(handle.read(stop - start))
    return found.hexdigest()[:32]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LayerwiseError(
            f"{path} cannot be read ({error.strerror}); mend its permissions, or the path in the "
            "config."
        ) from error


def _stretches(path: Path, size: int) -> Iterator[tuple[int, int]]:
    if size <= PER_FILE * STRETCH:
        yield 0, size
        return
    tensors = _tensors(path, size) if path.suffix == ".safetensors" else None
    if tensors is None:
        yield from _spread(0, size, PER_FILE)
        return
    data = min(start for start, _ in tensors)
    yield 0, data
    for start, stop in tensors:
        yield from _spread(start, stop, PER_TENSOR)


def _spread(start: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    """`count` stretches from the first byte to the last, or all of it if that is no more."""
    if stop - start <= count * STRETCH:
        yield start, stop
        return
    for k in range(count):
        at = start + k * (stop - start - STRETCH) // (count - 1)
        yield at, at + STRETCH


def _tensors(path: Path, size: int) -> list[tuple[int, int]] | None:
    """Where each tensor of a safetensors file lies; None if its header cannot be read, or says
    anything but that they lie one after another to the end."""
    with path.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if length > min(size, LARGEST_HEADER):
            return None
        try:
            header = json.loads(handle.read(length))
            offsets = [
                entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"
            ]
            found = sorted((8 + length + int(a), 8 + length + int(b)) for a, b in offsets)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
    ends = [8 + length, *(stop for _, stop in found)]
    starts = [*(start for start, _ in found), size]
    return found if found and starts == ends else None
