"""Chats as prompts: a corpus keeps the messages, and each model writes them in its own way.

The text of such a prompt is its messages as JSON, ``[{"role": "user", "content": "…"}, …]``, and
the corpus is marked ``format: chat``. What a model reads is made by the chat template of its
tokenizer (`layerwise.models.chat`), so that one corpus serves all models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

FORMAT = "chat"


def dump(messages: Iterable[Mapping[str, str]]) -> str:
    """Messages as the text of a prompt; equal messages give equal texts."""
    kept = [{"role": m["role"], "content": m["content"]} for m in messages]
    return json.dumps(kept, ensure_ascii=False)


def load(text: str) -> list[dict[str, str]]:
    """The messages of a prompt that `dump` wrote."""
    messages: list[dict[str, str]] = json.loads(text)
    return messages


def words(text: str) -> str:
    """What is said in a chat, without the roles and the JSON around it."""
    return "\n".join(message["content"] for message in load(text))


def each_content(text: str, change: Callable[[str], str]) -> str:
    """The chat with every content changed; roles, and contents that are blank, stay."""
    return dump(
        {**m, "content": change(m["content"]) if m["content"].strip() else m["content"]}
        for m in load(text)
    )
