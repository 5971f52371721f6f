"""Filters and a stable sample of the texts of a source, and properties of texts.

The paper (Skean et al. 2025, section on data) leaves out headings and texts of fewer than 30
tokens. Tokens are counted without a model, so a corpus is the same for all models.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from layerwise.config.corpora import Filters, Sample
from layerwise.errors import LayerwiseError
from layerwise.io.files import sha256_text

log = logging.getLogger(__name__)

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
