"""Texts inside Python packages, found without importing the package."""

from __future__ import annotations

from pathlib import Path

from layerwise.extras import package_folder

# The news texts of Lee, Pincombe and Welsh (2005), one a line. lee.cor has a Latin-1 pound sign.
NEWS = {"lee": ("lee.cor", "latin-1"), "lee_background": ("lee_background.cor", "utf-8")}


def gensim_file(name: str) -> Path:
    """A file of gensim's test data. gensim itself, slow to import, is not loaded.

    Raises
    ------
    LayerwiseError
        If gensim is not installed.
    """
    return package_folder("gensim") / "test" / "test_data" / name


def news(name: str) -> list[str]:
    """The texts of `lee` (50) or `lee_background` (300), in the file's order."""
    file, encoding = NEWS[name]
    lines = gensim_file(file).read_text(encoding=encoding).split("\n")
    return [line for line in lines if line.strip()]
