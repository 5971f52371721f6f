"""Tidy tables of made-up metrics and scores, for the tests of association and figures."""

import itertools
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
    n_tasks, n_layers = values.shape
    rows = [
        {
            "model": model,
            "revision": revision,
            "task": f"task{t}",
            "task_type": types[t % len(types)],
            "subset": "default",
            "split": "test",
            "layer": at,
            "depth": at / (n_layers - 1),
            "tokens": tokens,
            "pooling": "mean",
            "main_score": values[t, at],
            "score_low": None,
            "score_high": None,
            "n_runs": 1,
        }
        for t, at in itertools.product(range(n_tasks), range(n_layers))
    ]
    return pd.DataFrame(rows)


def tidy_metrics(
    curves: dict[str, np.ndarray],
    *,
    model: str = "m",
    revision: str = "main",
    tokens: str = "all",
    corpus: str = "wikipedia",
) -> pd.DataFrame:
    """Metrics by name, each of shape (layers,), as a tidy table."""
    rows = [
        {
            "model": model,
            "revision": revision,
            "corpus": corpus,
            "layer": at,
            "depth": at / (len(values) - 1),
            "metric": metric,
            "protocol": "paper",
            "tokens": tokens,
            "alpha": 1.0 if "entropy" in metric else np.nan,
            "normalization": "raw",
            "value": value,
            "stderr": 0.1,
            "n": 100,
            "n_left_out": 0,
        }
        for metric, values in curves.items()
        for at, value in enumerate(values)
    ]
    return pd.DataFrame(rows)
