"""Curves over layers, from tidy tables of metrics and scores."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.config.settings import OWN_TEXTS
from layerwise.errors import LayerwiseError
from layerwise.vocabulary import BLOCK, FINAL_NORM, RESIDUAL

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Names = npt.NDArray[Any]
# Indices of tasks.
Tasks = npt.NDArray[np.intp]

# The columns that identify a metric's curve for a model and a token selection.
CURVE_KEYS = ["corpus", "metric", "protocol", "alpha", "normalization"]
# Those that identify a metric and a score that are compared.
KEYS = ["model", "revision", *CURVE_KEYS, "tokens", "pooling", "task_type"]
_POINT = ("model", "revision", "tokens", "layer", "depth")
METRIC_COLUMNS = (*_POINT, *CURVE_KEYS, "value")
TASK = ["task_type", "task"]
SCORE_COLUMNS = (*_POINT, *TASK, "subset", "pooling", "main_score")

BASELINE = "baseline"  # protocol of rules without activations

# Values of `output_from`: the last layer replaces an output without scores after the final norm.
FROM_OUTPUT, FROM_LAST = "output", "last layer"

ONLY_SUBSET = "default"  # mteb's name for the subset of a task that has no others

FEW_TASKS = 7  # more are counted, not listed

TEXT_SOURCE = "text_source"

# Text sources of tasks: tasks made of the same texts are not independent. A task that is not
# listed is its own source, unless `association.text_sources` names one.
SHARED_TEXTS: Mapping[str, str] = {
    # Of the paper's 32. STSBenchmark is a selection from STS12 to STS17.
    "MassiveIntentClassification": "massive",
    "MassiveScenarioClassification": "massive",
    "MTOPDomainClassification": "mtop",
    "MTOPIntentClassification": "mtop",
    **{f"STS{year}": "sts" for year in range(12, 18)},
    "STSBenchmark": "sts",
}

NO_ALPHA = -1.0  # pandas cannot unstack a missing key; no real alpha is negative


@dataclass(frozen=True)
class ScoreCurves:
    """The task scores of one model by layer.

    Attributes
    ----------
    tasks : tuple of str, length t
    task_types, sources : array of str, shape (t,)
        Tasks of one source are made of the same texts (`SHARED_TEXTS`).
    layers : array of int, shape (n,)
        The layers at which every subset of these tasks has a score, ascending.
    last_layer : int
        L: depth = layer / L.
    values : array, shape (t, n)
        Main scores in [0, 1], each the mean over a task's subsets.
    output : array, shape (t,)
        The scores of the model's own output; NaN where it has none.
    output_from : str
        ``output``, or `FROM_LAST` if layer L of these curves is used instead.
    layers_left_out : tuple of int
        Layers at which some of the tasks has no score.
    tasks_left_out : tuple of str
        Tasks without a score at some of the layers.
    """

    model: str
    revision: str
    tokens: str
    pooling: str
    tasks: tuple[str, ...]
    task_types: Names
    sources: Names
    layers: npt.NDArray[np.int64]
    last_layer: int
    values: Floats
    output: Floats
    output_from: str = FROM_LAST
    layers_left_out: tuple[int, ...] = ()
    tasks_left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.model} at {self.revision} ({self.tokens}, {self.pooling})"

    @property
    def omitted(self) -> str:
        """Tasks and layers that are left out since scores are missing; empty for none."""
        tasks, layers = self.tasks_left_out, self.layers_left_out
        many = f"{len(tasks)} of {len(self.tasks) + len(tasks)} tasks"
        parts = [", ".join(tasks) if len(tasks) < FEW_TASKS else many] if tasks else []
        parts += [f"{len(layers)} of {len(self.layers) + len(layers)} layers"] if layers else []
        return f"{self.model}: {' and '.join(parts)}" if parts else ""

    @property
    def about(self) -> dict[str, str]:
        """The model, revision, tokens and pooling, as columns of a table."""
        return {n: getattr(self, n) for n in ("model", "revision", "tokens", "pooling")}

    def groups(self) -> dict[str, Tasks]:
        """Indices of ``all`` tasks, and of those of each type where there are several types."""
        types = np.unique(self.task_types)
        several = {t: np.flatnonzero(self.task_types == t) for t in types if len(types) > 1}
        return {"all": np.arange(len(self.tasks)), **several}

    def candidates(self, tasks: Tasks | Sequence[int]) -> tuple[npt.NDArray[np.int64], Floats]:
        """The candidates for the best layer of some tasks: all layers, then the model's output.

        Returns
        -------
        layers : array, shape (c,)
            The output counts as layer L. It is no candidate if a task has no score of it.
        values : array, shape (t, c)
        """
        values, output = self.values[tasks], self.output[tasks]
        if not np.isfinite(output).all():
            return self.layers, values
        return np.append(self.layers, self.last_layer), np.column_stack([values, output])


def with_text_sources(scores: pd.DataFrame, named: Mapping[str, str]) -> pd.DataFrame:
    """Scores with the text source of each task in the column `TEXT_SOURCE`.

    Parameters
    ----------
    named : mapping of task to text source
        Those that the config names; they come before `SHARED_TEXTS`.
    """
    if "task" not in scores.columns:
        return scores  # score_curves names the missing column
    sources = scores["task"].astype(str).replace({**SHARED_TEXTS, **named})
    return scores.assign(**{TEXT_SOURCE: sources})


def require_columns(frame: pd.DataFrame, wanted: Sequence[str], what: str) -> None:
    """Check that a table has the columns that its reader needs."""
    missing = [c for c in wanted if c not in frame.columns]
    if missing:
        raise LayerwiseError(
            f"The table of {what} lacks the column(s) {', '.join(missing)}; it has "
            f"{', '.join(map(str, frame.columns))}. Make it with this workflow's rules, or give "
            "tables from elsewhere as `published`.",
            code="unknown_name",
        )


def require_once(table: pd.DataFrame, keys: Sequence[str], name: str) -> None:
    """Refuse a table with several rows of the same keys: their mean would mix splits or runs.

    Parameters
    ----------
    name : str
        Column that says in the error what is there twice.
    """
    twice = table[table.duplicated(list(keys))]
    if len(twice):
        row = twice.iloc[0]
        raise LayerwiseError(
            f"The tables hold {row[name]} of {row['model']} at layer {row['layer']} more than "
            "once; give each table once, of one split.",
            code="duplicate",
        )


def of_blocks(metrics: pd.DataFrame) -> pd.DataFrame:
    """The metrics of the layers themselves, without those of sub-layers.

    Tables from elsewhere say nothing of sublayers; all of their rows are about layers.
    """
    if "sublayer" not in metrics.columns:
        return metrics
    return metrics[metrics["sublayer"].fillna(BLOCK) == BLOCK]


def with_output(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores, each with that of the model's output, and readouts as part of the pooling.

    ``output_score`` is the score of the last layer after the final norm, of the same task, tokens
    and pooling, or else of the last layer of the row's readout (``output_from``). Poolings are
    those of `name_readouts`. The column ``readout`` is removed; calling this twice changes
    nothing.
    """
    if "output_score" in scores.columns:
        return scores
    scores = scores.assign(
        # A missing name would remove its rows from grouped tables.
        subset=scores["subset"].astype(object).fillna(ONLY_SUBSET),
        readout=scores["readout"].fillna(RESIDUAL) if "readout" in scores.columns else RESIDUAL,
    )
    keys = ["model", "revision", "task", "subset", "tokens", "pooling"]
    keys += ["split"] if "split" in scores.columns else []
    last = scores[scores["depth"] == 1].drop_duplicates([*keys, "readout"])
    of_last_layer = last.set_index([*keys, "readout"])["main_score"].astype(float)
    of_row = pd.MultiIndex.from_frame(scores[[*keys, "readout"]])
    normed = pd.MultiIndex.from_frame(scores[[*keys, "readout"]].assign(readout=FINAL_NORM))
    has_output = normed.isin(of_last_layer.index)
    output, stand_in = (of_last_layer.reindex(rows).to_numpy() for rows in (normed, of_row))
    scores["output_score"] = np.where(has_output, output, stand_in)
    scores["output_from"] = np.where(has_output, FROM_OUTPUT, FROM_LAST)
    return name_readouts(scores).drop(columns="readout")


