"""The section ``published``: tables from elsewhere that studies can draw."""

from __future__ import annotations

from pydantic import Field

from layerwise.config.base import Section


class Published(Section):
    """A pair of tables in the schema of the authors' released results."""

    scores: str = Field(
        min_length=1,
        description="CSV or parquet: family, size, revision, layer, task, task_type, hf_subset, "
        "languages, split, main_score.",
    )
    metrics: str = Field(
        min_length=1,
        description="CSV or parquet: family, size, revision, dataset, split, metric, "
        "normalization, layer, value.",
    )
