"""Files whose stored key is not the key that the config asks for.

Snakemake's own ``params`` trigger compares keys with the records in ``.snakemake``. Where there
are none, as in a copied results folder, the key in the file itself decides. The times of results
mean nothing then: they are in the order of copying, or of a touch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerwise.io import tables
from layerwise.run.code import code_hash

OTHER_CODE: dict[str, list[str]] = {}
"""Files that this process found to be of other code, by stage."""
HTML_KEY = '<meta name="layerwise-key" content="{key}">'


def is_stale(file: str, facts: Mapping[str, Any], key: str, stage: str) -> bool:
    """True if a file carries another key than the config asks for.

    A file of this key that other code of its stage made is noted in `OTHER_CODE`.

    Parameters
    ----------
    file : str
        Its path, for `OTHER_CODE`.
    facts : mapping
        From `facts_of`.
    key : str
        The key that the config asks for.
    stage : str
        The stage of `layerwise.run.keys` that makes the file.
    """
    if facts.get("key") != key:
        return True
    if facts.get("code") and facts["code"] != code_hash(stage):
        OTHER_CODE.setdefault(stage, []).append(file)
    return False


def mixed_code() -> str:
    """One sentence about files that other code made; empty if there are none."""
    counts = ", ".join(f"{len(files)} of {stage}" for stage, files in OTHER_CODE.items())
    rules = " ".join("import_published" if s == "published" else s for s in OTHER_CODE)
    return counts and (
        f"Files of another version of layerwise are kept ({counts}); if their values should be "
        f"made anew, run with -R {rules}."
    )


def facts_of(path: Path) -> dict[str, Any]:
    """The key that a file carries, and the hash of the code that made it, as far as it has them.

    A damaged file is made again, so the error is not shown.
    """
    try:
        return _stored(path)
    except Exception:  # libraries raise errors of all kinds on a damaged file
        return {}


def _stored(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        return dict(tables.facts(path))
    if path.suffix == ".json":
        return dict(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".html":
        with path.open(encoding="utf-8") as file:
            found = re.search(HTML_KEY.format(key="(.+?)"), file.read(4096))
        return {"key": found[1]} if found else {}
    if path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            return dict(getattr(image, "text", {}))
    import h5py

    from layerwise.io import hdf5

    with h5py.File(path, "r") as file:
        return dict(hdf5.attributes(file))