def name_readouts(table: pd.DataFrame) -> pd.DataFrame:
    """Scores with the readout as part of the pooling, where there are several.

    The pooling ``mean`` of the residual stream becomes ``mean, residual``. Where values after the
    norm are those of the last layer alone, they are the output of the residual curves, which stay
    ``mean``; their own rows stay as well, as ``mean, final_norm``: a curve of one layer.
    """
    if table["readout"].nunique() < 2:
        return table
    curves = table.loc[table["depth"] < 1, "readout"]
    main = FINAL_NORM if (curves == FINAL_NORM).any() else RESIDUAL
    both = table["pooling"].str.cat(table["readout"], sep=", ")
    return table.assign(pooling=table["pooling"].where(table["readout"] == main, both))


def score_curves(scores: pd.DataFrame) -> list[ScoreCurves]:
    """Split a tidy table of scores into one `ScoreCurves` per model, revision, tokens and pooling.

    Several readouts are separate poolings, see `with_output`. A mean must be over the same tasks
    at every layer, so where scores are missing, tasks or layers are left out (`most_complete`) and
    logged. So are tasks, and models, without any score.

    Raises
    ------
    LayerwiseError
        If a column is missing, a score is there twice, or no model has a layer at which all of
        its tasks have a score.
    """
    require_columns(scores, SCORE_COLUMNS, "scores")
    scores = with_output(scores)
    if TEXT_SOURCE not in scores.columns:
        scores = with_text_sources(scores, {})
    keys = ["model", "revision", "tokens", "pooling"]
    require_once(scores, [*keys, "task", "subset", "layer"], "task")
    curves = [_of_one_model(rows, *map(str, about)) for about, rows in scores.groupby(keys)]
    complete = [c for c in curves if c.values.size]
    if not complete:
        reasons = scores["why"].dropna().unique() if "why" in scores.columns else ()
        raise LayerwiseError(
            "No model has a layer at which all of its tasks have a score "
            f"({'; '.join(reasons[:3]) or 'the tasks share no layer'}).",
            code="too_few",
        )
    return complete


