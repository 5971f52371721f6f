"""The tables of scores, of a task or of a model, and intervals of scores with several runs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerwise.activations.representation import Representation
from layerwise.config.settings import ScoringSettings
from layerwise.errors import LayerwiseError
from layerwise.io import tables
from layerwise.models.load import LoadedModel

KIND = tables.Kind("layerwise.scores", 3)

# As in mteb's own JSON.
DECIMALS = 6
# Of the bootstrap interval of a score with several runs.
RESAMPLES = 1000


@dataclass(frozen=True)
class Score:
    """Score of one layer on a task, in the columns of the table.

    Attributes
    ----------
    main_score : float or None
        At most 1; None if it is not defined.
    score_low, score_high : float or None
        Interval; None for a score of one run.
    n_runs : int
        Number of values behind the interval. Of a probe: rows tested.
    why : str or None
        Reason why there is no score.
    chance : float or None
        Score of guessing; None where that is 0 or not known.
    neighbours, neighbours_low, neighbours_high : float, optional
        Of a probe: score of nearest neighbours, with its interval.
    control, selectivity : float, optional
        Of a probe: score on control labels, and the main score less this.
    baseline : float, optional
        Of a probe: score of predicting the training rows' most frequent class, or their mean.
    penalty : float, optional
        Of a probe: L2 penalty, the median over splits.
    n_train : int, optional
        Of a probe: rows behind one fit.
    sub_scores : str, optional
        Of a task of mteb's: all of its scores as JSON, if they are asked for.
    values : array, shape (groups,), optional
        Pseudo-values of the main score, which is their mean, if they are asked for
        (`layerwise.tasks.measures.pseudo_values`). Not in the table.
    """

    main_score: float | None
    score_low: float | None = None
    score_high: float | None = None
    n_runs: int = 1
    why: str | None = None
    chance: float | None = None
    subset: str = "default"
    split: str = "test"
    neighbours: float | None = None
    neighbours_low: float | None = None
    neighbours_high: float | None = None
    control: float | None = None
    selectivity: float | None = None
    baseline: float | None = None
    penalty: float | None = None
    n_train: int | None = None
    sub_scores: str | None = None
    values: npt.NDArray[Any] | None = field(default=None, compare=False, repr=False)


_NAMES = ("model", "revision", "task", "task_type", "tokens", "pooling", "readout")
_TYPES = {"str": pa.string(), "int": pa.int32(), "float": pa.float64()}
# Columns of the table of scores.
SCHEMA = pa.schema(
    [(name, pa.string()) for name in _NAMES]
    + [("layer", pa.int32()), ("depth", pa.float64())]
    + [(f.name, _TYPES[str(f.type).split()[0]]) for f in fields(Score) if f.compare]
)


def schema_of(columns: Container[str]) -> pa.Schema:
    """Columns of a table of scores; the stream is one of them for a model that has several."""
    return SCHEMA.append(pa.field("stream", pa.string())) if "stream" in columns else SCHEMA


# Numbers of a layer and of a representation.
Cell = tuple[int, int]


@dataclass(frozen=True)
class TaskScores:
    """Scores of one task.

    Attributes
    ----------
    representations : list of Representation
    scores : mapping
        Scores by layer and representation, both by number: one for each split and subset.
    """

    name: str
    task_type: str
    representations: list[Representation]
    scores: Mapping[Cell, Sequence[Score]]


def write_table(
    scored: TaskScores, loaded: LoadedModel, settings: ScoringSettings, path: Path, key: str
) -> None:
    """Write the table of a task, with its key."""
    about = {"model": loaded.name, "revision": loaded.revision, "task": scored.name}
    if loaded.anatomy.layout.streams > 1:
        about["stream"] = str(loaded.entry.stream)
    last = max(loaded.anatomy.n_layers - 1, 1)
    rows = [
        about
        | {"task_type": scored.task_type, "layer": layer, "depth": layer / last}
        | scored.representations[number]._asdict()
        | vars(of_subset)
        for (layer, number), scores in scored.scores.items()
        for of_subset in scores
    ]
    tables.write(
        path,
        pa.Table.from_pylist(rows, schema=schema_of(about)),
        kind=KIND,
        key=key,
        dtype=loaded.dtype,
        weights_sha256=loaded.weights,
        settings=settings.plain(),
        **about,
    )


def has_key(path: Path, key: str) -> bool:
    """True if a table of scores is there, whole, and has this key."""
    try:
        tables.read(path, "scores", kind=KIND)
        return tables.facts(path).get("key") == key
    except LayerwiseError:
        return False


def join_tables(parts: Iterable[Path], tasks: Iterable[str], *, key: str, output: Path) -> None:
    """Write the table of scores of a model from the tables of its tasks.

    Parameters
    ----------
    parts : iterable of Path
        The tables of the tasks.
    tasks : iterable of str
        Names of the tasks in the order of the rows.
    key : str
        Key of the table that is written.

    Raises
    ------
    LayerwiseError
        If the tables do not have each task once.
    """
    paths, order = list(parts), {task: number for number, task in enumerate(tasks)}
    names = [tables.read(path, "scores", ["task"], kind=KIND)["task"].unique() for path in paths]
    if sorted(np.concatenate(names)) != sorted(order):
        raise LayerwiseError(
            f"{paths[0].parent}: the tables are not of the tasks that their names say; delete "
            "the folder and run again.",
            code="mismatch",
        )
    rows = tables.read(paths, "scores", kind=KIND)
    rows = rows.iloc[rows["task"].map(order).argsort(kind="stable")]
    scores = pa.Table.from_pandas(rows, schema=schema_of(rows), preserve_index=False)
    about = [tables.facts(path) for path in paths]
    shared = ("model", "revision", "dtype", "weights_sha256")
    facts = {name: about[0][name] for name in shared}
    if any(facts.items() - each.items() for each in about):
        raise LayerwiseError(
            f"{paths[0].parent}: the tasks were scored with different weights; delete the folder "
            "and run again.",
            code="mismatch",
        )
    facts["versions"] = tables.joined_versions(about)
    tables.write(output, scores, kind=KIND, key=key, **facts)


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


def joined(runs: Sequence[float], main_score: str) -> dict[str, Any]:
    """mteb's scores of a clustering whose sets were scored apart, from the score of each set."""
    mean = float(np.mean(runs))
    return {
        "v_measures": list(runs),
        "v_measure_std": float(np.std(runs)),
        main_score: mean,
        "main_score": mean,
    }


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95% percentile bootstrap interval of the mean of `values`; (None, None) for fewer than two.

    Efron & Tibshirani 1993, chapter 13. The same resamples are drawn for every layer.
    """
    if len(values) < 2:
        return None, None
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    means = np.round(values, DECIMALS)[drawn].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
