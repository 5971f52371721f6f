"""The first page of the report: the best layer of each model, as a table."""

from __future__ import annotations

import pandas as pd

from layerwise.association.best import best_layers
from layerwise.association.order import Order, in_order
from layerwise.figures.labels import TOKENS, representation, representation_label
from layerwise.figures.render import plain
from layerwise.figures.select import mean_scores

HEAD = (
    "Model", "Token selection", "Best layer", "Score", "Output's score", "Difference (95% CI)",
)  # fmt: skip
NOTE = (
    "Scores are means (× 100) over tasks. The output is the last layer after the model's last norm. "
    "The difference is that of the best layer from the output on held-out task clusters, in points, "
    "with a 95% CI over task clusters that allows for the selection of the layer."
)


def first_table(scores: pd.DataFrame, order: Order | None = None, seed: int = 0) -> pd.DataFrame:
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
        model, revision, representation, best_layer (text: ``output``, a layer, or ``5–7 (tie)``),
        last_layer, score, output_score, difference, low, high (scores in [0, 1]; null without an
        interval), n_tasks, n_clusters.
    """
    order = order or Order()
    best = best_layers(scores, seed=seed)
    best = best[best["task_type"] == "all"]
    names = zip(best["tokens"], best["pooling"], strict=True)
    best = best.assign(representation=[representation(t, p) for t, p in names])
    best = best.drop_duplicates(["model", "revision", "representation"])
    means = mean_scores(scores)
    rows = []
    for model in in_order(best["model"].unique(), order.models):
        mine = best[best["model"] == model]
        for name in in_order(mine["representation"].unique(), list(TOKENS)):
            part = mine[mine["representation"] == name].set_index("revision", drop=False)
            rows += part.loc[order.checkpoints(model, part.index)].to_dict("records")
    found = pd.DataFrame(rows)
    return pd.DataFrame(
        {
            **{c: found[c] for c in ("model", "revision", "representation")},
            "best_layer": [_best(row, means) for row in rows],
            "last_layer": found["last_layer"],
            "score": found["best_score"],
            "output_score": found["output_score"],
            "difference": found["gain_new_task"].fillna(found["gain"]),
            "low": found["gain_low"],
            "high": found["gain_high"],
            "n_tasks": found["n_tasks"],
            "n_clusters": found["n_sources"],
        }
    )


def _best(row: dict[str, object], means: pd.DataFrame) -> str:
    if row["best_is_output"]:
        return "output"
    same = (means[["model", "revision", "representation"]] == [row["model"], row["revision"], row["representation"]]).all(axis=1)
    layers = means.loc[same & (means["value"] >= float(str(row["best_score"])) - 1e-12), "layer"]
    if len(layers) < 2:
        return str(row["best_layer"])
    return f"{layers.min()}–{layers.max()} (tie of {len(layers)})"


def cells(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """The first table as text, a tuple per row, in the columns of `HEAD`."""
    rows = []
    for row in table.itertuples():
        revision = "" if row.revision == "main" else f" ({row.revision})"
        best = row.best_layer if row.best_layer == "output" else f"{row.best_layer} of {row.last_layer}"
        rows.append(
            (
                f"{row.model}{revision}", representation_label(row.representation), best,
                _points(row.score), _points(row.output_score), _difference(row),
            )
        )  # fmt: skip
    return rows


def _difference(row: object) -> str:
    value, low, high = (getattr(row, c) for c in ("difference", "low", "high"))
    if pd.isna(value):
        return "–"
    return _points(value) + ("" if pd.isna(low) else f" ({_points(low)} to {_points(high)})")


def _points(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.1f}".replace("-", "−")


def rst(table: pd.DataFrame) -> str:
    """The first page as reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (HEAD, *cells(table)):
        lines += [f"   {'  -' if i else '* -'} {plain(c)}" for i, c in enumerate(row)]
    n_tasks, n_clusters = table["n_tasks"].max(), table["n_clusters"].max()
    return "\n".join([*lines, "", f"{NOTE} Tasks: {n_tasks}; task clusters: {n_clusters}.", ""])


def text(table: pd.DataFrame) -> str:
    """The first table for a terminal."""
    rows = [HEAD, *cells(table)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)
