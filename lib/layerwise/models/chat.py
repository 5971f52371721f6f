"""Chats as a model reads them: written by the chat template of its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from layerwise.corpora.chat import load
from layerwise.errors import LayerwiseError, first_line
from layerwise.models.load import LoadedModel


def render(loaded: LoadedModel, texts: Iterable[str]) -> list[str]:
    """The texts that a model's chat template makes of messages, special tokens included.

    Parameters
    ----------
    texts : iterable of str
        Messages, as `layerwise.corpora.chat.dump` writes them.

    Raises
    ------
    LayerwiseError
        If the tokenizer has no chat template, or its template refuses messages (a role that it
        does not know, two of one speaker in a row).
    """
    from jinja2 import TemplateError

    if not loaded.tokenizer.chat_template:
        raise LayerwiseError(
            f"The tokenizer of {loaded.name!r} has no chat template, and the corpus holds chats; "
            "leave this model out of the studies of that corpus, or give the corpus a template "
            "in place of chat."
        )
    rendered = []
    for text in texts:
        try:
            made: str = loaded.tokenizer.apply_chat_template(load(text), tokenize=False)
        except (TemplateError, TypeError, ValueError) as error:
            raise LayerwiseError(
                f"The chat template of {loaded.name!r} refuses {text[:80]!r} "
                f"({first_line(error)}); give the corpus other roles, or leave this model out."
            ) from error
        rendered.append(made)
    return rendered


def without_own_tokens(loaded: LoadedModel) -> LoadedModel:
    """The same model, whose tokenizer adds no special tokens: a chat template writes them."""
    return replace(loaded, special_tokens=False)
