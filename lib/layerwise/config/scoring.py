"""The section ``scoring``: scoring of layers on tasks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from layerwise.section import Count, Distinct, Name, Section, Seed, SomeOf, Threads
from layerwise.vocabulary import Pooling, ScoredReadout


def _nested(given: Any) -> Any:
    """Refuse a single combination where a list of combinations is due."""
    if isinstance(given, tuple) and any(isinstance(one, int) for one in given):
        raise ValueError(f"expected a list of combinations; write [{list(given)}]")
    return given


def _ascending(layers: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(layers))


Together = Annotated[Distinct[Count], Field(min_length=2), AfterValidator(_ascending)]
"""Layers that are combined, ascending."""
Combinations = Annotated[Distinct[Together], BeforeValidator(_nested)]


class ScoringSettings(Section):
    """Scoring of layers on tasks."""

    poolings: SomeOf[Pooling] = ("mean",)
    """Poolings of a text's token states into one vector."""
    readouts: SomeOf[ScoredReadout] = ("final_norm",)
    """final_norm: the residual stream after each block, through the model's final norm if it has
    one; at the last layer this is the model's output. residual: without the norm."""
    layers: Combinations | dict[Name, Combinations] = ()
    """Layers to score together too, averaged and concatenated: [[8, 16, 24]] for all models, or by
    model {smollm2: [[8, 16, 24]], minilm: [[4, 5, 6]]}. Not in multiple choice."""
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

    def of(self, model: str) -> ScoringSettings:
        """The settings with the combinations of layers of one model."""
        named = self.layers
        return self.model_copy(
            update={"layers": named.get(model, ()) if isinstance(named, dict) else named}
        )

    @property
    def combinations(self) -> Combinations:
        """The combinations of layers of one model, from `of`."""
        assert not isinstance(self.layers, dict)
        return self.layers
