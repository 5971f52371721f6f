"""How metrics are associated with task scores over layers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from layerwise.config.base import Alpha, Count, Positive, Section, Seed, SomeOf
from layerwise.vocabulary import Normalization, Protocol

OWN_TEXTS = "task texts"
"""The corpus in which each task is set against the metrics on its own texts."""

Measure = Literal["dcor", "spearman", "kendall"]
Direction = Literal[1, -1]


class AssociationSettings(Section):
    """How metrics are associated with task scores over layers, and how layers are chosen."""

    measures: SomeOf[Measure] = Field(
        default=("dcor", "spearman", "kendall"),
        description="Measures of association: distance correlation, Spearman's rho, Kendall's "
        "tau-b.",
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
    permutations: Positive = Field(
        default=5040,
        description="Size of the permutation null; the default is 7!, so that curves of up to "
        "seven layers get every permutation.",
    )
    resamples: Count = Field(
        default=1000, description="Bootstrap samples of the tasks; 0 for no intervals."
    )
    baselines: bool = Field(
        default=True,
        description="Whether to add the pseudo-metrics 'layer index' and 'distance from the "
        "middle'.",
    )
    pooled: bool = Field(
        default=True,
        description="Whether to add rows pooled over models, the model being a block.",
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
    seed: Seed = Field(default=0, description="Seed of permutations and bootstrap.")
