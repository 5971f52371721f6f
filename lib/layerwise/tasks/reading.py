"""A model as tasks read it, and the reader of tasks that score embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from layerwise.activations import embedding
from layerwise.activations.representation import Representation
from layerwise.config.settings import ExtractSettings, ScoringSettings
from layerwise.models.load import LoadedModel
from layerwise.tasks.prompts import Prompts
from layerwise.tasks.task import Array


@dataclass(frozen=True)
class Setup:
    """A model with all that decides how it reads the inputs of tasks.

    Attributes
    ----------
    scoring : ScoringSettings
        With `normalize` decided.
    prompts : Prompts
        Prompts in front of inputs.
    """

    loaded: LoadedModel
    extraction: ExtractSettings
    scoring: ScoringSettings
    prompts: Prompts


@dataclass(frozen=True)
class Embedder:
    """Embeds texts, images, recordings or words; see `layerwise.tasks.task.Reader`."""

    def representations(self, setup: Setup) -> list[Representation]:
        """Every selection of tokens with every pooling and readout of the settings."""
        scoring = setup.scoring
        return embedding.representations_of(
            setup.loaded, setup.extraction.tokens, scoring.poolings, scoring.readouts
        )

    def width(self, setup: Setup) -> int:
        """The model's hidden size."""
        return setup.loaded.anatomy.hidden

    def read(
        self, setup: Setup, inputs: Sequence[Any], prompts: Sequence[str], into: Array
    ) -> Iterator[int]:
        """Fill an array as `layerwise.activations.embedding.embed_into`."""
        return embedding.embed_into(
            setup.loaded,
            inputs,
            into,
            self.representations(setup),
            prompts=prompts,
            include_prompt=setup.prompts.include_prompt,
            budget=setup.extraction.batch_tokens,
            sink_ratio=setup.extraction.sink_ratio,
        )
