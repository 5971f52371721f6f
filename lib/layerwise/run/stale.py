"""Files whose stored key is not the key that the config asks for.

Snakemake's own ``params`` trigger compares keys with the records in ``.snakemake``. Where there
are none, as in a copied results folder, the key in the file itself decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from layerwise.io import tables

MARKER = Path(".snakemake") / "layerwise.stale"
HTML_KEY = '<meta name="layerwise-key" content="{key}">'


def renew_marker(results: Path) -> None:
    """Make the marker newer than any result, before Snakemake reads the times of files."""
    if not (MARKER.parent / "metadata").exists():
        # A copy without ``.snakemake`` has files in the order of copying, which Snakemake would
        # take for changed inputs. Keys still show what is stale.
        now = time.time() - 1
        for path in results.rglob("*"):
            with contextlib.suppress(OSError):  # results of others that may only be read
                os.utime(path, (now, now))
    MARKER.parent.mkdir(exist_ok=True)
    # Snakemake compares contents as well as times.
    MARKER.write_text(f"{time.time_ns()}\n")


def marker(path: Path, key: str) -> list[str]:
    """The marker if a file exists and carries another key, else nothing."""
    return [str(MARKER)] if path.is_file() and key_of(path) != key else []


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
