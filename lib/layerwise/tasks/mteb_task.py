"""MTEB's tasks: mteb loads the data, asks for vectors, and scores them.

mteb's evaluation runs over an encoder that lists the inputs that the evaluators ask for, and then
over one that looks up one layer's vectors.

Importing this imports mteb, which takes seconds.

Parts of mteb's evaluators in less time and memory, with the same scores: k-means, rerankings.

scikit-learn draws the first centres of a k-means by distances that it computes again, in float64,
for each centre. mteb has an object for each candidate of a reranking: MindSmallReranking has 97
million candidates of 2.4 million queries, which are 37,162 texts.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import sklearn
from datasets import Dataset, Features, List, Value
from mteb import abstasks
from mteb._create_dataloaders import create_dataloader
from mteb._evaluators import clustering_evaluator, retrieval_metrics
from mteb.abstasks import clustering
from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from sklearn.cluster import MiniBatchKMeans, kmeans_plusplus

from layerwise.config.settings import ScoringSettings
from layerwise.corpora.prompts import Medium, media
from layerwise.errors import LayerwiseError
from layerwise.tasks import catalog, evaluate
from layerwise.tasks.evaluate import Score
from layerwise.tasks.task import Array, Key, Task, Unit, Vectors, keep_data, normalized

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


# Split and subset, and of a divided clustering a range of sets.
Selection = tuple[Any, ...]


# By split and subset: mteb's scores, and the values that the main score is the mean of.
Scores = dict[tuple[str, str], tuple[dict[str, Any], list[float]]]

TEXT = Value("string")
NOT_FINITE = "the labels or the similarities are all alike, or some similarity is no number"
# It logs every step of every layer.
logging.getLogger("mteb").setLevel(logging.WARNING)

MODEL = ModelMeta.create_empty(
    {
        "name": "layerwise/layer",
        "similarity_fn_name": ScoringFunction.COSINE,
        "modalities": ["text", *(medium.column for medium in media())],
    }
)


@dataclass(frozen=True)
class MtebTask(Task):
    """A task of mteb, or a user's in its schema; see `layerwise.tasks.task.Task`.

    Attributes
    ----------
    folder : str, optional
        Local folder of its data, in place of the hub's.
    type : str, optional
        mteb's type of a user's task.
    """

    name: str
    folder: str | None = None
    type: str | None = None

    @property
    def task(self) -> Any:
        """mteb's task with its data."""
        return _loaded(self)[0]

    @property
    def task_type(self) -> str:
        """mteb's type."""
        return str(self.metadata.type)

    @property
    def metadata(self) -> Any:
        """mteb's facts on the task, without its data."""
        return _without_data(self).metadata

    @property
    def is_read_ahead(self) -> bool:
        """True for texts; files of many tasks may not fit in memory."""
        return bool(self.metadata.modalities == ["text"])

    def instruction(self, prompt_type: str) -> str:
        """mteb's instruction for inputs of a prompt type; empty for none."""
        kind = PromptType(prompt_type) if prompt_type else None
        text = _Encoder().get_instruction(self.metadata, kind)
        # mteb returns all of a task's instructions for an input without a prompt type.
        return text if isinstance(text, str) else ""

    def units(self, most: int) -> Iterator[Unit]:
        """The whole task; or of a larger clustering as many sets as have `most` texts together."""
        for places in self._selections(most):
            recorder = _Encoder()
            selection: Selection | Reranking | None = places
            with warnings.catch_warnings(), patch.object(Dataset, "__getitem__", _eager):
                # Scores of noise are ill-defined, and not wanted.
                warnings.simplefilter("ignore")
                try:
                    if places and is_ranked_here(self.task):
                        split, subset = places
                        selection = read_reranking(self.task, split, subset, recorder)
                        # The data of MindSmallReranking take gigabytes, and are not needed.
                        _loaded.cache_clear()
                    else:
                        self._evaluate(recorder, places)
                except (LayerwiseError, MemoryError):
                    raise
                except Exception as error:  # of mteb's code, on data that may hold anything
                    problem = "cannot be used by mteb's evaluation"
                    raise catalog.failure(self.task, problem, error, "unreadable") from error
            if not recorder.keys or not all(isinstance(text, str) for _, text in recorder.keys):
                problem = "lack a text or hold something else in its place"
                raise catalog.failure(self.task, problem, TypeError("no text"), "unreadable")
            yield Unit(list(recorder.keys), recorder.media, selection)

    def score(
        self, selection: Selection | Reranking | None, vectors: Vectors, settings: ScoringSettings
    ) -> Scores:
        """mteb's main score of one layer by split and subset."""
        if isinstance(selection, Reranking):
            if not settings.sub_scores:
                score = selection.score(vectors)
                return {(selection.split, selection.subset): ({"main_score": score}, [])}
            selection = None
        main, lookup = self.metadata.main_score, _Encoder(vectors.scaled(settings))
        return {
            subset: (scores, evaluate.runs(scores, main))
            for subset, scores in self._evaluate(lookup, selection, settings.sub_scores).items()
        }

    def combine(self, units: Sequence[Scores], settings: ScoringSettings) -> list[Score]:
        """One score for each subset: as mteb's, the mean over its splits."""
        main = self.metadata.main_score
        by_subset: dict[str, list[Score]] = defaultdict(list)
        for split, subset in dict.fromkeys(subset for unit in units for subset in unit):
            of_units = [unit[split, subset] for unit in units if (split, subset) in unit]
            runs = [run for _, runs_of_unit in of_units for run in runs_of_unit]
            # A clustering's score is the mean of its sets, which may be in several units.
            whole = of_units[0][0] if len(of_units) == 1 else evaluate.joined(runs, main)
            score = float(whole["main_score"])
            about: dict[str, Any] = {"split": split, "subset": subset, "n_runs": len(runs) or 1}
            if settings.sub_scores:
                about["sub_scores"] = json.dumps(whole, default=float)
            if math.isfinite(score):
                rounded = round(score, evaluate.DECIMALS)
                scored = Score(rounded, *evaluate.interval(runs), **about)
            else:
                scored = Score(None, why=NOT_FINITE, **about)
            by_subset[subset].append(scored)
        return [_mean(of_splits) for of_splits in by_subset.values()]

    def _selections(self, most: int) -> Iterator[Selection | None]:
        task, sizes = self.task, {}
        dataset: Any = task.dataset
        if is_ranked_here(task):
            yield from self._places()
            return
        if isinstance(task, AbsTaskClusteringLegacy) and task.metadata.modalities == ["text"]:
            for split, subset in self._places():
                data = dataset.get(subset, dataset)[split]
                sizes[split, subset] = [len(texts) for texts in data[task.input_column_name]]
        if sum(map(sum, sizes.values())) <= most:
            yield None
            return
        for (split, subset), counts in sizes.items():
            start = n = 0
            for row, count in enumerate(counts):
                if row > start and n + count > most:
                    yield split, subset, start, row
                    start, n = row, 0
                n += count
            yield split, subset, start, len(counts)

    def _places(self) -> list[tuple[str, str]]:
        return [(s, h) for s in self.task.eval_splits for h in self.task.hf_subsets]

    def _evaluate(
        self, encoder: AbsEncoder, selection: Selection | None, sub_scores: bool = False
    ) -> dict[tuple[str, str], dict[str, Any]]:
        """mteb's scores of an encoder by split and subset, on all data or a selection.

        Parameters
        ----------
        sub_scores : bool
            True for all scores, False for the main one.
        """
        task, states = _loaded(self)
        # An evaluation advances the task's random states; each layer gets those of a fresh task.
        task.rng_state.setstate(states[0])
        task.np_rng.bit_generator.state = states[1]
        random.seed(task.seed)
        np.random.seed(task.seed)  # noqa: NPY002  (mteb's own seeding)
        chosen, scores = _narrowed(task, selection), {}
        with (
            quick(chosen, sub_scores=sub_scores) as narrowed,
            # Vectors are finite; checking again takes a twelfth of an STS task's time.
            sklearn.config_context(assume_finite=self.task_type == "STS"),
        ):
            for split, subset in self._places() if selection is None else [selection[:2]]:
                evaluated = narrowed.evaluate(
                    encoder,
                    split,
                    subsets_to_run=[subset],
                    # Vectors are looked up, so the batch size changes nothing.
                    encode_kwargs={"batch_size": 1024, "show_progress_bar": False},
                )
                scores[split, subset] = dict(evaluated[subset])
        return scores


