"""Data that ship with layerwise."""

from __future__ import annotations

from pathlib import Path

# Names of the shipped tables where the section `published` of a config asks for a path, with the
# end of their files' names.
RELEASED = {"released": "", "released_2024": "_2024"}

# Folder of the shipped tables of Skean et al. 2025; its README names the sources.
PUBLISHED = Path(__file__).parent / "published"


def published(table: str, name: str = "released") -> Path:
    """Path of a shipped table: ``scores`` or ``metrics``, of 2025 or as they were in 2024."""
    return PUBLISHED / f"{table}{RELEASED[name]}.parquet"
