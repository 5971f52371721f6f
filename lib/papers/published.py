"""Tables published elsewhere, in the schema of the authors' released results, as our tidy tables.

Scores: family, size, revision, layer, task, task_type, hf_subset, languages, split, main_score;
and pooling, if it is not the mean. Metrics: family, size, revision, dataset, split, metric,
normalization, layer, value; and protocol, alpha, sublayer, ``normed`` (true for states after the
final norm), variant (of InfoNCE: ``one_way`` or ``two_way``), repetition, randomness and length,
if they are known; or the columns of our own
tables, of models that ran elsewhere. Both may have ``last_layer``, L of a model whose last layer
has no row. All as CSV (gzipped or not) or Parquet.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from layerwise import data
from layerwise.association.curves import METRIC_COLUMNS, ONLY_SUBSET, of_blocks, require_columns
from layerwise.errors import Code, LayerwiseError, check_name, in_any_case
from layerwise.io import tables
from layerwise.io.tables import read_table
from layerwise.section import NAME, NAMES
from layerwise.vocabulary import BLOCK, FINAL_NORM, LABELS, RESIDUAL

log = logging.getLogger(__name__)

_RELEASED = ("family", "size", "revision", "layer", "split")
SCORES = (*_RELEASED, "task", "task_type", "hf_subset", "languages", "main_score")
METRICS = (*_RELEASED, "dataset", "metric", "normalization", "value")

# Prompt entropy by the formulas of 2024.
OLD_NAME = "entropy_sentence"
# The released tables' names for metrics that are called otherwise here.
METRIC_NAMES = {
    OLD_NAME: "prompt_entropy",
    "entropy_prompt": "prompt_entropy",
    "prompt-entropy": "prompt_entropy",
    "entropy_dataset": "dataset_entropy",
    "dataset-entropy": "dataset_entropy",
}

LONGEST_NAME = 150
LAYERS = (0, 10_000, "whole numbers from 0, the embedding output, to 10,000")
RANGES = {
    "layer": LAYERS,
    "last_layer": LAYERS,
    "main_score": (-1, 1, "-1 to 1: divide per cent by 100, and leave out rows without a score"),
}

WITH_ALPHA = frozenset({"prompt_entropy", "dataset_entropy", "dime"})


def published_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Published MTEB results as tidy scores: test split, English subsets.

    A pair of languages is left out (of STS17, en-en alone stays); AmazonCounterfactual keeps both
    of its English subsets, whose mean is the task's score.

    Raises
    ------
    LayerwiseError
        If a column is missing, no English test row is there, a name is none, or a layer or score
        is out of its range.
    """
    require_columns(table, SCORES, "published scores")
    scores = table[(table["split"] == "test") & (table["languages"] == "eng-Latn")]
    if scores.empty:
        raise LayerwiseError(
            "The published scores have no row of the split 'test' in 'eng-Latn'; those are the "
            "rows that count.",
            code="mismatch",
        )
    log.info("%d of %d published scores are English test scores", len(scores), len(table))
    scores = scores.rename(columns={"hf_subset": "subset"}).assign(model=_model(scores))
    pooling, last_layer = scores.get("pooling", "mean"), _last_layer(scores)
    scores = scores.assign(pooling=pooling, last_layer=last_layer)
    names = ["model", "revision", "task", "task_type", "subset", "split", "pooling"]
    numbers = ["layer", "last_layer", "main_score"]
    # The authors cut the model at each layer, so that its last norm is applied to all.
    tidy = _with_depth(_checked(scores, names, numbers, "scores"))
    tidy = tidy.assign(tokens="all", readout=FINAL_NORM, n_runs=1)
    return tidy.assign(score_low=np.nan, score_high=np.nan)


def published_metrics(table: pd.DataFrame) -> pd.DataFrame:
    """Published metrics as tidy metrics; the corpus is the data set.

    Tables with the columns of our own stay unchanged, except for sub-layers.

    Of several variants of a metric on a data set, a checkpoint has the one that most checkpoints
    have, and of its splits likewise; test where that is a tie. Missing values (curvature of 2024
    has many) are left out and logged. A table that names no protocol has `reference`, or
    `reference_2024` if prompt entropy has its old name. Alpha, if it is not given, is 1, but 2 on
    WikiText in 2024, as the code had it.

    Raises
    ------
    LayerwiseError
        If a column is missing, a name is none, a value is no number, or a layer is out of range.
    """
    released = not set(METRIC_COLUMNS) <= set(table.columns)
    if released:
        require_columns(table, METRICS, "published metrics")
    missing = table["value"].isna() | table["value"].isin([np.inf, -np.inf])
    if missing.any():
        log.warning("%d published metric values are missing and left out", missing.sum())
    rows = _of_release(table[~missing]) if released else of_blocks(table[~missing])
    names = ["model", "revision", "corpus", "metric", "protocol", "tokens", "normalization"]
    numbers = ["layer", "alpha", "value"]
    numbers += ["last_layer", *LABELS] if released else ["depth"]
    tidy = _checked(rows, names, numbers, "metrics")
    more = rows.reindex(columns=["stderr", "n", "n_left_out"]).reset_index(drop=True).astype(float)
    counts = more[["n", "n_left_out"]].fillna(0).astype(int)
    tidy = tidy.assign(stderr=more["stderr"], **counts)
    if not released:
        return tidy
    named = {c: rows[c].to_numpy() for c in ("variant", "sublayer", "normed")}
    unknown = [label for label in LABELS if tidy[label].isna().all()]
    return _with_depth(tidy.assign(**named)).drop(columns=unknown)


