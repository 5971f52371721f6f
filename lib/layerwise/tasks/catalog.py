"""mteb's tasks, and a user's in its schema: English subsets, the test split, local data."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import yaml

from layerwise.corpora.prompts import media
from layerwise.corpora.sources import own_cache
from layerwise.errors import Code, LayerwiseError, closest, first_line
from layerwise.project import require

log = logging.getLogger(__name__)


def _data(name: str) -> Any:
    return yaml.safe_load((files("layerwise.data") / name).read_text(encoding="utf-8"))


# The 32 tasks of Skean et al. 2025 (arXiv 2502.02013), by mteb's names (the v1 tasks).
PAPER: tuple[str, ...] = tuple(_data("paper_tasks.yaml"))
# Types of mteb tasks of texts that the scoring has been checked on: the five that the paper
# averages over, and others that come through the same door.
TYPES: tuple[str, ...] = (
    "Classification",
    "Clustering",
    "MultilabelClassification",
    "PairClassification",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
)


def types() -> dict[str, tuple[str, ...]]:
    """Types of mteb tasks that can be scored, by modality."""
    return {"text": TYPES, **{medium.column: medium.task_types for medium in media()}}


def get_task(name: str, folder: str | Path | None = None, kind: str | None = None) -> Any:
    """A task of mteb's, or a user's in its schema, ready to load its data.

    Of a multilingual task the subsets in English alone are used (STS17: en-en;
    AmazonCounterfactualClassification: en and en-ext), or all if there is none. The test split is
    used if there is one.

    Parameters
    ----------
    folder : str, optional
        Local folder that is used in place of the hub's data set.
    kind : str, optional
        mteb's type of a user's task; without one, the name is looked up in mteb.

    Raises
    ------
    LayerwiseError
        If there is no such task, its type or modality cannot be scored, or its folder is not
        there.
    """
    task = _of_user(name, str(folder), kind) if kind else _named(name)
    metadata = task.metadata
    modality = "/".join(metadata.modalities)
    if task.is_aggregate or metadata.type not in types().get(modality, ()):
        accepted = [f"of {of} of the types {', '.join(names)}" for of, names in types().items()]
        raise LayerwiseError(
            f"tasks: {name} is {'a group of tasks' if task.is_aggregate else 'a task'} of type "
            f"{metadata.type} over {modality}; accepted are single tasks, {'; '.join(accepted)}.",
            code="unsupported",
        )
    english = [
        s for s, langs in metadata.hf_subsets_to_langscripts.items() if set(langs) == {"eng-Latn"}
    ]
    task.hf_subsets = english or list(metadata.hf_subsets)
    if "test" in metadata.eval_splits:
        task.filter_eval_splits(["test"])
    if folder is not None:
        if not any(Path(folder).rglob("*.*")):
            raise LayerwiseError(
                f"tasks.{name}.folder: there is no data in {folder}; it must hold the task's data "
                "in mteb's schema (such as test.parquet).",
                code="missing_file",
            )
        dataset = {**metadata.dataset, "path": str(Path(folder).resolve())}
        task.metadata = metadata.model_copy(update={"dataset": dataset})
    return task


def _named(name: str) -> Any:
    mteb = require("mteb", "tasks")
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise LayerwiseError(
            f"tasks: there is no task {name!r} in mteb{closest(name, _names())}; use one of its "
            "names, or give your own task a folder and a type.",
            code="unknown_name",
        ) from error


def _names() -> list[str]:
    import mteb

    everything = mteb.get_tasks(exclude_superseded=False, exclude_private=False)
    return [task.metadata.name for task in everything]


def _of_user(name: str, folder: str, kind: str) -> Any:
    """A task that mteb does not have, with the evaluator and the main score of its type."""
    require("mteb", "tasks")
    from mteb import abstasks
    from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
    from mteb.abstasks.task_metadata import TaskMetadata

    bases: dict[str, tuple[Any, str]] = {
        "Classification": (abstasks.AbsTaskClassification, "accuracy"),
        "Clustering": (AbsTaskClusteringLegacy, "v_measure"),
        "PairClassification": (abstasks.AbsTaskPairClassification, "max_ap"),
        "Reranking": (abstasks.AbsTaskRetrieval, "map_at_1000"),
        "Retrieval": (abstasks.AbsTaskRetrieval, "ndcg_at_10"),
        "STS": (abstasks.AbsTaskSTS, "cosine_spearman"),
    }
    base, main_score = bases[kind]
    metadata = TaskMetadata(
        name=name,
        type=kind,
        description="A user's task.",
        dataset={"path": folder, "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )
    attributes: dict[str, Any] = {"metadata": metadata}
    if kind == "Classification" and not any(Path(folder).rglob("train*")):
        # The classifier sees all texts outside the fold.
        attributes |= {
            "is_cross_validation": True,
            "train_split": "test",
            "n_splits": 10,
            "samples_per_label": sys.maxsize,
        }
    return type(name, (base,), attributes)()


def is_known(name: str) -> bool:
    """True if a task or task type, of mteb or of this library, has this name."""
    from mteb.abstasks.task_metadata import TaskType

    return name in get_args(TaskType) or name in _names()


def load(task: Any) -> Any:
    """Load the task's data, from its folder, the local cache or the hub; returns the task.

    Raises
    ------
    LayerwiseError
        If they cannot be had, with the reason and what to do.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        with own_cache(task.metadata.dataset["path"]):
            task.load_data()
            if task.metadata.type == "Reranking":
                _add_candidates(task)
    except MemoryError:
        raise
    except Exception as error:  # damaged files fail in any of the libraries that read them
        raise failure(task, "could not be loaded", error, "missing_file") from error
    return task


