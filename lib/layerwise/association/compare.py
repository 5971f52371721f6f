"""Compare the scores of one model in two results, such as a run and the published numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from layerwise import data
from layerwise.association.curves import ONLY_SUBSET, RESIDUAL
from layerwise.association.published import published_scores, read_table
from layerwise.errors import LayerwiseError, closest
from layerwise.io import tables

PUBLISHED = "published"
"""Stands for the numbers that ship with layerwise."""

FINAL_NORM = "final_norm"
KEYS = ["task", "subset", "layer"]


def read_scores(source: str, model: str, revision: str | None = None) -> pd.DataFrame:
    """Scores of a model at one checkpoint, as the authors ran it: all tokens, their mean.

    The final norm is applied at every layer where the model has one.

    Parameters
    ----------
    source : str
        A results folder, a table of the release (`layerwise.association.release`), or
        ``published`` for the one that ships with layerwise.
    model : str
        Its name there, in upper or lower case.
    revision : str, optional
        The checkpoint; needed if there are several.

    Returns
    -------
    DataFrame
        Columns task, subset, layer and main_score (0 to 1).

    Raises
    ------
    LayerwiseError
        If there are no such scores.
    """
    if source == PUBLISHED:
        found = published_scores(read_table(data.published("scores")))
    elif Path(source).is_dir():
        paths = sorted(Path(source, "scores").glob("*/*.parquet"))
        if not paths:
            raise LayerwiseError(
                f"{source}/scores: no scores found; run the workflow first.", code="missing_file"
            )
        found = tables.read(paths, "scores")
    else:
        found = published_scores(read_table(Path(source)))
    found = found[_one(found["model"], model, f"{source}: model", fold=True)]
    found = found[_one(found["revision"], revision, f"{source}: revision of {model}")]
    readout = FINAL_NORM if (found["readout"] == FINAL_NORM).any() else RESIDUAL
    as_released = (
        (found["tokens"] == "all") & (found["pooling"] == "mean") & (found["readout"] == readout)
    )
    if not as_released.any():
        raise LayerwiseError(
            f"{source}: no scores of {model} with all tokens, mean pooling and the readout "
            f"{readout}; score it with presets/as_released.yaml.",
            code="unknown_name",
        )
    found = found[as_released].assign(subset=found["subset"].fillna(ONLY_SUBSET))
    return found[[*KEYS, "main_score"]].reset_index(drop=True)


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
    both = first.merge(second, on=KEYS, suffixes=("_first", "_second"))
    if both.empty:
        raise LayerwiseError("The two results have no task and layer in common.", code="too_few")
    found = both.groupby(["task", "layer"], as_index=False)[
        ["main_score_first", "main_score_second"]
    ].mean()
    found.columns = pd.Index(["task", "layer", "first", "second"])
    found[["first", "second"]] *= 100
    return found.assign(difference=found["first"] - found["second"])


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
    for name in ("first", "second"):
        score = dict(means[name])
        best, last = max(score, key=lambda layer: score[layer]), max(score)
        lines.append(
            f"Mean of all tasks, {name}: best layer {best} at {score[best]:.1f}, layer "
            f"{last} at {score[last]:.1f}."
        )
    return lines


def _one(column: pd.Series, wanted: str | None, what: str, *, fold: bool = False) -> pd.Series:
    """Select the rows of one name; without a name wanted, the only one there is."""
    known = sorted(column.unique())
    if wanted is None:
        if len(known) > 1:
            raise LayerwiseError(
                f"{what}: there are several ({', '.join(known)}); name one.", code="ambiguous"
            )
        return column.notna()
    selected = column.str.casefold() == wanted.casefold() if fold else column == wanted
    if not selected.any():
        raise LayerwiseError(
            f"{what}: no scores of {wanted!r}{closest(wanted, known)}; there are "
            f"{', '.join(known)}.",
            code="unknown_name",
        )
    return selected