def _of_release(table: pd.DataFrame) -> pd.DataFrame:
    """Released metrics in our columns."""
    rows = table[_is_usual_split(table)]
    old_name = (rows["metric"] == OLD_NAME).any()
    protocol = rows.get("protocol", "reference_2024" if old_name else "reference")
    metric = rows["metric"].replace(METRIC_NAMES)
    on_wikitext = rows["dataset"].astype(str).str.contains("wikitext")
    usual = np.where(on_wikitext & (protocol == "reference_2024"), 2.0, 1.0)
    rows = rows.assign(
        model=_model(rows),
        corpus=rows["dataset"],
        metric=metric,
        alpha=rows.get("alpha", pd.Series(usual, rows.index)).where(metric.isin(WITH_ALPHA)),
        protocol=protocol,
        tokens="all",
        variant=_text(rows, "variant"),
        sublayer=_text(rows, "sublayer").replace("", BLOCK),
        normed=rows.get("normed", False),
        **{label: rows.get(label, np.nan) for label in LABELS},
    )
    return rows.assign(last_layer=_last_layer(rows))


def _is_usual_split(table: pd.DataFrame) -> pd.Series[bool]:
    """True for rows of the variant and split that most checkpoints have, of those that the row's
    has."""
    checkpoint, usual = ["family", "size", "revision"], pd.Series(True, table.index)
    for column, of in (("variant", ["dataset", "metric", "protocol"]), ("split", ["dataset"])):
        keys = [*checkpoint, *of, *(["metric"] if column == "split" else [])]
        rows = pd.DataFrame({name: _text(table, name) for name in (*keys, column)})
        pairs = rows[usual].drop_duplicates()
        n_checkpoints = pairs[[*checkpoint, *of, column]].drop_duplicates().groupby([*of, column])
        pairs = pairs.merge(n_checkpoints.size().rename("rank").reset_index())
        pairs["rank"] += 0.5 * (pairs[column] == "test")
        best = pairs[pairs["rank"] == pairs.groupby(keys)["rank"].transform("max")]
        usual &= pd.MultiIndex.from_frame(rows).isin(pd.MultiIndex.from_frame(best[rows.columns]))
    return usual


def _text(table: pd.DataFrame, column: str) -> pd.Series[str]:
    """A column as text; empty where there is none."""
    values = table[column] if column in table else pd.Series("", table.index)
    return values.astype(object).fillna("").astype(str)


def _model(table: pd.DataFrame) -> pd.Series[str]:
    named = table["family"].map(str) + "-" + table["size"].map(str)
    return named.where(table[["family", "size"]].notna().all(axis=1))


def _last_layer(table: pd.DataFrame) -> pd.Series[float]:
    """L of each row's model: the column ``last_layer``, or the deepest layer of the table."""
    deepest = pd.to_numeric(table["layer"], errors="coerce").groupby(table["model"])
    return table.get("last_layer", deepest.transform("max"))


def _with_depth(table: pd.DataFrame) -> pd.DataFrame:
    depth = table["layer"] / table["last_layer"].clip(lower=1)
    return table.assign(depth=depth).drop(columns="last_layer")


def _checked(
    table: pd.DataFrame, names: Sequence[str], numbers: Sequence[str], what: str
) -> pd.DataFrame:
    """Columns of names as the config has them, since they reach captions and paths; and numbers.

    Raises
    ------
    LayerwiseError
        If a name is none, or a number is out of its range.
    """
    tidy = pd.DataFrame()
    for column in names:
        renamed = {value: _one_line(value) for value in table[column].unique()}
        for value, name in renamed.items():
            if pd.isna(value) or len(name) > LONGEST_NAME or not re.fullmatch(NAME, name):
                raise _refused(column, value, what, f"which is not a name; {NAMES}", "bad_name")
        tidy[column] = table[column].map(renamed)
    for column in numbers:
        values = table[column]
        tidy[column] = pd.to_numeric(values, errors="coerce").astype(float)
        low, high, expected = RANGES.get(column, (-np.inf, np.inf, "numbers"))
        odd = ~tidy[column].between(low, high) & (values.notna() | (column in RANGES))
        if column == "layer":
            odd |= tidy[column] % 1 > 0
        if odd.any():
            raise _refused(column, values[odd].iloc[0], what, f"expected {expected}", "wrong_type")
    return tidy.astype({"layer": int}).reset_index(drop=True)


