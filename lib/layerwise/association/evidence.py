"""Scores that rules of layer selection lose in published models, by kind of model.

The rules are the model's output, the middle layer (l = L/2 rounded down), and each metric, which
selects the layer at its better end. Each selects one layer of a model for all of its tasks. The
loss is the mean score of the best layer less that of the selected one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from layerwise import data, stats

DECODER, ENCODER, EMBEDDING, VISION = "base decoder", "encoder", "embedding model", "vision model"


@cache
def losses() -> pd.DataFrame:
    """Loss of each rule in each published model, as shipped.

    Returns
    -------
    DataFrame
        Columns kind, model, rule, direction (of a metric: 1 if it selects its highest value),
        corpus (of a metric), layer, last_layer, n_tasks, and loss in points (0 to 100).
    """
    return pd.read_csv(data.LOSSES, float_precision="round_trip")


def expected_losses() -> pd.DataFrame:
    """Mean loss of each rule by kind of model, with models as the unit.

    Returns
    -------
    DataFrame
        Columns kind, rule, direction, corpus; loss, low and high in points: the mean over models
        and its 95% interval (Student's), which needs three models; n_models, and ``models``, their
        names. Rules with the smallest loss first. A kind without a published model has no row.
    """
    rows = []
    by = ["kind", "rule", "direction", "corpus"]
    for key, part in losses().groupby(by, dropna=False, sort=False):
        mean = stats.mean_ci(part["loss"].to_numpy())
        enough = len(part) >= stats.FEWEST
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "loss": mean.estimate,
                "low": max(float(mean.low), 0.0) if enough else np.nan,
                "high": mean.high if enough else np.nan,
                "n_models": len(part),
                "models": ", ".join(part["model"]),
            }
        )
    return pd.DataFrame(rows).sort_values(["kind", "loss"], ignore_index=True)
