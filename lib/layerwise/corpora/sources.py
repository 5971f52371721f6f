"""Sources of texts, read as (id, text) pairs, and the rows of users' files.

Data sets of the hub are loaded by ``datasets``. A new kind of source needs its section in
`layerwise.config.corpora` and its line in `open_texts`.
"""

from __future__ import annotations

import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from layerwise.config.corpora import (
    Columns,
    FileTexts,
    GeneratedTexts,
    HubData,
    HubTexts,
    TextSource,
)
from layerwise.errors import LayerwiseError, check_name, closest, first_line
from layerwise.io import delimited, tables
from layerwise.io.files import check_text, folder_sha256, is_file, sha256_file, sha256_text
from layerwise.io.tables import Kind

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
GENERATED = Kind("layerwise.generated", 1)
"""Texts that a model wrote: ``id`` of the prompt, and ``text``."""


Texts = Iterable[tuple[str, str]]
"""(id, text) pairs, to iterate over once."""


def open_texts(
    source: TextSource, texts: Path | Iterable[str] | None = None
) -> tuple[Texts, dict[str, str]]:
    """Open a source: its texts and their provenance.

    Parameters
    ----------
    source : HubTexts, FileTexts, TaskTexts or GeneratedTexts
    texts : Path or iterable of str, optional
        The file of the generated texts, or the texts of a task. Other sources need none.

    Raises
    ------
    LayerwiseError
        If the source cannot be read; while iterating, if a text is no text or an id no id.
    """
    if isinstance(source, HubTexts):
        data, facts = load_hub(source)
        rows = ((f"data set {source.hub!r}, row {n}", row) for n, row in enumerate(data, start=1))
        return ((str(n), text) for n, text in enumerate(_prompts(rows, source))), facts
    if isinstance(source, FileTexts):
        frame = read_rows(Path(source.file))
        facts = {"source_sha256": sha256_file(Path(source.file))}
        return _of_file(frame, source), facts
    if isinstance(source, GeneratedTexts):
        file = Path(str(texts))
        frame = tables.read(file, "generated texts", ["id", "text"], kind=GENERATED)
        about = tables.facts(file)
        facts = {name: about[name] for name in ("model", "revision")}
        return frame.itertuples(index=False, name=None), facts
    made: Any = texts or ()
    return of_texts(made), {}


def of_texts(texts: Iterable[str]) -> Texts:
    """Distinct texts, with ids that come from the texts: a text keeps its id in a longer list."""
    return ((sha256_text(text)[:16], text) for text in dict.fromkeys(texts))


def parts_of(source: Columns) -> list[tuple[str, str | None]]:
    """The parts of a prompt: a text, and the column that follows it."""
    if source.template is None:
        return [("", source.column)]
    return [(text, name) for text, name, _, _ in string.Formatter().parse(source.template)]


def columns_of(source: Columns) -> list[str]:
    """Columns that the prompts of a source are made of."""
    return [name for _, name in parts_of(source) if name]


def prompt_of(row: Mapping[str, Any], source: Columns) -> str:
    """Make the prompt of a row; empty if a column is null, or all of them are blank.

    Raises
    ------
    LayerwiseError
        If the row lacks a column, or it holds no text.
    """
    columns = columns_of(source)
    for name in columns:
        check_name("column", name, row)
        value = row[name]
        if not isinstance(value, str | None):
            shown = f"{type(value).__name__} {str(value)[:40]!r}"
            raise LayerwiseError(f"{name!r} holds {shown}, not text.", code="wrong_type")
    if any(row[name] is None for name in columns) or not any(row[n].strip() for n in columns):
        return ""
    return "".join(text + (row[name] if name else "") for text, name in parts_of(source))