def _of_one_model(
    rows: pd.DataFrame, model: str, revision: str, tokens: str, pooling: str
) -> ScoreCurves:
    """The curves of one model, revision, tokens and pooling; without values where none is whole.

    A task's score is the mean over its subsets, so that each task counts once.
    """
    subset = [*TASK, "subset"]
    table = rows.pivot(index=subset, columns="layer", values="main_score").astype(float)
    table = table.groupby(level=TASK).mean(skipna=False)
    keep_tasks, keep_layers = most_complete(table.notna().to_numpy())
    whole = table.loc[keep_tasks, keep_layers]
    names = whole.index.get_level_values("task")
    output = rows.groupby(subset)["output_score"].first().astype(float)
    output = output.groupby(level=TASK).mean(skipna=False)
    of_tasks = rows[rows["task"].isin(names)]
    # Not the deepest layer of `whole`: a table may lack layer L.
    deepest = rows.iloc[int(rows["layer"].to_numpy().argmax())]
    depth = float(deepest["depth"])
    curves = ScoreCurves(
        model,
        revision,
        tokens,
        pooling,
        tasks=tuple(names),
        task_types=whole.index.get_level_values("task_type").to_numpy(),
        sources=rows.groupby("task")[TEXT_SOURCE].first().loc[names].to_numpy(),
        layers=whole.columns.to_numpy(dtype=np.int64),
        last_layer=round(deepest["layer"] / depth) if depth > 0 else int(deepest["layer"]),
        values=whole.to_numpy(),
        output=np.asarray(output.loc[whole.index]),
        output_from=FROM_LAST if (of_tasks["output_from"] == FROM_LAST).any() else FROM_OUTPUT,
        layers_left_out=tuple(map(int, table.columns[~keep_layers])),
        tasks_left_out=tuple(table.index[~keep_tasks].get_level_values("task")),
    )
    if curves.omitted:
        log.info("%s: scores are missing; left out %s", curves, curves.omitted)
    return curves


