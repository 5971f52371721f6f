"""The section ``scoring``: scoring of layers on tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from layerwise.section import Section, Seed, Share, SomeOf, Threads
from layerwise.vocabulary import Pooling, ScoredReadout


class ScoringSettings(Section):
    """Scoring of layers on tasks."""

    poolings: SomeOf[Pooling] = Field(
        ("mean",), description="How the states of a text's tokens become one vector."
    )
    readouts: SomeOf[ScoredReadout] = Field(
        ("final_norm",),
        description="final_norm: the residual stream after each block, through the model's final "
        "norm if it has one; at the last layer this is the model's output. residual: without "
        "the norm.",
    )
    normalize: bool | None = Field(
        None,
        description="Scale embeddings to unit length. This changes classification and clustering, "
        "not cosine similarities. null: if the model's modules.json has a Normalize module.",
    )
    confidence: Share = Field(0.95, description="Confidence of the intervals of scores.")
    threads: Threads = Field(2, description="Scoring processes of a job.")
    waiting_gb: Annotated[float, Field(gt=0, le=1e6)] = Field(
        4.0, description="Limit, in gigabytes of local disk, on embeddings that wait for scoring."
    )
    seed: Seed = Field(0, description="Seed of resampling; mteb's own seeds do not change.")
