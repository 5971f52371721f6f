"""The words that configs, tables, files and figures share, with their labels and defaults.

Each list of words stands as a `Literal`, for types and the config's schema, and below it with
labels, for figures, the explorer and model cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]

Tokens: TypeAlias = Literal["all", "drop_first", "drop_sinks", "patches", "class"]
TOKENS: Mapping[str, str] = {
    "all": "all tokens",
    "drop_first": "without the first token",
    "drop_sinks": "without sink tokens",
    "patches": "patches",
    "class": "class token",
}

Pooling: TypeAlias = Literal["mean", "weighted_mean", "max", "last_token", "cls"]
POOLINGS: Mapping[str, str] = {
    "mean": "mean",
    "weighted_mean": "weighted mean",
    "max": "max",
    "last_token": "last token",
    "cls": "first token (CLS)",
}

RESIDUAL: Final = "residual"
FINAL_NORM: Final = "final_norm"
OUTPUT: Final = "output"
Readout: TypeAlias = Literal["residual", "final_norm", "output"]
ScoredReadout: TypeAlias = Literal["residual", "final_norm"]
SCORED_READOUTS: tuple[ScoredReadout, ...] = get_args(ScoredReadout)
READOUTS: Mapping[str, str] = {
    RESIDUAL: "residual stream",
    FINAL_NORM: "final norm",
    OUTPUT: "model output",
}

Protocol: TypeAlias = Literal["paper", "reference"]
PublishedProtocol: TypeAlias = Protocol | Literal["reference_2024"]
PROTOCOLS: Mapping[str, str] = {
    "paper": "as printed (paper)",
    "reference": "as the authors’ code",
}

Normalization: TypeAlias = Literal["raw", "logN", "logD", "logNlogD", "maxEntropy"]
NORMALIZATIONS: Mapping[str, str] = {
    "raw": "not normalised",
    "logN": "÷ log N",
    "logD": "÷ log D",
    "logNlogD": "÷ (log N log D)",
    "maxEntropy": "÷ log min(N, D)",
}

# In the order in which a block computes them.
BLOCK: Final = "block"
Sublayer: TypeAlias = Literal["input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp"]
SUBLAYERS: Mapping[str, str] = {
    "input_norm": "norm before attention",
    "mixer": "attention or mixer",
    "mixer_residual": "after adding attention",
    "mlp_norm": "norm before the MLP",
    "mlp": "MLP",
    BLOCK: "block (the layer)",
}

# Default values of dimensions, where a table has them.
USUAL: Mapping[str, object] = {
    "sublayer": BLOCK,
    "protocol": "paper",
    "tokens": "all",
    "alpha": 1.0,
    "normalization": "raw",
    "pooling": "mean",
    "readout": FINAL_NORM,
    "view": 0,
}

# A token is a sink if its norm is more than this many times the median norm of its prompt.
SINK_RATIO = 5.0

WORDS = 10_000
"""Words that a task of tags takes where it names no number."""

# Endings of users' tables.
TABLES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")

# What a corpus can be perturbed by: dimensions of the tables of its metrics.
LABELS = ("repetition", "randomness", "length")
