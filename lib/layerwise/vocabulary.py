"""The words that configs, tables and files share."""

from __future__ import annotations

from typing import Literal, TypeAlias

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
Tokens: TypeAlias = Literal["all", "drop_first", "drop_sinks", "patches", "class"]
Pooling: TypeAlias = Literal["mean", "weighted_mean", "max", "last_token", "cls"]
Readout: TypeAlias = Literal["residual", "final_norm", "output"]
ScoredReadout: TypeAlias = Literal["residual", "final_norm"]
Protocol: TypeAlias = Literal["paper", "reference"]
Normalization: TypeAlias = Literal["raw", "logN", "logD", "logNlogD", "maxEntropy"]
Sublayer: TypeAlias = Literal["input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp"]

WORDS = 10_000
"""Words that a task of tags takes where it names no number."""

# Endings of users' tables.
TABLES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")

# What a corpus can be perturbed by: dimensions of the tables of its metrics.
LABELS = ("repetition", "randomness", "length")
