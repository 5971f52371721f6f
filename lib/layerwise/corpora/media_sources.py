"""Sources of images and recordings, and the sample of a corpus.

A new kind of source needs its section in `layerwise.config.corpora` and its line in `open_media`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from layerwise.config.corpora import (
    AudioCorpus,
    FolderMedia,
    HubMedia,
    ImageCorpus,
    PackageImages,
)
from layerwise.corpora.audio import Recording
from layerwise.corpora.images import Picture, png
from layerwise.corpora.media import Medium, UnreadableError, read_file
from layerwise.corpora.select import in_sample_order, log_counts
from layerwise.corpora.sources import label_column, load_hub, read_rows, with_class_names
from layerwise.errors import LayerwiseError, check_name
from layerwise.io.files import is_folder, visible_files
from layerwise.progress import Progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Media:
    """All images or recordings of a source, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Unique.
    labels : list of str or None
        Label of each; None where there is none.
    read : callable
        From an index to the bytes of the file.
    facts : mapping
        Provenance in addition to the source's settings.
    """

    ids: list[str]
    labels: list[str | None]
    read: Callable[[int], bytes]
    facts: Mapping[str, str] = field(default_factory=dict)


def open_media(settings: ImageCorpus | AudioCorpus) -> Media:
    """List the images or recordings of a corpus' source.

    Raises
    ------
    LayerwiseError
        If the source cannot be read or holds none.
    """
    kind, source = kind_of(settings), settings.source
    if isinstance(source, HubMedia):
        return _of_hub(source, kind)
    return _digits() if isinstance(source, PackageImages) else _of_folder(source, kind)


def in_folder(folder: Path) -> tuple[Media, Callable[[int], Medium]]:
    """List the images or recordings of a folder, whose labels are its subfolders.

    Returns
    -------
    media : Media
    read : callable
        From an index to the image or recording.

    Raises
    ------
    LayerwiseError
        If it holds none, or both.
    """
    endings = {path.suffix.lower() for path in visible_files(folder)}
    kinds = [kind for kind in (Picture, Recording) if not endings.isdisjoint(kind.suffixes)]
    if len(kinds) != 1:
        raise LayerwiseError(
            f"{folder}: expected a folder of images or of recordings; it holds "
            f"{'both' if kinds else 'neither'}.",
            code="wrong_type",
        )
    media = _of_folder(FolderMedia(folder=str(folder)), kinds[0])
    return media, lambda index: kinds[0](media.ids[index], media.read(index))


def kind_of(settings: ImageCorpus | AudioCorpus) -> type[Medium]:
    """The class of a corpus' prompts."""
    return Picture if isinstance(settings, ImageCorpus) else Recording


def classes_of(labels: Sequence[str | None], n: int | None, seed: int) -> set[str | None]:
    """A stable sample of `n` classes; all labels, and none, without n.

    Raises
    ------
    LayerwiseError
        If there are fewer classes.
    """
    if n is None:
        return set(labels)
    names = sorted({label for label in labels if label is not None})
    if n > len(names):
        raise LayerwiseError(
            f"classes: there are labels of {len(names)} classes, not {n}; ask for fewer, or name "
            "the column of labels.",
            code="too_few",
        )
    return {names[index] for index in in_sample_order(names, seed)[:n]}


