"""The sections ``extract``, ``metrics``, ``scoring``, ``association`` and ``published``."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from layerwise.data import RELEASED, published
from layerwise.section import (
    Alpha,
    Count,
    Distinct,
    Positive,
    S,
    Section,
    Seed,
    SomeOf,
    Threads,
    parse,
)
from layerwise.vocabulary import (
    SINK_RATIO,
    Dtype,
    Normalization,
    Pooling,
    Protocol,
    Readout,
    ScoredReadout,
    Sublayer,
    Tokens,
)


class ExtractSettings(Section):
    """Extraction: how models run, and what is kept of each layer."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")
    """auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    dtype: Dtype = "float32"
    """Type that models compute in."""
    readout: Readout = "residual"
    """residual: the residual stream after each block; final_norm: the final norm applied to it;
    output: the residual stream, and the model's output as the last layer. The protocol reference
    always uses output, as the authors' code does."""
    tokens: SomeOf[Tokens] = ("all",)
    """Token selections to extract; several are kept side by side."""
    protocols: SomeOf[Protocol] = ("paper",)
    """Formulas as in the paper (paper), or as in the authors' code of 2025 (reference)."""
    arrays: Distinct[str] = ()
    """Arrays to keep beside those that the metrics and studies need (docs/metrics.md lists them),
    such as dimension. first_token_attention lets prompts run with eager attention."""
    sink_ratio: float = Field(SINK_RATIO, gt=1, le=1_000_000)
    """drop_sinks drops tokens whose norm is more than this many times the median norm of the
    prompt at the layer."""
    sublayers: Distinct[Sublayer] = ()
    """Sub-layers of each block to keep in addition to its output. A model without one of them
    skips it (Mamba has no MLP, BERT no input norm)."""
    token_states: bool | Literal["float16"] = False
    """Keep the states of all tokens of each prompt, with the readout above, in float32 or float16.
    They take the number of tokens times the disk of a pooled layer; `layerwise plan` says how
    much."""
    layers: SomeOf[Count] | None = None
    """Layers whose token states are kept; null for all."""
    batch_tokens: Positive | None = None
    """Tokens in a batch, padding included; null chooses by device."""
    threads: Threads = 2
    """CPU threads of a job."""
    keep_activations: bool = True
    """Keep activations once their metrics are computed. Without them, another metric needs the
    model again."""


class MetricsSettings(Section):
    """Metrics and their settings."""

    metrics: SomeOf[str] | None = None
    """Names of the metrics (docs/metrics.md lists them); null for all."""
    # JSON has no infinity, so pydantic would show it as null.
    alphas: SomeOf[Alpha] = Field(
        (1.0, 2.0, math.inf), json_schema_extra={"default": [1, 2, "inf"]}
    )
    """Orders of the matrix-based entropies, above 0; inf for infinity."""
    normalizations: Distinct[Normalization] = ()
    """Normalisations of the entropies in addition to raw."""
    settings: dict[str, dict[str, Any]] = {}
    """Settings of single metrics, such as {infonce: {temperature: 0.5}} (docs/metrics.md lists
    them)."""
    seed: Seed = 0
    """Seed of permutations and groups, which are the same at every layer."""

    def of(self, section: str, kind: type[S]) -> S:
        """The settings of a metric: a section declared in its file (`layerwise.metrics`)."""
        return parse(kind, self.settings.get(section, {}), f"metrics.settings.{section}")


class TextPart(Section):
    """A part of each text: the model reads the whole text, and the tokens of the part count."""

    after: str | None = Field(None, min_length=1)
    """Begin after the last occurrence of this marker, such as 'Answer:', or what a chat template
    puts in front of a turn."""
    before: str | None = Field(None, min_length=1)
    """End before the first occurrence of this marker after the beginning."""
    last: Positive | None = None
    """Only the last so many tokens of it."""

    @model_validator(mode="after")
    def _says_something(self) -> TextPart:
        if self == TextPart.model_construct():
            raise ValueError("expected after, before or last; leave out part for whole texts")
        return self


class ScoringSettings(Section):
    """Scoring of layers on tasks."""

    part: TextPart | None = None
    """The part of each text whose tokens count; null for whole texts."""
    poolings: SomeOf[Pooling] | None = None
    """Poolings of a text's token states into one vector; null for the pooling that
    sentence-transformers saved with a model, and for the mean without one."""
    readouts: SomeOf[ScoredReadout] = ("final_norm",)
    """final_norm: the residual stream after each block, through the model's final norm if it has
    one; at the last layer this is the model's output. residual: without the norm."""
    normalize: bool | None = None
    """Scale embeddings to unit length. This changes classification and clustering, not cosine
    similarities. null: if the model's modules.json has a Normalize module."""
    threads: Threads = 2
    """Scoring processes of a job."""
    sub_scores: bool = False
    """Keep all scores that mteb computes (F1, nDCG at other ranks), for `layerwise export-scores`.
    Scoring takes up to half as long again."""


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
    as one draw. Those of the paper are known."""


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
