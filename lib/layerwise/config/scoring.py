"""The section ``scoring``: how texts of tasks are read, and how layers are scored on them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from layerwise.config.base import Positive, Section, Seed, Share, SomeOf, later
from layerwise.vocabulary import ONE, Pooling, Readout

LAYERS = r"^(one|mean (all|[2-9]|[1-9][0-9][0-9]?)|concat (last|class|[0-9]|[1-9][0-9][0-9]?))$"


def _layers(value: str) -> str:
    if not re.fullmatch(LAYERS, value):
        raise ValueError(
            "accepted are one, mean K (K from 2 on), mean all, concat last, concat N, concat class"
        )
    return value


Layers = Annotated[
    str, AfterValidator(_layers), WithJsonSchema({"type": "string", "pattern": LAYERS})
]
"""Which layers are read together, see `layerwise.tasks.joined`."""


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
    layers: SomeOf[Layers] = Field(
        default=(ONE,),
        description="Which layers are read together at layer l, side by side: one, the layer "
        "itself; mean K, the mean of the last K up to it; mean all, of all up to it; concat last, "
        "the layer beside the model's output; concat N, beside layer N; concat class, the mean of "
        "the tokens asked for beside the class token at the same layer. All come from the stored "
        "embeddings; one must be there.",
        json_schema_extra=later([ONE]),
    )
    threads: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Processes that score layers side by side in one job.",
    )
    waiting_gb: float = Field(
        default=4.0,
        gt=0,
        description="Most vectors, in gigabytes of local disk, that wait to be scored.",
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
