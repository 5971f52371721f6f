"""The layers to use of a model, from its metrics alone: a set with its track record, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerwise.association.choice import (
    CONSENSUS,
    CONSENSUS_OF,
    MIDDLE,
    OUTPUT,
    pick_layers,
)
from layerwise.association.curves import (
    METRIC_COLUMNS,
    VARIANT,
    check_metrics_once,
    last_layer_of,
    of_blocks,
    require_columns,
)
from layerwise.association.order import Order
from layerwise.association.stability import reasons_of
from layerwise.association.votes import refused_together, same_votes
from layerwise.errors import LayerwiseError, closest
from layerwise.statistics import headlines

NEAR = 0.1  # of the depth
MAJORITY = 0.5
"""Share of the metrics that have to point to the same place for a layer to be recommended."""


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
    stability: pd.DataFrame | None = None,
    record: Record | None = None,
) -> tuple[pd.DataFrame, dict[str, object]]:
    """The layers to use of one model, from its metrics alone.

    Parameters
    ----------
    model : str
    revision, tokens, corpus : str, optional
        By default the last revision; `drop_first` tokens where there are such, since a first
        token of huge norm otherwise stands in for the whole prompt; and the only corpus.
    order : Order, optional
        The config's checkpoints; without one, they are ordered by their steps.
    stability : DataFrame, optional
        From `layerwise.association.stability.stability`: metrics that it refuses have no say.
    record : Record, optional
        How such picks have done in other models.

    Returns
    -------
    picks : DataFrame
        metric, better, layer, depth, refused, same_as (the metric that votes for both, empty where
        it votes for itself): what each metric says.
    chosen : dict
        model, revision, tokens, corpus, layer (of the consensus), depth, last_layer, agreement
        (share of the metrics that vote whose pick lies within a tenth of the depth of it), layers
        (all that metrics pick there), and `none`: why none is recommended, empty where some are.

    Raises
    ------
    LayerwiseError
        If the model, revision, tokens or corpus is not in the metrics, a value is there twice,
        several corpora are and none is named, or fewer than two metrics have a direction.
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
    check_metrics_once(part)
    table = part.set_index([*VARIANT, "layer"])["value"].astype(float).unstack("layer")
    layers = table.columns.to_numpy(dtype=np.int64)
    rows = table.index.to_frame(index=False)
    last = str(part["revision"].iloc[0])
    values = table.to_numpy(dtype=np.float64)
    same = same_votes(list(map(str, rows["metric"])), values, directions)
    why = refused_together(same, reasons_of(stability, model, last, tokens))
    picks = pick_layers(rows, values, layers, directions, why)
    consensus = [p for p in picks if p.variant["metric"] == CONSENSUS]
    if not consensus:
        raise LayerwiseError(
            f"The metrics of {model} hold fewer than two of the paper's seven whose picks can be "
            f"trusted, so no layer can be recommended; compute more of "
            f"{', '.join(sorted(CONSENSUS_OF))}, or take more prompts."
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
            "refused": [p.refused for p in single],
            "same_as": [same[str(p.variant["metric"])] for p in single],
        }
    )
    said["same_as"] = said["same_as"].where(said["same_as"] != said["metric"], "")
    near = (said["layer"] - layer).abs() <= NEAR * last_layer
    good = (said["refused"] == "") & (said["same_as"] == "")
    agreement = float(near[good].mean())
    chosen = {
        "model": model,
        "revision": last,
        "tokens": tokens,
        "corpus": str(part["corpus"].iloc[0]),
        "layer": layer,
        "depth": layer / max(last_layer, 1),
        "last_layer": last_layer,
        "agreement": agreement,
        "layers": sorted({layer, *(int(x) for x in said.loc[near & good, "layer"])}),
        "none": _why_none(agreement, record),
    }
    return said, chosen


@dataclass(frozen=True)
class Record:
    """How the consensus of the metrics has done in other models, where scores are known.

    Attributes
    ----------
    models : int
        That have scores of all three: the consensus, the model's own output, the middle layer.
    regret, output, middle : float
        Mean points that they lose against the best layer.
    told_above, told_below : int
        Models in which the interval of its lead over the output lies above 0, and below.
    told : int
        Models in which there is such an interval.
    """

    models: int
    regret: float
    output: float
    middle: float
    told_above: int
    told_below: int
    told: int

    @property
    def above(self) -> headlines.Count:
        """`told_above` against what chance gives."""
        return headlines.count(self.told_above, [0.025] * self.told)


def track_record(
    choices: pd.DataFrame,
    *,
    tokens: str,
    without: str,
    corpus: str,
    protocol: str,
    order: Order | None = None,
) -> Record | None:
    """The record of the consensus over all models but one; None where there is no other.

    Means are over the same models: those without a score of their output, or without metrics on
    this corpus, are in none.

    Parameters
    ----------
    choices : DataFrame
        From `layerwise.association.choice.choose_layers`.
    without : str
        The model that is to be advised, whose own scores are no record.
    order : Order, optional
        The config's checkpoints; without one, they are ordered by their steps.

    Raises
    ------
    LayerwiseError
        If a model's pick is there twice.
    """
    at = (choices["task_type"] == "all") & (choices["tokens"] == tokens)
    at &= (choices["model"] != without) & (choices["pooling"] == "mean")
    ours = (choices["corpus"] == corpus) & (choices["protocol"] == protocol)
    ours &= choices["metric"] == CONSENSUS
    mine = choices[at & (ours | choices["metric"].isin([OUTPUT, MIDDLE]))]
    final = (order or Order()).only_last(mine)
    twice = final.duplicated(["model", "metric"])
    if twice.any():
        row = final[twice].iloc[0]
        raise LayerwiseError(
            f"The choices hold the {row['metric']} of {row['model']} more than once; give each "
            "table once."
        )
    lost = final.pivot(index="model", columns="metric", values="regret")
    lost = 100 * lost.reindex(columns=[CONSENSUS, OUTPUT, MIDDLE]).astype(float).dropna()
    if lost.empty:
        return None
    mean = lost.mean()
    rows = final[(final["metric"] == CONSENSUS) & final["model"].isin(lost.index)]
    return Record(
        len(lost),
        float(mean[CONSENSUS]),
        float(mean[OUTPUT]),
        float(mean[MIDDLE]),
        int((rows["gain_low"] > 0).sum()),
        int((rows["gain_high"] < 0).sum()),
        int(rows["gain_low"].notna().sum()),
    )


def _why_none(agreement: float, record: Record | None) -> str:
    if agreement < MAJORITY:
        return f"only {agreement:.0%} of the metrics pick a layer near the others'"
    if record is None:
        return (
            "there is no other model with scores, of its output too, to say how such picks have "
            "done"
        )
    if not record.above.stands:
        return (
            f"of {record.told} other models such picks can be told to beat the output in "
            f"{record.told_above}, by chance in {record.above.expected:.1f}"
        )
    if not record.regret < record.output:
        return "in other models such picks lose no less than the output"
    return ""


def _only(frame: pd.DataFrame, column: str, wanted: str) -> pd.DataFrame:
    there = sorted(map(str, frame[column].unique()))
    if wanted not in there:
        raise LayerwiseError(
            f"The metrics have no {column} {wanted!r}{closest(wanted, there)}; there is "
            f"{', '.join(there) or 'nothing'}."
        )
    return frame[frame[column] == wanted]
