"""Files of prompts and of their views: what is in them, and how they are made and read.

``corpora/{corpus}.parquet``
    One row a prompt: ``prompt_id`` (unique), ``text``, ``n_tokens`` (words and punctuation marks,
    see `layerwise.corpora.sources.count_tokens`).
    Of another medium: ``prompt_id``, ``label``, the bytes of a file (column ``image`` or
    ``audio``), their ``sha256``, and their measures.
``{corpus}.views.parquet``
    One row a prompt and view: ``prompt_id``, ``view`` (1 … V), and ``text``, or for another medium
    ``drawn`` (the drawn parameters). View 0 is the prompt.

Views store the hash of the prompts that they were made of, so that they are never read with
another corpus.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import pandas as pd

from layerwise import addons
from layerwise.config.corpora import Corpus, CorpusSettings, Views, ViewSettings
from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.io.files import sha256_bytes, sha256_text, visible_files
from layerwise.io.tables import Kind
from layerwise.section import Section

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Medium(ABC):
    """A prompt that is a file, or a view of one. A subclass is a medium, such as images.

    A subclass in `layerwise.addons.MEDIA` reads corpora, tasks and models of its medium.

    Attributes
    ----------
    name : str
        Its id, for messages.
    data : bytes
        Bytes of its file, in whatever format.
    drawn : str
        Parameters of a view, as `draw_views` gives them; empty for the file itself.
    kind : str
        What it is, and what a model that reads it takes.
    column : str
        Name of the column of bytes in a corpus' file, and of mteb's inputs.
    suffixes : tuple of str
        Endings of the files that are read.
    objects : str
        Objects in memory that `of_object` takes, for messages.
    task_types : tuple of str
        Types of mteb's tasks that the scoring has been checked on.
    corpus : subclass of Section
        Settings of a corpus.
    preprocess : subclass of Section, or None
        Settings of a model's processor, if an entry can give them.
    """

    name: str
    data: bytes
    drawn: str = ""

    kind: ClassVar[str]
    column: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    objects: ClassVar[str]
    task_types: ClassVar[tuple[str, ...]]
    corpus: ClassVar[type[Section]]
    preprocess: ClassVar[type[Section] | None] = None

    @cached_property
    def sha256(self) -> str:
        """Hash of the file's bytes."""
        return sha256_bytes(self.data)

    @classmethod
    @abstractmethod
    def read_corpus(cls, settings: Any) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The table of a corpus (`layerwise.corpora.prompts`), and facts such as counts."""

    @classmethod
    @abstractmethod
    def draw_views(cls, table: pd.DataFrame, settings: Any) -> pd.DataFrame:
        """The parameters of views of a corpus: columns ``prompt_id``, ``view``, ``drawn``."""

    @classmethod
    @abstractmethod
    def list_folder(cls, folder: Path) -> Files:
        """The files of a folder."""

    @classmethod
    @abstractmethod
    def read_rows(cls, data: Any, hub: str, name: str) -> Iterator[Self]:
        """The rows of a data set of `datasets`, named after it and their number."""

    @classmethod
    @abstractmethod
    def of_object(cls, name: str, item: Any) -> Self | None:
        """A prompt of an object in memory, or of a path; None if it is none of this medium."""

    @classmethod
    def undecoded(cls, data: Any, column: str) -> Any:  # noqa: ARG003
        """A data set whose column `of_object` takes."""
        return data

    @classmethod
    @abstractmethod
    def reader_of(cls, config: Any) -> Any:
        """The `layerwise.models.texts.Reader` of a model with this configuration, or None."""


class Files(NamedTuple):
    """Files of a folder, none of them read yet.

    Attributes
    ----------
    ids : list of str
        Their paths in the folder.
    labels : list of str or None
        Their subfolders.
    read : callable
        From an index to the prompt.
    """

    ids: list[str]
    labels: list[str | None]
    read: Callable[[int], Medium]


def media() -> list[type[Medium]]:
    """Every medium of the add-ons."""
    return addons.media()


def in_folder(folder: Path) -> Files:
    """List the files of a folder of one medium, whose labels are its subfolders.

    Raises
    ------
    LayerwiseError
        If it holds none of any medium, or of several.
    """
    endings = {path.suffix.lower() for path in visible_files(folder)}
    kinds = [medium for medium in media() if not endings.isdisjoint(medium.suffixes)]
    if len(kinds) != 1:
        expected = " or of ".join(f"{medium.kind}s" for medium in media())
        raise LayerwiseError(
            f"{folder}: expected a folder of {expected or 'files that an add-on reads'}; it holds "
            f"{'both' if kinds else 'neither'}.",
            code="wrong_type",
        )
    return kinds[0].list_folder(folder)


CORPUS = Kind("layerwise.corpus", 2)
VIEWS = Kind("layerwise.views", 2)


@dataclass(frozen=True)
class Prompts:
    """Prompts and their views, as a model reads them.

    Attributes
    ----------
    name : str
        Name of the corpus.
    ids : list of str, length N
    views : V + 1 sequences of N
        Texts, or files (`layerwise.corpora.prompts.Medium`); view 0 is the prompt.
    hash : str
        SHA-256 of ids and prompts, in order.
    """

    name: str
    ids: list[str]
    views: Sequence[Sequence[Any]]
    hash: str


def hash_of(prompts: pd.DataFrame) -> str:
    """SHA-256 of the ids and the texts (or hashes of files) of a corpus, in order."""
    content = prompts["sha256" if "sha256" in prompts else "text"]
    return sha256_text(*prompts["prompt_id"], *content)


def write_corpus(path: Path, name: str, prompts: pd.DataFrame, **facts: Any) -> None:
    """Write a corpus.

    Parameters
    ----------
    prompts : DataFrame
        One row a prompt, with the columns above.
    **facts
        Key and provenance, for the file's metadata.

    Raises
    ------
    LayerwiseError
        If an id is empty, holds a NUL or is not unique, or the folder cannot be written.
    """
    ids = prompts["prompt_id"]
    wrong = ids[ids.duplicated() | (ids == "") | ids.str.contains("\0", regex=False)]
    if len(wrong):
        raise LayerwiseError(
            f"The corpus {name!r} has the prompt id {wrong.iloc[0]!r} twice, or it is empty or "
            "holds a NUL; name another id column, or none to number the prompts.",
            code="duplicate",
        )
    facts |= {"corpus": name, "hash": hash_of(prompts), "n": len(prompts)}
    tables.write(path, prompts, kind=CORPUS, **facts)


def read_corpus(path: Path) -> pd.DataFrame:
    """Read the table of a corpus, without its views.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, or no corpus.
    """
    return tables.read(path, "prompts", kind=CORPUS)


def read(path: Path, views_path: Path | None = None) -> Prompts:
    """Read a corpus with its views, without the prompts that views could not be made of.

    Raises
    ------
    LayerwiseError
        If a file is missing, damaged or of another kind, or the views belong to other prompts.
    """
    prompts = read_corpus(path)
    copies: list[pd.DataFrame] = []
    if views_path is not None:
        views = tables.read(views_path, "views", kind=VIEWS)
        if tables.facts(views_path)["corpus_hash"] != hash_of(prompts):
            raise LayerwiseError(
                f"{views_path} holds views of other prompts than those of {path}; {tables.REMEDY}",
                code="mismatch",
            )
        if len(views):
            prompts = prompts[prompts["prompt_id"].isin(views["prompt_id"])]
            column = "drawn" if "drawn" in views else "text"
            wide = views.pivot(index="prompt_id", columns="view", values=column)
            wide = wide.loc[prompts["prompt_id"]]
            copies = [prompts.assign(**{column: wide[view].to_numpy()}) for view in wide]
    contents = [
        table["text"].to_list() if "text" in table else media_of(table)
        for table in (prompts, *copies)
    ]
    name, ids = tables.facts(path)["corpus"], prompts["prompt_id"].to_list()
    return Prompts(name, ids, contents, hash_of(prompts))


def media_of(table: pd.DataFrame) -> list[Medium]:
    """Files of a corpus' table, or views of them if it has a column ``drawn``."""
    kind = medium_of(table)
    columns = [name for name in ("prompt_id", kind.column, "drawn") if name in table]
    return [kind(*row) for row in table[columns].itertuples(index=False)]


