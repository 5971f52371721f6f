"""Where the texts of a corpus come from: one entry of the config, opened as (id, text) pairs.

``{"hub": "Salesforce/wikitext", "name": …, "split": …, "column": …, "revision": …}``
    A data set of the Hugging Face hub, or its copy in the local cache.
``{"file": "prompts.jsonl", "column": …, "id": …}``
    A local file: ``.jsonl``, ``.parquet``, or ``.txt`` with one prompt a line.
``{"package": "wikipedia" | "lee" | "lee_background", "path": …}``
    Texts in gensim's test data; ``path`` is the table that ``scripts/unpack_wikipedia.py`` writes.
``{"task": "STSBenchmark", "path": …}``
    The distinct texts of an MTEB task, listed in a parquet file with a column ``text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerwise.corpora import hub, local, packages
from layerwise.corpora.paragraphs import read_paragraphs
from layerwise.errors import LayerwiseError, closest
from layerwise.files import sha256_file, sha256_text

KEYS = {
    "hub": {"name": False, "split": False, "column": False, "revision": False},
    "file": {"column": False, "id": False},
    "package": {"path": False},
    "task": {"path": True},
}
"""The kinds of source, and the further keys of each: whether it must be there."""

PACKAGES = ("wikipedia", *packages.NEWS)


@dataclass
class Source:
    """Texts with ids, to be read once."""

    rows: local.Rows
    facts: dict[str, Any] = field(default_factory=dict)
    """What to remember of where they came from, besides the config's entry."""


def open_source(spec: Mapping[str, Any]) -> Source:
    """Open the source that an entry of the config names.

    Raises
    ------
    LayerwiseError
        If the entry names no kind or several, has an unknown key or a wrong value, or what it
        names cannot be read.
    """
    kind = _kind(spec)
    name = str(spec[kind])
    further = {key: str(value) for key, value in spec.items() if key != kind and value is not None}
    if kind == "hub":
        rows, facts = hub.read_hub(name, **further)
        return Source(rows, dict(facts))
    if kind == "file":
        rows = local.read_file(Path(name), further.get("column", "text"), further.get("id"))
        return Source(rows, {"source_sha256": sha256_file(Path(name))})
    if kind == "task":
        listed = local.read_file(Path(further["path"]))
        return of_texts(text for _, text in listed)
    return _package(name, further.get("path"))


def of_texts(texts: Iterable[str]) -> Source:
    """The distinct texts of anything that yields texts, such as an MTEB task.

    Ids come from the texts themselves, so that a text keeps its id when the list changes.
    """
    distinct = dict.fromkeys(texts)
    pairs = ((sha256_text(text)[:16], text) for text in distinct)
    return Source(local.Rows(len(distinct), pairs))


def _kind(spec: Mapping[str, Any]) -> str:
    kinds = [key for key in spec if key in KEYS]
    if len(kinds) != 1:
        came = " and ".join(map(repr, kinds)) if kinds else ", ".join(map(repr, spec)) or "nothing"
        near = "" if kinds else "".join(filter(None, (closest(key, KEYS) for key in spec)))
        raise LayerwiseError(
            f"A source has one of the keys {', '.join(map(repr, KEYS))}; here is {came}{near}."
        )
    kind = kinds[0]
    for key, value in spec.items():
        if key != kind and key not in KEYS[kind]:
            raise LayerwiseError(
                f"A source by {kind!r} has no key {key!r}{closest(key, KEYS[kind])}; accepted are "
                f"{', '.join(map(repr, KEYS[kind]))}."
            )
        if value is not None and not (isinstance(value, str) and value):
            raise LayerwiseError(f"The source's {key!r} is {value!r}; accepted is a text.")
    for key, needed in KEYS[kind].items():
        if needed and not spec.get(key):
            raise LayerwiseError(f"A source by {kind!r} needs the key {key!r}.")
    if not spec[kind]:
        raise LayerwiseError(f"The source's {kind!r} is {spec[kind]!r}; accepted is a text.")
    return kind


def _package(name: str, path: str | None) -> Source:
    if name not in PACKAGES:
        raise LayerwiseError(
            f"There is no package of texts {name!r}{closest(name, PACKAGES)}; there are "
            f"{', '.join(map(repr, PACKAGES))}."
        )
    if name == "wikipedia":
        if path is None:
            raise LayerwiseError(
                "The source {'package': 'wikipedia'} needs 'path', the table of paragraphs that "
                "scripts/unpack_wikipedia.py writes."
            )
        return _wikipedia(Path(path))
    texts = packages.news(name)
    pairs = ((f"{name}-{number}", text) for number, text in enumerate(texts))
    return Source(local.Rows(len(texts), pairs))


def _wikipedia(path: Path) -> Source:
    rows, metadata = read_paragraphs(path)
    pairs = ((f"{row.article_id}-{row.number}", row.text) for row in rows)
    facts = {k: v for k, v in metadata.items() if k in ("source_sha256", "licence")}
    return Source(local.Rows(len(rows), pairs), facts)
