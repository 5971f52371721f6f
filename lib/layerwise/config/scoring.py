"""The section ``scoring``: scoring of layers on tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from layerwise.section import Section, Seed, SomeOf, Threads
from layerwise.vocabulary import Pooling, ScoredReadout


class ScoringSettings(Section):
    """Scoring of layers on tasks."""

    poolings: SomeOf[Pooling] = ("mean",)
    """Poolings of a text's token states into one vector."""
    readouts: SomeOf[ScoredReadout] = ("final_norm",)
    """final_norm: the residual stream after each block, through the model's final norm if it has
    one; at the last layer this is the model's output. residual: without the norm."""
    normalize: bool | None = None
    """Scale embeddings to unit length. This changes classification and clustering, not cosine
    similarities. null: if the model's modules.json has a Normalize module."""
    parts: Annotated[int, Field(ge=1, le=100)] = 1
    """Jobs that share the tasks of a model at a checkpoint, with about equal numbers of tokens."""
    threads: Threads = 2
    """Scoring processes of a job."""
    waiting_gb: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    """Limit, in gigabytes of local disk, on embeddings that wait for scoring."""
    sub_scores: bool = False
    """Keep all scores that mteb computes (F1, nDCG at other ranks), for `layerwise export-scores`.
    Scoring takes up to half as long again."""
    seed: Seed = 0
    """Seed of resampling; mteb's own seeds do not change."""
