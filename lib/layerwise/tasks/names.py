"""Names of tasks, quick to import."""

from __future__ import annotations

# Types of mteb tasks that the paper averages over, and that the scoring has been checked on.
TYPES = ("Classification", "Clustering", "PairClassification", "Reranking", "STS")

# The tasks made from data packages (`layerwise.tasks.quickstart`), with their types.
QUICKSTART = {
    "PangLeePolarity": "Classification",
    "WikipediaArticleClustering": "Clustering",
    "WikipediaArticlePairs": "PairClassification",
    "WikipediaArticleReranking": "Reranking",
    "LeeNewsSimilarity": "STS",
}
