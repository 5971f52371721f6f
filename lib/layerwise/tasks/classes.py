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


def _task(base: Any, name: str, main_score: str, **attributes: Any) -> Any:
    """A class of mteb's; the catalog puts the folder of its data in place of the path."""
    metadata = TaskMetadata(
        name=name,
        type=QUICKSTART[name],
        description="See layerwise.tasks.quickstart.",
        dataset={"path": f"layerwise/{name}", "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )
    return type(name, (base,), {"metadata": metadata, **attributes})


_TASKS = (
    _task(
        AbsTaskClassification,
        "PangLeePolarity",
        "accuracy",
        is_cross_validation=True,
        train_split="test",
        n_splits=10,
        # More than a fold has of a label: the classifier sees all sentences outside the fold.
        samples_per_label=100,
    ),
    _task(AbsTaskClusteringLegacy, "WikipediaArticleClustering", "v_measure"),
    _task(AbsTaskPairClassification, "WikipediaArticlePairs", "max_ap"),
    _task(AbsTaskRetrieval, "WikipediaArticleReranking", "map_at_1000"),
    _task(AbsTaskSTS, "LeeNewsSimilarity", "cosine_spearman", min_score=0, max_score=1),
)
CLASSES: dict[str, Any] = {task.metadata.name: task for task in _TASKS}
