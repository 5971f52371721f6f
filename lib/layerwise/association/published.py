"""Tables published elsewhere, in the schema of the authors' released results, as our tidy tables.

Scores: family, size, revision, layer, task, task_type, hf_subset, languages, split, main_score.
Metrics: family, size, revision, dataset, split, metric, normalization, layer, value; or those of
our own tables, of models that ran elsewhere. All as CSV (gzipped or not) or parquet. So the
association and the figures can be had without running a model.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerwise.association.curves import METRIC_COLUMNS, of_blocks, require_columns
from layerwise.errors import LayerwiseError, first_line
from layerwise.io.files import is_file
from layerwise.section import NAME, NAMES

log = logging.getLogger(__name__)

SCORES = (
    "family",
    "size",
    "revision",
    "layer",
    "task",
    "task_type",
    "hf_subset",
    "languages",
    "split",
    "main_score",
)
METRICS = (
    "family",
    "size",
    "revision",
    "dataset",
    "split",
    "metric",
    "normalization",
    "layer",
    "value",
)

# The released tables' names for metrics that are called otherwise here.
METRIC_NAMES = {
    "entropy_sentence": "prompt_entropy",
    "prompt-entropy": "prompt_entropy",
    "entropy_dataset": "dataset_entropy",
    "dataset-entropy": "dataset_entropy",
}

LONGEST_NAME = 150
MOST_LAYERS = 10_000

WITH_ALPHA = frozenset({"prompt_entropy", "dataset_entropy", "dime"})


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV (gzipped or not) or parquet table.

    Raises
    ------
    LayerwiseError
        If the file is missing or not such a table.
    """
    path = Path(path)
    if not is_file(path):
        raise LayerwiseError(
            f"There is no table {path}; relative paths start at the current folder.",
            code="missing_file",
        )
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, low_memory=False)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file fails in whatever part of pandas, Arrow, gzip
        raise LayerwiseError(
            f"{path} is neither CSV nor parquet, or is damaged ({first_line(error)}); get it "
            "again.",
            code="unreadable",
        ) from error


def names_in(path: Path, *columns: str) -> list[str]:
    """The names in some columns of a published table, of those that it has."""
    table = read_table(path)
    return [_one_line(name) for c in columns if c in table for name in table[c].unique()]


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
    kept = table[(table["split"] == "test") & (table["languages"] == "eng-Latn")]
    if kept.empty:
        raise LayerwiseError(
            "The published scores have no row of the split 'test' in 'eng-Latn'; those are the "
            "rows that count.",
            code="mismatch",
        )
    log.info("%d of %d published scores are English test scores", len(kept), len(table))
    what = "scores"
    tidy = pd.DataFrame(
        {
            **_about(kept, what),
            "task": _names(kept, "task", what),
            "task_type": _names(kept, "task_type", what),
            "subset": _names(kept, "hf_subset", what),
            "split": kept["split"],
            "pooling": "mean",
            # The authors cut the model at each layer, so that its last norm is applied to all.
            "readout": "final_norm",
            "main_score": _scores(kept),
            "score_low": np.nan,
            "score_high": np.nan,
            "n_runs": 1,
        }
    )
    return tidy.reset_index(drop=True)


def published_metrics(table: pd.DataFrame) -> pd.DataFrame:
    """Published metrics as tidy metrics of the protocol `reference`; the corpus is the data set.

    Tables that have the columns of our own stay as they are, but for sub-layers.

    Where a data set has several splits, the test split is taken, so that metric and score are
    of the same texts. Missing values (curvature has many) are left out and logged. Alpha is 2 on
    WikiText and 1 elsewhere, as the released code had it.

    Raises
    ------
    LayerwiseError
        If a column is missing, a name is none, a value is no number, or a layer is out of range.
    """
    what = "metrics"
    if set(METRIC_COLUMNS) <= set(table.columns):
        return _own_metrics(table, what)
    require_columns(table, METRICS, "published metrics")
    table = table.assign(value=_numbers(table, "value", what))
    known = table[np.isfinite(table["value"])]
    if len(known) < len(table):
        log.warning(
            "%d of %d published metric values are missing and left out",
            len(table) - len(known),
            len(table),
        )
    has_test = known.loc[known["split"] == "test", "dataset"].unique()
    kept = known[(known["split"] == "test") | ~known["dataset"].isin(has_test)]
    metric = _names(kept, "metric", what).replace(METRIC_NAMES)
    corpus = _names(kept, "dataset", what)
    alpha = np.where(corpus.str.contains("wikitext"), 2.0, 1.0)
    tidy = pd.DataFrame(
        {
            **_about(kept, what),
            "corpus": corpus,
            "metric": metric,
            "protocol": "reference",
            "alpha": np.where(metric.isin(WITH_ALPHA), alpha, np.nan),
            "normalization": _names(kept, "normalization", what),
            "value": kept["value"],
            "stderr": np.nan,
            "n": 0,
            "n_left_out": 0,
        }
    )
    return tidy.reset_index(drop=True)


