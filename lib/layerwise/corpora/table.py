"""The corpus and its views: what is in the files, and the one way to write and read them.

``results/corpora/{corpus}.parquet``
    ``prompt_id`` (unique), ``text``, ``n_tokens`` (words and punctuation marks, counted without
    any model: `layerwise.corpora.filters.count_tokens`), one row a prompt.
``results/corpora/{corpus}.views.parquet``
    ``prompt_id``, ``view`` (1 … V), ``text``, one row a prompt and view. View 0, the prompt
    itself, is in the corpus and not repeated here.

Each file carries the SHA-256 of the prompts, ids and texts in order; it is computed again on
reading, so that an edited file is found out and views are never read with another corpus.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from layerwise.corpora import parquet
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text

CORPUS_SCHEMA, CORPUS_VERSION = "layerwise.corpus", 1
VIEWS_SCHEMA, VIEWS_VERSION = "layerwise.views", 1
CORPUS_COLUMNS = {"prompt_id": "large_string", "text": "large_string", "n_tokens": "int64"}


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


def write_corpus(path: Path, corpus: Corpus, facts: Mapping[str, Any] | None = None) -> None:
    """Write a corpus.

    Parameters
    ----------
    facts : mapping, optional
        How it was made (source, filters, sample, counts), kept in the metadata.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    parquet.write(
        path,
        CORPUS_SCHEMA,
        CORPUS_VERSION,
        {
            "prompt_id": ("large_string", corpus.prompt_ids),
            "text": ("large_string", corpus.texts),
            "n_tokens": ("int64", corpus.n_tokens),
        },
        {**(facts or {}), "corpus": corpus.name, "hash": corpus.hash, "n": len(corpus)},
    )


def read_corpus(path: Path) -> Corpus:
    """Read a corpus.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, foreign, of another version, or was edited.
    """
    columns, metadata = parquet.read(
        path, CORPUS_SCHEMA, CORPUS_VERSION, CORPUS_COLUMNS, ("corpus", "hash")
    )
    corpus = Corpus(
        metadata["corpus"], columns["prompt_id"], columns["text"], columns["n_tokens"], metadata
    )
    if corpus.hash != metadata["hash"]:
        raise LayerwiseError(
            f"The prompts in {path} are not those it was written with (their hash differs); "
            + parquet.REMEDY
        )
    return corpus


def write_views(
    path: Path,
    corpus: Corpus,
    views: Sequence[Sequence[str] | None],
    n_views: int,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write the views of a corpus.

    Parameters
    ----------
    views : sequence
        Per prompt, in the corpus' order, its `n_views` texts; None where a prompt was dropped.
    facts : mapping, optional
        How they were made, kept in the metadata.

    Raises
    ------
    LayerwiseError
        If a prompt has another number of views, all were dropped, or the folder cannot be written.
    """
    if len(views) != len(corpus):
        raise LayerwiseError(
            f"There are views of {len(views)} prompts, but {corpus.name!r} has {len(corpus)}."
        )
    ids: list[str] = []
    texts: list[str] = []
    dropped = 0
    for prompt_id, made in zip(corpus.prompt_ids, views, strict=True):
        if made is None:
            dropped += 1
            continue
        if len(made) != n_views:
            raise LayerwiseError(
                f"The prompt {prompt_id!r} has {len(made)} views, {n_views} were wanted."
            )
        ids.extend([prompt_id] * n_views)
        texts.extend(made)
    if dropped == len(corpus):
        raise LayerwiseError(f"Not one prompt of {corpus.name!r} could be augmented.")
    parquet.write(
        path,
        VIEWS_SCHEMA,
        VIEWS_VERSION,
        {
            "prompt_id": ("large_string", ids),
            "view": ("int64", list(range(1, n_views + 1)) * (len(corpus) - dropped)),
            "text": ("large_string", texts),
        },
        {
            **(facts or {}),
            "corpus": corpus.name,
            "corpus_hash": corpus.hash,
            "hash": sha256_text(*ids, *texts),
            "n_views": n_views,
            "n_dropped": dropped,
        },
    )


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
        If a file is missing, damaged, foreign or of another version, or the views are of another
        corpus.
    """
    corpus = read_corpus(path)
    if views_path is None:
        return corpus, []
    by_prompt, n_views = _views_by_prompt(views_path, corpus)
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


def read_views(path: Path, corpus: Corpus) -> list[list[str]]:
    """Read the views of a corpus, of every prompt of it.

    Returns
    -------
    list of list of str
        Shape [V][N] in the order of ``corpus.prompt_ids``; view v is entry v - 1.

    Raises
    ------
    LayerwiseError
        If the file is missing, damaged, foreign, of another version or of another corpus, or if
        prompts were dropped in making it.
    """
    by_prompt, n_views = _views_by_prompt(path, corpus)
    missing = [p for p in corpus.prompt_ids if p not in by_prompt] if n_views else []
    if missing:
        raise LayerwiseError(
            f"{path} has no views of {len(missing)} of {len(corpus)} prompts ({missing[0]!r} for "
            "one), which were dropped; read it by read_prompts, which leaves them out everywhere."
        )
    return [[by_prompt[p][v] for p in corpus.prompt_ids] for v in range(n_views)]


def _views_by_prompt(path: Path, corpus: Corpus) -> tuple[dict[str, list[str]], int]:
    columns, metadata = parquet.read(
        path,
        VIEWS_SCHEMA,
        VIEWS_VERSION,
        {"prompt_id": "large_string", "text": "large_string"},
        ("corpus", "corpus_hash", "hash", "n_views"),
    )
    if metadata["corpus_hash"] != corpus.hash:
        raise LayerwiseError(
            f"{path} holds views of other prompts (corpus {metadata['corpus']!r}, hash "
            f"{metadata['corpus_hash'][:12]}) than those of {corpus.name!r} (hash "
            f"{corpus.hash[:12]}); {parquet.REMEDY}"
        )
    if sha256_text(*columns["prompt_id"], *columns["text"]) != metadata["hash"]:
        raise LayerwiseError(
            f"The views in {path} are not those it was written with (their hash differs); "
            + parquet.REMEDY
        )
    by_prompt: dict[str, list[str]] = {}
    for prompt_id, text in zip(columns["prompt_id"], columns["text"], strict=True):
        by_prompt.setdefault(prompt_id, []).append(text)
    return by_prompt, int(json.loads(metadata["n_views"]))