def sample_media(
    media: Media, settings: ImageCorpus | AudioCorpus
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Take a stable sample of images or recordings, and decode each once.

    Every one has a key, the SHA-256 of the seed and its id, and those of the smallest keys are
    taken, in their order. A larger `n` begins with the same ones. Of those with the same bytes the
    first is taken.

    Returns
    -------
    table : DataFrame
        Table of the corpus, see `layerwise.corpora.prompts`.
    counts : dict
        ``read`` = ``damaged`` + ``duplicate`` + ``not_sampled`` + ``kept``.

    Raises
    ------
    LayerwiseError
        If one cannot be read and ``damaged`` is ``error``, or none is left.
    """
    kind = kind_of(settings)
    classes = classes_of(media.labels, settings.classes, settings.sample.seed)
    order = in_sample_order(media.ids, settings.sample.seed)
    order = [index for index in order if media.labels[index] in classes]
    n = min(settings.sample.n or len(order), len(order))
    tally: Counter[str] = Counter(damaged=0, duplicate=0)
    rows: dict[str, dict[str, Any]] = {}
    with Progress(n, f"reading {kind.kind}s", kind.kind) as bar:
        for index in order:
            if len(rows) == n:
                break
            try:
                medium = kind(media.ids[index], media.read(index))
                measures = medium.measures()
            except UnreadableError as error:
                if settings.damaged == "error":
                    raise
                tally["damaged"] += 1
                log.warning("Left out: %s", error)
                continue
            if medium.sha256 in rows:
                tally["duplicate"] += 1
                continue
            rows[medium.sha256] = {
                "prompt_id": medium.name,
                "label": media.labels[index],
                kind.column: medium.data,
                "sha256": medium.sha256,
                **measures,
            }
            bar.update()
    counts = {"read": len(order), **tally, "kept": len(rows)}
    counts["not_sampled"] = len(order) - tally.total() - len(rows)
    log_counts(counts, settings.sample.n, f"give other {kind.kind}s")
    return pd.DataFrame(list(rows.values())), counts


def _of_folder(source: FolderMedia, kind: type[Medium]) -> Media:
    folder = Path(source.folder)
    if not is_folder(folder):
        raise LayerwiseError(
            f"There is no folder {folder}; relative paths start at the current folder.",
            code="missing_file",
        )
    files = (path for path in visible_files(folder) if path.suffix.lower() in kind.suffixes)
    ids = sorted(path.relative_to(folder).as_posix() for path in files)
    if not ids:
        raise LayerwiseError(
            f"{folder} holds no {kind.kind}; accepted are files that end in "
            f"{', '.join(kind.suffixes)}.",
            code="too_few",
        )
    labels = [name.split("/")[0] if "/" in name else None for name in ids]
    if source.labels is not None:
        ids, labels = _labelled(Path(source.labels), ids)
    facts = {"folder": str(folder)}
    return Media(ids, labels, lambda k: read_file(str(folder / ids[k]), ids[k]), facts)


def _labelled(path: Path, files: Sequence[str]) -> tuple[list[str], list[str | None]]:
    """The files that a table names, and their labels."""
    rows = read_rows(path)
    for name in ("file", "label"):
        check_name(f"column of {path}", name, rows)
    for line, name in rows["file"].items():
        check_name(f"{path}, {rows.index.name} {line}: file", name, files)
    labels = label_column(path, rows, "label")
    return rows["file"].to_list(), [None if pd.isna(v) else str(v) for v in labels]


def _of_hub(source: HubMedia, kind: type[Medium]) -> Media:
    import datasets

    data, facts = load_hub(source)
    for name in filter(None, (source.column, source.label)):
        check_name(f"column of the data set {source.hub!r}:", name, data.features)
    feature = getattr(datasets, kind.feature)
    if not isinstance(data.features[source.column], feature):
        raise LayerwiseError(
            f"The column {source.column!r} of {source.hub!r} holds no {kind.kind}s.",
            code="wrong_type",
        )
    labels: list[str | None] = [None] * len(data)
    if source.label is not None:
        named = with_class_names(data[source.label], data.features[source.label])
        labels = [None if label in (None, -1) else str(label) for label in named]
    # Encoded bytes, since decoding is done in one place.
    data = data.select_columns([source.column])
    data = data.cast_column(source.column, feature(decode=False))

    def read(index: int) -> bytes:
        return bytes_of(data[index][source.column], source.hub, str(index))

    return Media([str(n) for n in range(len(data))], labels, read, facts)


def bytes_of(held: Mapping[str, Any] | None, hub: str, name: str) -> bytes:
    """Bytes of an image or a recording of a data set's row, which `datasets` has not decoded.

    Rows may come from strangers: they name files of the data set alone, not any of this machine.

    Parameters
    ----------
    held : mapping with bytes and path, or None
    hub : str
        The data set: its name on the hub, or its local folder.
    name : str
        Its id, for errors.

    Raises
    ------
    UnreadableError
        If there is none, or its file cannot be read or is not in the data set's folder.
    """
    if held and held["bytes"] is not None:
        return bytes(held["bytes"])
    if not held or not held["path"]:
        raise UnreadableError(f"The row {name!r} of {hub!r} is empty; set damaged: drop.")
    path = Path(hub, held["path"]).resolve()
    if not any(path.is_relative_to(folder) for folder in _folders_of(hub)):
        raise UnreadableError(
            f"The row {name!r} of {hub!r} names the file {held['path']}, which is not in the "
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


def _digits() -> Media:
    from sklearn.datasets import load_digits

    digits = load_digits()
    # Values of 0 to 16.
    pixels = (digits.images * (255 / 16)).round().astype("uint8")
    ids = [f"digit-{n}" for n in range(len(pixels))]
    return Media(ids, [str(label) for label in digits.target], lambda k: png(pixels[k]))
