"""Compare selectors of layers, on the quickstart and on the released tables: points lost.

selectors.csv has the points; displacement.csv has how far the principal subspace of the prompts
turns between the first and the last layer (LRD, arXiv 2605.12714). LOES selects by
`participation_ratio`, which the quickstart does not compute; here all metrics with a direction are
computed from its activations. Run it after `make demo`:

python benchmarks/compare_selectors.py results --output docs
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.linalg import subspace_angles

from layerwise import data
from layerwise.activations.store import Activations
from layerwise.association.curves import with_text_sources
from layerwise.association.selection import MODEL_OUTPUT, NESTED, select_layers
from layerwise.config.settings import MetricsSettings
from layerwise.io.tables import read_table
from layerwise.metrics.registry import directions
from layerwise.metrics.table import compute
from layerwise.run.results import Results
from layerwise.section import parse
from papers.published import published_metrics, published_scores
from papers.tables import TEXTS

AXES = 10
QUICKSTART = ("smollm2-135m", "minilm-l6")
RELEASED = ("Pythia-14m", "Pythia-70m", "Pythia-160m", "Pythia-410m", "mamba-370m", "bert-base")
COLUMNS = ["of", "model", "tokens", "corpus", "metric", "layer", "depth", "n_tasks"]
COLUMNS += ["n_sources", "unreliable", "no_interval", "score"]
COLUMNS += ["regret", "regret_low", "regret_high", "nested_regret", "nested_low", "nested_high"]
COLUMNS += ["gain_over_output", "gain_low", "gain_high"]


def of_quickstart(results: Results) -> Iterator[pd.DataFrame]:
    """Selections in each model of the quickstart, over all five tasks."""
    wanted = {"metrics": [*directions(), "participation_ratio"]}
    for model in QUICKSTART:
        path = results.folder / "activations" / model / "main" / "wikipedia.h5"
        with Activations(path) as activations:
            metrics, prompts = compute(activations, parse(MetricsSettings, wanted))
        scores = results.scores(model=model, tokens=None)
        yield select_layers(metrics, scores, directions(), prompts=prompts)


def of_release() -> Iterator[pd.DataFrame]:
    """Selections by the released metrics on WikiText and on the tasks' own texts."""
    scores = published_scores(read_table(data.published("scores")))
    metrics = published_metrics(read_table(data.published("metrics")))
    scores = scores[(scores["revision"] == "main") & (scores["pooling"] == "mean")]
    metrics = metrics[(metrics["revision"] == "main") & (metrics["protocol"] == "reference")]
    metrics = metrics[metrics["corpus"].isin(["wikitext", *TEXTS])]
    for model in RELEASED:
        part = metrics[metrics["model"] == model]
        of_model = with_text_sources(scores[scores["model"] == model], {})
        yield select_layers(part, of_model, directions(), own_texts=TEXTS)


def displacement(pooled: np.ndarray) -> float:
    """Geodesic distance of the principal subspaces of the first and the last layer's vectors.

    Parameters
    ----------
    pooled : array, shape (L, n, D)
    """
    axes = []
    for vectors in pooled[[0, -1]].astype(float):
        axes.append(np.linalg.svd(vectors - vectors.mean(axis=0))[2][:AXES].T)
    return float(np.linalg.norm(subspace_angles(*axes)))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    results = Results(given.results)
    rows = [table.assign(of="quickstart") for table in of_quickstart(results)]
    rows += [table.assign(of="release") for table in of_release()]
    table = pd.concat(rows, ignore_index=True)
    usual = (table["task_type"] == "all") & (table["normalization"] == "raw")
    usual &= table["alpha"].fillna(1).eq(1) & (table["metric"] != NESTED)
    usual &= ~table["corpus"].isin([*TEXTS])  # Their mean is the corpus of all.
    table = table[usual]
    table.to_csv(given.output / "selectors.csv", index=False, columns=COLUMNS, float_format="%.4g")
    turns = []
    for model in QUICKSTART:
        pooled = results.activations(model)["pooled"].transpose("layer", "prompt", "hidden")
        of_output = (table["metric"] == MODEL_OUTPUT) & (table["tokens"] == "all")
        output = table.loc[of_output & (table["model"] == model), "score"]
        turns.append((model, displacement(pooled.to_numpy()), AXES**0.5 * np.pi / 2, *output))
    columns = ["model", "displacement", "largest", "output_score"]
    table = pd.DataFrame(turns, columns=columns)
    table.to_csv(given.output / "displacement.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
