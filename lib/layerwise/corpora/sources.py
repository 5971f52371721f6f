"""Sources of texts, read as (id, text) pairs, and the rows of users' files.

Data sets of the hub are loaded by ``datasets``. A new kind of source needs its section in
`layerwise.config.corpora` and its line in `open_texts`.

Filters and a stable sample of the texts of a source, and properties of texts.

The paper (Skean et al. 2025, section on data) leaves out headings and texts of fewer than 30
tokens. Tokens are counted without a model, so a corpus is the same for all models.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from layerwise.config.corpora import (
    Columns,
    FileTexts,
    Filters,
    GeneratedTexts,
    HubData,
    HubTexts,
    Sample,
    TextSource,
)
from layerwise.errors import LayerwiseError, check_name, closest, first_line
from layerwise.io import tables
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
    ".csv": tables.read_texts,
    ".tsv": tables.read_texts,
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


# Han and kana are written without spaces, so each character counts. Elsewhere a run of letters and
# digits is a word, and any other visible character counts as one.
TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
    r"|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
    r"|[^\w\s]"
)
HEADING = re.compile(r"(=(?: ?=)*)\s*[^=\s](?:.*[^=\s])?\s*(=(?: ?=)*)")
SURROGATE = re.compile(r"[\ud800-\udfff]")
COUNTS = ("read", "blank", "heading", "short", "long", "duplicate", "not_sampled", "kept", "cut")


def count_tokens(text: str) -> int:
    """Count words and punctuation marks.

    A run of letters, digits and underscores is a word; every other visible character counts as
    one, and so does each Han or kana character. ``don't`` counts three.

    >>> count_tokens("Two words.")
    3
    """
    return sum(1 for _ in TOKEN.finditer(text))


def cut(text: str, max_tokens: int) -> str:
    """Return the beginning of a text, of at most `max_tokens` tokens."""
    for number, match in enumerate(TOKEN.finditer(text), start=1):
        if number == max_tokens:
            return text[: match.end()]
    return text


def is_heading(text: str) -> bool:
    """Return True for one line between the same number of equals signs on both sides."""
    match = HEADING.fullmatch(text.strip())
    return match is not None and match[1].count("=") == match[2].count("=")


def select(
    texts: Iterable[tuple[str, str]], filters: Filters, sample: Sample
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Choose the prompts among (id, text) pairs, in one pass.

    Outer whitespace is removed, and U+FFFD replaces lone surrogates, which have no UTF-8.

    The sample is stable: every text has a key, the SHA-256 of the seed, the text and how often it
    came before, and the `n` smallest keys are taken, in their order. So a larger `n` begins with
    the same prompts, and the order of the source does not matter.

    Returns
    -------
    prompts : DataFrame
        Columns ``prompt_id``, ``text``, ``n_tokens``.
    counts : dict
        ``read`` = ``blank`` + ``heading`` + ``short`` + ``long`` + ``duplicate`` +
        ``not_sampled`` + ``kept``; ``cut`` counts texts that were shortened.

    Raises
    ------
    LayerwiseError
        If no text is left.
    """
    tally: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    keyed = _filtered(texts, filters, sample.seed, tally)
    chosen = sorted(keyed) if sample.n is None else heapq.nsmallest(sample.n, keyed)
    # So far, all that passed the filters are counted as not sampled.
    tally["kept"] = len(chosen)
    tally["not_sampled"] -= len(chosen)
    remedy = (
        f"the filters are {filters.plain()}; give another column or source, or lower min_tokens"
    )
    log_counts(tally, sample.n, remedy)
    prompts = pd.DataFrame(chosen, columns=["key", "prompt_id", "text"]).drop(columns="key")
    return prompts.assign(n_tokens=prompts["text"].map(count_tokens)), dict(tally)


def log_counts(counts: Mapping[str, int], asked: int | None, remedy: str) -> None:
    """Log the counts of a selection, with a warning if it has fewer than asked for.

    Raises
    ------
    LayerwiseError
        If nothing is left.
    """
    summary = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())
    if not counts["kept"]:
        raise LayerwiseError(f"No prompt is left ({summary}); {remedy}.", code="too_few")
    log.info("Prompts: %s", summary)
    if counts["kept"] < (asked or 0):
        log.warning("Only %d prompts are left; sample.n asks for %d", counts["kept"], asked)


