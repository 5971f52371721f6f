"""Vectors that labels are scored with."""

from typing import Any
from unittest import mock

import numpy as np

from layerwise.analysis import score_labels
from layerwise.tasks import labelled
from layerwise.tasks.results import Score


def scored_vectors(*given: Any, **options: Any) -> list[np.ndarray]:
    """Of every layer those that `layerwise.analysis.score_labels` scores."""
    vectors: list[np.ndarray] = []

    def layer_score(_: labelled.Labels, columns: list[np.ndarray]) -> Score:
        vectors.append(columns[0])
        return Score(0.5)

    with mock.patch.object(labelled, "layer_score", layer_score):
        score_labels(*given, **options)
    return vectors
