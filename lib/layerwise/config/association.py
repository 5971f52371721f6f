"""The sections ``association`` and ``published``: metrics against task scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from layerwise.data import RELEASED, published
from layerwise.section import Section, Seed

OWN_TEXTS = "task texts"
"""The corpus in which each task is compared with the metrics on its own texts."""

Measure = Literal["r", "slope", "dcor", "spearman", "kendall"]
"""Partial correlation given depth; percentage points per standard deviation of the metric given
depth; distance correlation; Spearman's rho; Kendall's tau-b."""
Over = Literal["layers", "tasks"]


class AssociationSettings(Section):
    """Association of metrics with task scores over layers, and selection of layers."""

    own_texts: dict[str, str] = {}
    """Corpora that hold a task's texts, as {corpus: task}. Together they make the corpus 'task
    texts' for studies. Corpora whose source is a task need no mention."""
    directions: dict[str, Literal[1, -1]] = {}
    """Metrics whose direction differs from the declared one: 1 if higher is better, -1 if lower.
    """
    text_sources: dict[str, str] = {}
    """Task clusters: tasks made of the same texts, as {task: name of the texts}. A cluster counts
    as one draw. Those of the quickstart and of the paper are known."""
    seed: Seed = 0
    """Seed of permutations."""


def _shipped(value: str, info: ValidationInfo) -> str:
    return str(published(str(info.field_name), value)) if value in RELEASED else value


TablePath = Annotated[str, Field(min_length=1), AfterValidator(_shipped)]


class Published(Section):
    """Published tables: the authors' released results, or tables of another run."""

    scores: TablePath | None = None
    """CSV or Parquet: family, size, revision, layer, task, task_type, hf_subset, languages, split,
    main_score, and pooling and last_layer where needed; null for none. released: the scores that
    ship with layerwise; released_2024: those of September 2024."""
    metrics: TablePath
    """CSV or Parquet: family, size, revision, dataset, split, metric, normalization, layer, value,
    and protocol, alpha, normed, sublayer and last_layer where needed; or the columns of this
    package's tables. released: the metrics that ship with layerwise; released_2024: those of
    September 2024, by other formulas."""