def _mean(of_splits: list[Score]) -> Score:
    """The mean over splits of a subset, named after all; a single one stays as it is."""
    if len(of_splits) == 1:
        return of_splits[0]
    scores = [one.main_score for one in of_splits if one.main_score is not None]
    about: dict[str, Any] = {"split": ", ".join(one.split for one in of_splits)}
    about |= {"subset": of_splits[0].subset, "n_runs": sum(one.n_runs for one in of_splits)}
    if of_splits[0].sub_scores:
        kept = {one.split: json.loads(one.sub_scores or "{}") for one in of_splits}
        about["sub_scores"] = json.dumps(kept)
    if len(scores) < len(of_splits):
        return Score(None, why=NOT_FINITE, **about)
    return Score(round(float(np.mean(scores)), evaluate.DECIMALS), **about)


@keep_data
def _without_data(named: MtebTask) -> Any:
    return catalog.get_task(named.name, named.folder, named.type)


@keep_data
def _loaded(named: MtebTask) -> tuple[Any, tuple[Any, Any]]:
    """mteb's task with its data, and its random states at first."""
    with (
        patch.object(Dataset, "__getitem__", _eager),
        patch.object(RetrievalDatasetLoader, "_load_qrels", _relevant),
        patch.object(RetrievalDatasetLoader, "_load_top_ranked", _ranked),
    ):
        task = catalog.load(catalog.get_task(named.name, named.folder, named.type))
    return task, (task.rng_state.getstate(), task.np_rng.bit_generator.state)


