"""Compare the scores of one model in two results, such as a run and the published numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from layerwise import data
from layerwise.association.curves import ONLY_SUBSET
from layerwise.association.published import published_scores, read_table
from layerwise.errors import LayerwiseError, check_name, in_any_case
from layerwise.io import tables
from layerwise.vocabulary import FINAL_NORM, RESIDUAL

PUBLISHED = "published"
"""Stands for the numbers that ship with layerwise."""

MAIN = "main"  # the finished model, on the hub

KEYS = ["task", "subset", "layer"]


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
        files = sorted(Path(source, "scores").glob("*/*.parquet"))
        found = tables.read(files, "scores")
    else:
        path = data.published("scores") if source == PUBLISHED else Path(source)
        found = published_scores(read_table(path))
    names = list(found["model"].unique())
    model = in_any_case(model, names)
    check_name(f"model of {source}", model, names)
    found = found[found["model"] == model]
    names = list(found["revision"].unique())
    revision = revision or (MAIN if MAIN in names else None)
    if revision is None and len(names) > 1:
        raise LayerwiseError(
            f"{source} has several revisions of {model} ({', '.join(names)}); name one.",
            code="ambiguous",
        )
    check_name(f"revision of {model}", revision or names[0], names)
    readout = FINAL_NORM if (found["readout"] == FINAL_NORM).any() else RESIDUAL
    wanted = {"revision": revision or names[0], "tokens": "all", "pooling": "mean"}
    wanted["readout"] = readout
    found = found[(found[list(wanted)] == list(wanted.values())).all(axis=1)]
    if found.empty:
        raise LayerwiseError(
            f"{source}: no scores of {model} with all tokens, mean pooling and the readout "
            f"{readout}; score it with presets/as_released.yaml.",
            code="unknown_name",
        )
    found = found.assign(subset=found["subset"].fillna(ONLY_SUBSET))
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
    for name, score in means.items():
        lines.append(
            f"Mean of all tasks, {name}: best layer {score.idxmax()} at {score.max():.1f}, layer "
            f"{means.index[-1]} at {score.iloc[-1]:.1f}."
        )
    return lines
