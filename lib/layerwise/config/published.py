"""The section ``published``: tables from elsewhere that studies can draw."""

from __future__ import annotations

from pydantic import Field

from layerwise.config.base import Section


class Published(Section):
    """Tables in the schema of the authors' released results, or of our own."""

    scores: str | None = Field(
        None,
        min_length=1,
        description="CSV or parquet: family, size, revision, layer, task, task_type, hf_subset, "
        "languages, split, main_score; null for none, for studies of metrics alone.",
    )
    metrics: str = Field(
        min_length=1,
        description="CSV or parquet: family, size, revision, dataset, split, metric, "
        "normalization, layer, value; or the columns of our own tables, as of a run elsewhere.",
    )
