"""A layer's result on a task: MTEB's JSON, when it still holds, and its rows in the tidy table.

Below the folder ``results/scores/{model}/{revision}/{task}`` the files lie as mteb's own result
cache has them, so that ``mteb.ResultCache(folder)`` reads them::

    results/{model}/{revision}/experiments/{how it was read}/{task}.json
    results/{model}/{revision}/experiments/{how it was read}/model_meta.json

``model_meta.json`` holds the layer, the tokens, the pooling and the readout (and which layers were
read with it) as mteb's experiment arguments. The result has one key more than mteb's,
``layerwise``, which mteb's reader ignores: a hash of all that the numbers depend on. A result that
still has the right hash is kept. Layers whose embeddings are the same under several readings have
one result, under the first of them.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerwise.config.scoring import ScoringSettings
from layerwise.files import replacing, sha256_text
from layerwise.names import encode
from layerwise.tasks.joined import Unit
from layerwise.vocabulary import ONE

COLUMNS = {
    "model": "string", "revision": "string", "task": "string", "task_type": "string",
    "subset": "string", "split": "string", "layer": "int32", "depth": "float64",
    "tokens": "string", "pooling": "string", "readout": "string", "layers": "string",
    "main_score": "float64",
    "score_low": "float64", "score_high": "float64", "n_runs": "int32", "why": "string",
}  # fmt: skip
"""The tidy table's columns and their types.

`layers` says which layers were read together at `layer`: ``one``, or as `layerwise.tasks.joined`
names them. Scores are from 0 to 1, to six decimals as in mteb's JSON. Where the evaluator gives no
values per run, the interval is null and ``n_runs`` is 1. A score that is not defined is null, and
``why`` says why; else ``why`` is null.
"""


def schema() -> Any:
    """Arrow schema of the tidy table."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])


def experiment(unit: Unit, settings: ScoringSettings) -> dict[str, Any]:
    """What mteb calls the experiment's arguments: what was read, and how."""
    several = {} if unit.layers == ONE else {"layers": unit.layers}
    read = {"layer": unit.layer, **unit.reading._asdict(), **several}
    return {**read, "normalize": settings.normalize}


def result_path(folder: Path, meta: Any, task: str) -> Path:
    """Where the result of a task lies below `folder`, `meta` being mteb's model metadata."""
    revision = encode(str(meta.revision))
    model = Path(folder, "results", str(meta.model_name_as_path()), revision)
    return model / "experiments" / str(meta.experiment_name) / f"{encode(task)}.json"


def read_result(path: Path, key: str) -> dict[str, Any] | None:
    """The result at `path`, if it is there, whole, and has this key."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        facts = document["layerwise"]
        same = facts["key"] == key and facts["sha256"] == _content(document)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return document if same else None


def _content(document: Mapping[str, Any]) -> str:
    """Hash of a result without the hash itself, so that an altered byte is noticed."""
    facts = {k: v for k, v in document["layerwise"].items() if k != "sha256"}
    return sha256_text(json.dumps({**document, "layerwise": facts}, sort_keys=True))


def write_result(
    path: Path,
    task: Any,
    scores: Mapping[str, Any],
    *,
    seconds: float,
    meta: Any,
    key: str,
    data: str,
    why: str | None = None,
) -> dict[str, Any]:
    """Write one layer's result and its model metadata; returns the result's JSON.

    Parameters
    ----------
    scores : mapping
        mteb's scores by split and subset.
    seconds : float
        Time that the evaluation took.
    meta : ModelMeta
        mteb's metadata of the model, with the experiment's arguments.
    key, data : str
        Hash of all that the numbers depend on, and of the task's data.
    why : str, optional
        Why some main score is not a number, as mteb then writes it.

    Raises
    ------
    LayerwiseError
        If the folder cannot be written.
    """
    from mteb.results import TaskResult

    result = TaskResult.from_task_results(
        task, scores, evaluation_time=seconds, date=datetime.datetime.now(tz=datetime.UTC)
    )
    about = json.dumps(meta.to_dict(), default=str, indent=2)
    described = path.with_name("model_meta.json")
    if not described.is_file() or described.read_text(encoding="utf-8") != about:
        with replacing(described) as partial:
            partial.write_text(about, encoding="utf-8")
    with replacing(path) as partial:
        result.to_disk(partial)
        document: dict[str, Any] = json.loads(partial.read_text(encoding="utf-8"))
        document["layerwise"] = {
            "key": key,
            "data": data,
            "task_type": str(task.metadata.type),
            "main_score": str(task.metadata.main_score),
        }
        if why:
            document["layerwise"]["why"] = why
        document["layerwise"]["sha256"] = _content(document)
        partial.write_text(json.dumps(document, indent=2), encoding="utf-8")
    return document


def runs(scores: Mapping[str, Any], main_score: str) -> list[float]:
    """The values that a main score is the mean of, where mteb's evaluator gives them.

    Classification: one per experiment. Clustering: one per set of documents, or per sample and
    level of labels. Others have none.
    """
    if "scores_per_experiment" in scores:
        return [float(run[main_score]) for run in scores["scores_per_experiment"]]
    name = "v_measures" if main_score == "v_measure" else f"{main_score}_scores"
    values = scores.get(name, [])
    if isinstance(values, Mapping):
        values = [value for level in values.values() for value in level]
    return [float(value) for value in values] if isinstance(values, list) else []


def interval(values: list[float], settings: ScoringSettings) -> tuple[float | None, float | None]:
    """Percentile bootstrap interval of the mean of `values`; (None, None) for fewer than two.

    Efron & Tibshirani 1993, chapter 13. The same resamples are drawn for every layer.
    """
    if len(values) < 2:
        return None, None
    rng = np.random.default_rng(settings.seed)
    drawn = rng.integers(len(values), size=(settings.bootstrap, len(values)))
    means = np.asarray(values)[drawn].mean(axis=1)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def rows(
    document: Mapping[str, Any], about: Mapping[str, Any], settings: ScoringSettings
) -> list[dict[str, Any]]:
    """The tidy table's rows of one result: one for each split and subset.

    Parameters
    ----------
    about : mapping
        The columns that are the same on all of them: model, revision, layer and so on.
    """
    facts = document["layerwise"]
    made = []
    for split, entries in document["scores"].items():
        for scores in entries:
            single = runs(scores, facts["main_score"])
            low, high = interval(single, settings)
            score = float(scores["main_score"])
            known = math.isfinite(score)
            row = {
                **about,
                "task": document["task_name"],
                "task_type": facts["task_type"],
                "subset": scores["hf_subset"],
                "split": split,
                "main_score": score if known else None,
                "score_low": low if known else None,
                "score_high": high if known else None,
                "n_runs": len(single) or 1,
                "why": None if known else facts["why"],
            }
            made.append({column: row[column] for column in COLUMNS})
    return made