def _own_metrics(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """Our own table of metrics, from a file that anyone may have edited."""
    kept = of_blocks(table)
    names = ("model", "revision", "corpus", "metric", "protocol", "tokens", "normalization")
    numbers = ("depth", "alpha", "value")
    tidy = pd.DataFrame(
        {
            **{name: _names(kept, name, what) for name in names},
            **{name: _numbers(kept, name, what) for name in numbers},
            "layer": _layer(kept, what),
        }
    )
    odd = ~np.isfinite(tidy["value"])
    if odd.any():
        raise LayerwiseError(
            f"The published metrics have no finite value in {int(odd.sum())} of {len(tidy)} rows; "
            "leave those out.",
            code="not_finite",
        )
    has_errors = "stderr" in kept
    return tidy.assign(
        stderr=_numbers(kept, "stderr", what) if has_errors else np.nan,
        **{n: kept[n].astype(int) if n in kept else 0 for n in ("n", "n_left_out")},
    ).reset_index(drop=True)


def _about(table: pd.DataFrame, what: str) -> dict[str, Any]:
    """Model, revision, layer, depth and tokens."""
    model = _names(table, "family", what) + "-" + _names(table, "size", what)
    layer = _layer(table, what)
    return {
        "model": model,
        "revision": _names(table, "revision", what),
        "layer": layer,
        "depth": layer / layer.groupby(model).transform("max").clip(lower=1),
        "tokens": "all",
    }


def _names(table: pd.DataFrame, column: str, what: str) -> pd.Series[str]:
    """A column of names, as the config has them: they reach figures, captions and paths."""
    given = table[column]
    made = {value: _one_line(value) for value in given.unique()}
    for value, name in made.items():
        if pd.isna(value) or len(name) > LONGEST_NAME or not re.fullmatch(NAME, name):
            raise LayerwiseError(
                f"The column {column!r} of the published {what} holds {str(value)[:60]!r}, which "
                f"is not a name; {NAMES}.",
                code="bad_name",
            )
    return given.map(made)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _numbers(table: pd.DataFrame, column: str, what: str) -> pd.Series[float]:
    found = pd.to_numeric(table[column], errors="coerce")
    odd = table[column][found.isna() & table[column].notna()]
    if len(odd):
        raise LayerwiseError(
            f"The column {column!r} of the published {what} holds {str(odd.iloc[0])[:60]!r}; "
            "accepted are numbers.",
            code="wrong_type",
        )
    return found.astype(float)


def _layer(table: pd.DataFrame, what: str) -> pd.Series[int]:
    layer = _numbers(table, "layer", what)
    odd = layer[~((layer >= 0) & (layer <= MOST_LAYERS) & (layer % 1 == 0))]
    if len(odd):
        raise LayerwiseError(
            f"The column 'layer' of the published {what} holds {odd.iloc[0]:g}; accepted are "
            f"whole numbers from 0, the embedding output, to {MOST_LAYERS}.",
            code="wrong_type",
        )
    return layer.astype(int)


def _scores(table: pd.DataFrame) -> pd.Series[float]:
    score = _numbers(table, "main_score", "scores")
    odd = score[~score.abs().le(1)]
    if len(odd):
        raise LayerwiseError(
            f"The column 'main_score' of the published scores holds {odd.iloc[0]:g}; accepted is "
            "-1 to 1: divide per cent by 100, and leave out rows without a score.",
            code="wrong_type",
        )
    return score