def most_complete(scored: Flags) -> tuple[Flags, Flags]:
    """Masks of tasks, shape (t,), and layers, shape (n,), that have all of their scores.

    Candidates are the tasks with most scores and the layers that they share, for each number of
    tasks, and likewise for layers. The one is taken that keeps most: the smaller of its shares of
    tasks and of layers is largest; of equal shares, the one with more tasks. The last layer, which
    the others are compared with, stays if most tasks have it.

    Parameters
    ----------
    scored : array, shape (t, n)
        True where a task has a score at a layer.
    """
    choices = [*_complete_rows(scored), *(pair[::-1] for pair in _complete_rows(scored.T))]
    if scored[:, -1].mean() > 0.5:
        choices = [(tasks, layers) for tasks, layers in choices if layers[-1]]
    return max(choices, key=lambda both: (min(both[0].mean(), both[1].mean()), both[0].sum()))


def _complete_rows(scored: Flags) -> Iterator[tuple[Flags, Flags]]:
    """For n = 1, 2, …: masks of the n rows with most scores, and of the columns that all have."""
    order = np.argsort(-scored.sum(axis=1), kind="stable")
    for n in range(1, len(order) + 1):
        rows = np.isin(np.arange(len(order)), order[:n])
        yield rows, np.logical_and.reduce(scored[rows])


class MetricCurves(NamedTuple):
    """All metrics of one model over the layers of its scores.

    Attributes
    ----------
    variants : DataFrame
        One row a metric: the columns of `CURVE_KEYS` (alpha NaN where it has no meaning), and
        ``variant``, empty where the table has none.
    values, stderr : array, shape (k, t, n)
        NaN where a metric has none: at some layers, or for a task without a corpus. For an
        ordinary corpus all tasks of a metric have the same curve.
    n : array, shape (k,)
        Fewest prompts of each metric at a layer; NaN if unknown.
    """

    variants: pd.DataFrame
    values: Floats
    stderr: Floats
    n: Floats


def of_curves(table: pd.DataFrame, curves: ScoreCurves) -> pd.DataFrame:
    """The rows of the model, revision and tokens of some curves."""
    columns = ["model", "revision", "tokens"]
    return table[(table[columns] == [curves.about[c] for c in columns]).all(axis=1)]


