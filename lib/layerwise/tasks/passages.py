"""Short passages of Wikipedia articles, and the three tasks made from them.

Wikipedia's own structure is the label: which article a passage comes from. All three tasks
share the same passages, so a model reads few texts.

Everything is chosen by hashes of the texts, not by a random state. So the same articles give the
same tasks on every machine, and one paragraph more or less changes little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import pandas as pd

from layerwise.corpora.wikipedia import Paragraph, sentences_of
from layerwise.io.files import sha256_text

T = TypeVar("T")

ARTICLES = 12
PASSAGES_PER_ARTICLE = 8
WORDS = (12, 30)
CLUSTERING_SETS = 10
ARTICLES_PER_SET = 8
POSITIVES_PER_PASSAGE = 2
NEGATIVES_PER_POSITIVE = 2
CANDIDATES = 20
POSITIVE_CANDIDATES = 3


class Passage(NamedTuple):
    """A passage: its id, the title of its article, its text."""

    id: str
    article: str
    text: str

    def __str__(self) -> str:
        return self.text


def opening(paragraph: str) -> str | None:
    """The first sentences of a paragraph that fit `WORDS` (fewest, most).

    None if the first is too long, or all together are too short.
    """
    taken: list[str] = []
    for sentence in sentences_of(paragraph):
        if len(" ".join([*taken, sentence]).split()) > WORDS[1]:
            break
        taken.append(sentence)
    text = " ".join(taken)
    whole = text.endswith((".", "!", "?", '."', '?"', ".”"))
    return text if whole and len(text.split()) >= WORDS[0] else None


def passages(paragraphs: Sequence[Paragraph]) -> list[Passage]:
    """Choose `ARTICLES` articles and `PASSAGES_PER_ARTICLE` passages of each.

    Parameters
    ----------
    paragraphs : sequence of Paragraph
        Of Wikipedia articles.

    Returns
    -------
    list of Passage
        All texts distinct; an article's passages stand together.
    """
    articles: dict[str, list[str]] = {}
    seen: set[str] = set()
    for paragraph in paragraphs:
        text = opening(paragraph.text)
        if text is not None and text not in seen:
            seen.add(text)
            articles.setdefault(paragraph.title, []).append(text)
    eligible = [title for title, texts in articles.items() if len(texts) >= PASSAGES_PER_ARTICLE]
    chosen = [
        (title, text)
        for title in shuffled(eligible, "article")[:ARTICLES]
        for text in shuffled(articles[title], "passage")[:PASSAGES_PER_ARTICLE]
    ]
    return [Passage(f"p{i:03d}", title, text) for i, (title, text) in enumerate(chosen)]


def clustering(chosen: list[Passage]) -> pd.DataFrame:
    """Sets of passages to be clustered by article, in mteb's schema for clustering.

    Each of `CLUSTERING_SETS` sets has all passages of `ARTICLES_PER_SET` articles.

    Returns
    -------
    DataFrame
        Columns sentences (list of str) and labels (list of str), one row a set.
    """
    titles = sorted({p.article for p in chosen})
    rows = []
    for number in map(str, range(CLUSTERING_SETS)):
        kept = shuffled(titles, "set", number)[:ARTICLES_PER_SET]
        own = shuffled([p for p in chosen if p.article in kept], "in set", number)
        rows.append(([p.text for p in own], [p.article for p in own]))
    return pd.DataFrame(rows, columns=["sentences", "labels"])


def pairs(chosen: list[Passage]) -> pd.DataFrame:
    """Pairs of passages: of one article (1) or of two (0), in mteb's schema for pairs.

    Returns
    -------
    DataFrame
        Columns sentence1, sentence2, labels; every unordered pair at most once.
    """
    taken: set[frozenset[str]] = set()
    rows: list[tuple[str, str, int]] = []
    for one in chosen:
        ranked = shuffled([p for p in chosen if p != one], "pair", one.text)
        for label, wanted in (
            (1, POSITIVES_PER_PASSAGE),
            (0, POSITIVES_PER_PASSAGE * NEGATIVES_PER_POSITIVE),
        ):
            alike = [p for p in ranked if (p.article == one.article) == label]
            fresh = [p for p in alike if frozenset((p.id, one.id)) not in taken][:wanted]
            taken |= {frozenset((p.id, one.id)) for p in fresh}
            rows += [(one.text, p.text, label) for p in fresh]
    rows = shuffled(rows, "row", text=lambda row: row[0] + row[1])
    return pd.DataFrame(rows, columns=["sentence1", "sentence2", "labels"])


def reranking(chosen: list[Passage]) -> dict[str, pd.DataFrame]:
    """Each passage as a query; candidates of the same article are relevant.

    Every query has `CANDIDATES` candidates, `POSITIVE_CANDIDATES` of them relevant.

    Returns
    -------
    dict
        mteb's four tables of a reranking task: ``queries``, ``corpus``, ``default`` (the
        relevance judgements) and ``top_ranked``.
    """
    judged, candidates = [], []
    for one in chosen:
        query = f"q-{one.id}"
        order = shuffled([p for p in chosen if p != one], "candidate", one.text)
        own = [p for p in order if p.article == one.article][:POSITIVE_CANDIDATES]
        rest = [p for p in order if p.article != one.article][: CANDIDATES - len(own)]
        listed = [p for p in order if p in own or p in rest]
        candidates.append({"query-id": query, "corpus-ids": [p.id for p in listed]})
        judged += [
            {"query-id": query, "corpus-id": p.id, "score": int(p.article == one.article)}
            for p in listed
        ]
    return {
        "queries": pd.DataFrame([(f"q-{p.id}", p.text) for p in chosen], columns=["_id", "text"]),
        "corpus": pd.DataFrame([(p.id, p.text) for p in chosen], columns=["_id", "text"]),
        "default": pd.DataFrame(judged),
        "top_ranked": pd.DataFrame(candidates),
    }


def shuffled(items: Iterable[T], *seed: str, text: Callable[[T], str] = str) -> list[T]:
    """Items in an order that looks random but is always the same: by hash."""
    return sorted(items, key=lambda item: sha256_text(*seed, text(item)))
