"""Where the texts of a corpus come from: one source of the config, opened as (id, text) pairs.

The kinds of source are the sections of `layerwise.config.corpora`; a new one needs its section
there and its line in `open_source`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from layerwise.config.corpora import FileTexts, HubTexts, TaskTexts, TextSource
from layerwise.corpora import chat, hub, local, packages
from layerwise.corpora.local import Rows
from layerwise.corpora.paragraphs import read_paragraphs
from layerwise.corpora.rows import Prompts
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_file, sha256_text


def open_source(source: TextSource, path: Path | None = None) -> Rows:
    """Open a source; its texts can be read once.

    Parameters
    ----------
    source : HubTexts, FileTexts, PackageTexts or TaskTexts
    path : Path, optional
        The file that an earlier step made of it: of the package `wikipedia` the table of
        paragraphs (``scripts/unpack_wikipedia.py``), of a task the list of its texts
        (``scripts/list_task_texts.py``). Other sources need none.

    Raises
    ------
    LayerwiseError
        If that file is not given, or what the source names cannot be read.
    """
    if isinstance(source, HubTexts | FileTexts):
        return _table(source)
    if isinstance(source, TaskTexts):
        return of_texts(text for _, text in local.read_file(_given(path, source)))
    if source.package == "wikipedia":
        return _wikipedia(_given(path, source))
    texts = packages.news(source.package)
    pairs = ((f"{source.package}-{number}", text) for number, text in enumerate(texts))
    return Rows(len(texts), pairs)


def _table(source: HubTexts | FileTexts) -> Rows:
    """A row a prompt; a corpus of chats is marked as such."""
    prompts = Prompts.of_source(source)
    if isinstance(source, HubTexts):
        rows = hub.read_hub(source, prompts)
    else:
        rows = local.read_file(Path(source.file), prompts, source.id)
        rows.facts["source_sha256"] = sha256_file(Path(source.file))
    facts = {**rows.facts, "format": chat.FORMAT} if prompts.is_chat else rows.facts
    words = chat.words if prompts.is_chat else str
    return Rows(rows.total, prompts.told(rows), facts, words)


def of_texts(texts: Iterable[str]) -> Rows:
    """The distinct texts of anything that yields texts.

    Ids come from the texts themselves, so that a text keeps its id when the list changes.
    """
    distinct = dict.fromkeys(texts)
    return Rows(len(distinct), ((sha256_text(text)[:16], text) for text in distinct))


def _given(path: Path | None, source: TextSource) -> Path:
    if path is None:
        raise LayerwiseError(
            f"The source {source.plain()} is read from a file that another script makes; give "
            "its path (scripts/unpack_wikipedia.py, scripts/list_task_texts.py)."
        )
    return path


def _wikipedia(path: Path) -> Rows:
    paragraphs, metadata = read_paragraphs(path)
    pairs = ((f"{row.article_id}-{row.number}", row.text) for row in paragraphs)
    facts = {k: v for k, v in metadata.items() if k in ("source_sha256", "licence")}
    return Rows(len(paragraphs), pairs, facts)
