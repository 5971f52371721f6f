"""Scores of layers as mteb's own result files, an experiment for each layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layerwise.config.tasks import MtebEntry
from layerwise.errors import LayerwiseError
from layerwise.project import require
from layerwise.run.results import Results
from layerwise.vocabulary import USUAL

DIMENSIONS = ("tokens", "pooling", "readout")


def export_scores(results: Results, out: Path) -> int:
    """Write all of mteb's scores to ``OUT/results/MODEL/REVISION/experiments/layer_L/TASK.json``.

    Token selections, poolings and readouts other than the usual are named after the layer.

    Parameters
    ----------
    results : Results
        Of a run with ``scoring: {sub_scores: true}``.
    out : Path
        Folder for ``mteb.ResultCache``.

    Returns
    -------
    int
        Number of files.

    Raises
    ------
    LayerwiseError
        If the run has not kept all scores, or mteb is not installed.
    """
    mteb = require("mteb", "tasks")
    from mteb.models.model_meta import ModelMeta

    from layerwise.tasks.catalog import get_task

    scores = results.scores(**dict.fromkeys(DIMENSIONS))
    if "sub_scores" not in scores or not scores["sub_scores"].notna().any():
        raise LayerwiseError(
            f"{results.folder} has main scores alone; set scoring: {{sub_scores: true}} in its "
            "config and run it again.",
            code="missing",
        )
    scores = scores[scores["sub_scores"].notna()]
    cache = mteb.ResultCache(out)
    entries = results.plan.config.tasks if results.plan else {}
    local = {n: (e.folder, e.type) for n, e in entries.items() if isinstance(e, MtebEntry)}
    tasks = {name: get_task(name, *local.get(name, ())) for name in scores["task"].unique()}
    n_files = 0
    group: Any
    for group, rows in scores.groupby(["model", "revision", "layer", *DIMENSIONS, "task"]):
        model, revision, layer, *read, name = group
        unusual = {d: v for d, v in zip(DIMENSIONS, read, strict=True) if v != USUAL[d]}
        about = {
            "name": f"layerwise/{model}",
            "revision": revision,
            "experiment_kwargs": {"layer": int(layer), **unusual},
        }
        by_split: dict[str, Any] = {}
        for split, subset, text in rows[["split", "subset", "sub_scores"]].to_numpy():
            kept = json.loads(text)
            for one in split.split(", "):  # a mean over several has the scores of each
                by_split.setdefault(one, {})[subset] = kept if one == split else kept[one]
        # The time of one layer is not known: all are embedded in one pass.
        result = mteb.TaskResult.from_task_results(tasks[name], by_split, evaluation_time=0.0)
        cache.save_to_cache(result, ModelMeta.create_empty(about))
        n_files += 1
    return n_files
