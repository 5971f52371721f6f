"""Which texts of a source become prompts: the paper's filters, and a sample that can grow.

The paper (Skean et al. 2025, section on data) leaves out headings and texts of fewer than 30
tokens. Tokens are counted without any model here, so that a corpus is the same for all models.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from layerwise.config.corpora import Filters, Sample
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_text
from layerwise.progress import Progress

log = logging.getLogger(__name__)

# Han and kana are written without spaces, so each character counts. Elsewhere a run of letters and
# digits is a word, and any other visible character counts as one.
TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
                   r"|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
                   r"|[^\w\s]")  # fmt: skip
HEADING = re.compile(r"(=(?: ?=)*)\s*[^=\s](?:.*[^=\s])?\s*(=(?: ?=)*)")
SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Selection:
    """The prompts in the order of the sample, and how many texts were left out for what."""

    prompt_ids: list[str]
    texts: list[str]
    n_tokens: list[int]
    counts: dict[str, int]
    """``read`` = ``blank`` + ``heading`` + ``short`` + ``long`` + ``duplicate`` + ``not_sampled``
    + ``kept``; besides, ``cut`` and ``mended`` count texts that were changed."""


def count_tokens(text: str) -> int:
    """Number of words and punctuation marks of a text, without any model.

    A word is a run of letters, digits and underscores; each other visible character counts as
    one, and so does each Han or kana character, since those scripts don't mark words. ``don't``
    counts three. Combining signs of Indic scripts count for themselves: there the count is an
    upper bound.
    """
    return sum(1 for _ in TOKEN.finditer(text))


def cut(text: str, max_tokens: int) -> str:
    """The beginning of a text that `count_tokens` counts as at most `max_tokens`."""
    for number, match in enumerate(TOKEN.finditer(text), start=1):
        if number == max_tokens:
            return text[: match.end()]
    return text


def is_heading(text: str) -> bool:
    """Whether the text is one line between the same number of equals signs on both sides."""
    found = HEADING.fullmatch(text.strip())
    return found is not None and found[1].count("=") == found[2].count("=")


def mend(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which is no character and has no UTF-8."""
    return SURROGATE.sub("\ufffd", text)


def select(
    items: Iterable[tuple[str, str]],
    filters: Filters,
    sample: Sample,
    total: int | None = None,
    words: Callable[[str], str] = str,
) -> Selection:
    """Choose the prompts among (id, text) pairs, in one pass.

    Outer whitespace is removed (nlpaug does the same to views) and lone surrogates are replaced
    (`mend`). All else stays: NUL, emoji, right-to-left and control characters.

    The sample is stable: every text has a key, the SHA-256 of the seed, the text and how often it
    came before; the `n` smallest keys are taken, in their order. So a larger `n` begins with the
    same prompts in the same order, texts added to a source displace few, and the order of the
    source does not matter.

    Parameters
    ----------
    total : int, optional
        How many texts will come, if known, for the progress bar.
    words : function
        What of a text is said in it, and counted; all by default.

    Raises
    ------
    LayerwiseError
        If no text is left; the message says why the others were left out.
    """
    counts: Counter[str] = Counter()
    kept = _keyed(_filtered(_counted(items, total), filters, counts, words), sample.seed)
    chosen = sorted(kept) if sample.n is None else heapq.nsmallest(sample.n, kept)
    counts["not_sampled"] = counts.pop("passed", 0) - len(chosen)
    counts["kept"] = len(chosen)
    order = ("read", "blank", "heading", "short", "long", "duplicate", "not_sampled", "kept",
             "cut", "mended")  # fmt: skip
    tally = {what: counts[what] for what in order}
    said = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in tally.items())
    if not chosen:
        raise LayerwiseError(
            f"No prompt is left of the {tally['read']} texts of this source ({said}) with the "
            f"filters {filters.plain()}; give another column or source, or lower min_tokens."
        )
    log.info("Prompts: %s", said)
    if sample.n is not None and len(chosen) < sample.n:
        log.warning("Only %d prompts are left; sample.n asks for %d", len(chosen), sample.n)
    _, prompt_ids, texts = (list(column) for column in zip(*chosen, strict=True))
    return Selection(prompt_ids, texts, [count_tokens(words(t)) for t in texts], tally)


def _counted(items: Iterable[tuple[str, str]], total: int | None) -> Iterator[tuple[str, str]]:
    if total is None:
        yield from items
        return
    with Progress(total, "reading texts", "texts") as progress:
        for item in items:
            yield item
            progress.update()


def _filtered(
    items: Iterable[tuple[str, str]],
    filters: Filters,
    counts: Counter[str],
    words: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    seen: set[bytes] = set()
    for prompt_id, raw in items:
        counts["read"] += 1
        text = mend(raw).strip()
        counts["mended"] += SURROGATE.search(raw) is not None
        if not text:
            counts["blank"] += 1
            continue
        if filters.drop_headings and is_heading(text):
            counts["heading"] += 1
            continue
        n_tokens = count_tokens(words(text))
        if n_tokens < filters.min_tokens:
            counts["short"] += 1
            continue
        if filters.max_tokens is not None and n_tokens > filters.max_tokens:
            if filters.longer == "drop":
                counts["long"] += 1
                continue
            text = cut(text, filters.max_tokens)
            counts["cut"] += 1
        if filters.drop_duplicates:
            digest = bytes.fromhex(sha256_text(text))
            if digest in seen:
                counts["duplicate"] += 1
                continue
            seen.add(digest)
        counts["passed"] += 1
        yield prompt_id, text


def in_drawn_order(ids: Sequence[str], seed: int) -> list[int]:
    """The places of ids in the order in which a sample takes them, which is stable as `select`'s
    is; each id stands for what it names."""
    return sorted(range(len(ids)), key=lambda i: sha256_text(str(seed), ids[i]))


def _keyed(items: Iterable[tuple[str, str]], seed: int) -> Iterator[tuple[str, str, str]]:
    times: Counter[bytes] = Counter()
    for prompt_id, text in items:
        digest = sha256_text(text)
        came_before = times[bytes.fromhex(digest)]
        times[bytes.fromhex(digest)] += 1
        yield sha256_text(str(seed), digest, str(came_before)), prompt_id, text
