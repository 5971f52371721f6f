"""The kinds of studies and the tables each needs. Importing this costs nothing: plans use it."""

from __future__ import annotations

NEEDS: dict[str, tuple[str, ...]] = {
    "score_by_depth": ("scores",),
    "metrics_by_depth": ("metrics",),
    "metric_vs_score": ("metrics", "scores"),
    "metrics_over_checkpoints": ("metrics",),
    "checkpoint_heatmap": ("metrics",),
    "task_heatmap": ("scores",),
    "model_overview": ("metrics", "scores"),
    "token_choice": ("metrics", "scores"),
    "layer_choice": ("metrics", "scores"),
    "association_strength": ("associations",),
    "value_distribution": ("prompts",),
    "power_law": (),
}

# Kinds that show every checkpoint of a model unless the study names some.
OVER_CHECKPOINTS = frozenset({"metrics_over_checkpoints", "checkpoint_heatmap"})

# Kinds whose association table is a result of its own.
WITH_ASSOCIATIONS = frozenset({"metric_vs_score", "association_strength"})

# Kinds whose table of picks, of every variant of every metric, is a result of its own.
WITH_CHOICES = frozenset({"layer_choice"})
