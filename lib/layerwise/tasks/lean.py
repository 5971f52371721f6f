"""Skip work that mteb repeats at every layer: decoding columns, and scores that nobody reads.

Since version 4, `datasets` gives *lazy* columns: every access to an element decodes its row again.
mteb's evaluators go through columns element by element, at every layer, so most of an evaluation
decodes the same labels again and again. Under `eager_columns` a column is a list, as before
version 4: the same values, decoded once.

Under `main_score_only` a task computes its main score alone: precision, recall and F1 of classes,
and how well a retrieval would abstain, take a third of an evaluation's time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

# Lists of more rows are not kept: they may be all the documents of a retrieval task.
MOST_ROWS = 50_000

# By data set: its columns by name. They end with it.
_kept: WeakKeyDictionary[Any, dict[str, list[Any]]] = WeakKeyDictionary()


@contextmanager
def eager_columns() -> Iterator[None]:
    """Make ``dataset["column"]`` a list in this process while the block runs."""
    from datasets import Dataset

    lazy = Dataset.__getitem__

    def eager(self: Any, key: Any) -> Any:
        if not isinstance(key, str):
            return lazy(self, key)
        if len(self) > MOST_ROWS:
            return lazy(self, key)[:]
        columns = _kept.setdefault(self, {})
        if key not in columns:
            columns[key] = lazy(self, key)[:]
        # A copy: evaluators own what they get.
        return list(columns[key])

    Dataset.__getitem__ = eager
    try:
        yield
    finally:
        Dataset.__getitem__ = lazy


@contextmanager
def main_score_only(task: Any) -> Iterator[Any]:
    """Give a copy of a task of mteb's that computes its main score alone while the block runs.

    Other tasks than classifications by accuracy, retrievals and rerankings are as they were.
    """
    from mteb._evaluators import retrieval_metrics
    from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval

    lean, main_score = copy.copy(task), task.metadata.main_score
    abstention = retrieval_metrics.evaluate_abstention
    if isinstance(task, AbsTaskClassification) and main_score == "accuracy":
        lean._calculate_scores = _accuracy
    elif isinstance(task, AbsTaskRetrieval) and not main_score.startswith("nAUC"):
        retrieval_metrics.evaluate_abstention = lambda *_: {}
    try:
        yield lean
    finally:
        retrieval_metrics.evaluate_abstention = abstention


def _accuracy(truth: Any, predicted: Any) -> dict[str, float]:
    return {"accuracy": float(np.mean(np.asarray(truth) == predicted))}
