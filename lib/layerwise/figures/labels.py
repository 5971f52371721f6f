"""Names of dimensions, values, metrics and units as a reader of a figure sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from layerwise.association.scores import ENDS
from layerwise.association.table import ALL_MODELS
from layerwise.config.studies import Study
from layerwise.metrics.registry import QUANTITIES, all_metrics
from layerwise.vocabulary import (
    FINAL_NORM,
    LABELS,
    NORMALIZATIONS,
    POOLINGS,
    PROTOCOLS,
    READOUTS,
    RESIDUAL,
    SUBLAYERS,
    TOKENS,
)

MEASURES = {
    "r": "Partial r",
    "slope": "Points per SD given depth",
    "dcor": "dCor",
    "spearman": "Spearman’s ρ",
    "kendall": "Kendall’s τ",
}

RULES = {
    "consensus": "Consensus of the metrics",
    "model output": "Model output",
    "middle layer": "Middle layer",
    "LOES": "LOES (isotropy)",
    "best layer": "Best layer of these tasks",
    "best layer of the other tasks": "Best layer of the other tasks",
    "best rule of the others": "Best rule of the other models",
    "layer index": "Layer index",
    "distance from the middle": "Distance from the middle",
}

# Words for the values of dimensions.
HOW: dict[str, str] = {**POOLINGS}
"""Poolings, and the forms of tasks that have their own; add-ons put theirs in."""
WORDS: Mapping[str, Mapping[str, str]] = {
    "tokens": {**TOKENS},
    "sublayer": SUBLAYERS,
    "pooling": HOW,
    "normalization": {**NORMALIZATIONS},
    "protocol": {**PROTOCOLS},
    "readout": {**READOUTS},
    "measure": MEASURES,
    "end": {end: f"layer of the {end} value" for end in ENDS},
}

SCORE = "score"
SCORE_AXIS = "Mean task score (× 100)"


def representation_label(key: str) -> str:
    """Words for a key of `layerwise.association.scores.representation`."""
    base, *readout = key.split(", ")
    how, _, tokens = base.partition(" of ")
    words = [WORDS["tokens"].get(how) or HOW.get(how, how)]
    words += [value_label("tokens", tokens)] if tokens else []
    return ", ".join([*words, *(value_label("readout", r) for r in readout)])


def metric_label(metric: str) -> str:
    """Words for a metric or rule; names from published tables are unchanged."""
    declared = QUANTITIES.get(metric) or all_metrics().get(metric)
    return declared.label if declared else RULES.get(metric, metric)


def title_of(study: Study) -> str:
    """Title of a study: its own, or its kind's, which names a metric that stands alone."""
    if study.title != "":
        return study.title or ""
    metrics = {choice.metric for choice in study.metric_choices or ()}
    title = study.declaration.title
    return title.replace("Metrics", metric_label(metrics.pop())) if len(metrics) == 1 else title


def metric_unit(metric: str, normalization: str = "raw") -> str:
    """Unit of an axis; empty for plain numbers and for normalised values."""
    declared = QUANTITIES.get(metric) or all_metrics().get(metric)
    return declared.unit if declared and normalization == "raw" else ""


def with_unit(what: str, metric: str) -> str:
    """Something in the unit of a metric: ``Depth of the valley (nats)``."""
    unit = metric_unit(metric)
    return f"{what} ({unit})" if unit else what


def axis_label(metric: str, alpha: object = None, normalization: str = "raw") -> str:
    """Label of an axis: name, unit, normalisation, and alpha unless it is 1."""
    if metric == SCORE:
        return SCORE_AXIS
    notes = [metric_unit(metric, normalization or "raw")]
    if normalization not in ("", "raw"):
        notes.append(value_label("normalization", normalization))
    if alpha not in (None, "", 1) and not np.isnan(float(str(alpha))):
        notes.append(value_label("alpha", str(alpha)))
    words = ", ".join(n for n in notes if n)
    return f"{metric_label(metric)} ({words})" if words else metric_label(metric)


def value_labels(dimension: str, values: Iterable[str]) -> dict[str, str]:
    """Words for several values of a dimension; the final norm is named next to the stream."""
    words = {value: value_label(dimension, value) for value in values}
    if dimension in ("pooling", "representation") and any(v.endswith(RESIDUAL) for v in words):
        norm = value_label("readout", FINAL_NORM)
        return {v: w if v.endswith(RESIDUAL) else f"{w}, {norm}" for v, w in words.items()}
    return words


def value_label(dimension: str, value: str) -> str:
    """Words for a value of a dimension."""
    if dimension == "y":
        return "Mean task score" if value == SCORE else metric_label(value)
    if dimension == "model":
        return "over models" if value == ALL_MODELS else value
    if dimension == "representation" or (dimension == "pooling" and ", " in value):
        return representation_label(value)
    if dimension == "alpha":
        return "no α" if value == "" else f"α = {float(value):g}".replace("inf", "∞")
    if dimension in LABELS:
        return "unchanged" if value == "" else f"{dimension} {float(value):g}"
    return WORDS.get(dimension, {}).get(value, value)
