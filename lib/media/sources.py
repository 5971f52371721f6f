"""Sources of images and recordings, and the sample of a corpus.

A new kind of source needs its section in `media.settings` and its line in `open_media`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from layerwise.corpora.prompts import Files, Medium
from layerwise.corpora.sources import (
    in_sample_order,
    label_column,
    load_hub,
    log_counts,
    read_rows,
    with_class_names,
)
from layerwise.errors import LayerwiseError, check_name
from layerwise.io.files import is_folder, visible_files
from layerwise.progress import Progress
from media.settings import FolderMedia, HubMedia, MediaCorpus, PackageImages

log = logging.getLogger(__name__)


class UnreadableError(LayerwiseError):
    """An image or a recording that cannot be read."""

    code = "unreadable"


def read_file(path: str, name: str) -> bytes:
    """Read the bytes of a file; an `UnreadableError` says why they cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableError(f"{name!r} cannot be read: {path}: {error.strerror}.") from error


@dataclass(frozen=True)
class FileMedium(Medium):
    """An image or a recording.

    Attributes
    ----------
    feature : str
        Class of `datasets` for a column of them.
    """

    feature: ClassVar[str]

    @abstractmethod
    def measures(self) -> dict[str, Any]:
        """Its size, for the corpus' file.

        Raises
        ------
        UnreadableError
            If it cannot be read.
        """

    @classmethod
    def read_corpus(cls, settings: MediaCorpus) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Read the source of a corpus and sample it; raises as `open_media`, `sample_media`."""
        media = open_media(settings, cls)
        table, counts = sample_media(media, settings, cls)
        labels = table["label"].value_counts().sort_index().to_dict()
        return table, {**media.facts, "labels": labels, "counts": counts}

    @classmethod
    def list_folder(cls, folder: Path) -> Files:
        """The images or recordings of a folder, whose labels are its subfolders."""
        media = _of_folder(FolderMedia(folder=str(folder)), cls)
        return Files(media.ids, media.labels, lambda k: cls(media.ids[k], media.read(k)))

    @classmethod
    def read_rows(cls, data: Any, hub: str, name: str) -> Iterator[Self]:
        """The rows of a data set of `datasets`, which are not decoded."""
        import datasets

        feature = getattr(datasets, cls.feature)(decode=False)
        held = data.select_columns([cls.column]).cast_column(cls.column, feature)
        for row, one in enumerate(held[cls.column]):
            yield cls(f"{name} {row}", bytes_of(one, hub, str(row)))

    @classmethod
    def of_object(cls, name: str, item: Any) -> Self | None:  # noqa: ARG003
        """A prompt of a path with one of the medium's endings."""
        if isinstance(item, Path) and item.suffix.lower() in cls.suffixes:
            return cls(str(item), read_file(str(item), str(item)))
        return None


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


def open_media(settings: MediaCorpus, kind: type[FileMedium]) -> Media:
    """List the images or recordings of a corpus' source.

    Raises
    ------
    LayerwiseError
        If the source cannot be read or holds none.
    """
    source = settings.source
    if isinstance(source, HubMedia):
        return _of_hub(source, kind)
    return _digits() if isinstance(source, PackageImages) else _of_folder(source, kind)


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
    media: Media, settings: MediaCorpus, kind: type[FileMedium]
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


def _of_folder(source: FolderMedia, kind: type[FileMedium]) -> Media:
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


def _of_hub(source: HubMedia, kind: type[FileMedium]) -> Media:
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

    from media.images import png

    digits = load_digits()
    # Values of 0 to 16.
    pixels = (digits.images * (255 / 16)).round().astype("uint8")
    ids = [f"digit-{n}" for n in range(len(pixels))]
    return Media(ids, [str(label) for label in digits.target], lambda k: png(pixels[k]))
