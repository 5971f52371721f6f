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
slice in it (`layerwise.tasks.passages`). The folders have MTEB's own parquet schema and are scored
like any mirrored MTEB task (`layerwise.tasks.classes`). They are plain parquet files without our
metadata. The same data are then the same bytes, and their hash identifies them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from layerwise.corpora.packages import gensim_file, news
from layerwise.corpora.wikipedia import Paragraph
from layerwise.io.files import replacing
from layerwise.tasks import passages

log = logging.getLogger(__name__)

_RERANKING_README = (
    """---
configs:
"""
    + "".join(
        f"- config_name: {name}\n  data_files:\n  - path: {name}/test.parquet\n    split: test\n"
        for name in ("corpus", "queries", "default", "top_ranked")
    )
    + "---\n"
)


def polarity() -> pd.DataFrame:
    """Film review sentences with their polarity.

    Returns
    -------
    DataFrame
        Columns text, label (0 negative, 1 positive); 200 rows, 100 of each.
    """
    lines = gensim_file("pang_lee_polarity.cor").read_text(encoding="cp1252").splitlines()
    marks, texts = zip(*(line.split(maxsplit=1) for line in lines), strict=True)
    labels = [{"__label__neg": 0, "__label__pos": 1}[mark] for mark in marks]
    return pd.DataFrame({"text": [t.strip() for t in texts], "label": labels})


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


def tables(paragraphs: Sequence[Paragraph]) -> dict[str, dict[str, pd.DataFrame]]:
    """The tables of each task, by their place in its folder (``""`` is the folder itself)."""
    chosen = passages.passages(paragraphs)
    return {
        "PangLeePolarity": {"": polarity()},
        "WikipediaArticleClustering": {"": passages.clustering(chosen)},
        "WikipediaArticlePairs": {"": passages.pairs(chosen)},
        "WikipediaArticleReranking": passages.reranking(chosen),
        "LeeNewsSimilarity": {"": news_similarity()},
    }


def make_tasks(paragraphs: Sequence[Paragraph], folder: Path) -> None:
    """Write the folder of each task below `folder`.

    Parameters
    ----------
    paragraphs : sequence of Paragraph
        Of Wikipedia articles.
    """
    for task, made in tables(paragraphs).items():
        for name, table in made.items():
            with replacing(folder / task / name / "test.parquet") as partial:
                table.to_parquet(partial, index=False)
        if "" not in made:
            with replacing(folder / task / "README.md") as partial:
                partial.write_text(_RERANKING_README, encoding="utf-8")
        log.info("%s: %s", task, {n or "test": len(t) for n, t in made.items()})
