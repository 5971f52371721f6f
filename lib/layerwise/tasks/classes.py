"""The quickstart's five tasks as task classes of mteb, run by mteb's own evaluators.

Importing this imports mteb, which takes seconds: only `layerwise.tasks.catalog` does so.
"""

from __future__ import annotations

from typing import Any

from mteb.abstasks import (
    AbsTaskClassification,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
)
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from mteb.abstasks.task_metadata import TaskMetadata

from layerwise.tasks.names import QUICKSTART

_WIKIPEDIA = "https://dumps.wikimedia.org/enwiki/"


def _metadata(name: str, main_score: str, description: str, reference: str, **more: Any) -> Any:
    return TaskMetadata(
        name=name,
        type=QUICKSTART[name],
        description=description,
        reference=reference,
        # The data are made by the workflow; the catalog puts their folder in place of this.
        dataset={"path": f"layerwise/{name}", "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        modalities=["text"],
        main_score=main_score,
        **more,
    )


class PangLeePolarity(AbsTaskClassification):
    """Polarity of 200 sentences of film reviews, by ten-fold cross-validation."""

    metadata = _metadata(
        "PangLeePolarity",
        "accuracy",
        "200 sentences of film reviews, positive or negative.",
        "https://www.cs.cornell.edu/people/pabo/movie-review-data/",
        category="t2c",
        domains=["Reviews", "Written"],
    )
    is_cross_validation = True
    train_split = "test"
    n_splits = 10
    # More than a fold has of a label: the classifier sees all sentences outside the fold.
    samples_per_label = 100


class WikipediaArticleClustering(AbsTaskClusteringLegacy):
    """Clustering of passages by article."""

    metadata = _metadata(
        "WikipediaArticleClustering",
        "v_measure",
        "Passages of Wikipedia articles, clustered by article.",
        _WIKIPEDIA,
        category="t2c",
        domains=["Encyclopaedic", "Written"],
    )


class WikipediaArticlePairs(AbsTaskPairClassification):
    """Pairs of passages, of the same article or not."""

    metadata = _metadata(
        "WikipediaArticlePairs",
        "max_ap",
        "Pairs of Wikipedia passages, of one article or of two.",
        _WIKIPEDIA,
        category="t2t",
        domains=["Encyclopaedic", "Written"],
    )


class WikipediaArticleReranking(AbsTaskRetrieval):
    """Ranking of passages by whether they are of the query's article."""

    metadata = _metadata(
        "WikipediaArticleReranking",
        "map_at_1000",
        "A Wikipedia passage as query, passages of its article among others as candidates.",
        _WIKIPEDIA,
        category="t2t",
        domains=["Encyclopaedic", "Written"],
    )


class LeeNewsSimilarity(AbsTaskSTS):
    """Similarity of two news texts as judged by people."""

    metadata = _metadata(
        "LeeNewsSimilarity",
        "cosine_spearman",
        "All pairs of 50 news texts with the mean similarity judged by people.",
        "https://escholarship.org/uc/item/48g155nq",
        category="t2t",
        domains=["News", "Written"],
    )
    min_score = 0
    max_score = 1


CLASSES: dict[str, Any] = {
    task.metadata.name: task
    for task in (
        PangLeePolarity,
        WikipediaArticleClustering,
        WikipediaArticlePairs,
        WikipediaArticleReranking,
        LeeNewsSimilarity,
    )
}
