"""The section ``metrics``: metrics and their settings."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from layerwise.section import Alpha, Distinct, S, Section, Seed, SomeOf, parse
from layerwise.vocabulary import Normalization


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
