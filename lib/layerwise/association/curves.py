"""From tidy tables of metrics and scores to curves over layers that can be laid side by side."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.config.association import OWN_TEXTS
from layerwise.errors import LayerwiseError

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

METRIC_COLUMNS = (
    "model", "revision", "corpus", "layer", "depth", "metric", "protocol", "tokens", "alpha",
    "normalization", "value",
)  # fmt: skip
SCORE_COLUMNS = (
    "model", "revision", "task", "task_type", "subset", "layer", "depth", "tokens", "pooling",
    "main_score",
)  # fmt: skip

# What tells one metric's curve from another of the same model on the same tokens.
VARIANT = ["corpus", "metric", "protocol", "alpha", "normalization"]

RESIDUAL = "residual"  # the readout that needs no mention
BLOCK = "block"  # the sublayer that is the layers themselves

ONLY_SUBSET = "default"  # mteb's name for the subset of a task that has no others

NO_ALPHA = -1.0  # pandas cannot unstack a missing key; no real alpha is negative


@dataclass(frozen=True)
class ScoreCurves:
    """The task scores of one model by layer.

    Attributes
    ----------
    tasks, task_types : tuple of str, length t
    layers : array of int, shape (n,)
        The layers at which every subset of every task has a score, ascending.
    last_layer : int
        L, so that depth = layer / L.
    values : array, shape (t, n)
        Main scores in [0, 1], each the mean over a task's subsets.
    """

    model: str
    revision: str
    tokens: str
    pooling: str
    tasks: tuple[str, ...]
    task_types: tuple[str, ...]
    layers: npt.NDArray[np.int64]
    last_layer: int
    values: Floats

    def of_type(self, task_type: str) -> npt.NDArray[np.intp]:
        """Indices of the tasks of a type, or of all tasks for ``all``."""
        return np.array(
            [i for i, t in enumerate(self.task_types) if task_type in ("all", t)], dtype=np.intp
        )

    def groups(self) -> list[str]:
        """``all`` and each task type, the latter only where there are several."""
        types = sorted(set(self.task_types))
        return ["all", *types] if len(types) > 1 else ["all"]

    @property
    def has_last(self) -> bool:
        """Whether layer L is among the layers."""
        return int(self.layers[-1]) == self.last_layer

    def at_last(self, by_layer: Floats) -> Floats:
        """What an array over the layers, its last axis, holds at layer L; NaN without that layer.

        The deepest layer with scores would otherwise pass for the last.
        """
        return by_layer[..., -1] if self.has_last else np.full(by_layer.shape[:-1], np.nan)


def require_columns(frame: pd.DataFrame, wanted: Sequence[str], what: str) -> None:
    """Check that a table has the columns its reader counts on.

    Raises
    ------
    LayerwiseError
        Naming the missing columns and those there are.
    """
    missing = [c for c in wanted if c not in frame.columns]
    if missing:
        raise LayerwiseError(
            f"The table of {what} lacks the column(s) {', '.join(missing)}; it has "
            f"{', '.join(map(str, frame.columns))}. Make it with this workflow's rules, or give "
            "tables from elsewhere as `published`."
        )


def of_blocks(metrics: pd.DataFrame) -> pd.DataFrame:
    """The metrics of the layers themselves, without those of parts of blocks.

    Tables from elsewhere say nothing of sublayers; all of their rows are about layers.
    """
    if "sublayer" not in metrics.columns:
        return metrics
    return metrics[metrics["sublayer"].fillna(BLOCK) == BLOCK]


def of_readouts(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores in which `pooling` also says the readout, where there are several.

    ``mean`` of the readout ``final_norm`` becomes ``mean, final_norm``, so that readouts that were
    scored side by side are told apart by whatever tells poolings apart.
    """
    if "readout" not in scores.columns or scores["readout"].nunique() < 2:
        return scores
    plain = scores["readout"].isna() | (scores["readout"] == RESIDUAL)
    other = scores["pooling"].str.cat(scores["readout"], sep=", ")
    return scores.assign(pooling=scores["pooling"].where(plain, other))


