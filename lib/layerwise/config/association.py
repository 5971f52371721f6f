"""How metrics are associated with task scores over layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from layerwise.config.base import Alpha, Section, Seed, SomeOf
from layerwise.vocabulary import Normalization, Protocol

OWN_TEXTS = "task texts"
"""The corpus in which each task is set against the metrics on its own texts."""

Measure = Literal["r", "slope", "dcor", "bcdcor", "spearman", "kendall"]
Direction = Literal[1, -1]


class AssociationSettings(Section):
    """How metrics are associated with task scores over layers, and how layers are chosen."""

    gone: ClassVar[Mapping[str, str]] = {
        "permutations": "no shuffling of the layers of a model gives a valid p; models are "
        "permuted, all of them where there are few",
        "resamples": "intervals over tasks are Student's, not percentiles of a bootstrap",
    }

    measures: SomeOf[Measure] = Field(
        default=("r", "slope", "dcor", "bcdcor", "spearman", "kendall"),
        description="Measures of association: partial correlation given depth, points of score "
        "per standard deviation of the metric given depth, distance correlation, the same with "
        "its bias taken off (squared), Spearman's rho, Kendall's tau-b.",
    )
    metrics: tuple[str, ...] | None = Field(
        default=None, description="Metrics to associate; null for all."
    )
    protocols: tuple[Protocol, ...] | None = Field(
        default=None, description="Protocols to associate; null for all."
    )
    alphas: tuple[Alpha, ...] | None = Field(
        default=None, description="Alphas to associate; null for all."
    )
    normalizations: tuple[Normalization, ...] | None = Field(
        default=("raw",),
        description="Normalisations to associate; null for all. Dividing by a constant changes no "
        "association.",
    )
    poolings: tuple[str, ...] | None = Field(
        default=None,
        description="Poolings of the scores that metrics are set against, with the readout where "
        "several are scored ('mean, final_norm'); null for all but the readout output where the "
        "residual stream is there, since the two differ in the last layer alone.",
    )
    baselines: bool = Field(
        default=True,
        description="Whether to add the pseudo-metrics 'layer index' and 'distance from the "
        "middle'.",
    )
    pooled: bool = Field(
        default=True,
        description="Whether to add rows over all models, the last checkpoint of each.",
    )
    own_texts: dict[str, str] = Field(
        default_factory=dict,
        description="Corpora that are the texts of a task, as {corpus: task}; together they make "
        "the corpus 'task texts', which a study names under `corpora`. Corpora whose source is a "
        "task need no mention.",
    )
    directions: dict[str, Direction] = Field(
        default_factory=dict,
        description="Metrics whose better end is not the declared one: 1 if higher is better, -1 "
        "if lower. The consensus, the choice of a layer and the figures follow.",
    )
    text_sources: dict[str, str] = Field(
        default_factory=dict,
        description="Tasks that are made of the same texts as others, as {task: name of the "
        "texts}. They count as one draw, not as several. The quickstart's tasks and the paper's "
        "32 are known and need no mention.",
    )
    seed: Seed = Field(
        default=0, description="Seed of the permutations of models and of drawn distributions."
    )