def _refused(column: str, value: object, what: str, problem: str, code: Code) -> LayerwiseError:
    return LayerwiseError(
        f"The column {column!r} of the published {what} holds {str(value)[:60]!r}, {problem}.",
        code=code,
    )


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


# A run beside them

# Stands for the numbers that ship with layerwise.
PUBLISHED = "published"

MAIN = "main"  # the finished model, on the hub

COMPARED = ["task", "subset", "layer"]


def read_scores(source: str, model: str, revision: str | None = None) -> pd.DataFrame:
    """Scores of a model at one checkpoint, as the authors ran it: all tokens, their mean.

    The final norm is applied at every layer where the model has one.

    Parameters
    ----------
    source : str
        A results folder, a table of published scores, or
        ``published`` for the one that ships with layerwise.
    model : str
        Its name there, in upper or lower case.
    revision : str, optional
        The checkpoint; by default the only one, or ``main``.

    Returns
    -------
    DataFrame
        Columns task, subset, layer and main_score (0 to 1).

    Raises
    ------
    LayerwiseError
        If there are no such scores.
    """
    if Path(source).is_dir():
        scores = tables.read(sorted(Path(source, "scores").glob("*/*.parquet")), "scores")
    else:
        path = data.published("scores") if source == PUBLISHED else Path(source)
        scores = published_scores(read_table(path))
    names = list(scores["model"].unique())
    model = in_any_case(model, names)
    check_name(f"model of {source}", model, names)
    scores = scores[scores["model"] == model]
    names = list(scores["revision"].unique())
    if revision is None and len(names) > 1 and MAIN not in names:
        raise LayerwiseError(
            f"{source} has several revisions of {model} ({', '.join(names)}); name one.",
            code="ambiguous",
        )
    revision = revision or (MAIN if MAIN in names else names[0])
    check_name(f"revision of {model}", revision, names)
    readout = FINAL_NORM if (scores["readout"] == FINAL_NORM).any() else RESIDUAL
    wanted = {"revision": revision, "tokens": "all", "pooling": "mean", "readout": readout}
    scores = scores[(scores[list(wanted)] == list(wanted.values())).all(axis=1)]
    if scores.empty:
        raise LayerwiseError(
            f"{source}: no scores of {model} with all tokens, mean pooling and the readout "
            f"{readout}; score it with presets/as_released.yaml.",
            code="unknown_name",
        )
    scores = scores.assign(subset=scores["subset"].fillna(ONLY_SUBSET))
    return scores[[*COMPARED, "main_score"]].reset_index(drop=True)


def differences(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Differences of two sets of scores, for each task and layer that both have.

    Parameters
    ----------
    first, second : DataFrame
        From `read_scores`.

    Returns
    -------
    DataFrame
        Columns task, layer, first, second and difference (first - second), in percentage points.
        The score of a task is the mean over the subsets that both have.
    """
    both = first.merge(second, on=COMPARED, suffixes=("_first", "_second"))
    if both.empty:
        raise LayerwiseError("The two results have no task and layer in common.", code="too_few")
    scores = (
        100 * both.groupby(["task", "layer"])[["main_score_first", "main_score_second"]].mean()
    )
    scores = scores.set_axis(["first", "second"], axis=1).reset_index()
    return scores.assign(difference=scores["first"] - scores["second"])


def by_task_and_layer(differences: pd.DataFrame) -> str:
    """Differences in percentage points as text: a row per task, a column per layer."""
    wide = differences.pivot(index="task", columns="layer", values="difference")
    return wide.to_string(float_format="{:.1f}".format, na_rep="")


def described(differences: pd.DataFrame) -> list[str]:
    """Summarise differences: their size, and the best and last layer of both results."""
    size = differences["difference"].abs()
    worst = differences.iloc[int(size.to_numpy().argmax())]
    lines = [
        f"{len(differences)} scores of {differences['task'].nunique()} tasks, in percentage "
        f"points: mean difference {differences['difference'].mean():.2f}, mean absolute "
        f"{size.mean():.2f}, largest {worst['difference']:.2f} ({worst['task']}, layer "
        f"{worst['layer']}); {(size <= 1).mean():.0%} within 1 point."
    ]
    # A mean over fewer tasks at some layer would not be comparable.
    n_tasks = differences.groupby("layer")["task"].transform("nunique")
    complete = differences[n_tasks == differences["task"].nunique()]
    means = complete.groupby("layer")[["first", "second"]].mean()
    for name, score in means.items():
        lines.append(
            f"Mean of all tasks, {name}: best layer {score.idxmax()} at {score.max():.1f}, layer "
            f"{means.index[-1]} at {score.iloc[-1]:.1f}."
        )
    return lines
