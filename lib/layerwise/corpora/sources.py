"""Sources of texts, read as (id, text) pairs.

Data sets of the hub and local files are loaded by ``datasets``, but for JSON. A new kind of source
needs its section in `layerwise.config.corpora` and its line in `open_texts`.
"""

from __future__ import annotations

import json
import logging
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layerwise.config.corpora import Columns, FileTexts, HubData, HubTexts, TaskTexts, TextSource
from layerwise.corpora.packages import news
from layerwise.errors import LayerwiseError, closest, first_line, listed
from layerwise.io import tables
from layerwise.io.files import is_file, sha256_file, sha256_text

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
# Builders of `datasets` by ending; the other files are JSON.
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".txt": "text"}


@dataclass(frozen=True)
class Texts:
    """(id, text) pairs of a source, to iterate over once, and its provenance."""

    pairs: Iterable[tuple[str, str]]
    facts: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)


def open_texts(source: TextSource, texts: Path | Iterable[str] | None = None) -> Texts:
    """Open a source.

    Parameters
    ----------
    source : HubTexts, FileTexts, PackageTexts or TaskTexts
    texts : Path or iterable of str, optional
        The paragraphs of the package ``wikipedia`` as a file, or the texts of a task. Other
        sources need none.

    Raises
    ------
    LayerwiseError
        If the source cannot be read; while iterating, if a text is no text or an id no id.
    """
    if isinstance(source, HubTexts):
        data, facts = load_hub(source)
        return Texts(_prompts(data, source, None, f"data set {source.hub!r}"), facts)
    if isinstance(source, FileTexts):
        data, facts = load_file(Path(source.file))
        return Texts(_prompts(data, source, source.id, source.file), facts)
    if not isinstance(source, TaskTexts) and source.package != "wikipedia":
        lines = enumerate(news(source.package))
        return Texts((f"{source.package}-{n}", line) for n, line in lines)
    if texts is None:
        raise LayerwiseError(f"The source {source.plain()} needs its texts.", code="missing_file")
    if not isinstance(texts, Path):
        return of_texts(texts)
    rows = tables.read(texts, "paragraphs", ["article_id", "paragraph", "text"])
    ids = rows["article_id"].astype(str) + "-" + rows["paragraph"].astype(str)
    about = tables.facts(texts)
    facts = {name: about[name] for name in ("source_sha256", "licence") if name in about}
    return Texts(zip(ids, rows["text"], strict=True), facts)


def of_texts(texts: Iterable[str]) -> Texts:
    """Distinct texts, with ids that come from the texts: a text keeps its id in a longer list."""
    return Texts((sha256_text(text)[:16], text) for text in dict.fromkeys(texts))


def columns_of(source: Columns) -> list[str]:
    """Columns that the prompts of a source are made of."""
    if source.template is None:
        return [source.column]
    return [name for _, name, _, _ in string.Formatter().parse(source.template) if name]


def prompt_of(row: Mapping[str, Any], source: Columns) -> str:
    """Make the prompt of a row; empty if a column is null, or all of them are blank.

    Raises
    ------
    LayerwiseError
        If the row lacks a column, or it holds no text.
    """
    columns = columns_of(source)
    for name in columns:
        if name not in row:
            near = closest(name, row)
            raise LayerwiseError(
                f"there is no column {name!r}{near}; there are {listed(row)}.", code="unknown_name"
            )
        value = row[name]
        if not isinstance(value, str | None):
            shown = f"{type(value).__name__} {str(value)[:40]!r}"
            raise LayerwiseError(f"{name!r} holds {shown}, not text.", code="wrong_type")
    if any(row[name] is None for name in columns) or not any(row[n].strip() for n in columns):
        return ""
    if source.template is None:
        return str(row[source.column])
    parts = string.Formatter().parse(source.template)
    return "".join(literal + (row[name] if name else "") for literal, name, _, _ in parts)


