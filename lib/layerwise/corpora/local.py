"""Texts from local files: parquet, JSON lines, plain text with one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from layerwise.config.corpora import SUFFIXES
from layerwise.corpora.rows import Prompts, no_column
from layerwise.errors import LayerwiseError, closest, first_line
from layerwise.files import is_file, is_folder

T = TypeVar("T")

LINES, JSON_LINES = (".txt",), (".jsonl", ".ndjson")


def read_file(path: Path, prompts: Prompts | None = None, id_column: str | None = None) -> Rows:
    """The texts of a file, each with its id.

    Parameters
    ----------
    path : Path
        ``.parquet``; ``.jsonl`` or ``.ndjson`` (one JSON object a line); or ``.txt`` (one prompt a
        line). Text is UTF-8, with or without a byte order mark.
    prompts : Prompts, optional
        How a row becomes a prompt; by default the column or key ``text`` is it. Plain text has no
        columns.
    id_column : str, optional
        Column or key that holds the id, a string or whole number; by default a prompt's id is the
        number of its row or line, from 0.

    Raises
    ------
    LayerwiseError
        If the file is missing, a folder, empty, of another kind, not UTF-8, not JSON or parquet,
        or lacks the column; while reading, if a text is no text or an id no id.
    """
    path = Path(path)
    prompts = prompts or Prompts()
    kind = path.suffix.lower()
    if is_folder(path):
        raise LayerwiseError(f"{path} is a folder; name a file in it ({', '.join(SUFFIXES)}).")
    if not is_file(path):
        near = closest(path.name, [p.name for p in path.parent.glob("*")])
        raise LayerwiseError(f"There is no file {path}{near}; paths count from where you run.")
    try:
        with path.open("rb") as handle:
            empty = not handle.read(1)
    except OSError as error:
        raise LayerwiseError(
            f"{path} cannot be read ({error.strerror}); mend its permissions."
        ) from error
    if empty:
        raise LayerwiseError(f"{path} is empty.")
    if kind in LINES:
        if id_column is not None or not prompts.is_default:
            raise LayerwiseError(
                f"{path} is plain text and has no columns; leave out 'column', 'template', 'chat' "
                "and 'id', or give JSON lines or parquet."
            )
        return Rows(None, ((str(n), line) for n, line in _lines(path)))
    if kind in JSON_LINES:
        return Rows(None, _json_rows(path, prompts, id_column))
    return _parquet_rows(path, prompts, id_column)


class Rows(Iterator[tuple[str, str]]):
    """(id, text) pairs, to be read once.

    Attributes
    ----------
    total : how many there will be, or None if that is not known
    facts : what to remember of where they came from, besides the source's own settings
    words : what of a text is said in it; all but for chats
    """

    def __init__(
        self,
        total: int | None,
        pairs: Iterator[tuple[str, str]],
        facts: Mapping[str, str] | None = None,
        words: Callable[[str], str] = str,
    ) -> None:
        self.total = total
        self.words = words
        self.facts = dict(facts or {})
        self._pairs = pairs

    def __next__(self) -> tuple[str, str]:
        return next(self._pairs)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    # Split at line feeds alone: U+2028 and the like are part of a prompt.
    with path.open("rb") as handle:
        for number, raw in enumerate(handle):
            try:
                text = raw.decode("utf-8-sig" if number == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise LayerwiseError(
                    f"{path} is not UTF-8: line {number + 1} has the byte "
                    f"0x{raw[error.start]:02x} in place {error.start + 1}; convert it, for "
                    "example by iconv -f ISO-8859-1 -t UTF-8."
                ) from error
            yield number, text.removesuffix("\n").removesuffix("\r")


def _json_rows(path: Path, prompts: Prompts, id_column: str | None) -> Iterator[tuple[str, str]]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number + 1}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LayerwiseError(
                f"{where}: not JSON ({first_line(error)}); JSON lines have one whole object each."
            ) from error
        if not isinstance(row, dict):
            raise LayerwiseError(
                f"{where}: a {type(row).__name__}, not an object such as "
                f'{{"{prompts.columns[0]}": "…"}}.'
            )
        yield _pair(row, prompts, id_column, number, where)


def _parquet_rows(path: Path, prompts: Prompts, id_column: str | None) -> Rows:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    wanted = list(dict.fromkeys((*prompts.columns, *([id_column] if id_column else []))))
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LayerwiseError(
            f"{path} is cut off or no parquet file ({first_line(error)})."
        ) from error
    for name in wanted:
        if name not in names:
            file.close()
            raise no_column(name, names, str(path))

    def pairs() -> Iterator[tuple[str, str]]:
        number = 0
        with file:
            batches = until_damage(
                (batch.to_pylist() for batch in file.iter_batches(columns=wanted)), str(path)
            )
            for rows in batches:
                for row in rows:
                    yield _pair(row, prompts, id_column, number, f"{path}, row {number}")
                    number += 1

    return Rows(file.metadata.num_rows, pairs())


def until_damage(parts: Iterable[T], what: str) -> Iterator[T]:
    """The parts of a file that is read piece by piece.

    Raises
    ------
    LayerwiseError
        Where the next one cannot be read, whatever the library has to say.
    """
    whole = iter(parts)
    while True:
        try:
            part = next(whole)
        except StopIteration:
            return
        except MemoryError:
            raise
        except Exception as error:
            raise LayerwiseError(
                f"{what} is damaged ({first_line(error)}); fetch or copy it again."
            ) from error
        yield part


def _pair(
    row: Mapping[str, Any], prompts: Prompts, id_column: str | None, number: int, where: str
) -> tuple[str, str]:
    for name in (*prompts.columns, id_column):
        if name is not None and name not in row:
            raise no_column(name, row, where)
    prompt_id = number if id_column is None else row[id_column]
    if isinstance(prompt_id, bool) or not isinstance(prompt_id, str | int):
        raise LayerwiseError(
            f"{where}: the id in {id_column!r} is {prompt_id!r}; accepted are strings and whole "
            "numbers."
        )
    return str(prompt_id), prompts.of(row, where)
