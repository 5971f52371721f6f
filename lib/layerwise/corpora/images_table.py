"""The corpus of images and its views: what is in the files, and how they are written and read.

``results/images/{corpus}.parquet``
    ``prompt_id`` (unique), ``label``, ``image`` (the bytes of its file) or ``path`` (where that
    is, for images of a local folder), ``sha256`` of those bytes, ``width`` and ``height``; one row
    an image.
``results/images/{corpus}.views.parquet``
    ``prompt_id``, ``view`` (1 … V), ``drawn`` (what the view does, as JSON:
    `layerwise.corpora.images_views`), one row an image and view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerwise import tables
from layerwise.corpora.images import Picture
from layerwise.corpora.images_sources import Chosen
from layerwise.corpora.prompts import Prompts
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.tables import Kind

IMAGES = Kind("layerwise.images", 1)
VIEWS = Kind("layerwise.image_views", 1)


def hash_of(pictures: Sequence[Picture]) -> str:
    """SHA-256 of ids and bytes, in order."""
    return sha256_text(*(p.name for p in pictures), *(p.sha256 for p in pictures))


def write_images(path: Path, corpus: str, chosen: Chosen, **facts: Any) -> None:
    """Write the images of a corpus.

    Parameters
    ----------
    **facts
        How it was made, kept in the metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pyarrow as pa

    pictures = chosen.pictures
    columns = {
        "prompt_id": pa.array([p.name for p in pictures], pa.large_string()),
        "label": pa.array(chosen.labels, pa.large_string()),
        "image": pa.array([p.data for p in pictures], pa.large_binary()),
        "path": pa.array([p.path for p in pictures], pa.large_string()),
        "sha256": pa.array([p.sha256 for p in pictures], pa.large_string()),
        "width": pa.array([w for w, _ in chosen.sizes], pa.int64()),
        "height": pa.array([h for _, h in chosen.sizes], pa.int64()),
    }
    facts |= {"corpus": corpus, "hash": hash_of(pictures), "n": len(pictures)}
    tables.write(path, pa.table(columns), kind=IMAGES, **facts)


def read_images(path: Path) -> tuple[list[Picture], list[tuple[int, int]], dict[str, str]]:
    """The images of a corpus, their sizes (width, height), and the file's metadata.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, edited, or of another kind or version.
    """
    names = ["prompt_id", "image", "path", "sha256", "width", "height"]
    frame = tables.read(path, "images", names, kind=IMAGES)
    ids, data, paths, hashes, widths, heights = (frame[name].to_list() for name in names)
    pictures = [
        # pandas has NaN for what is not there.
        Picture(i, d if isinstance(d, bytes) else None, p if isinstance(p, str) else None, h)
        for i, d, p, h in zip(ids, data, paths, hashes, strict=True)
    ]
    return pictures, list(zip(widths, heights, strict=True)), tables.facts(path)


def read_labels(path: Path) -> dict[str, str]:
    """The label of each image that has one, by its id.

    Raises
    ------
    LayerwiseError
        As `read_images`.
    """
    frame = tables.read(path, "images", ["prompt_id", "label"], kind=IMAGES)
    pairs = zip(frame["prompt_id"], frame["label"], strict=True)
    return {i: label for i, label in pairs if isinstance(label, str)}


def write_views(
    path: Path, corpus: str, pictures: Sequence[Picture], drawn: Sequence[Sequence[str]],
    **facts: Any,
) -> None:  # fmt: skip
    """Write what the views of each image do, in the corpus' order.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pyarrow as pa

    rows = [
        (picture.name, number, what)
        for picture, own in zip(pictures, drawn, strict=True)
        for number, what in enumerate(own, start=1)
    ]
    ids, numbers, whats = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "prompt_id": pa.array(ids, pa.large_string()),
        "view": pa.array(numbers, pa.int64()),
        "drawn": pa.array(whats, pa.large_string()),
    }
    facts |= {
        "corpus": corpus,
        "corpus_hash": hash_of(pictures),
        "n_views": max(map(len, drawn), default=0),
    }
    tables.write(path, pa.table(columns), kind=VIEWS, **facts)


def read(path: Path, views_path: Path) -> Prompts:
    """The images of a corpus with their views, as a model is given them.

    Raises
    ------
    LayerwiseError
        If a file is missing, damaged, edited, or of another kind or version, or the views are of
        other images.
    """
    pictures, _, facts = read_images(path)
    own = hash_of(pictures)
    frame = tables.read(views_path, "views", ["prompt_id", "drawn"], kind=VIEWS)
    known = tables.facts(views_path)
    if known["corpus_hash"] != own:
        raise LayerwiseError(
            f"{views_path} holds views of other images than those of {path}; {tables.REMEDY}"
        )
    by_image: dict[str, list[str]] = {}
    for name, drawn in zip(frame["prompt_id"], frame["drawn"], strict=True):
        by_image.setdefault(name, []).append(drawn)
    views = [
        [replace(picture, drawn=by_image[picture.name][view]) for picture in pictures]
        for view in range(int(known["n_views"]))
    ]
    return Prompts(facts["corpus"], [p.name for p in pictures], [pictures, *views], own)