def score_curves(scores: pd.DataFrame) -> list[ScoreCurves]:
    """Split a tidy table of scores into one set of curves per model, revision, tokens, pooling.

    Several readouts in a table are told apart as `of_readouts` says.

    Layers that some subset of some task lacks are left out for all tasks (and logged): a mean must
    not be over one set of tasks or subsets at one layer and another set at the next.

    Raises
    ------
    LayerwiseError
        If a column is missing, a score is not finite or there twice, or a model's tasks share no
        layer.
    """
    require_columns(scores, SCORE_COLUMNS, "scores")
    scores = of_readouts(scores)
    bad = scores[~np.isfinite(scores["main_score"].to_numpy(dtype=float))]
    if len(bad):
        row = bad.iloc[0]
        raise LayerwiseError(
            f"The score of {row['model']} on {row['task']} at layer {row['layer']} is "
            f"{row['main_score']}; score that task again."
        )
    # A missing name would take its rows out of the table below.
    scores = scores.assign(subset=scores["subset"].astype(object).fillna(ONLY_SUBSET))
    keys = ["model", "revision", "tokens", "pooling"]
    _check_once(scores, [*keys, "task", "subset", "layer"])
    curves = []
    for key, part in scores.groupby(keys, sort=True):
        model, revision, tokens, pooling = (str(k) for k in key)
        table = part.pivot_table(
            index=["task_type", "task", "subset"], columns="layer", values="main_score"
        )
        complete = table.dropna(axis="columns")
        # First over the subsets of a task, so that a task counts once however many it has.
        whole = complete.groupby(level=["task_type", "task"]).mean()
        name = f"{model} at {revision} ({tokens}, {pooling})"
        if whole.shape[1] == 0:
            raise LayerwiseError(f"The tasks of {name} have no layer in common; score them again.")
        if whole.shape[1] < table.shape[1]:
            log.warning(
                "%s: %d of %d layers left out, since not every subset of every task has a score "
                "there",
                name, table.shape[1] - whole.shape[1], table.shape[1],
            )  # fmt: skip
        curves.append(
            ScoreCurves(
                model=model,
                revision=revision,
                tokens=tokens,
                pooling=pooling,
                tasks=tuple(str(t) for _, t in whole.index),
                task_types=tuple(str(t) for t, _ in whole.index),
                layers=whole.columns.to_numpy(dtype=np.int64),
                last_layer=last_layer_of(part),
                values=whole.to_numpy(dtype=np.float64),
            )
        )
    return curves


def _check_once(scores: pd.DataFrame, keys: list[str]) -> None:
    """Refuse two scores for one cell, whose mean would mix splits or readouts in silence."""
    twice = scores.duplicated(keys)
    if not twice.any():
        return
    row = scores[twice].iloc[0]
    several = [
        f"{c}s {', '.join(map(str, sorted(scores[c].unique())))}"
        for c in ("split", "readout")
        if c in scores.columns and scores[c].nunique() > 1
    ]
    raise LayerwiseError(
        f"The scores hold {row['task']} ({row['subset']}) of {row['model']} at layer "
        f"{row['layer']} more than once{': ' if several else ''}{' and '.join(several)}; give "
        "each table once, of one split and one readout."
    )


def last_layer_of(part: pd.DataFrame) -> int:
    """L, from rows of one model with their layer and depth = layer / L."""
    deepest = int(part["layer"].max())
    depth = float(part["depth"].max())
    return round(deepest / depth) if depth > 0 else deepest