def medium_of(table: pd.DataFrame) -> type[Medium]:
    """The medium of a corpus' table that is not of texts."""
    kind = next((medium for medium in media() if medium.column in table), None)
    if kind is None:
        raise LayerwiseError(
            "The corpus holds files that no installed add-on reads; install the add-on media "
            "(lib/media of layerwise's repository).",
            code="unsupported",
        )
    return kind


def make_corpus(
    target: Path,
    name: str,
    settings: Corpus,
    *,
    texts: Path | Iterable[str] | None = None,
    **facts: Any,
) -> None:
    """Read a source, filter and sample it, and write the corpus.

    Parameters
    ----------
    texts : Path or iterable of str, optional
        As in `sources.open_texts`.
    **facts
        Key and provenance, for the file's metadata.
    """
    if not isinstance(settings, CorpusSettings):
        kind = next(medium for medium in media() if isinstance(settings, medium.corpus))
        table, about = kind.read_corpus(settings)
    else:
        from layerwise.corpora.sources import open_texts, select

        pairs, about = open_texts(settings.source, texts)
        table, counts = select(pairs, settings.filters, settings.sample)
        about = {**about, "counts": counts}
    write_corpus(target, name, table, **facts, **about)


def make_views(
    target: Path,
    corpus: Path,
    settings: Views,
    *,
    processes: int = 1,
    **facts: Any,
) -> None:
    """Augment the prompts of a corpus and write the views; of files only the parameters."""
    table = read_corpus(corpus)
    if isinstance(settings, ViewSettings):
        from layerwise.corpora.views import augment

        views = augment(table, settings, processes)
    else:
        views = medium_of(table).draw_views(table, settings)
    about = tables.facts(corpus)
    if settings.n and views.empty:
        raise LayerwiseError(
            f"No prompt of {about['corpus']!r} could be augmented; raise filters.min_tokens.",
            code="too_few",
        )
    facts |= {"corpus": about["corpus"], "corpus_hash": about["hash"]}
    tables.write(target, views.astype({"prompt_id": str, "view": "int64"}), kind=VIEWS, **facts)
