"""Hash of the code behind a stage's files, to warn where a run mixes the files of two versions.

Nothing reruns for it: versions in `layerwise.run.keys` and golden tests decide that. A fork that
changes values without a new version is reported instead.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from layerwise.metrics.source import source_hash

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
    packages = [Path(__file__).parents[1] / package for package in PACKAGES.get(stage, ())]
    return source_hash(*packages) if packages else ""
