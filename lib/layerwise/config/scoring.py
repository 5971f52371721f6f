"""The section ``scoring``: how texts of tasks are read, and how layers are scored on them."""

from __future__ import annotations

from pydantic import Field

from layerwise.config.base import Positive, Section, Seed, Share, SomeOf
from layerwise.vocabulary import Pooling, Readout


class ScoringSettings(Section):
    """How layers are scored on tasks."""

    poolings: SomeOf[Pooling] = Field(
        default=("mean",),
        description="How the states of the tokens that count become one vector, side by side.",
    )
    readouts: SomeOf[Readout] = Field(
        default=("residual", "output"),
        description="residual: the stream after each block; final_norm: the model's last norm "
        "applied to each; output: the last layer as the model hands it out, the others as they "
        "are; side by side. What the best layer is set against is the last layer of output. A "
        "model without one of them leaves it out and says so.",
    )
    threads: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Processes that score layers side by side in one job.",
    )
    normalize: bool = Field(
        default=True,
        description="Scale every embedding to unit length before it is scored; changes no "
        "cosine, but classifiers and clusterings.",
    )
    bootstrap: Positive = Field(
        default=1000, description="Resamples behind the interval of a score that has several runs."
    )
    confidence: Share = Field(default=0.95, description="Confidence of that interval.")
    seed: Seed = Field(
        default=0, description="Seed of the resampling; mteb's own seeds stay as they are."
    )
