"""Whether there are enough prompts, and views, to choose a layer by each metric.

A metric of all prompts together may be set by how many there are, and LiDAR by its regulariser:
its pick then says nothing of the model. What is looked at, and the bounds, are those of
`layerwise.statistics.samples`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.activations.store import Activations
from layerwise.config.metrics import MetricsSettings
from layerwise.errors import LayerwiseError
from layerwise.metrics.catalog import lidar
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.sample_size import against_n_by_layer
from layerwise.metrics.table import compute_layer, wanted
from layerwise.progress import Progress
from layerwise.statistics import samples

Floats = npt.NDArray[np.float64]

COLUMNS = (
    "model", "revision", "corpus", "tokens", "protocol", "metric", "n", "pick", "same", "near",
    "change_from_half", "share_of_delta", "refused",
)  # fmt: skip

AGREEMENT = (
    "model", "tokens", "protocol", "metric", "n", "views", "pick_of_all", "same", "near",
    "near_all", "change",
)  # fmt: skip

UNCHECKED = "not defined on half of the prompts"

Reasons = Mapping[tuple[object, object, object], str]


def stability(
    activations: Activations,
    settings: MetricsSettings,
    directions: Mapping[str, int],
    *,
    repeats: int = 12,
    seed: int = 0,
) -> pd.DataFrame:
    """Each metric's pick on random halves of the prompts, and what its value is decided by.

    Parameters
    ----------
    activations : Activations
    settings : MetricsSettings
        Those of the metrics; entropies are taken at alpha 1.
    directions : mapping of metric to 1 or -1
        Metrics that are not in it pick no layer and have no row.
    repeats : int
        Random halves.

    Returns
    -------
    DataFrame with the columns of `COLUMNS`: a row for each choice of tokens, protocol and metric
    (raw). `same` and `near` are shares of the halves with the same pick, and one within a tenth of
    the depth; `change_from_half` is relative; `share_of_delta`, of LiDAR alone, is the median over
    layers. `refused` says why no layer is to be chosen by the metric; empty where one may be.
    """
    names = [m for m in settings.metrics or tuple(directions) if m in directions]
    rows: list[dict[str, object]] = []
    total = len(activations.prompts)
    # A metric that takes a sample of its own is looked at on that many prompts.
    by_size: dict[int, list[str]] = {}
    for name in names:
        most = getattr(getattr(settings, name, None), "sample", total)
        by_size.setdefault(min(most, total), []).append(name)
    for n, some in by_size.items():
        these = settings.model_copy(update={"metrics": tuple(some), "alphas": (1.0,)})
        layers = range(activations.n_layers)
        frame = against_n_by_layer(activations, these, layers, (n // 2, n), repeats, seed)
        # One order of an entropy; a metric without any has no alpha.
        frame = frame[frame["alpha"].isna() | (frame["alpha"] == 1)]
        rows += _rows(activations, these, directions, frame, n)
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def _rows(
    activations: Activations,
    settings: MetricsSettings,
    directions: Mapping[str, int],
    frame: pd.DataFrame,
    n: int,
) -> Iterator[dict[str, object]]:
    for (tokens, protocol, metric), part in frame.groupby(["tokens", "protocol", "metric"]):
        wide = part.pivot_table(index=["n", "repeat"], columns="layer", values="value")
        halves = wide.loc[n // 2] if n // 2 in wide.index else wide.iloc[:0]
        halves = halves.dropna(how="all")
        if n not in wide.index:  # no value, so no pick
            continue
        whole, direction = wide.loc[n].to_numpy()[0], directions[str(metric)]
        row = {
            "model": activations.model, "revision": activations.revision,
            "corpus": str(activations.attributes["corpus"]), "tokens": tokens,
            "protocol": protocol, "metric": metric, "n": n,
        }  # fmt: skip
        if not len(halves):
            pick = int(wide.columns[int(np.nanargmax(direction * whole))])
            yield {**row, "pick": pick, "refused": UNCHECKED}
            continue
        found = samples.stability_of(whole, halves.to_numpy(), direction)
        share = np.nan
        if metric == "lidar":
            share = _share_of_delta(activations, settings, str(tokens), str(protocol))
        yield {
            **row, "pick": int(wide.columns[found.pick]), "same": found.same, "near": found.near,
            "change_from_half": found.change_from_half, "share_of_delta": share,
            "refused": why_not(found, share),
        }  # fmt: skip


def _share_of_delta(
    activations: Activations, settings: MetricsSettings, tokens: str, protocol: str
) -> float:
    """The median over layers of the share of LiDAR that is set by its regulariser."""
    delta = settings.of("lidar", lidar.Settings).delta
    shares = []
    for layer in range(activations.n_layers):
        arrays = Arrays.of(activations, protocol, tokens, layer)
        kept = Layer(arrays, settings, protocol, errors=False).kept_in_views
        views = activations.views(protocol, tokens, layer)[1:, kept]
        shares.append(samples.share_decided_by_delta(views, delta))
    return float(np.median(shares))


def why_not(found: samples.Stability, share_of_delta: float = np.nan) -> str:
    """Why no layer is to be chosen by a metric: empty where one may be."""
    said = []
    if share_of_delta > samples.DECIDED:
        said.append(f"{share_of_delta:.0%} set by δ")
    if found.change_from_half > samples.CHANGED:
        said.append(f"half of the prompts change it by {found.change_from_half:.0%}")
    if not found.stable:
        said.append(f"only {found.near:.0%} of half-samples pick near that layer")
    return "; ".join(said)


def reasons_of(
    table: pd.DataFrame | None, model: str, revision: str, tokens: str
) -> dict[tuple[object, object, object], str]:
    """Why metrics of a model are refused, by (corpus, metric, protocol), from `stability`."""
    if table is None:
        return {}
    at = (table["model"] == model) & (table["revision"] == revision)
    mine = table[at & (table["tokens"] == tokens) & (table["refused"] != "")]
    keys = mine[["corpus", "metric", "protocol"]].itertuples(index=False, name=None)
    return dict(zip(keys, mine["refused"].astype(str), strict=True))


def agreement(
    activations: Activations,
    settings: MetricsSettings,
    directions: Mapping[str, int],
    *,
    prompts: Sequence[int],
    views: Sequence[int],
    repeats: int = 2,
    seed: int = 0,
) -> pd.DataFrame:
    """How often two samples of other prompts lead a metric to the same layer, by N and V.

    Random orders of the prompts are cut into samples of N that share none, so that the picks of
    two of them agree as far as those of fresh prompts would.

    Parameters
    ----------
    activations, settings, directions
        As for `stability`.
    prompts : sequence of int
        Numbers N, each at most half of the prompts there are.
    views : sequence of int
        Numbers V of augmented views that metrics of all views take; others need two.
    repeats : int
        Random orders.

    Returns
    -------
    DataFrame with the columns of `AGREEMENT`: a row for each choice of tokens, protocol, metric,
    N and V (null where the metric does not take all views). `same` and `near` are shares of pairs
    of samples with the same pick, and with picks within a tenth of the depth; `near_all` is the
    share of samples whose pick is that near the one of all prompts and views; `change` is the
    median over layers of how far the mean over samples lies from the value of all, relative to it.

    Raises
    ------
    LayerwiseError
        If there are too few prompts or views.
    """
    total, most = len(activations.prompts), activations.n_views - 1
    if max(prompts) > total // 2 or max(views) > most:
        raise LayerwiseError(
            f"{activations.path} has {total} prompts with {most} augmented views; two samples of "
            f"{max(prompts)} prompts with {max(views)} views were asked for."
        )
    names = [m for m in settings.metrics or tuple(directions) if m in directions]
    some = settings.model_copy(update={"metrics": tuple(names), "alphas": (1.0,)})
    metrics = wanted(some)
    of_views = [m for m in metrics if "views" in m.inputs]
    orders = np.random.default_rng(seed).permuted(np.tile(np.arange(total), (repeats, 1)), axis=1)
    samples_of = {n: _cut(orders, n) for n in prompts} | {total: [np.arange(total)]}
    curves: dict[tuple[str, str, str, int, int], Floats] = {}
    choices = list(
        itertools.product(
            settings.protocols or activations.protocols, settings.tokens or activations.tokens
        )
    )
    with Progress(activations.n_layers * len(choices), activations.model, "layer") as bar:
        for (protocol, tokens), layer in itertools.product(choices, range(activations.n_layers)):
            whole = Arrays.of(activations, protocol, tokens, layer)
            for n, v in itertools.product(samples_of, sorted({*views, most})):
                if n == total and v < most:
                    continue
                for place, part in enumerate(samples_of[n]):
                    at = Layer(
                        whole.subset(np.sort(part), v), some, protocol, tokens, errors=False
                    )
                    for row in compute_layer(at, metrics if v == most else of_views).values:
                        if row["normalization"] == "raw":
                            key = (tokens, protocol, row["metric"], n, v)
                            empty = np.full((len(samples_of[n]), activations.n_layers), np.nan)
                            curves.setdefault(key, empty)[place, layer] = row["value"]
            bar.update()
    varying = {m.name for m in of_views}
    rows = []
    for (tokens, protocol, metric, n, v), values in curves.items():
        if n == total or (metric in varying and v not in views):
            continue
        end = directions[metric]
        full = curves[tokens, protocol, metric, total, most][0]
        picks, pick = np.nanargmax(end * values, axis=1), int(np.nanargmax(end * full))
        gaps = _gaps(picks, total // n)
        tenth = 0.1 * (activations.n_layers - 1)
        change = np.abs(values.mean(axis=0) / np.where(full == 0, np.nan, full) - 1)
        rows.append(
            {
                "model": activations.model, "tokens": tokens, "protocol": protocol,
                "metric": metric, "n": n, "views": v if metric in varying else None,
                "pick_of_all": pick, "same": float((gaps == 0).mean()),
                "near": float((gaps <= tenth).mean()),
                "near_all": float((np.abs(picks - pick) <= tenth).mean()),
                "change": float(np.nanmedian(change)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(AGREEMENT))


def _cut(orders: npt.NDArray[np.intp], n: int) -> list[npt.NDArray[np.intp]]:
    """Samples of n of each order, without overlap."""
    return [order[k * n : (k + 1) * n] for order in orders for k in range(len(order) // n)]


def _gaps(picks: npt.NDArray[np.intp], together: int) -> npt.NDArray[np.intp]:
    """Distances of the picks of each two samples of one order."""
    one, other = np.triu_indices(together, 1)
    each = picks.reshape(-1, together)
    return np.asarray(np.abs(each[:, one] - each[:, other]).ravel())
