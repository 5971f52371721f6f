"""The first page of the report: the best layer of each model, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from layerwise.association.scores import best_layers, with_representation
from layerwise.figures.labels import representation_label
from layerwise.names import Order, in_order
from layerwise.stats import FEWEST, task_clusters
from layerwise.vocabulary import TOKENS

HEAD = (
    *("Model", "Token selection", "Best layer", "Score", "Output's score"),
    *("Difference (95% CI)", "Compute saved"),
)
COLUMNS = ["model", "revision", "representation", "best_layer", "last_layer", "score"]
COLUMNS += ["output_score", "difference", "low", "high", "n_tasks", "n_clusters"]
COLUMNS += ["compute_saved"]
NOTE = (
    "Scores are means (× 100) over tasks. The output is the last layer after the model's last "
    "norm. The difference is the best layer's lead over the output in points; its 95% CI over "
    "task clusters (tasks of the same texts count as one) corrects for selecting the best of all "
    f"layers and takes {FEWEST} clusters. Compute saved is the share of the model's blocks after "
    "the best layer, which an exported model does without."
)


def first_table(scores: pd.DataFrame, order: Order | None = None) -> pd.DataFrame:
    """Best layer of each model, checkpoint and representation, over all tasks.

    Parameters
    ----------
    scores : DataFrame
        Tidy scores.
    order : Order, optional
        Order of models and checkpoints.

    Returns
    -------
    DataFrame
        model, revision, representation, best_layer (``output``, a layer or ``3 layers tie``),
        last_layer, score, output_score, difference, low, high (scores in [0, 1]; null without an
        interval), n_tasks, n_clusters, compute_saved (share of the model's blocks after the best
        layer, 0 to 1; all blocks count the same, the embedding nothing).
    """
    order = order or Order()
    best = best_layers(scores)
    best = best[best["task_type"] == "all"].copy()
    best["compute_saved"] = 1 - best["best_layer"] / best["last_layer"].clip(lower=1)
    best["best_layer"] = [_best(row) for row in best.to_dict("records")]
    keys = ["model", "revision", "representation"]
    best = with_representation(best).drop_duplicates(keys)
    representations = in_order(best["representation"].unique(), list(TOKENS))
    revisions = best.groupby("model")["revision"].unique()
    rows = [
        (model, revision, name)
        for model in in_order(best["model"].unique(), order.models)
        for name in representations
        for revision in order.checkpoints(model, revisions[model])
    ]
    best = best.set_index(keys, drop=False)
    names = {"best_score": "score", "gain": "difference", "n_sources": "n_clusters"}
    names |= {"gain_low": "low", "gain_high": "high"}
    best = best.loc[[row for row in rows if row in best.index]].reset_index(drop=True)
    return best.rename(columns=names)[COLUMNS]


def _best(row: Mapping[Any, Any]) -> str:
    if row["n_tied"] > 1:
        return f"{row['n_tied']} layers tie"
    return "output" if row["best_is_output"] else str(row["best_layer"])


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The first table as people read it: texts, in the columns of `HEAD`; scores times 100."""
    rows = []
    for row in table.astype({"best_layer": str}).to_dict("records"):
        revision, best = row["revision"], row["best_layer"]
        rows.append(
            (
                row["model"] if revision == "main" else f"{row['model']} ({revision})",
                representation_label(row["representation"]),
                _of_all(best, row["last_layer"]),
                _points(row["score"]),
                _points(row["output_score"]),
                _difference(row),
                f"{row['compute_saved']:.0%}",
            )
        )
    return pd.DataFrame(rows, columns=list(HEAD))


def as_markdown(shown: pd.DataFrame) -> str:
    """A table in Markdown."""
    rows = [shown.columns, ["---"] * len(shown.columns), *shown.to_numpy()]
    return "".join(
        f"| {' | '.join(str(c).replace('|', '&#124;') for c in row)} |\n" for row in rows
    )


def as_latex(shown: pd.DataFrame) -> str:
    """A table in LaTeX, for the package booktabs."""
    text = shown.to_latex(index=False, escape=True)
    return text.replace("−", "$-$").replace("×", r"$\times$")


def _of_all(best: str, last: int) -> str:
    """A layer, of how many."""
    return f"{best} of {last}" if best.isdigit() else best


def _difference(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["difference"]) or row["best_layer"] == "output":
        return "–"
    interval = f"{_points(row['low'])} to {_points(row['high'])}"
    if pd.isna(row["low"]):
        interval = f"no CI: {task_clusters(row['n_clusters'])}"
    return f"{_points(row['difference'])} ({interval})"


def _points(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.1f}".replace("-", "−")
