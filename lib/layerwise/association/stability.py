"""Whether there are enough prompts, and views, to choose a layer by each metric.

A metric of all prompts together may be set by how many there are, and LiDAR by its regulariser:
its pick then says nothing of the model. What is looked at, and the bounds, are those of
`layerwise.statistics.samples`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from layerwise.activations.layout import Activations
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.sample_size import against_n_by_layer
from layerwise.statistics import samples

COLUMNS = (
    "model", "revision", "corpus", "tokens", "protocol", "metric", "n", "pick", "same", "near",
    "change_from_half", "share_of_delta", "refused",
)  # fmt: skip

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
    some = settings.model_copy(update={"metrics": tuple(names), "alphas": (1.0,)})
    n, layers = len(activations.prompts), range(activations.n_layers)
    frame = against_n_by_layer(activations, some, layers, (n // 2, n), repeats, seed)
    # One order of an entropy; a metric without any has no alpha.
    frame = frame[frame["alpha"].isna() | (frame["alpha"] == 1)]
    rows = []
    for (tokens, protocol, metric), part in frame.groupby(["tokens", "protocol", "metric"]):
        wide = part.pivot_table(index=["n", "repeat"], columns="layer", values="value")
        halves = wide.loc[n // 2] if n // 2 in wide.index else wide.iloc[:0]
        halves = halves.dropna(how="all")
        if n not in wide.index or not len(halves):
            continue
        found = samples.stability_of(
            wide.loc[n].to_numpy()[0], halves.to_numpy(), directions[str(metric)]
        )
        share = np.nan
        if metric == "lidar":
            delta = some.lidar.delta  # type: ignore[attr-defined]
            share = float(
                np.median(
                    [
                        samples.share_decided_by_delta(
                            activations.views(str(protocol), str(tokens), layer)[1:], delta
                        )
                        for layer in layers
                    ]
                )
            )
        rows.append(
            {
                "model": activations.model, "revision": activations.revision,
                "corpus": str(activations.attributes["corpus"]), "tokens": tokens,
                "protocol": protocol, "metric": metric, "n": n,
                "pick": int(wide.columns[found.pick]), "same": found.same, "near": found.near,
                "change_from_half": found.change_from_half, "share_of_delta": share,
                "refused": why_not(found, share),
            }
        )  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


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
