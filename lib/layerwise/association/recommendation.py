"""The layer to use of a model, from its metrics alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from layerwise.association.choice import CONSENSUS, CONSENSUS_OF, pick_layers
from layerwise.association.curves import (
    METRIC_COLUMNS,
    VARIANT,
    last_layer_of,
    of_blocks,
    require_columns,
)
from layerwise.association.order import Order
from layerwise.errors import LayerwiseError, closest


def recommend(
    metrics: pd.DataFrame,
    directions: Mapping[str, int],
    *,
    model: str,
    revision: str | None = None,
    tokens: str | None = None,
    corpus: str | None = None,
    protocol: str = "paper",
    order: Order | None = None,
) -> tuple[pd.DataFrame, dict[str, object]]:
    """The layer to use of one model, from its metrics alone.

    Parameters
    ----------
    model : str
    revision, tokens, corpus : str, optional
        By default the last revision; `drop_first` tokens where there are such, since a first
        token of huge norm otherwise stands in for the whole prompt; and the only corpus.
    order : Order, optional
        The config's checkpoints; without one, they are ordered by their steps.

    Returns
    -------
    picks : DataFrame
        metric, direction, layer, depth: what each metric says.
    chosen : dict
        model, revision, tokens, corpus, layer, depth, last_layer, agreement (share of the
        metrics whose pick lies within a tenth of the depth of the recommended layer).

    Raises
    ------
    LayerwiseError
        If the model, revision, tokens or corpus is not in the metrics, several corpora are and
        none is named, or fewer than two metrics have a direction.
    """
    require_columns(metrics, METRIC_COLUMNS, "metrics")
    part = _only(of_blocks(metrics), "model", model)
    part = _only(
        part, "revision", revision or (order or Order()).last(model, part["revision"].unique())
    )
    if tokens is None:
        tokens = "drop_first" if "drop_first" in set(part["tokens"]) else "all"
    part = _only(part, "tokens", tokens)
    corpora = sorted(part["corpus"].unique())
    if corpus is None and len(corpora) > 1:
        raise LayerwiseError(
            f"The metrics of {model} are on {', '.join(corpora)}; name one with --corpus."
        )
    part = _only(part, "corpus", corpus or corpora[0])
    part = _only(part, "protocol", protocol)
    part = part[(part["normalization"] == "raw") & (part["alpha"].isna() | (part["alpha"] == 1))]
    table = part.set_index([*VARIANT, "layer"])["value"].astype(float).unstack("layer")
    layers = table.columns.to_numpy(dtype=np.int64)
    rows = table.index.to_frame(index=False)
    picks = pick_layers(rows, table.to_numpy(dtype=np.float64), layers, directions)
    consensus = [p for p in picks if p.variant["metric"] == CONSENSUS]
    if not consensus:
        raise LayerwiseError(
            f"The metrics of {model} hold fewer than two of the paper's seven, so no layer "
            f"can be recommended; compute more of {', '.join(sorted(CONSENSUS_OF))}."
        )
    last_layer = last_layer_of(part)
    layer = consensus[0].layer
    single = [p for p in picks if p.variant["metric"] != CONSENSUS]
    said = pd.DataFrame(
        {
            "metric": [str(p.variant["metric"]) for p in single],
            "better": [
                "higher" if directions[str(p.variant["metric"])] > 0 else "lower" for p in single
            ],
            "layer": [p.layer for p in single],
            "depth": [p.layer / max(last_layer, 1) for p in single],
        }
    )
    chosen = {
        "model": model,
        "revision": str(part["revision"].iloc[0]),
        "tokens": tokens,
        "corpus": str(part["corpus"].iloc[0]),
        "layer": layer,
        "depth": layer / max(last_layer, 1),
        "last_layer": last_layer,
        "agreement": float(((said["layer"] - layer).abs() <= 0.1 * last_layer).mean()),
    }
    return said, chosen


def _only(frame: pd.DataFrame, column: str, wanted: str) -> pd.DataFrame:
    there = sorted(map(str, frame[column].unique()))
    if wanted not in there:
        raise LayerwiseError(
            f"The metrics have no {column} {wanted!r}{closest(wanted, there)}; there is "
            f"{', '.join(there) or 'nothing'}."
        )
    return frame[frame[column] == wanted]