def read_rows(path: Path) -> pd.DataFrame:
    """The rows of a user's file: parquet, JSON (lines), CSV, TSV, or text by lines.

    Every column of CSV is text; an empty field is missing, "NA" is not.

    Returns
    -------
    DataFrame
        Of Python's objects, None where a value is missing. Its index counts from 1; it is called
        ``line`` and counts lines as an editor does, or ``row`` where a file has no lines.

    Raises
    ------
    LayerwiseError
        If it is missing, damaged, of another kind, or has no rows.
    """
    if not is_file(path):
        near = closest(path.name, [p.name for p in path.parent.glob("*") if p.is_file()])
        raise LayerwiseError(
            f"There is no file {path}{near}; relative paths start at the current folder.",
            code="missing_file",
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise LayerwiseError(
            f"{path} is of no kind that is read here; accepted are {', '.join(READERS)}.",
            code="unreadable",
        )
    try:
        if reader is not READERS[".parquet"]:
            check_text(path)
        frame = reader(path)
    except (LayerwiseError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails in any of the libraries beneath
        raise LayerwiseError(
            f"{path} cannot be read ({first_line(error)}); check its format, and that it is "
            "UTF-8.",
            code="unreadable",
        ) from error
    if frame.empty:
        raise LayerwiseError(f"{path} has no rows.", code="too_few")
    return frame


def label_column(path: Path, rows: pd.DataFrame, name: str) -> pd.Series:
    """A column of a file's rows; of Parquet as categories, or names of classes, if it says so."""
    values = rows[name]
    if path.suffix.lower() != ".parquet":
        return values
    schema = pq.read_schema(path)
    of_pandas = (schema.pandas_metadata or {}).get("columns", ())
    if {"categorical"} == {c["pandas_type"] for c in of_pandas if c["name"] == name}:
        return values.astype("category")
    if b"huggingface" in (schema.metadata or {}):
        import datasets

        values = with_class_names(values, datasets.Features.from_arrow_schema(schema)[name])
    return values


def with_class_names(values: Any, feature: Any) -> Any:
    """The values of a column, as names where its feature is a `datasets.ClassLabel`.

    -1 is no class: test sets without labels have it.
    """
    import datasets

    if not isinstance(feature, datasets.ClassLabel):
        return values
    numbers = values if isinstance(values, pd.Series) else pd.Series(list(values), dtype=object)
    return numbers.map(lambda n: None if pd.isna(n) or n == -1 else feature.int2str(int(n)))


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        text = file.read()
    # A lone carriage return ends a line where no line ends otherwise.
    lines = text.split("\n" if "\n" in text else "\r")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def _frame(rows: Any, index: Sequence[int] = (), name: str = "row") -> pd.DataFrame:
    frame = pd.DataFrame(rows, dtype=object)  # Whole numbers stay exact beside missing ones.
    frame = frame.set_axis(pd.Index(index or range(1, len(frame) + 1), name=name))
    return frame.where(frame.notna(), None)


def _text_lines(path: Path) -> pd.DataFrame:
    return _frame({"text": _lines(path)}, name="line")


def _json_lines(path: Path) -> pd.DataFrame:
    # Not by pyarrow: a line such as "null" ends its process, and texts that look like dates become
    # times.
    lines = {n: line for n, line in enumerate(_lines(path), start=1) if line.strip()}
    return _frame([_json(line, f"line {n}: ") for n, line in lines.items()], [*lines], "line")


def _json(text: str, where: str = "") -> Any:
    """Parse JSON; refuse a key that is there twice, of which the last would count."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{where}the key {twice!r} is there twice")
        return found

    return json.loads(text, object_pairs_hook=once)


def _parquet(path: Path) -> pd.DataFrame:
    names = pq.read_schema(path).names
    for name in names:
        if names.count(name) > 1:
            raise LayerwiseError(f"{path} has two columns {name!r}; rename one.", code="duplicate")
    return _frame(pq.read_table(path).to_pylist())


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": _parquet,
    ".csv": delimited.read_texts,
    ".tsv": delimited.read_texts,
    ".txt": _text_lines,
    ".jsonl": _json_lines,
    ".json": lambda path: _frame(_json(path.read_text(encoding="utf-8-sig"))),
}
"""Readers of files, by their ending."""


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
        with own_cache(source.hub):
            data: Any = datasets.load_dataset(
                source.hub, source.name, split=source.split, revision=source.revision
            )
    except MemoryError:
        raise
    except Exception as error:  # the libraries raise many kinds of errors
        raise LayerwiseError(
            f"Could not load the {what}, split {source.split!r} ({first_line(error)}); check "
            "name, split and revision, or run `layerwise fetch` where the hub can be reached.",
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


@contextmanager
def own_cache(path: str) -> Iterator[None]:
    """Give `datasets` a separate cache for each content of a local folder; of the hub, nothing.

    It identifies a folder that has configs in its README.md by the folder's name and that README,
    and would return data of another folder of that name, or from before the files were replaced.
    """
    import datasets

    usual, folder = datasets.config.HF_DATASETS_CACHE, Path(path)
    if folder.is_dir():
        datasets.config.HF_DATASETS_CACHE = Path(usual, "layerwise", folder_sha256(folder)[:16])
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = usual


def _of_file(frame: pd.DataFrame, source: FileTexts) -> Texts:
    """(id, text) of each row of a file."""
    rows = [f"{source.file}, {frame.index.name} {number}" for number in frame.index]
    ids: list[Any] = list(range(len(frame)))
    if source.id is not None:
        check_name(f"column of {source.file}", source.id, frame)
        ids = frame[source.id].to_list()
    for row, name in zip(rows, ids, strict=True):
        if name is None:
            raise LayerwiseError(
                f"{row} has no id in the column {source.id!r}; fill it, or leave out `id` to "
                "number the rows.",
                code="missing",
            )
    texts = _prompts(zip(rows, frame.to_dict("records"), strict=True), source)
    return ((str(name), text) for name, text in zip(ids, texts, strict=True))


def _prompts(rows: Iterable[tuple[str, Mapping[Any, Any]]], source: Columns) -> Iterator[str]:
    """Make the prompts of rows with their places, and log how many lack a column's value."""
    n_lacking, place = 0, ""
    for place, row in rows:
        try:
            text = prompt_of(row, source)
        except LayerwiseError as error:
            raise LayerwiseError(f"{place}: {error}", code=error.code) from error
        n_lacking += any(row[name] is None for name in columns_of(source))
        yield text
    if n_lacking:
        where = place.rpartition(",")[0]
        log.warning("%s: left out %d rows in which a column is null", where, n_lacking)
