"""The corpus and its views: what is in the files, and how they are written and read.

``results/corpora/{corpus}.parquet``
    ``prompt_id`` (unique), ``text``, ``n_tokens`` (words and punctuation marks, counted without
    any model: `layerwise.corpora.filters.count_tokens`), one row a prompt. With the metadata
    ``format: chat`` the texts are messages (`layerwise.corpora.chat`).
``results/corpora/{corpus}.views.parquet``
    ``prompt_id``, ``view`` (1 … V), ``text``, one row a prompt and view. View 0, the prompt
    itself, is in the corpus and not repeated here.

The views name the SHA-256 of the prompts that they were made of, ids and texts in order, so that
they are never read with another corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from layerwise import tables
from layerwise.corpora import chat
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.tables import Kind

CORPUS = Kind("layerwise.corpus", 2)
VIEWS = Kind("layerwise.views", 2)


@dataclass(frozen=True)
class Corpus:
    """Prompts with ids.

    Raises
    ------
    LayerwiseError
        If there is no prompt, ids are not unique, or an id or text cannot be stored.
    """

    name: str
    prompt_ids: list[str]
    texts: list[str]
    n_tokens: list[int]
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The file's metadata: source, filters, sample, counts, versions, command; JSON or text."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise LayerwiseError(f"The corpus {self.name!r} has no prompt.")
        if not len(self.prompt_ids) == len(self.texts) == len(self.n_tokens):
            raise LayerwiseError(
                f"The corpus {self.name!r} has {len(self.prompt_ids)} ids, {len(self.texts)} "
                f"texts and {len(self.n_tokens)} token counts; each prompt needs one of each."
            )
        most_common, times = Counter(self.prompt_ids).most_common(1)[0]
        if times > 1:
            raise LayerwiseError(
                f"The prompt id {most_common!r} occurs {times} times in the corpus {self.name!r}; "
                "ids must be unique: give another id column, or none to number the prompts."
            )
        for prompt_id, text in zip(self.prompt_ids, self.texts, strict=True):
            if not prompt_id or "\0" in prompt_id or not _is_unicode(prompt_id):
                raise LayerwiseError(
                    f"{prompt_id!r} cannot be a prompt id in the corpus {self.name!r}: it is "
                    "empty or holds a NUL or half a character; give another id column."
                )
            if not _is_unicode(text):
                raise LayerwiseError(
                    f"The prompt {prompt_id!r} of the corpus {self.name!r} holds a lone "
                    "surrogate, which is no character; layerwise.corpora.filters.mend replaces it."
                )

    @property
    def is_chat(self) -> bool:
        """Whether the texts are messages, as `layerwise.corpora.chat` writes them."""
        return self.attributes.get("format") == chat.FORMAT

    @cached_property
    def hash(self) -> str:
        """SHA-256 of ids and texts, in order. Name and attributes don't count."""
        return sha256_text(*self.prompt_ids, *self.texts)

    def __len__(self) -> int:
        return len(self.prompt_ids)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_corpus(
    path: Path,
    corpus: Corpus,
    **facts: Any,
) -> None:
    """Write a corpus.

    Parameters
    ----------
    **facts
        How it was made (source, filters, sample, counts; key and recipe of the job), kept in the
        metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    import pyarrow as pa

    columns = {
        "prompt_id": pa.array(corpus.prompt_ids, pa.large_string()),
        "text": pa.array(corpus.texts, pa.large_string()),
        "n_tokens": pa.array(corpus.n_tokens, pa.int64()),
    }
    facts |= {"corpus": corpus.name, "hash": corpus.hash, "n": len(corpus)}
    tables.write(path, pa.table(columns), kind=CORPUS, **facts)


def read_corpus(path: Path) -> Corpus:
    """Read a corpus.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, edited, or of another kind or version.
    """
    frame = tables.read(path, "prompts", ["prompt_id", "text", "n_tokens"], kind=CORPUS)
    ids, texts, n_tokens = (frame[name].to_list() for name in frame)
    facts = tables.facts(path)
    return Corpus(facts["corpus"], ids, texts, n_tokens, facts)


def write_views(
    path: Path,
    corpus: Corpus,
    views: Sequence[Sequence[str] | None],
    n_views: int,
    **facts: Any,
) -> None:
    """Write the views of a corpus.

    Parameters
    ----------
    views : sequence
        Per prompt, in the corpus' order, its `n_views` texts; None where a prompt was dropped.
    **facts
        How they were made (settings; key and recipe of the job), kept in the metadata.

    Raises
    ------
    LayerwiseError
        If a prompt has another number of views, all were dropped, or the folder cannot be written.
    """
    import pyarrow as pa

    kept = [(p, m) for p, m in zip(corpus.prompt_ids, views, strict=True) if m is not None]
    if not kept:
        raise LayerwiseError(f"Not one prompt of {corpus.name!r} could be augmented.")
    for prompt_id, made in kept:
        if len(made) != n_views:
            raise LayerwiseError(
                f"The prompt {prompt_id!r} has {len(made)} views, {n_views} were wanted."
            )
    rows = [(p, v, text) for p, made in kept for v, text in enumerate(made, start=1)]
    ids, numbers, texts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "prompt_id": pa.array(ids, pa.large_string()),
        "view": pa.array(numbers, pa.int64()),
        "text": pa.array(texts, pa.large_string()),
    }
    facts |= {
        "corpus": corpus.name,
        "corpus_hash": corpus.hash,
        "n_views": n_views,
        "n_dropped": len(corpus) - len(kept),
    }
    tables.write(path, pa.table(columns), kind=VIEWS, **facts)


def read_prompts(path: Path, views_path: Path | None = None) -> tuple[Corpus, list[list[str]]]:
    """Read a corpus with its views, without the prompts that views could not be made of.

    Returns
    -------
    corpus : Corpus
        The corpus, or what is left of it; its hash is that of the prompts left.
    views : list of list of str
        Shape [V][N] in the order of ``corpus.prompt_ids``; empty without `views_path`.

    Raises
    ------
    LayerwiseError
        If a file is missing, damaged, edited, or of another kind or version, or the views are of
        another corpus.
    """
    corpus = read_corpus(path)
    if views_path is None:
        return corpus, []
    frame = tables.read(views_path, "views", ["prompt_id", "text"], kind=VIEWS)
    facts = tables.facts(views_path)
    if facts["corpus_hash"] != corpus.hash:
        raise LayerwiseError(
            f"{views_path} holds views of other prompts (corpus {facts['corpus']!r}, hash "
            f"{facts['corpus_hash'][:12]}) than those of {corpus.name!r} (hash "
            f"{corpus.hash[:12]}); {tables.REMEDY}"
        )
    n_views = int(facts["n_views"])
    by_prompt: dict[str, list[str]] = {}
    for prompt_id, text in zip(frame["prompt_id"], frame["text"], strict=True):
        by_prompt.setdefault(prompt_id, []).append(text)
    # With no views wanted, no prompt can have been dropped.
    kept = [i for i, p in enumerate(corpus.prompt_ids) if p in by_prompt or not n_views]
    if len(kept) < len(corpus):
        corpus = Corpus(
            corpus.name,
            [corpus.prompt_ids[i] for i in kept],
            [corpus.texts[i] for i in kept],
            [corpus.n_tokens[i] for i in kept],
            corpus.attributes,
        )
    return corpus, [[by_prompt[p][v] for p in corpus.prompt_ids] for v in range(n_views)]
