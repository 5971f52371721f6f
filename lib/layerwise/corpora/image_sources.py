"""Sources of images, and the sample of a corpus.

A new kind of source needs its section in `layerwise.config.images` and its line in `open_images`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.config.images import FolderImages, HubImages, ImageCorpus, ImageSource
from layerwise.corpora.images import UnreadableError, decode, png, read_file
from layerwise.corpora.select import in_sample_order, log_counts
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError, check_name
from layerwise.io.files import is_folder, sha256_bytes
from layerwise.progress import Progress

log = logging.getLogger(__name__)

# Formats that Pillow reads without further programs.
_FORMATS = "bmp gif jpeg jpg jp2 pbm pgm png ppm tif tiff webp"
SUFFIXES = tuple(f".{name}" for name in _FORMATS.split())


@dataclass(frozen=True)
class Images:
    """All images of a source, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Unique.
    labels : list of str or None
        Label of each image; None where there is none.
    read : callable
        From an index to the bytes of the image's file.
    facts : mapping
        Provenance in addition to the source's settings.
    """

    ids: list[str]
    labels: list[str | None]
    read: Callable[[int], bytes]
    facts: Mapping[str, str] = field(default_factory=dict)


def open_images(source: ImageSource) -> Images:
    """List the images of a source.

    Raises
    ------
    LayerwiseError
        If the source cannot be read or holds no image.
    """
    if isinstance(source, HubImages):
        return _of_hub(source)
    return _of_folder(Path(source.folder)) if isinstance(source, FolderImages) else _digits()


def classes_of(labels: Sequence[str | None], n: int | None, seed: int) -> set[str | None]:
    """A stable sample of `n` classes; all labels, and none, without n.

    Raises
    ------
    LayerwiseError
        If there are fewer classes.
    """
    if n is None:
        return set(labels)
    known = sorted({label for label in labels if label is not None})
    if n > len(known):
        raise LayerwiseError(
            f"classes: the images have labels of {len(known)} classes, not {n}; ask for fewer, or "
            "name the column of labels.",
            code="too_few",
        )
    return {known[place] for place in in_sample_order(known, seed)[:n]}


def choose(images: Images, settings: ImageCorpus) -> tuple[pd.DataFrame, dict[str, int]]:
    """Take a stable sample of images, and decode each once.

    Every image has a key, the SHA-256 of the seed and its id, and those of the smallest keys are
    taken, in their order. A larger `n` begins with the same images. Of images with the same bytes
    the first is taken.

    Returns
    -------
    images : DataFrame
        Table of the corpus, see `layerwise.corpora.prompts`.
    counts : dict
        ``read`` = ``damaged`` + ``duplicate`` + ``not_sampled`` + ``kept``.

    Raises
    ------
    LayerwiseError
        If an image cannot be read and ``damaged`` is ``error``, or none is left.
    """
    classes = classes_of(images.labels, settings.classes, settings.sample.seed)
    order = in_sample_order(images.ids, settings.sample.seed)
    order = [index for index in order if images.labels[index] in classes]
    n = min(settings.sample.n or len(order), len(order))
    tally: Counter[str] = Counter(damaged=0, duplicate=0)
    rows: dict[str, dict[str, Any]] = {}
    with Progress(n, "reading images", "image") as bar:
        for index in order:
            if len(rows) == n:
                break
            try:
                content = images.read(index)
                width, height = decode(content, images.ids[index]).size
            except UnreadableError as error:
                if settings.damaged == "error":
                    raise
                tally["damaged"] += 1
                log.warning("Left out: %s", error)
                continue
            sha256 = sha256_bytes(content)
            if sha256 in rows:
                tally["duplicate"] += 1
                continue
            rows[sha256] = {
                "prompt_id": images.ids[index],
                "label": images.labels[index],
                "image": content,
                "sha256": sha256,
                "width": width,
                "height": height,
            }
            bar.update()
    counts = {"read": len(order), **tally, "kept": len(rows)}
    counts["not_sampled"] = len(order) - tally.total() - len(rows)
    log_counts(counts, settings.sample.n, "give other images")
    return pd.DataFrame(list(rows.values())), counts


def _of_folder(folder: Path) -> Images:
    if not is_folder(folder):
        raise LayerwiseError(
            f"There is no folder {folder}; relative paths start at the current folder.",
            code="missing_file",
        )
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise LayerwiseError(
            f"{folder} holds no image; accepted are files that end in {', '.join(SUFFIXES)}, "
            "one folder a class.",
            code="too_few",
        )
    ids = [p.relative_to(folder).as_posix() for p in files]
    labels = [name.split("/")[0] if "/" in name else None for name in ids]
    return Images(ids, labels, lambda k: read_file(str(files[k]), ids[k]), {"folder": str(folder)})


def _of_hub(source: HubImages) -> Images:
    import datasets

    data, facts = load_hub(source)
    for name in filter(None, (source.column, source.label)):
        check_name(f"column of the data set {source.hub!r}:", name, data.features)
    if not isinstance(data.features[source.column], datasets.Image):
        raise LayerwiseError(
            f"The column {source.column!r} of {source.hub!r} holds no images.", code="wrong_type"
        )
    labels: list[str | None] = [None] * len(data)
    if source.label is not None:
        feature = data.features[source.label]
        of_class = feature.int2str if isinstance(feature, datasets.ClassLabel) else str
        # Test sets without labels have -1.
        labels = [None if v is None or v == -1 else of_class(v) for v in data[source.label]]
    # Encoded bytes, since decoding is done in one place.
    data = data.select_columns([source.column])
    data = data.cast_column(source.column, datasets.Image(decode=False))

    def read(index: int) -> bytes:
        return image_bytes(data[index][source.column], source.hub, str(index))

    return Images([str(n) for n in range(len(data))], labels, read, facts)


def image_bytes(image: Mapping[str, Any] | None, hub: str, name: str) -> bytes:
    """Bytes of an image of a data set's row, which `datasets` has not decoded.

    Rows may come from strangers: they name files of the data set alone, not any of this machine.

    Parameters
    ----------
    image : mapping with bytes and path, or None
    hub : str
        The data set: its name on the hub, or its local folder.
    name : str
        The image's id, for errors.

    Raises
    ------
    UnreadableError
        If there is no image, or its file cannot be read or is not in the data set's folder.
    """
    if image and image["bytes"] is not None:
        return bytes(image["bytes"])
    if not image or not image["path"]:
        raise UnreadableError(f"The row {name!r} of {hub!r} has no image; set damaged: drop.")
    path = Path(hub, image["path"]).resolve()
    if not any(path.is_relative_to(folder) for folder in _folders_of(hub)):
        raise UnreadableError(
            f"The row {name!r} of {hub!r} names the file {image['path']}, which is not in the "
            "data set's folder; copy it there."
        )
    return read_file(str(path), name)


def _folders_of(hub: str) -> list[Path]:
    """Folders of a data set's files: its own, or those of the hub's cache."""
    import datasets
    from huggingface_hub import constants

    folder = Path(hub).resolve()
    if folder.is_dir():
        # In the hub's cache, files of a snapshot are links to those beside it.
        return [folder, *([folder.parents[1]] if folder.parent.name == "snapshots" else [])]
    cached = Path(constants.HF_HUB_CACHE, f"datasets--{hub.replace('/', '--')}")
    return [cached.resolve(), Path(datasets.config.DOWNLOADED_DATASETS_PATH).resolve()]


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Values of 0 to 16.
    pixels = (digits.images * (255 / 16)).round().astype("uint8")
    ids = [f"digit-{n}" for n in range(len(pixels))]
    return Images(ids, [str(label) for label in digits.target], lambda k: png(pixels[k]))
