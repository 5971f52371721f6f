"""Files whose stored key is not the key that the config asks for.

Snakemake's own ``params`` trigger compares keys with the records in ``.snakemake``. Where there
are none, as in a copied results folder, the key in the file itself decides. The times of results
mean nothing then: they are in the order of copying, or of a touch.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from layerwise.io import tables

HTML_KEY = '<meta name="layerwise-key" content="{key}">'


def files_in(folder: str) -> Iterator[str]:
    """The paths of all files below a folder, beginning with its name as it is given."""
    for place, _, names in os.walk(folder):
        yield from (f"{place}/{name}" for name in names)


def marker(path: Path, key: str) -> list[str]:
    """A file newer than any result if a file exists and carries another key, else nothing."""
    return [newer_file()] if path.is_file() and key_of(path) != key else []


@cache
def newer_file() -> str:
    """A file newer than any result, of this process alone: a dry run must leave none behind."""
    file = tempfile.NamedTemporaryFile(prefix="layerwise.stale.")  # noqa: SIM115
    # Snakemake compares contents as well as times.
    file.write(str(time.time_ns()).encode())
    file.flush()
    atexit.register(file.close)
    return file.name


def key_of(path: Path) -> str | None:
    """The key that a file carries; None if it has none or cannot be read.

    A damaged file is made again, so the error is not shown.
    """
    try:
        key = _stored_key(path)
    except Exception:  # libraries raise errors of all kinds on a damaged file
        return None
    return None if key is None else str(key)


def _stored_key(path: Path) -> Any:
    if path.suffix == ".parquet":
        return tables.facts(path).get("key")
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))["key"]
    if path.suffix == ".html":
        with path.open(encoding="utf-8") as file:
            found = re.search(HTML_KEY.format(key="(.+?)"), file.read(4096))
        return found and found[1]
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            return getattr(image, "text", {}).get("key")
    import h5py

    from layerwise.io import hdf5

    with h5py.File(path, "r") as file:
        return hdf5.attributes(file).get("key")