def _add_candidates(task: Any) -> None:
    """Load the candidates of a reranking task where mteb has left them out.

    Offline, `datasets` cannot list a cached data set's configurations, and mteb takes what is not
    listed for absent: it would rank all documents, in silence.
    """
    import datasets

    source = task.metadata.dataset
    for splits in task.dataset.values():
        for split, data in splits.items():
            if data["top_ranked"] is None:
                rows = datasets.load_dataset(
                    source["path"], "top_ranked", split=split, revision=source.get("revision")
                )
                pairs = zip(rows["query-id"], rows["corpus-ids"], strict=True)
                data["top_ranked"] = {str(query): list(map(str, ids)) for query, ids in pairs}


def failure(task: Any, problem: str, error: Exception, code: Code) -> LayerwiseError:
    """The error to raise when a task's data cannot be loaded or used."""
    path = task.metadata.dataset["path"]
    remedy = (
        "the folder must hold the files of the task's data set on the hub, with their columns."
        if Path(path).is_dir()
        else "run `layerwise fetch` with this config on a machine that reaches the hub, or give a "
        "local copy under tasks.….folder."
    )
    if gap := first_gap(getattr(task, "dataset", None)):
        remedy = f"{gap} has no value: fill it or leave the row out."
    return LayerwiseError(
        f"The data of {task.metadata.name} from {path} {problem} ({type(error).__name__}: "
        f"{first_line(error)}); {remedy}",
        code=code,
    )


def first_gap(data: Any, where: str = "") -> str:
    """The first row of a task's data without a value in a column; empty if there is none.

    Parameters
    ----------
    data : datasets.Dataset, or mapping of such by split or subset
    """
    if isinstance(data, Mapping):
        gaps = (first_gap(inner, f"{where}{name}, ") for name, inner in data.items())
        return next(filter(None, gaps), "")
    frame = data.to_pandas() if hasattr(data, "to_pandas") else pd.DataFrame()
    for column in frame:
        # Clusterings have a list of texts in a row.
        missing = frame[column].explode().isna()
        if missing.any():
            return f"{where}row {missing.index[int(missing.argmax())] + 1}, column {column!r}"
    return ""
