"""Functions that draw each kind of study: a table of every number drawn, and a plot of it.

``layerwise/config/kinds.yaml`` declares the kinds.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from layerwise.config.kinds import KINDS
from layerwise.figures.kinds import association, by_depth, compare, prompts, valley
from layerwise.figures.panels import Look
from layerwise.figures.select import Data

Table = Callable[[Data], pd.DataFrame]
Plot = Callable[[pd.DataFrame, Look], Figure]

DRAWINGS: dict[str, tuple[Table, Plot]] = {
    "curves": (by_depth.curves, by_depth.plot_curves),
    "token_selection": (by_depth.token_selection, by_depth.plot_curves),
    "sublayers": (by_depth.sublayers, by_depth.plot_sublayers),
    "probes_by_depth": (by_depth.probes, by_depth.plot_probes),
    "alpha_robustness": (by_depth.alpha_robustness, by_depth.plot_alphas),
    "power_law": (by_depth.power_law, by_depth.plot_power_law),
    "metric_vs_score": (association.points, association.plot_points),
    "association_strength": (association.strength, association.plot_strength),
    "layer_selection": (association.selections, association.plot_selections),
    "task_selection": (association.gains, association.plot_gains),
    "checkpoint_heatmap": (Data.curves, compare.plot_metrics),
    "scores_over_checkpoints": (compare.scores_over_checkpoints, compare.plot_scores),
    "task_heatmap": (compare.task_scores, compare.plot_tasks),
    "layer_similarity": (compare.similarity, compare.plot_similarity),
    "finetuning_effects": (compare.differences, compare.plot_differences),
    "score_differences": (compare.score_differences, compare.plot_differences),
    "bimodality": (prompts.bimodality, prompts.plot_bimodality),
    "along_sequence": (prompts.along_sequence, prompts.plot_sequence),
    "attention_sink": (valley.attention_sink, valley.plot_sink),
    "size_scaling": (valley.size_scaling, valley.plot_sizes),
    "training_dynamics": (valley.training_dynamics, valley.plot_training),
}


def drawing(kind: str) -> tuple[Table, Plot]:
    """The functions that draw a kind of study, by its name."""
    return DRAWINGS[KINDS[kind].preset_of or kind]
