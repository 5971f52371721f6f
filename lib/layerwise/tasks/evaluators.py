"""Parts of mteb's evaluators in less time and memory, with the same scores: k-means, rerankings.

scikit-learn draws the first centres of a k-means by distances that it computes again, in float64,
for each centre. mteb has an object for each candidate of a reranking: MindSmallReranking has 97
million candidates of 2.4 million queries, which are 37,162 texts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from mteb._create_dataloaders import create_dataloader
from mteb.types import PromptType
from sklearn.cluster import MiniBatchKMeans, kmeans_plusplus

from layerwise.errors import LayerwiseError
from layerwise.tasks.task import Array, Vectors, normalized

MERGED = "max_over_subqueries_map_at_1000"
LOADER = "mteb.abstasks.retrieval_dataset_loaders.RetrievalDatasetLoader"
PRIVATE = {
    "mteb._create_dataloaders.create_dataloader": "It makes a text of a row.",
    "mteb._evaluators.clustering_evaluator.cluster.MiniBatchKMeans": "Faster first centres.",
    "mteb.abstasks.clustering.MiniBatchKMeans": "Faster first centres.",
    "mteb._evaluators.retrieval_metrics.evaluate_abstention": "Left out without sub-scores.",
    "mteb.abstasks.AbsTaskClassification._calculate_scores": "One score where one is wanted.",
    f"{LOADER}._load_dataset_split": "The rows of relevance, without an object for each.",
    f"{LOADER}._load_qrels": "Relevance of millions of queries in less memory.",
    f"{LOADER}._load_top_ranked": "Millions of candidates in less memory.",
    "datasets.Dataset.__getitem__": "A column as a list: a lazy one decodes each row again.",
}
"""Names of mteb and datasets that are private or replaced for a while, and why each is needed."""
# Ranks that count.
DEEPEST = 1000
# Clusters from which on all distances are computed once.
MANY = 40


# Clusterings


def k_means(**settings: Any) -> MiniBatchKMeans:
    """A MiniBatchKMeans whose first centres are drawn by `first_centres`."""
    return MiniBatchKMeans(**settings | {"init": first_centres, "n_init": 1})


def first_centres(X: Array, n_clusters: int, random_state: np.random.RandomState) -> Array:
    """Centres as `sklearn.cluster.kmeans_plusplus` draws them, shape (n_clusters, D)."""
    wide = X.astype(np.float64)
    if n_clusters < MANY:
        _, rows = kmeans_plusplus(wide, n_clusters, random_state=random_state)
        return np.asarray(X[rows])
    norms = np.einsum("nd,nd->n", wide, wide)
    distances = wide @ wide.T
    distances *= -2
    distances += norms
    distances += norms[:, None]
    distances.clip(min=0, out=distances)
    n_trials = 2 + int(np.log(n_clusters))
    rows = [int(random_state.choice(len(X), p=np.full(len(X), 1 / len(X))))]
    nearest = distances[rows[0]]
    while len(rows) < n_clusters:
        drawn = random_state.uniform(size=n_trials) * nearest.sum()
        tried = np.searchsorted(np.cumsum(nearest), drawn).clip(max=len(X) - 1)
        shorter = np.minimum(nearest, distances[tried])
        best = int(shorter.sum(axis=1).argmin())
        rows.append(int(tried[best]))
        nearest = shorter[best]
    return X[rows]


# Rerankings


@dataclass(frozen=True)
class Reranking:
    """Queries of a reranking and the documents to rank for each.

    Attributes
    ----------
    split, subset : str
    queries, documents : list of str
        Distinct texts of the queries; texts of the documents, by descending identifier.
    query_rows : list of arrays
        Rows of the texts of each query: several of a query with subqueries.
    document_rows : list of arrays
        Documents to rank for each query, ascending.
    relevant : list of arrays of bool
        True for those that are relevant.
    n_relevant : list of int
        Relevant documents of each query, also those that are not ranked.
    """

    split: str
    subset: str
    queries: list[str]
    documents: list[str]
    query_rows: list[Array]
    document_rows: list[Array]
    relevant: list[Array]
    n_relevant: list[int]

    def score(self, vectors: Vectors) -> float:
        """Mean average precision of one layer; equal cosines rank as in trec_eval."""
        queries = normalized(vectors.of("query", self.queries))
        documents = normalized(vectors.of("document", self.documents))
        precisions = []
        rows = zip(
            self.query_rows, self.document_rows, self.relevant, self.n_relevant, strict=True
        )
        for of_query, ranked, relevant, n_relevant in rows:
            cosines = (queries[of_query] @ documents[ranked].T).max(axis=0)
            order = np.argsort(-cosines, kind="stable")[:DEEPEST]
            ranks = np.flatnonzero(relevant[order]) + 1
            of_ranks = np.arange(1, len(ranks) + 1) / ranks
            precisions.append(of_ranks.sum() / max(n_relevant, 1))
        return round(float(np.mean(precisions)), 5)


def is_ranked_here(task: Any) -> bool:
    """True for one of mteb's rerankings of texts by mean average precision."""
    metadata = task.metadata
    return (
        (metadata.type, metadata.modalities) == ("Reranking", ["text"])
        and metadata.main_score in ("map_at_1000", MERGED)
        and not (task.ignore_identical_ids or task.skip_first_result)
    )


def read_reranking(task: Any, split: str, subset: str, recorder: Any) -> Reranking:
    """The candidates of a split of one of mteb's rerankings.

    Parameters
    ----------
    recorder
        Is given the queries, then the documents, and lists them in `inputs`.

    Raises
    ------
    LayerwiseError
        If the subqueries of a query differ in their candidates.
    """
    data, metadata = task.dataset[subset][split], task.metadata
    for name, kind in (("queries", PromptType.query), ("corpus", PromptType.document)):
        loader = create_dataloader(data[name], task_metadata=metadata, prompt_type=kind)
        recorder.encode(loader, task_metadata=metadata, prompt_type=kind)
    queries, texts = recorder.inputs
    distinct = {text: row for row, text in enumerate(dict.fromkeys(queries))}
    ids = list(data["corpus"]["id"])
    order = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
    row_of_query = dict(zip(data["queries"]["id"], (distinct[q] for q in queries), strict=True))
    row_of_document = {ids[number]: row for row, number in enumerate(order)}
    names_of: dict[str, list[str]] = defaultdict(list)
    for name in row_of_query:
        # Queries 1_0, 1_1, ... are one, whose documents have their largest cosine.
        merged = name.rpartition("_")[0] if metadata.main_score == MERGED else name
        names_of[merged].append(name)
    ranked, relevant, n_relevant = [], [], []
    for names in names_of.values():
        lists = [data["top_ranked"].get(name, ()) for name in names]
        if any(set(documents) != set(lists[0]) for documents in lists[1:]):
            raise LayerwiseError(
                f"The parts of the query {names[0]} have different candidates, which is not "
                "supported; leave the task out.",
                code="unsupported",
            )
        judged = data["relevant_docs"][names[-1]]
        good = [name for name, relevance in judged.items() if relevance > 0]
        ranked.append(np.unique([row_of_document[name] for name in lists[0]]).astype(np.int32))
        rows = [row_of_document[name] for name in good if name in row_of_document]
        relevant.append(np.isin(ranked[-1], rows))
        n_relevant.append(len(good))
    queries = [np.unique([row_of_query[name] for name in names]) for names in names_of.values()]
    documents = [texts[number] for number in order]
    return Reranking(
        split, subset, list(distinct), documents, queries, ranked, relevant, n_relevant
    )
