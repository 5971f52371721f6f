"""Sources of images, and the sample of a corpus.

A new kind of source needs its section in `layerwise.config.images` and its line in `open_images`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise.config.images import FolderImages, HubImages, ImageCorpus, ImageSource
from layerwise.corpora.images import Picture, UnreadableError, decode, png, read_file
from layerwise.corpora.select import in_sample_order
from layerwise.corpora.sources import load_hub
from layerwise.errors import LayerwiseError, closest, listed
from layerwise.io.files import is_folder, sha256_bytes
from layerwise.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

# Formats that Pillow reads without further programs.
SUFFIXES = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".jp2",
    ".pbm",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
# Damaged images are named in the log one by one, up to this number.
NAMED = 10


@dataclass(frozen=True)
class Images:
    """All images of a source, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Unique.
    labels : list of str or None
        Label of each image; None where there is none.
    fetch : callable
        From an index to the image.
    facts : mapping
        Provenance in addition to the source's settings.
    """

    ids: list[str]
    labels: list[str | None]
    fetch: Callable[[int], Picture]
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


def of_classes(images: Images, n: int | None, seed: int) -> Images:
    """Restrict to `n` classes, in the order of a stable sample of their labels.

    Raises
    ------
    LayerwiseError
        If there are fewer classes.
    """
    if n is None:
        return images
    known = sorted({label for label in images.labels if label is not None})
    if n > len(known):
        raise LayerwiseError(
            f"classes: the images have labels of {len(known)} classes, not {n}; ask for fewer, or "
            "name the column of labels.",
            code="too_few",
        )
    chosen = {known[place] for place in in_sample_order(known, seed)[:n]}
    rows = [row for row, label in enumerate(images.labels) if label in chosen]
    return replace(
        images,
        ids=[images.ids[row] for row in rows],
        labels=[images.labels[row] for row in rows],
        fetch=lambda index: images.fetch(rows[index]),
    )


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
    import pandas as pd

    tally: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    n = len(images.ids) if settings.sample.n is None else settings.sample.n
    with Progress(min(n, len(images.ids)), "reading images", "image") as bar:
        for index in in_sample_order(images.ids, settings.sample.seed):
            if len(rows) == n:
                break
            try:
                picture = images.fetch(index)
                width, height = decode(picture.content(), picture.name).size
            except UnreadableError as error:
                if settings.damaged == "error":
                    raise
                tally["damaged"] += 1
                if tally["damaged"] <= NAMED:
                    log.warning("Left out: %s", error)
                continue
            if picture.sha256 in rows:
                tally["duplicate"] += 1
                continue
            rows[picture.sha256] = {
                "prompt_id": picture.name,
                "label": images.labels[index],
                "image": picture.data,
                "path": picture.path,
                "sha256": picture.sha256,
                "width": width,
                "height": height,
            }
            bar.update()
    if not rows:
        raise LayerwiseError(
            f"No image is left of the {len(images.ids)} of this source.", code="too_few"
        )
    counts = {"read": len(images.ids), **{k: tally[k] for k in ("damaged", "duplicate")}}
    counts["kept"] = len(rows)
    counts["not_sampled"] = counts["read"] - tally.total() - len(rows)
    log.info("Images: %s", ", ".join(f"{number} {name}" for name, number in counts.items()))
    if settings.sample.n is not None and len(rows) < settings.sample.n:
        log.warning("Only %d images are left; sample.n asks for %d", len(rows), settings.sample.n)
    return pd.DataFrame(list(rows.values())), counts


def _of_folder(folder: Path) -> Images:
    if not is_folder(folder):
        raise LayerwiseError(
            f"There is no folder {folder}; paths count from where you run.", code="missing_file"
        )
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise LayerwiseError(
            f"{folder} holds no image; accepted are files that end in {', '.join(SUFFIXES)}, "
            "one folder a class.",
            code="too_few",
        )
    ids = [p.relative_to(folder).as_posix() for p in files]

    def fetch(index: int) -> Picture:
        # Absolute: the run's jobs may be in another folder.
        path = str(files[index].absolute())
        return Picture(ids[index], None, path, sha256_bytes(read_file(path, ids[index])))

    labels = [name.split("/")[0] if "/" in name else None for name in ids]
    return Images(ids, labels, fetch, {"folder": str(folder.absolute())})


def _of_hub(source: HubImages) -> Images:
    import datasets

    data, facts = load_hub(source)
    for name in filter(None, (source.column, source.label)):
        if name not in data.features:
            raise LayerwiseError(
                f"The data set {source.hub!r} has no column {name!r}"
                f"{closest(name, data.features)}; there are {listed(data.features)}.",
                code="unknown_name",
            )
    if not isinstance(data.features[source.column], datasets.Image):
        raise LayerwiseError(
            f"The column {source.column!r} of {source.hub!r} holds no images.", code="too_few"
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

    def fetch(index: int) -> Picture:
        image: Any = data[index][source.column] or {}
        content, name = image.get("bytes"), str(index)
        if content is None and image.get("path"):
            content = read_file(image["path"], name)
        if not content:
            raise UnreadableError(f"The image {name!r} is empty; or set damaged: drop.")
        return Picture(name, content, None, sha256_bytes(content))

    return Images([str(n) for n in range(len(data))], labels, fetch, facts)


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    ids = [f"digit-{n}" for n in range(len(digits.images))]

    def fetch(index: int) -> Picture:
        # Values of 0 to 16.
        content = png((digits.images[index] * (255 / 16)).round().astype("uint8"))
        return Picture(ids[index], content, None, sha256_bytes(content))

    return Images(ids, [str(label) for label in digits.target], fetch)
