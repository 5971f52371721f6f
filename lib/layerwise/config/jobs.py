"""The section ``jobs``: how much work a job takes, and what is kept of it."""

from __future__ import annotations

from pydantic import Field

from layerwise.config.base import Positive, Section


class JobsSettings(Section):
    """How much work a job takes, and what is kept of it. Changes no value."""

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
    keep_embeddings: bool = Field(
        default=False,
        description="Whether the embeddings of tasks' texts stay once they are scored. They take "
        "layers x width x texts x 4 bytes a reading: 285 GB for Pythia-410m and the paper's "
        "tasks.",
    )