def load_file(path: Path) -> tuple[Any, dict[str, str]]:
    """Load a local file as a stream of rows: parquet, JSON (lines), CSV, or text by lines.

    Returns
    -------
    data : iterable of mappings
    facts : dict
        ``source_sha256`` of the file.

    Raises
    ------
    LayerwiseError
        If it is missing, empty, damaged or not readable.
    """
    import datasets
    import pandas as pd

    if not is_file(path):
        near = closest(path.name, [p.name for p in path.parent.glob("*") if p.is_file()])
        raise LayerwiseError(
            f"There is no file {path}{near}; relative paths start at the current folder.",
            code="missing_file",
        )
    if not path.stat().st_size:
        raise LayerwiseError(f"{path} is empty.", code="too_few")
    facts, builder = {"source_sha256": sha256_file(path)}, BUILDERS.get(path.suffix.lower())
    if builder is None:
        return _json_rows(path), facts
    options: dict[str, Any] = {} if builder == "parquet" else {"encoding": "utf-8-sig"}
    try:
        if builder == "csv":  # every column is text; an empty field is null, "NA" is not
            header = pd.read_csv(path, nrows=0, encoding="utf-8-sig").columns
            text = datasets.Features(dict.fromkeys(header, datasets.Value("string")))
            options |= {"features": text, "keep_default_na": False, "na_values": [""]}
        # A stream: nothing is copied into a cache.
        data = datasets.load_dataset(
            builder, data_files=[str(path)], split="train", streaming=True, **options
        )
    except Exception as error:  # the libraries raise many kinds of errors
        raise LayerwiseError(
            f"{path} cannot be read ({first_line(error)}).", code="unreadable"
        ) from error
    return data, facts


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines, or of a JSON array.

    Not by pyarrow, as ``datasets`` reads them: a line such as "null" ends its process, and texts
    that look like dates become times.
    """
    with path.open(encoding="utf-8-sig") as file:
        array = path.suffix.lower() == ".json"
        rows = json.load(file) if array else (json.loads(line) for line in file if line.strip())
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"a {type(row).__name__} where an object is expected")
            yield row


def load_hub(source: HubData) -> tuple[Any, dict[str, str]]:
    """Load a data set of the hub, from the cache where there is no network.

    A data set's own code is never run.

    Returns
    -------
    data : datasets.Dataset
    facts : dict
        ``fingerprint`` of the data, and the ``commit`` where the cache tells it.

    Raises
    ------
    LayerwiseError
        If the hub cannot be reached and the cache has no copy, or the data set, configuration,
        split or revision does not exist.
    """
    import datasets

    at = f" at {source.revision!r}" if source.revision else ""
    what = f"data set {source.hub!r}{at}"
    try:
        data: Any = datasets.load_dataset(
            source.hub, source.name, split=source.split, revision=source.revision
        )
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise many kinds of errors
        raise LayerwiseError(
            f"Could not load the {what}, split {source.split!r} ({first_line(error)}); check "
            "name, split and revision, and the network or the cache.",
            code="missing_file",
        ) from error
    facts = {"fingerprint": str(data._fingerprint)}
    folders = (Path(file["filename"]).parent.name for file in data.cache_files)
    commit = next(filter(COMMIT.fullmatch, folders), None)
    if commit is not None:
        facts["commit"] = commit
        # Offline, datasets takes the newest copy in the cache, whatever the revision asked for.
        if source.revision and COMMIT.fullmatch(source.revision) and commit != source.revision:
            raise LayerwiseError(
                f"The cache holds commit {commit} of {source.hub!r}, not {source.revision!r}; run "
                "once with a network, or ask for that commit.",
                code="mismatch",
            )
    return data, facts


def _prompts(
    rows: Iterable[Mapping[str, Any]], source: Columns, id_column: str | None, where: str
) -> Iterator[tuple[str, str]]:
    """Make the prompts of rows, and log how many rows lack a column's value."""
    n_lacking = 0
    for number, row in _numbered(rows, where):
        try:
            text = prompt_of(row, source)
        except LayerwiseError as error:
            raise LayerwiseError(f"{where}, row {number}: {error}", code=error.code) from error
        prompt_id = number if id_column is None else row.get(id_column)
        if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
            raise LayerwiseError(
                f"{where}, row {number}: the id in {id_column!r} is {prompt_id!r}; accepted are "
                "strings and whole numbers.",
                code="wrong_type",
            )
        n_lacking += any(row[name] is None for name in columns_of(source))
        yield str(prompt_id), text
    if n_lacking:
        log.warning("%s: left out %d rows in which a column is null", where, n_lacking)


def _numbered(rows: Iterable[Any], where: str) -> Iterator[tuple[int, Any]]:
    """Number rows from 0."""
    number = -1
    try:
        for number, row in enumerate(rows):
            yield number, row
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in any of the libraries beneath
        raise LayerwiseError(
            f"{where} cannot be read after row {number + 1} ({first_line(error)}); check its "
            "format, and that it is UTF-8.",
            code="unreadable",
        ) from error
