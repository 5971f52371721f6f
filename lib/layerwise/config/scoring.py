"""The section ``scoring``: how layers are scored on tasks."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from layerwise.section import Section, Seed, Share, SomeOf, Threads
from layerwise.vocabulary import Pooling, Readout


class ScoringSettings(Section):
    """How layers are scored on tasks."""

    poolings: SomeOf[Pooling] = Field(
        ("mean",), description="How the states of a text's tokens become one vector."
    )
    readouts: SomeOf[Readout] = Field(
        ("residual", "output"),
        description="residual: the residual stream after each block; final_norm: the final norm "
        "applied to it; output: the residual stream, and the model's output as the last "
        "layer, which the best layer is compared with. A model without a final norm skips it.",
    )
    normalize: bool = Field(
        True,
        description="Scale embeddings to unit length. This changes classification and clustering, "
        "not cosine similarities.",
    )
    confidence: Share = Field(0.95, description="Confidence of the intervals of scores.")
    threads: Threads = Field(2, description="Scoring processes of a job.")
    waiting_gb: Annotated[float, Field(gt=0, le=1e6)] = Field(
        4.0, description="Limit, in gigabytes of local disk, on embeddings that wait for scoring."
    )
    seed: Seed = Field(0, description="Seed of resampling; mteb's own seeds do not change.")

    layers: ClassVar[tuple[str, ...]] = ("one",)
    bootstrap: ClassVar[int] = 1000
    """Resamples behind the interval of a score that has several runs."""
