"""How a row of a table becomes a prompt: one column, a template over several, or a chat."""

from __future__ import annotations

import logging
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerwise.corpora.chat import dump
from layerwise.errors import LayerwiseError, closest, listed

if TYPE_CHECKING:
    from layerwise.config.corpora import Columns

log = logging.getLogger(__name__)

Row = Mapping[str, Any]


def parts_of(template: str) -> list[tuple[str, str | None]]:
    """A template's pieces: text, and the column that follows it, if one does.

    Raises
    ------
    ValueError
        If a brace stands alone, something else than a column stands in braces, or none does.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"{str(error)[0].lower()}{str(error)[1:]}; accepted are columns in braces, such as "
            "{question}; {{ and }} are braces of the text itself"
        ) from error
    for _, name, form, conversion in pieces:
        if name == "" or form or conversion:
            raise ValueError(
                "accepted in braces is the name of a column and nothing else, such as {question}"
            )
    if all(name is None for _, name, _, _ in pieces):
        raise ValueError("it names no column; accepted is a text such as 'Q: {question}'")
    return [(text, name) for text, name, _, _ in pieces]


class Prompts:
    """Makes the prompt of a row.

    Parameters
    ----------
    column : str
        Holds the text, unless one of the others is given.
    template : str, optional
        Text with columns in braces.
    chat : str or sequence of Turn, optional
        The column that holds messages, or the messages, with columns in braces.

    Attributes
    ----------
    columns : tuple of str
        Those that it reads.
    is_chat : bool
        Whether prompts are messages (`layerwise.corpora.chat`).
    is_default : bool
        Whether the column ``text`` is the prompt, as nothing else was asked for.
    """

    def __init__(
        self,
        column: str = "text",
        template: str | None = None,
        chat: str | Sequence[Any] | None = None,
    ) -> None:
        self.is_chat = chat is not None
        self.is_default = (column, template, chat) == ("text", None, None)
        self._messages_in = chat if isinstance(chat, str) else None
        turns = [] if chat is None or isinstance(chat, str) else list(chat)
        self._roles = [turn.role for turn in turns]
        filled = [turn.content for turn in turns] or ([template] if template else [])
        self._templates = [parts_of(one) for one in filled]
        named = [name for parts in self._templates for _, name in parts if name is not None]
        self.columns = tuple(dict.fromkeys(named)) or (self._messages_in or column,)
        self._missing: Counter[str] = Counter()

    @classmethod
    def of_source(cls, source: Columns) -> Prompts:
        """As a source of the config says."""
        return cls(source.column, source.template)

    def of(self, row: Row, where: str) -> str:
        """The prompt of a row that has all `columns`; empty if one of them holds nothing (null),
        or all are blank.

        Raises
        ------
        LayerwiseError
            If a column holds something else than text, or than messages.
        """
        absent = [name for name in self.columns if row[name] is None]
        self._missing.update(absent)
        if absent:
            return ""
        if self._messages_in is not None:
            return self._messages(row[self._messages_in], where)
        texts = {name: _text(row[name], name, where) for name in self.columns}
        if not self._templates:
            return texts[self.columns[0]]
        if not any(text.strip() for text in texts.values()):
            return ""
        filled = [
            "".join(literal + texts.get(name or "", "") for literal, name in parts)
            for parts in self._templates
        ]
        if not self.is_chat:
            return filled[0]
        pairs = zip(self._roles, filled, strict=True)
        return dump({"role": role, "content": content} for role, content in pairs)

    def told(self, pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """The pairs, and after the last a word in the log on rows that lack something."""
        yield from pairs
        if self._missing:
            log.warning(
                "Left out as blank, since a column holds nothing (null): %s",
                ", ".join(f"{number} rows without {name!r}"
                          for name, number in self._missing.items()),
            )  # fmt: skip

    def _messages(self, value: Any, where: str) -> str:
        column = self._messages_in
        known = isinstance(value, list) and all(
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and "content" in m
            for m in value
        )
        if not known:
            raise LayerwiseError(
                f"{where}: {column!r} holds {type(value).__name__} {str(value)[:40]!r}, not "
                "messages; accepted is a list of objects with the keys role and content."
            )
        if any(m["content"] is None for m in value):
            self._missing[f"{column}: content"] += 1
            return ""
        if not any(_text(m["content"], f"{column}: content", where).strip() for m in value):
            return ""
        return dump(value)


def _text(value: object, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise LayerwiseError(
            f"{where}: {column!r} holds {type(value).__name__} {str(value)[:40]!r}, not text; "
            "give the column that holds the text."
        )
    return value


def no_column(name: str, known: Any, where: str) -> LayerwiseError:
    """The error for a column that a table does not have."""
    names = [str(k) for k in known]
    return LayerwiseError(
        f"{where}: there is no column {name!r}{closest(name, names)}; there are {listed(names)}."
    )