def metric_curves(
    metrics: pd.DataFrame, scores: ScoreCurves, own_texts: Mapping[str, str] | None = None
) -> MetricCurves:
    """All metrics of one model over the layers of its scores.

    Parameters
    ----------
    metrics : DataFrame
        Tidy metrics of any models; those of the scores' model, revision and tokens are taken, of
        the layers and not of sub-layers.
    own_texts : mapping of corpus to task, optional
        Corpora that are the texts of a task. They come together as the corpus `OWN_TEXTS`, in
        which each task has a curve of its own.
    """
    require_columns(metrics, METRIC_COLUMNS, "metrics")
    rows = of_curves(of_blocks(metrics), scores)
    require_once(rows, [*CURVE_KEYS, "layer"], "metric")
    names = ["value", "stderr", "n"]
    rows = rows.reindex(columns=[*CURVE_KEYS, "variant", "layer", *names])
    rows = rows.assign(alpha=rows["alpha"].astype(float).fillna(NO_ALPHA))
    wide = rows.pivot(index=CURVE_KEYS, columns="layer", values=names).astype(float)
    variants = wide.index.to_frame(index=False).replace({"alpha": {NO_ALPHA: np.nan}})
    formulas = rows.groupby(CURVE_KEYS)["variant"].first().astype(object).fillna("")
    variants = variants.assign(variant=formulas.reindex(wide.index).to_numpy())
    wide = wide.reindex(columns=pd.MultiIndex.from_product([names, scores.layers]))
    # Shape (3, k, t, n): at first, each task has the curves of all.
    cells = wide.to_numpy().reshape(len(wide), len(names), 1, len(scores.layers)).swapaxes(0, 1)
    cells = np.repeat(cells, len(scores.tasks), axis=2)
    tasks = {c: t for c, t in (own_texts or {}).items() if t in scores.tasks}
    variants, (values, stderr, n) = _with_own_texts(variants, cells, tasks, scores.tasks)
    fewest = np.where(n > 0, n, np.inf).min(axis=(1, 2))
    return MetricCurves(variants, values, stderr, np.where(np.isfinite(fewest), fewest, np.nan))


def _with_own_texts(
    variants: pd.DataFrame, cells: Floats, task_of: Mapping[str, str], tasks: Sequence[str]
) -> tuple[pd.DataFrame, Floats]:
    """Add the corpora that are a task's texts as one corpus with a curve per task."""
    rows, of_rows = [variants], [cells]
    of_tasks = variants[variants["corpus"].isin(list(task_of))]
    for _, group in of_tasks.groupby([c for c in CURVE_KEYS if c != "corpus"], dropna=False):
        of_corpora = np.full((len(cells), 1, *cells.shape[2:]), np.nan)
        for index, corpus in zip(group.index, group["corpus"], strict=True):
            task = tasks.index(task_of[corpus])
            of_corpora[:, 0, task] = cells[:, index, task]
        rows.append(group.iloc[[0]].assign(corpus=OWN_TEXTS))
        of_rows.append(of_corpora)
    return pd.concat(rows, ignore_index=True), np.concatenate(of_rows, axis=1)


def usable(values: Floats) -> tuple[Flags, Flags]:
    """Tasks and layers on which a metric can be compared with the scores.

    These are the layers where any task has a value, and the tasks that have a value at all of
    those layers.

    Parameters
    ----------
    values : array, shape (t, n)
        One metric's curves, as in `metric_curves`.

    Returns
    -------
    tasks : array of bool, shape (t,)
        None of them where the metric has no value at all.
    layers : array of bool, shape (n,)
    """
    finite = np.isfinite(values)
    layers = np.logical_or.reduce(finite)
    tasks = np.logical_and.reduce(finite[:, layers], axis=1) & layers.any()
    return np.asarray(tasks), layers


def mean_curve(values: Floats) -> Floats:
    """Mean of one metric's curves (t, n) over the tasks that it is known for; NaN elsewhere."""
    tasks, layers = usable(values)
    mean = np.full(values.shape[1], np.nan)
    if tasks.any():
        mean[layers] = values[tasks][:, layers].mean(axis=0)
    return mean


def baselines(scores: ScoreCurves) -> pd.DataFrame:
    """Tidy pseudo-metrics of the protocol `BASELINE` that a real one has to beat.

    ``layer index`` is l; ``distance from the middle`` is |l / L - 1/2|.
    """
    depth = scores.layers / max(scores.last_layer, 1)
    curves = {"layer index": scores.layers, "distance from the middle": np.abs(depth - 0.5)}
    table = pd.DataFrame({"layer": scores.layers, "depth": depth, **curves})
    tidy = table.melt(["layer", "depth"], var_name="metric").assign(**scores.about)
    return tidy.assign(corpus="none", protocol=BASELINE, alpha=np.nan, normalization="raw")
