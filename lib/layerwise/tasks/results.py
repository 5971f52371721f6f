"""The tables of scores and of probes, and the intervals of scores with several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from layerwise.config.scoring import ScoringSettings
from layerwise.io.tables import Kind

SCORES = Kind("layerwise.scores", 2)
PROBES = Kind("layerwise.tasks.probes", 2)
PART = Kind("layerwise.task_scores", 1)

# As in mteb's own JSON.
DECIMALS = 6
# Of the bootstrap interval of a score with several runs.
RESAMPLES = 1000

COLUMNS = {
    "model": "string",
    "revision": "string",
    "task": "string",
    "task_type": "string",
    "subset": "string",
    "split": "string",
    "layer": "int32",
    "depth": "float64",
    "tokens": "string",
    "pooling": "string",
    "readout": "string",
    "main_score": "float64",
    "score_low": "float64",
    "score_high": "float64",
    "n_runs": "int32",
    "why": "string",
    "chance": "float64",
}
"""Columns of the table of scores, with their types.

Scores are from 0 to 1. `n_runs` is the number of values behind the interval, which is null for one
alone. A score that is not defined is null, and `why` gives the reason. `chance` is the score of
guessing, null where that is 0 or not known.
"""

_SHARED = [
    *("model", "revision", "task", "task_type"),
    *("layer", "depth", "tokens", "pooling", "readout"),
]
_PROBE = {
    "linear": "float64",
    "low": "float64",
    "high": "float64",
    "neighbours": "float64",
    "neighbours_low": "float64",
    "neighbours_high": "float64",
    "control": "float64",
    "selectivity": "float64",
    "chance": "float64",
    "penalty": "float64",
    "n_train": "int32",
    "n_test": "int32",
}
PROBE_COLUMNS = {name: COLUMNS[name] for name in _SHARED} | _PROBE
"""Columns of the table of probes (`layerwise.tasks.probes.Probe`), with their types."""

# Names of a probe's columns in a task's own table, which has its scores too.
_PREFIXED = {name: f"probe_{name}" for name in _PROBE}


def part(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One task's table: its scores, with the details of the `probe` of a row, if it has one."""
    columns = COLUMNS | {_PREFIXED[name]: kind for name, kind in _PROBE.items()}
    found = [
        {
            **row,
            **{
                column: getattr(row.get("probe"), name, None) for name, column in _PREFIXED.items()
            },
        }
        for row in rows
    ]
    return pa.Table.from_pylist(found, schema=_schema(columns))


def scores(parts: pd.DataFrame) -> pa.Table:
    """The table of scores, from the tables of all tasks."""
    return _table(parts, COLUMNS)


def probes(parts: pd.DataFrame) -> pa.Table:
    """The table of probes, from the tables of all tasks."""
    probed = parts.loc[parts["probe_linear"].notna(), [*_SHARED, *_PREFIXED.values()]]
    named = {column: name for name, column in _PREFIXED.items()}
    return _table(probed.rename(columns=named), PROBE_COLUMNS)


def _table(frame: pd.DataFrame, columns: Mapping[str, str]) -> pa.Table:
    return pa.Table.from_pandas(
        frame[list(columns)], schema=_schema(columns), preserve_index=False
    )


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def runs(scores: Mapping[str, Any], main_score: str) -> list[float]:
    """The values that one of mteb's main scores is the mean of; empty where there are none.

    Classification: one per experiment. Clustering: one per set of documents, or per sample and
    level of labels.
    """
    if "scores_per_experiment" in scores:
        values: Any = [run[main_score] for run in scores["scores_per_experiment"]]
    else:
        name = "v_measures" if main_score == "v_measure" else f"{main_score}_scores"
        values = scores.get(name, [])
    if isinstance(values, Mapping):
        values = [value for level in values.values() for value in level]
    return [float(value) for value in values] if isinstance(values, list) else []


def interval(
    values: Sequence[float], settings: ScoringSettings
) -> tuple[float | None, float | None]:
    """Percentile bootstrap interval of the mean of `values`; (None, None) for fewer than two.

    Efron & Tibshirani 1993, chapter 13. The same resamples are drawn for every layer.
    """
    if len(values) < 2:
        return None, None
    rng = np.random.default_rng(settings.seed)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.round(values, DECIMALS)[drawn].mean(axis=1)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
