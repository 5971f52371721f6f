"""Tables that the explorer shows.

`gather` makes tables of curves, associations and selections from the run's tables;
`explorer.page` packs them and puts them into ``page.html`` with its style and script.
What the browser shows is in ``page.js`` alone.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from layerwise.association.curves import CURVE_KEYS, with_output
from layerwise.association.scores import mean_scores
from layerwise.association.table import ALL_MODELS
from layerwise.figures import panels, select
from layerwise.metrics import registry
from layerwise.names import Order, in_order, step_of
from layerwise.stats import FEWEST
from layerwise.vocabulary import BLOCK, NORMALIZATIONS, PROTOCOLS, SUBLAYERS, TOKENS

METRIC_KEYS = ("model", "revision", *CURVE_KEYS, "sublayer", "tokens", "file")
SCORE_KEYS = ("model", "revision", "tokens", "pooling", "scored", "of", "file")
TASK = ["model", "revision", "task"]
ALL_TASKS = "all"


Read = Mapping[str, Sequence[tuple[pd.DataFrame, Path]]]
"""Tables by name (metrics, scores, associations, selections), each with its file."""


@dataclass(frozen=True)
class Curves:
    """Curves over layers: a row a curve, and their points one curve after another.

    Attributes
    ----------
    index : DataFrame
        Columns that identify the curves; ``length``, their numbers of points; ``last``, the
        model's L.
    points : DataFrame
        ``layer``, ``value`` and what else is known of each.
    """

    index: pd.DataFrame
    points: pd.DataFrame


@dataclass(frozen=True)
class Explored:
    """All that the page shows.

    Attributes
    ----------
    metrics, scores : Curves
    associations, choices : DataFrame
        With the file of each row.
    models : list of dict
        Of each model: name, colour, marker, its last layer, checkpoints first to last, which of
        them it is at for each stop of the timeline (-1: not yet there), and the model that it is a
        copy of.
    timeline : list of str
        The stops of the slider.
    words : mapping
        Names for people.
    """

    metrics: Curves
    scores: Curves
    associations: pd.DataFrame
    choices: pd.DataFrame
    models: list[dict[str, Any]]
    timeline: list[str]
    words: Mapping[str, Any] = field(default_factory=dict)


def gather(
    sources: Mapping[str, Read],
    order: Order,
    page: Path,
    directions: Mapping[str, int] | None = None,
) -> Explored:
    """Make the tables of the page.

    Parameters
    ----------
    sources : mapping
        Tables by the name of published ones; that of the run's own is empty.
    order : Order
        Of models and checkpoints.
    page : Path
        Where the page will be: links count from its folder.
    directions : mapping of metric to 1 or -1, optional
        Metrics that select at another end than the declared one.

    Returns
    -------
    Explored
        Metrics have ``value``, ``stderr``, ``n`` (prompts) and ``n_left_out``. Scores are in
        [0, 1], over all tasks, each type and each task, with the interval that figures have
        (`layerwise.association.scores.mean_scores`), and of single layers alone.
    """
    frames: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for published, read in sources.items():
        frames["scores"] += _scored(read.get("scores", ()), page, published)
        for table in ("metrics", "associations", "selections"):
            frames[table] += (_located(*one, page, published) for one in read.get(table, ()))
    measured = _curves(frames["metrics"], METRIC_KEYS, ("value", "stderr", "n", "n_left_out"))
    shown = ("value", "low", "high", "output_score", "n_tasks", "n_clusters")
    scored = _curves(frames["scores"], SCORE_KEYS, shown)
    models, timeline = _models(measured, scored, order)
    return Explored(
        metrics=measured,
        scores=scored,
        associations=_rows(frames["associations"]),
        choices=_rows(frames["selections"]),
        models=models,
        timeline=timeline,
        words=_words(measured, scored, {**registry.directions(), **(directions or {})}),
    )


def _located(frame: pd.DataFrame, path: Path, page: Path, published: str) -> pd.DataFrame:
    """With the link to its file, and models of published tables under names of their own."""
    frame = frame.assign(file=_link(path, page))
    if published:
        named = frame["model"].astype(str) + f" ({published})"
        frame["model"] = named.where(frame["model"] != ALL_MODELS, frame["model"])
    return frame


def _link(path: Path, page: Path) -> str:
    return quote(Path(os.path.relpath(path, page.parent)).as_posix())


def _scored(
    scores: Sequence[tuple[pd.DataFrame, Path]], page: Path, published: str
) -> Iterable[pd.DataFrame]:
    """Means over all tasks, over those of each type, and each task by itself."""
    if not scores:
        return
    rows = [frame.assign(file=_link(path, page)) for frame, path in scores]
    together = with_output(pd.concat(rows, ignore_index=True))
    files = together[[*TASK, "file"]].drop_duplicates(TASK)
    whole = files.assign(file=files["file"].str.rsplit("/", n=1).str[0] + "/")
    whole = whole.drop_duplicates(["model", "revision"]).drop(columns="task")
    for scored in (ALL_TASKS, "task_type", "task"):
        table = mean_scores(together, () if scored == ALL_TASKS else (scored,))
        table = table.assign(scored=scored, of=table.get(scored, ALL_TASKS))
        table = table.merge(files if scored == "task" else whole, how="left")
        if published:
            table["model"] += f" ({published})"
        yield table


def _curves(frames: Sequence[pd.DataFrame], keys: Sequence[str], values: Sequence[str]) -> Curves:
    """Rows of layers, gathered to curves."""
    table = pd.concat(frames or [pd.DataFrame()], ignore_index=True)
    table = table.reindex(columns=[*keys, "layer", "depth", *values])
    for name in keys:
        table[name] = _texts(table[name], BLOCK if name == "sublayer" else "")
    table["curve"] = table.groupby(list(keys), sort=False).ngroup()
    table = table.sort_values(["curve", "layer"], kind="stable")
    curves = table.groupby("curve")
    deepest = curves[["layer", "depth"]].max().astype(float)
    last = deepest["layer"] / deepest["depth"].where(deepest["depth"] > 0, 1)
    index = table.drop_duplicates("curve")[list(keys)].reset_index(drop=True)
    index = index.assign(length=curves.size(), last=last.round().astype(int))
    return Curves(index, table[["layer", *values]].reset_index(drop=True))


def _texts(column: pd.Series, default: str) -> pd.Series:
    """As texts; numbers as short as they can be, a missing one as the default."""
    if pd.api.types.is_numeric_dtype(column):
        return column.map("{:g}".format, na_action="ignore").astype(object).fillna(default)
    return column.astype(object).where(column.notna(), default).astype(str)


def _rows(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    return table.assign(alpha=_texts(table["alpha"], ""))


def _models(
    metrics: Curves, scores: Curves, order: Order
) -> tuple[list[dict[str, Any]], list[str]]:
    both = pd.concat([c.index[["model", "revision", "last"]] for c in (metrics, scores)])
    names = in_order(both["model"].unique(), order.models)
    revisions = {
        n: order.checkpoints(n, both.loc[both["model"] == n, "revision"].unique()) for n in names
    }
    steps = {n: _steps(checkpoints) for n, checkpoints in revisions.items()}
    checkpoint_at: dict[int, str] = {}
    for n in names:
        if len(steps[n]) > 1:
            checkpoint_at |= zip(steps[n], revisions[n], strict=True)
    stops = sorted(checkpoint_at)
    models = [
        {
            "name": n,
            "colour": panels.PALETTE.index(panels.colour_of(n, names)),
            "marker": names.index(n) % len(panels.MARKERS),
            "last": int(both.loc[both["model"] == n, "last"].max()),
            "revisions": revisions[n],
            "at": [_reached(steps[n], stop) for stop in stops] or [0],
            "copy": order.copies.get(n, ""),
        }
        for n in names
    ]
    return models, [checkpoint_at[stop] for stop in stops]


def _steps(revisions: Sequence[str]) -> list[int]:
    """Training steps of checkpoints if all have one and they rise; else their numbers."""
    steps = [step for revision in revisions if (step := step_of(revision)) is not None]
    if len(steps) == len(revisions) and steps == sorted(set(steps)):
        return steps
    return list(range(len(revisions)))


def _reached(steps: Sequence[int], stop: int) -> int:
    """The last checkpoint up to a stop; a model with a single one is always there."""
    return 0 if len(steps) == 1 else sum(step <= stop for step in steps) - 1


def _words(metrics: Curves, scores: Curves, directions: Mapping[str, int]) -> dict[str, Any]:
    """Labels of metrics, units, tokens and other values."""
    names = sorted(metrics.index["metric"].unique())
    pairs = metrics.index[["metric", "normalization"]].drop_duplicates()
    units: dict[str, dict[str, str]] = {}
    for metric, normalization in pairs.itertuples(index=False):
        unit = select.metric_unit(metric, normalization or "raw")
        units.setdefault(metric, {})[normalization] = unit
    poolings = sorted(scores.index["pooling"].unique())
    return {
        "metric": {n: select.metric_label(n) for n in names},
        "unit": units,
        "direction": {n: d for n, d in directions.items() if n in names},
        "tokens": TOKENS,
        "pooling": select.value_labels("pooling", poolings),
        "normalization": NORMALIZATIONS,
        "sublayer": SUBLAYERS,
        "measure": select.MEASURES,
        "protocol": PROTOCOLS,
        "palette": list(panels.PALETTE),
        "fewest_clusters": FEWEST,
    }
