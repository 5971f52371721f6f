"""Hash of the code behind a stage's files, to warn where a run mixes the files of two versions.

Nothing reruns for it: versions in `layerwise.run.keys` and golden tests decide that. A fork that
changes values without a new version is told instead.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from layerwise.metrics.source import normalised

PACKAGES = {
    "wikipedia": ("corpora",),
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
    sources = [source for package in PACKAGES.get(stage, ()) for source in _sources(package)]
    text = "\n".join(sources)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if sources else ""


@cache
def _sources(package: str) -> list[str]:
    place = Path(__file__).parents[1] / package
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [normalised(file.read_text(encoding="utf-8")) for file in files]
