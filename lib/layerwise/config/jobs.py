"""The section ``jobs``: how much work a job takes, and what is kept of it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from layerwise.config.base import Positive, Section

Gigabytes = Annotated[float, Field(gt=0, le=1e9)]


class JobsSettings(Section):
    """How much work a job takes, and what is kept of it. In no job's key."""

    checkpoints: Positive = Field(
        default=1,
        description="Checkpoints of a model that one job takes, one after the other: many for "
        "models so small that starting a job takes longer than its work.",
    )
    items: Positive | None = Field(
        default=None,
        description="Corpora and tasks of a checkpoint that one job takes; null for all, so that "
        "a model is loaded once.",
    )
    gigabytes: Gigabytes | None = Field(
        default=None,
        description="Gigabytes (10^9 bytes) of activations and embeddings that one job writes of "
        "a checkpoint; what is more goes to further jobs, and a task that alone is more is a job "
        "of its own. null for no limit.",
    )
    disk: Gigabytes | None = Field(
        default=None,
        description="Gigabytes that the activations and embeddings that are not kept may take at "
        "one time: a job waits until those before it are read and gone. null for no limit. Needs "
        "keep_embeddings: false or keep_activations: false.",
    )
    minutes: Positive | None = Field(
        default=None,
        description="Minutes that a job that scores tasks should take, going by the number of "
        "their texts: small tasks together, large ones apart. null for all tasks that one job "
        "has embedded.",
    )
    half_from: Positive | None = Field(
        default=50_000,
        description="Tasks of so many distinct texts or more wait for their scoring in 16 bits a "
        "component, others in 32; null for 32 always. docs/cluster.md has how far that moves "
        "scores.",
    )
    keep_embeddings: bool = Field(
        default=False,
        description="Whether the embeddings of tasks' texts stay once they are scored. They take "
        "layers x width x texts x 2 or 4 bytes a reading: 88 GB for Pythia-410m and the "
        "paper's tasks.",
    )
    keep_activations: bool = Field(
        default=True,
        description="Whether the activations of corpora stay once their metrics are computed. "
        "Without them another metric, or another setting of one, needs the model again.",
    )

    @model_validator(mode="after")
    def _something_goes(self) -> Self:
        if self.disk is not None and self.keep_embeddings and self.keep_activations:
            raise ValueError(
                "disk came with keep_embeddings: true and keep_activations: true, where nothing "
                "ever goes; set one of them to false, or leave disk out"
            )
        return self

    def unlimited(self) -> bool:
        """Whether the sizes of models and tasks decide nothing of which job does what."""
        return self.gigabytes is None and self.disk is None and self.minutes is None

    def halves(self, texts: int) -> bool:
        """Whether the embeddings of a task of so many texts are in half precision."""
        return self.half_from is not None and texts >= self.half_from
