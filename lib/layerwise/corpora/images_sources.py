"""Where the images of a corpus come from, and which of them are taken.

The kinds of source are the sections of `layerwise.config.images`; a new one needs its section
there and its line in `open_images`.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerwise.config.corpora import Sample
from layerwise.config.images import FolderImages, HubImages, ImageSource
from layerwise.corpora import hub
from layerwise.corpora.filters import in_drawn_order
from layerwise.corpora.images import Picture, UnreadableError, decode, read_file
from layerwise.corpora.rows import no_column
from layerwise.errors import LayerwiseError
from layerwise.files import is_folder, sha256_bytes
from layerwise.progress import Progress
from layerwise.vocabulary import Damaged

log = logging.getLogger(__name__)

# What Pillow reads without further programs, and data sets come as.
SUFFIXES = (
    ".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff",
    ".webp",
)  # fmt: skip
# Named in the log one by one; of more, their number.
NAMED = 10


@dataclass(frozen=True)
class Source:
    """All images of a source, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Unique.
    labels : list of str or None
        Of each image; None where there is none.
    fetch : function of an index
        The image.
    facts : mapping
        What to remember of where they came from.
    """

    ids: list[str]
    labels: list[str | None]
    fetch: Callable[[int], Picture]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Chosen:
    """The images of a corpus, in the order of the sample, and how many were left out for what."""

    pictures: list[Picture]
    labels: list[str | None]
    sizes: list[tuple[int, int]]
    counts: dict[str, int]


def open_images(source: ImageSource) -> Source:
    """List the images of a source.

    Raises
    ------
    LayerwiseError
        If what it names cannot be read or holds no image.
    """
    if isinstance(source, HubImages):
        return _of_hub(source)
    if isinstance(source, FolderImages):
        return _of_folder(Path(source.folder))
    return _digits()


def of_classes(source: Source, n: int | None, seed: int) -> Source:
    """The images of some classes, which are drawn as `choose` draws images.

    Raises
    ------
    LayerwiseError
        If there are fewer classes.
    """
    if n is None:
        return source
    known = sorted({label for label in source.labels if label is not None})
    if n > len(known):
        raise LayerwiseError(
            f"classes: {n} came, and the images have labels of {len(known)} classes; ask for at "
            "most so many, or name the column of labels."
        )
    taken = {known[place] for place in in_drawn_order(known, seed)[:n]}
    rows = [row for row, label in enumerate(source.labels) if label in taken]

    def fetch(index: int) -> Picture:
        return source.fetch(rows[index])

    return Source(
        [source.ids[row] for row in rows], [source.labels[row] for row in rows], fetch,
        source.facts,
    )  # fmt: skip


def choose(source: Source, sample: Sample, damaged: Damaged, max_pixels: int) -> Chosen:
    """Take the images of a sample, each looked at whole.

    The sample is stable: every image has a key, the SHA-256 of the seed and its id, and those of
    the smallest keys are taken, in their order. A larger `n` begins with the same images. Of
    images with the same bytes the first is taken.

    Raises
    ------
    LayerwiseError
        If one cannot be read and is not to be dropped, or none is left.
    """
    counts: Counter[str] = Counter(read=len(source.ids))
    pictures: list[Picture] = []
    labels: list[str | None] = []
    sizes: list[tuple[int, int]] = []
    seen: set[str] = set()
    order = in_drawn_order(source.ids, sample.seed)
    wanted = len(order) if sample.n is None else min(sample.n, len(order))
    with Progress(wanted, "reading images", "image") as bar:
        for index in order:
            if len(pictures) == wanted:
                break
            try:
                picture = source.fetch(index)
                image = decode(picture.content(), picture.name, max_pixels)
            except UnreadableError as error:
                if damaged == "error":
                    raise
                counts["damaged"] += 1
                if counts["damaged"] <= NAMED:
                    log.warning("Left out: %s", error)
                continue
            if picture.sha256 in seen:
                counts["duplicate"] += 1
                continue
            seen.add(picture.sha256)
            pictures.append(picture)
            labels.append(source.labels[index])
            sizes.append(image.size)
            bar.update()
    counts["kept"] = len(pictures)
    left_out = counts["damaged"] + counts["duplicate"]
    counts["not_sampled"] = len(order) - left_out - len(pictures)
    tally = {k: counts[k] for k in ("read", "damaged", "duplicate", "not_sampled", "kept")}
    said = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in tally.items())
    if not pictures:
        raise LayerwiseError(f"No image is left of this source ({said}).")
    log.info("Images: %s", said)
    if sample.n is not None and len(pictures) < sample.n:
        log.warning("Only %d images are left; sample.n asks for %d", len(pictures), sample.n)
    return Chosen(pictures, labels, sizes, tally)


def _of_folder(folder: Path) -> Source:
    if not is_folder(folder):
        raise LayerwiseError(f"There is no folder {folder}; paths count from where you run.")
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise LayerwiseError(
            f"{folder} holds no image; accepted are files that end in {', '.join(SUFFIXES)}, "
            "one folder a class."
        )
    others = sum(1 for p in folder.rglob("*") if p.is_file()) - len(files)
    if others:
        log.info("%s: %d files that are no images by their names are left out", folder, others)
    ids = [p.relative_to(folder).as_posix() for p in files]
    labels = [name.split("/")[0] if "/" in name else None for name in ids]

    def fetch(index: int) -> Picture:
        # Absolute: the run's jobs may be in another folder.
        path = str(files[index].absolute())
        return Picture(ids[index], None, path, sha256_bytes(read_file(path, ids[index])))

    return Source(ids, labels, fetch, {"folder": str(folder.absolute())})


def _of_hub(source: HubImages) -> Source:
    import datasets

    columns = [source.column, *filter(None, [source.label])]
    data, facts = hub.load(source, columns)
    feature = data.features[source.column]
    if not isinstance(feature, datasets.Image):
        images = [name for name, f in data.features.items() if isinstance(f, datasets.Image)]
        raise no_column(source.column, images, f"The images of {source.hub!r}")
    # Bytes as they are: decoding is done in one place, and of no other column.
    data = data.select_columns(columns)
    data = data.cast_column(source.column, datasets.Image(decode=False))
    labels: list[str | None] = [None] * len(data)
    if source.label is not None:
        of = data.features[source.label]
        known = of.names if isinstance(of, datasets.ClassLabel) else None
        labels = [
            None if v is None or (known and v < 0) else known[v] if known else str(v)
            for v in data[source.label]
        ]

    def fetch(index: int) -> Picture:
        held: Any = data[index][source.column] or {}
        name = str(index)
        content = held.get("bytes")
        if content is None and held.get("path"):
            content = read_file(held["path"], name)
        if not content:
            raise UnreadableError(f"The image {name!r} holds nothing; or set damaged: drop.")
        return Picture(name, content, None, sha256_bytes(content))

    return Source([str(n) for n in range(len(data))], labels, fetch, facts)


def _digits() -> Source:
    from sklearn.datasets import load_digits

    digits = load_digits()

    def fetch(index: int) -> Picture:
        # Values of 0 to 16.
        content = png((digits.images[index] * (255 / 16)).round().astype("uint8"))
        return Picture(ids[index], content, None, sha256_bytes(content))

    ids = [f"digit-{n}" for n in range(len(digits.images))]
    return Source(ids, [str(label) for label in digits.target], fetch)


def png(values: Any) -> bytes:
    """An 8-bit array of pixels as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def label_counts(labels: Iterable[str | None]) -> dict[str, int]:
    """How many images have each label."""
    return dict(sorted(Counter(label for label in labels if label is not None).items()))
