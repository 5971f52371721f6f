"""Scores that rules of layer selection lose in the published models.

The rules are the model's output, the middle layer (l = L/2 rounded down), and each metric of the
protocol `reference`, which selects the layer at its better end. Each selects one layer of a model
for all of its tasks. The loss is the mean score of the best layer less that of the selected one.
`shipped` reads the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from layerwise.association.curves import ScoreCurves, mean_curve, metric_curves, score_curves
from layerwise.association.selection import MIDDLE, MODEL_OUTPUT
from layerwise.config.settings import OWN_TEXTS
from layerwise.metrics.registry import directions
from papers.release import ATTENTION_PROBE
from papers.tables import TEXTS, Release

DECODER, ENCODER, EMBEDDING, VISION = "base decoder", "encoder", "embedding model", "vision model"

KINDS: Mapping[str, str] = {
    "Pythia": DECODER,
    "mamba": DECODER,
    "bert": ENCODER,
    "roberta": ENCODER,
    "LLM2Vec": EMBEDDING,
    **dict.fromkeys(("aim", "beit", "clip", "dinov2", "mae", "vit"), VISION),
}
"""Kind of model by the beginning of a published model's name."""
FEWEST = 0.5
"""Share of layers, the last among them, at which a model's tasks must have scores; and share of
tasks on whose texts a metric must be known."""
CORPORA = ("wikitext", "imagenet", OWN_TEXTS)


def shipped() -> pd.DataFrame:
    """The table of `losses`, as shipped."""
    return pd.read_csv(Path(__file__).with_name("losses.csv"), float_precision="round_trip")


def losses() -> pd.DataFrame:
    """Loss of each rule in each finished model of the shipped tables.

    Returns
    -------
    DataFrame
        Columns kind, model, rule, direction (of a metric: 1 if it selects its highest value),
        corpus (of a metric), layer, last_layer, n_tasks, and loss in points (0 to 100).
        Mean pooling; models with scores of all tasks at the last layer and at half of all layers;
        those tasks and layers that
        `layerwise.association.curves.score_curves` keeps.
    """
    release = Release()
    scores = release.scores
    scores = scores[(scores["revision"] == "main") & (scores["task"] != ATTENTION_PROBE)]
    metrics = release.metrics[release.metrics["corpus"].isin([*CORPORA, *TEXTS])]
    rows = []
    for curves in score_curves(scores):
        share = len(curves.layers) / (curves.last_layer + 1)
        if share >= FEWEST and curves.layers[-1] == curves.last_layer and kind_of(curves.model):
            rows += _of_model(curves, metrics)
    return pd.DataFrame(rows)


def kind_of(model: str) -> str | None:
    """Kind of a published model, by its name."""
    return next((kind for name, kind in KINDS.items() if model.startswith(f"{name}-")), None)


def _of_model(curves: ScoreCurves, metrics: pd.DataFrame) -> list[dict[str, object]]:
    score = 100 * curves.values.mean(axis=0)
    about: dict[str, object] = {"kind": kind_of(curves.model), "model": curves.model}
    about |= {"last_layer": curves.last_layer, "n_tasks": len(curves.tasks)}
    middle = int(np.abs(curves.layers - curves.last_layer // 2).argmin())
    selected: list[tuple[dict[str, object], int]] = [
        ({"rule": MODEL_OUTPUT}, len(score) - 1),
        ({"rule": MIDDLE}, middle),
    ]
    found = metric_curves(metrics, curves, TEXTS)
    better = directions()
    for variant, values in zip(found.variants.to_dict("records"), found.values, strict=True):
        curve, metric = mean_curve(values), str(variant["metric"])
        of_most_tasks = np.isfinite(values).any(axis=1).mean() >= FEWEST
        # Mamba's metrics have no layer 0.
        if variant["corpus"] in CORPORA and of_most_tasks and np.isfinite(curve[1:]).all():
            direction = better[metric]
            rule = {"rule": metric, "direction": direction, "corpus": variant["corpus"]}
            selected.append((rule, int(np.nanargmax(direction * curve))))
    return [
        {**about, **rule, "layer": int(curves.layers[at]), "loss": score.max() - score[at]}
        for rule, at in selected
    ]
