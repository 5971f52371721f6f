"""Names of dimensions, values, metrics and units as a reader of a figure sees them."""

from __future__ import annotations

import numpy as np

from layerwise.association.table import ALL_MODELS
from layerwise.metrics.registry import all_metrics
from layerwise.metrics.sequence import QUANTITIES
from layerwise.vocabulary import LABELS

TOKENS = {
    "all": "all tokens",
    "drop_first": "without the first token",
    "drop_sinks": "without sink tokens",
    "patches": "patches",
    "class": "class token",
}

# In the order in which a block computes them.
SUBLAYERS = {
    "input_norm": "norm before attention",
    "mixer": "attention or mixer",
    "mixer_residual": "after adding attention",
    "mlp_norm": "norm before the MLP",
    "mlp": "MLP",
    "block": "block (the layer)",
}

MEASURES = {
    "r": "Partial r",
    "slope": "Points per SD given depth",
    "dcor": "dCor",
    "spearman": "Spearman’s ρ",
    "kendall": "Kendall’s τ",
}

POOLINGS = {
    "weighted_mean": "weighted mean",
    "last_token": "last token",
    "cls": "first token (CLS)",
    "letter": "letter of the answer",
    "answer": "likelihood of the answer",
    "answer_per_character": "likelihood per character",
}
READOUTS = {"final_norm": "final norm", "residual": "residual stream"}

NORMALIZATIONS = {
    "logN": "÷ log N",
    "logD": "÷ log D",
    "logNlogD": "÷ (log N log D)",
    "maxEntropy": "÷ log min(N, D)",
}

RULES = {
    "consensus": "Consensus of the metrics",
    "model output": "Model output",
    "middle layer": "Middle layer",
    "best rule of the others": "Best rule of the other models",
    "layer index": "Layer index",
    "distance from the middle": "Distance from the middle",
}

SCORE = "score"
SCORE_AXIS = "Mean task score (× 100)"


def representation_label(key: str) -> str:
    """Words for a key of `layerwise.association.scores.representation`."""
    base, *readout = key.split(", ")
    how, _, tokens = base.partition(" of ")
    words = [TOKENS.get(how) or POOLINGS.get(how, how)]
    words += [TOKENS.get(tokens, tokens)] if tokens else []
    return ", ".join([*words, *(READOUTS.get(r, r) for r in readout)])


def metric_label(metric: str) -> str:
    """Words for a metric or rule; names from published tables are unchanged."""
    known = QUANTITIES.get(metric) or all_metrics().get(metric)
    return known.label if known else RULES.get(metric, metric)


def metric_unit(metric: str, normalization: str = "raw") -> str:
    """Unit of an axis; empty for plain numbers and for normalised values."""
    known = QUANTITIES.get(metric) or all_metrics().get(metric)
    return known.unit if known and normalization == "raw" else ""


def with_unit(what: str, metric: str) -> str:
    """Something in the unit of a metric: ``Depth of the valley (nats)``."""
    unit = metric_unit(metric)
    return f"{what} ({unit})" if unit else what


def axis_label(metric: str, alpha: object = None, normalization: str = "raw") -> str:
    """Label of an axis: name, unit, normalisation, and alpha unless it is 1."""
    if metric == SCORE:
        return SCORE_AXIS
    notes = [metric_unit(metric, normalization or "raw"), NORMALIZATIONS.get(normalization, "")]
    if alpha not in (None, "", 1) and not np.isnan(float(str(alpha))):
        notes.append(value_label("alpha", str(alpha)))
    words = ", ".join(n for n in notes if n)
    return f"{metric_label(metric)} ({words})" if words else metric_label(metric)


def value_label(dimension: str, value: str) -> str:
    """Words for a value of a dimension."""
    if dimension == "y":
        return "Mean task score" if value == SCORE else metric_label(value)
    if dimension == "model":
        return "over models" if value == ALL_MODELS else value
    if dimension == "representation":
        return representation_label(value)
    if dimension == "alpha":
        return "no α" if value == "" else f"α = {float(value):g}".replace("inf", "∞")
    if dimension in LABELS:
        return "unchanged" if value == "" else f"{dimension} {float(value):g}"
    known = {
        "tokens": TOKENS,
        "sublayer": SUBLAYERS,
        "pooling": POOLINGS,
        "normalization": NORMALIZATIONS,
    }
    return known.get(dimension, {}).get(value, value)
