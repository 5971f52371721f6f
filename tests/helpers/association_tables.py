"""Tidy tables of made-up metrics and scores, for the tests of association and figures."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def tidy_scores(
    values: np.ndarray,
    *,
    model: str = "m",
    revision: str = "main",
    tokens: str = "all",
    types: Sequence[str] = ("STS",),
) -> pd.DataFrame:
    """Scores of shape (tasks, layers) as a tidy table."""
    tasks, layers = (places.ravel() for places in np.indices(values.shape))
    constant = {"model": model, "revision": revision, "tokens": tokens, "pooling": "mean"}
    constant |= {"subset": "default", "split": "test", "n_runs": 1}
    constant |= {"score_low": None, "score_high": None}
    columns = {
        "task": [f"task{task}" for task in tasks],
        "task_type": [types[task % len(types)] for task in tasks],
        "layer": layers,
        "depth": layers / (values.shape[1] - 1),
        "main_score": values.ravel(),
    }
    return pd.DataFrame(columns).assign(**constant)


def tidy_metrics(
    curves: dict[str, np.ndarray],
    *,
    model: str = "m",
    revision: str = "main",
    tokens: str = "all",
    corpus: str = "wikipedia",
) -> pd.DataFrame:
    """Metrics by name, each of shape (layers,), as a tidy table."""
    constant = {"model": model, "revision": revision, "corpus": corpus, "tokens": tokens}
    constant |= {"protocol": "paper", "normalization": "raw"}
    constant |= {"stderr": 0.1, "n": 100, "n_left_out": 0}
    tables = []
    for metric, values in curves.items():
        layers = np.arange(len(values))
        columns = {"layer": layers, "depth": layers / (len(values) - 1), "value": values}
        alpha = 1.0 if "entropy" in metric else np.nan
        tables.append(pd.DataFrame(columns).assign(metric=metric, alpha=alpha, **constant))
    return pd.concat(tables, ignore_index=True)