def metric_curves(
    metrics: pd.DataFrame,
    scores: ScoreCurves,
    *,
    own_texts: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, Floats]:
    """All metrics of one model over the layers of its scores.

    Parameters
    ----------
    metrics : DataFrame
        Tidy metrics of any models; those of the scores' model, revision and tokens are taken, of
        the layers and not of parts of blocks.
    own_texts : mapping of corpus to task, optional
        Corpora that are the texts of a task. They come together as the corpus `OWN_TEXTS`, in
        which each task has a curve of its own.

    Returns
    -------
    variants : DataFrame
        One row a metric: the columns of `VARIANT` (alpha NaN where it has no meaning).
    values : array, shape (k, t, n)
        NaN where a metric has no value: at some layers, or for a task without a corpus. For an
        ordinary corpus all tasks of a metric have the same curve.
    """
    require_columns(metrics, METRIC_COLUMNS, "metrics")
    metrics = of_blocks(metrics)
    mine = metrics[
        (metrics["model"] == scores.model)
        & (metrics["revision"] == scores.revision)
        & (metrics["tokens"] == scores.tokens)
    ]
    twice = mine.duplicated([*VARIANT, "layer"])
    if twice.any():
        row = mine[twice].iloc[0]
        raise LayerwiseError(
            f"The metrics of {scores.model} hold {row['metric']} on {row['corpus']} at layer "
            f"{row['layer']} more than once; give each metrics table once."
        )
    table = (
        mine.assign(alpha=mine["alpha"].astype(float).fillna(NO_ALPHA))
        .set_index([*VARIANT, "layer"])["value"]
        .astype(float)
        .unstack("layer")
        .reindex(columns=scores.layers)
    )
    n_tasks, n = scores.values.shape
    rows = table.index.to_frame(index=False)
    values = np.repeat(table.to_numpy(dtype=np.float64)[:, None, :], n_tasks, axis=1)
    own = {c: t for c, t in (own_texts or {}).items() if t in scores.tasks}
    extra_rows, extra_values = _by_own_texts(rows, values, own, scores.tasks)
    rows = pd.concat([rows, extra_rows], ignore_index=True)
    rows["alpha"] = rows["alpha"].astype(float).where(rows["alpha"] != NO_ALPHA)
    return rows, np.concatenate([values, extra_values]).reshape(-1, n_tasks, n)


def _by_own_texts(
    rows: pd.DataFrame, values: Floats, own: Mapping[str, str], tasks: Sequence[str]
) -> tuple[pd.DataFrame, Floats]:
    """Gather the corpora that are a task's texts into one corpus with a curve per task."""
    part = rows[rows["corpus"].isin(list(own))]
    found_rows, found = [], []
    for _, group in part.groupby([c for c in VARIANT if c != "corpus"], sort=True):
        block = np.full(values.shape[1:], np.nan)
        for index, corpus in group["corpus"].items():
            task = tasks.index(own[str(corpus)])
            block[task] = values[int(str(index)), task]
        found_rows.append(group.iloc[[0]].assign(corpus=OWN_TEXTS))
        found.append(block)
    if not found:
        return rows.iloc[:0], values[:0]
    return pd.concat(found_rows), np.stack(found)


def usable(values: Floats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which tasks and which layers one metric can be set against the scores on.

    The one rule for associations, their figures and layer choice: the layers where any task has a
    value, and the tasks that have a value at all of those.

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
    known = np.isfinite(values)
    layers: npt.NDArray[np.bool_] = np.asarray(known.any(axis=0), dtype=np.bool_)
    tasks: npt.NDArray[np.bool_] = np.asarray(known[:, layers].all(axis=1), dtype=np.bool_)
    tasks &= layers.any()
    return tasks, layers


def baselines(scores: ScoreCurves) -> tuple[pd.DataFrame, Floats]:
    """The pseudo-metrics that a real one has to beat, in the form of `metric_curves`.

    ``layer index`` is l; ``distance from the middle`` is |l / L - 1/2|.
    """
    depth = scores.layers / max(scores.last_layer, 1)
    curves = {
        "layer index": scores.layers.astype(np.float64),
        "distance from the middle": np.abs(depth - 0.5),
    }
    rows = pd.DataFrame(
        {
            "corpus": "none",
            "metric": list(curves),
            "protocol": "baseline",
            "alpha": np.nan,
            "normalization": "raw",
        }
    )
    values = np.repeat(np.stack(list(curves.values()))[:, None, :], len(scores.tasks), axis=1)
    return rows, values


def select(
    metrics: pd.DataFrame,
    *,
    names: Iterable[str] | None = None,
    protocols: Iterable[str] | None = None,
    alphas: Iterable[float] | None = None,
    normalizations: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Keep the metrics asked for; None keeps all. Metrics without an alpha are kept for any."""
    keep = pd.Series(True, index=metrics.index)
    if names is not None:
        keep &= metrics["metric"].isin(list(names))
    if protocols is not None:
        keep &= metrics["protocol"].isin(list(protocols))
    if normalizations is not None:
        keep &= metrics["normalization"].isin(list(normalizations))
    if alphas is not None:
        keep &= metrics["alpha"].isna() | metrics["alpha"].isin([float(a) for a in alphas])
    return metrics[keep]
