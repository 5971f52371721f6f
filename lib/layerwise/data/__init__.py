"""Data that ship with layerwise."""

from __future__ import annotations

from pathlib import Path

RELEASED = "released"
"""Stands for the shipped table where the section `published` of a config asks for a path."""

PUBLISHED = Path(__file__).parent / "published"
"""Folder of the shipped tables of Skean et al. 2025; its README names the source."""


def published(table: str) -> Path:
    """Path of a shipped table: ``scores`` or ``metrics``."""
    return PUBLISHED / f"{table}.parquet"