def _narrowed(task: Any, selection: Selection | None) -> Any:
    """The task, or a copy with a selection of its data."""
    if selection is None:
        return task
    split, subset, start, stop = selection
    data = task.dataset.get(subset, task.dataset)
    selected = {**data, split: data[split].select(range(start, stop))}
    narrowed = copy.copy(task)
    narrowed.dataset = {subset: selected} if subset in task.dataset else selected
    return narrowed


class _Encoder(AbsEncoder):
    """Looks up one layer's vectors; without any, records its inputs and returns noise.

    Attributes
    ----------
    keys : dict
        Distinct inputs, in order of first use.
    inputs : list of lists of str
        Texts or hashes, as they came in each call.
    media : dict
        Files by their hash.
    """

    mteb_model_meta = MODEL

    def __init__(self, vectors: Vectors | None = None) -> None:
        self.keys: dict[Key, None] = {}
        self.inputs: list[list[str]] = []
        self.media: dict[str, Medium] = {}
        self._vectors, self._noise = vectors, np.random.default_rng(0)

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Array:
        """Vectors of the inputs of one of mteb's data loaders, shape (N, D)."""
        from torch.utils.data import SequentialSampler

        data, about = inputs.dataset, task_metadata
        files: list[Medium] = []
        if kind := next((kind for kind in media() if kind.column in about.modalities), None):
            files = list(kind.read_rows(data, about.dataset["path"], about.name))
            texts = [file.sha256 for file in files]
        elif isinstance(data, Dataset) and isinstance(inputs.sampler, SequentialSampler):
            # The whole column: row by row takes longer than all evaluators do.
            texts = list(data["text"])
        else:
            texts = [text for batch in inputs for text in batch["text"]]
        name = prompt_type.value if prompt_type else ""
        if self._vectors is not None:
            return self._vectors.of(name, texts)
        self.media |= dict(zip(texts, files, strict=False))
        self.keys |= dict.fromkeys((name, text) for text in texts)
        self.inputs.append(texts)
        return self._noise.normal(size=(len(texts), 2)).astype(np.float32)


# Skip work that mteb repeats at every layer


_lazy = Dataset.__getitem__


def _eager(data: Any, key: Any) -> Any:
    """``dataset["column"]`` as a list.

    Since version 4, `datasets` gives lazy columns: every access to an element decodes its row
    again, at every layer.
    """
    column = _lazy(data, key)
    return column[:] if isinstance(key, str) else column


def _relevant(loader: Any, num_proc: int | None) -> dict[str, dict[str, int]]:
    """Relevance by query and document, without mteb's group of each of millions of queries."""
    usual = "default" if "default" in loader.dataset_configs else "qrels"
    name = f"{loader.config}-qrels" if loader.config else usual
    rows = _checked(loader, name, num_proc, **{"corpus-id": TEXT, "score": Value("int32")})
    relevant: dict[str, dict[str, int]] = defaultdict(dict)
    for query, document, score in zip(*rows[:].values(), strict=True):
        relevant[query][sys.intern(document)] = int(score)
    return dict(relevant)


def _ranked(loader: Any, num_proc: int | None) -> dict[str, list[str]]:
    """Documents to rank by query; an identifier is one object, however often it is ranked."""
    name = f"{loader.config}-top_ranked" if loader.config else "top_ranked"
    ranked = {}
    for batch in _checked(loader, name, num_proc, **{"corpus-ids": List(TEXT)}).iter(1000):
        for query, documents in zip(*batch.values(), strict=True):
            ranked[query] = [sys.intern(document) for document in documents]
    return ranked


def _checked(loader: Any, config: str, num_proc: int | None, **columns: Any) -> Dataset:
    """Rows of a configuration in the columns and types that mteb's loader asks for."""
    if not loader.config and config not in loader.dataset_configs:
        raise ValueError(f"there is no configuration {config}")
    columns = {"query-id": TEXT, **columns}
    rows = loader._load_dataset_split(config, num_proc).select_columns([*columns])
    return rows.cast(Features(columns))


@contextmanager
def quick(task: Any, *, sub_scores: bool) -> Iterator[Any]:
    """Give a copy of a task of mteb's that scores layers faster while the block runs.

    Its main score is the same. Without sub-scores, it is computed alone: precision, recall and F1
    of classes, and how well a retrieval would abstain, take a third of an evaluation's time.
    """
    fast = copy.copy(task)
    is_classification = isinstance(task, abstasks.AbsTaskClassification)
    with ExitStack() as patches:
        patches.enter_context(patch.object(Dataset, "__getitem__", _eager))
        by_mteb = SimpleNamespace(MiniBatchKMeans=k_means)
        patches.enter_context(patch.object(clustering_evaluator, "cluster", by_mteb))
        patches.enter_context(patch.object(clustering, "MiniBatchKMeans", k_means))
        if not sub_scores and is_classification and task.metadata.main_score == "accuracy":
            fast._calculate_scores = _accuracy
        elif not sub_scores and not task.metadata.main_score.startswith("nAUC"):
            abstention: Any = patch.object(retrieval_metrics, "evaluate_abstention", lambda *_: {})
            patches.enter_context(abstention)
        yield fast


def _accuracy(truth: Any, predicted: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(np.asarray(truth) == predicted))}
