"""The data of the quickstart's five tasks, one of each type, as MTEB task folders.

========================== ================== =================================================
PangLeePolarity            Classification     200 film review sentences, positive or negative
                                              (Pang & Lee 2005); 10-fold cross-validation
WikipediaArticleClustering Clustering         which article a passage belongs to
WikipediaArticlePairs      PairClassification are two passages of the same article
WikipediaArticleReranking  Reranking          a passage as query, passages of its article first
LeeNewsSimilarity          STS                50 news texts, all 1,225 pairs, mean similarity as
                                              judged by people (Lee, Pincombe & Welsh 2005)
========================== ================== =================================================

The first and the last come from files in the package gensim, the others from the Wikipedia
slice in it: which article a passage comes from is its label. The three share the passages, so a
model reads few texts. All is chosen by hashes of the texts, not by a random state: the same
articles give the same tasks on every machine.

The folders have MTEB's own parquet schema. The same data are the same bytes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
import yaml

from layerwise.io.files import replacing, sha256_text
from quickstart.wikipedia import Paragraph, gensim_file, sentences_of

log = logging.getLogger(__name__)

T = TypeVar("T")

TYPES = {
    "PangLeePolarity": "Classification",
    "WikipediaArticleClustering": "Clustering",
    "WikipediaArticlePairs": "PairClassification",
    "WikipediaArticleReranking": "Reranking",
    "LeeNewsSimilarity": "STS",
}
"""mteb's type of each task."""

# The news texts of Lee, Pincombe and Welsh (2005), one a line. lee.cor has a Latin-1 pound sign.
NEWS = {"lee": "latin-1", "lee_background": "utf-8"}

ARTICLES = 12
PASSAGES_PER_ARTICLE = 8
WORDS = (12, 30)
CLUSTERING_SETS = 10
ARTICLES_PER_SET = 8
POSITIVES_PER_PASSAGE = 2
NEGATIVES_PER_POSITIVE = 2
CANDIDATES = 20
POSITIVE_CANDIDATES = 3


def polarity() -> pd.DataFrame:
    """Film review sentences with their polarity.

    Returns
    -------
    DataFrame
        Columns text, label (0 negative, 1 positive); 200 rows, 100 of each.
    """
    lines = gensim_file("pang_lee_polarity.cor").read_text(encoding="cp1252").splitlines()
    rows = [line.split(maxsplit=1) for line in lines]
    marked = [(text.strip(), int(mark == "__label__pos")) for mark, text in rows]
    return pd.DataFrame(marked, columns=["text", "label"])


def news_similarity() -> pd.DataFrame:
    """All pairs of Lee's news texts with the mean similarity that people saw in them.

    Returns
    -------
    DataFrame
        Columns sentence1, sentence2, score (0 to 1); 1,225 rows over 50 distinct texts.
    """
    texts = [text.strip() for text in news("lee")]
    similarity = np.loadtxt(gensim_file("similarities0-1.txt"))
    upper = itertools.combinations(range(len(texts)), 2)
    rows = [(texts[i], texts[j], float(similarity[i, j])) for i, j in upper]
    return pd.DataFrame(rows, columns=["sentence1", "sentence2", "score"])


def news(name: str) -> list[str]:
    """The texts of `lee` (50) or `lee_background` (300), in the file's order."""
    lines = gensim_file(f"{name}.cor").read_text(encoding=NEWS[name]).split("\n")
    return [line for line in lines if line.strip()]


def make_task(folder: Path, passages: Sequence[Passage]) -> None:
    """Write the folder of the task of its name.

    Parameters
    ----------
    passages : sequence of Passage
        From `passages_of`.
    """
    makers: dict[str, Callable[[Sequence[Passage]], dict[str, pd.DataFrame]]] = {
        "PangLeePolarity": lambda _: {"": polarity()},
        "WikipediaArticleClustering": lambda chosen: {"": clustering(chosen)},
        "WikipediaArticlePairs": lambda chosen: {"": pairs(chosen)},
        "WikipediaArticleReranking": reranking,
        "LeeNewsSimilarity": lambda _: {"": news_similarity()},
    }
    tables = makers[folder.name](passages)
    for name, table in tables.items():
        with replacing(folder / name / "test.parquet") as partial:
            table.to_parquet(partial, index=False)
    if "" not in tables:
        files = {name: [{"split": "test", "path": f"{name}/test.parquet"}] for name in tables}
        configs = [{"config_name": name, "data_files": data} for name, data in files.items()]
        with replacing(folder / "README.md") as partial:
            partial.write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n", "utf-8")
    log.info("%s: %s", folder.name, {name or "test": len(t) for name, t in tables.items()})


class Passage(NamedTuple):
    """A passage: its id, the title of its article, its text."""

    id: str
    article: str
    text: str

    def __str__(self) -> str:
        return self.text


def _opening(paragraph: str) -> str | None:
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


def passages_of(paragraphs: Sequence[Paragraph]) -> list[Passage]:
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
        text = _opening(paragraph.text)
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


def clustering(chosen: Sequence[Passage]) -> pd.DataFrame:
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
        articles = shuffled(titles, "set", number)[:ARTICLES_PER_SET]
        passages = shuffled([p for p in chosen if p.article in articles], "in set", number)
        rows.append(([p.text for p in passages], [p.article for p in passages]))
    return pd.DataFrame(rows, columns=["sentences", "labels"])


def pairs(chosen: Sequence[Passage]) -> pd.DataFrame:
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
    rows.sort(key=lambda row: sha256_text("row", row[0] + row[1]))
    return pd.DataFrame(rows, columns=["sentence1", "sentence2", "labels"])


def reranking(chosen: Sequence[Passage]) -> dict[str, pd.DataFrame]:
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
        relevant = [p for p in order if p.article == one.article][:POSITIVE_CANDIDATES]
        others = [p for p in order if p.article != one.article][: CANDIDATES - len(relevant)]
        listed = [p for p in order if p in relevant or p in others]
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


def shuffled(items: Iterable[T], *seed: str) -> list[T]:
    """Items in an order that looks random but is always the same: by hash of their texts."""
    return sorted(items, key=lambda item: sha256_text(*seed, str(item)))