def in_sample_order(ids: Sequence[str], seed: int) -> list[int]:
    """Places of ids in the order in which a stable sample takes them."""
    return sorted(range(len(ids)), key=lambda i: sha256_text(str(seed), ids[i]))


def _filtered(
    texts: Iterable[tuple[str, str]], filters: Filters, seed: int, tally: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Key, id and text of each text that passes the filters."""
    times: Counter[bytes] = Counter()
    for prompt_id, raw in texts:
        tally["read"] += 1
        text = SURROGATE.sub("\ufffd", raw).strip()
        n_tokens = count_tokens(text)
        if reason := _reason_to_drop(text, n_tokens, filters):
            tally[reason] += 1
            continue
        if filters.max_tokens is not None and n_tokens > filters.max_tokens:
            text = cut(text, filters.max_tokens)
            tally["cut"] += 1
        digest = sha256_text(text)
        came_before = times[bytes.fromhex(digest)]
        if came_before and filters.drop_duplicates:
            tally["duplicate"] += 1
            continue
        times[bytes.fromhex(digest)] += 1
        tally["not_sampled"] += 1
        yield sha256_text(str(seed), digest, str(came_before)), prompt_id, text


def _reason_to_drop(text: str, n_tokens: int, filters: Filters) -> str:
    if not text:
        return "blank"
    if filters.drop_headings and is_heading(text):
        return "heading"
    if n_tokens < filters.min_tokens:
        return "short"
    too_long = filters.max_tokens is not None and n_tokens > filters.max_tokens
    return "long" if too_long and filters.longer == "drop" else ""


WORD = re.compile(r"\w+(?:['’]\w+)*")
MARKUP = re.compile(r"[\[\]{}<>|=*_#@\\/~^`]|&\w+;")
# Commonest function words of English: running English text has 35 to 50 in 100 words of them.
_ENGLISH = """
    the of and to in a is that it was for on as with he be by at his are this from or had not
    but have they which an were their has been its who she her will more would when there if
    no can all we you i him them than into other so what up out about over after also one two
    """
ENGLISH = frozenset(_ENGLISH.split())

# Property: what it is, for people.
LABELS = {
    "words": "number of words",
    "type_token": "type-token ratio",
    "repetition": "repeated pairs of words",
    "first_word": "commonness of the first word",
    "english": "English function words",
    "not_ascii": "letters beyond ASCII",
    "markup": "characters of markup",
    "digits": "digits",
    "capitals": "words with a capital",
}


def properties(texts: Sequence[str]) -> pd.DataFrame:
    """Properties of each text; shares are of 0 to 1, and 0 for a text without words.

    Returns
    -------
    DataFrame
        A row a text; columns `LABELS`: ``words``, a number; ``type_token``, distinct words over
        words; ``repetition``, share of neighbouring pairs of words that came before in the text;
        ``first_word``, log of how many of the texts begin with the same word; the rest shares of
        words or of characters.
    """
    words = [WORD.findall(t) for t in texts]
    folded = [[w.casefold() for w in ws] for ws in words]
    first = Counter(ws[0] for ws in folded if ws)
    return pd.DataFrame(
        {
            "words": [len(ws) for ws in words],
            "type_token": [len(set(ws)) / max(1, len(ws)) for ws in folded],
            "repetition": [_repeated(ws) for ws in folded],
            "first_word": [float(np.log(first[ws[0]])) if ws else 0.0 for ws in folded],
            "english": [sum(w in ENGLISH for w in ws) / max(1, len(ws)) for ws in folded],
            "not_ascii": [_share(t, lambda c: c.isalpha() and not c.isascii()) for t in texts],
            "markup": [len(MARKUP.findall(t)) / max(1, len(t)) for t in texts],
            "digits": [_share(t, str.isdigit) for t in texts],
            "capitals": [sum(w[0].isupper() for w in ws) / max(1, len(ws)) for ws in words],
        }
    )


def _repeated(words: Sequence[str]) -> float:
    pairs = list(pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _share(text: str, of: Callable[[str], bool]) -> float:
    return sum(map(of, text)) / max(1, len(text))
