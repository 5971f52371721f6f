"""Hash of the code behind a stage's files, to warn where a run mixes the files of two versions.

Nothing reruns for it: versions in `layerwise.run.keys` and golden tests decide that. A fork that
changes values without a new version is reported instead.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from pathlib import Path

from layerwise.io.files import cached, sha256_bytes, sha256_text
from layerwise.metrics.source import normalised

PACKAGES = {
    "generate": ("models",),
    "corpus": ("corpora",),
    "views": ("corpora",),
    "extract": ("models", "activations"),
    "metrics": ("activations", "metrics"),
    "evaluate": ("models", "activations", "tasks"),
    "published": ("association",),
    "associate": ("association", "stats.py"),
    "select": ("association", "stats.py"),
    "similarity": ("association", "stats.py"),
    "figure": ("association", "figures", "stats.py"),
}
"""Packages whose code makes the values in a stage's files."""


@cache
def code_hash(stage: str) -> str:
    """Hash of a stage's code without comments, types and messages; 16 digits, empty if none."""
    texts = [text for package in PACKAGES.get(stage, ()) for text in _texts(package)]
    # Normalising takes as long as many a job does; Python's versions write code differently.
    rules = inspect.getsource(sys.modules[normalised.__module__])
    name = sha256_text("code", sys.version, rules, *texts)
    found = cached(name, lambda: sha256_bytes("\n".join(map(normalised, texts)).encode()))
    return found[:16] if texts else ""


@cache
def _texts(package: str) -> list[str]:
    place = Path(__file__).parents[1] / package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [file.read_text(encoding="utf-8") for file in files]
