"""Made-up tables of metrics and scores, which golden values of associations and figures rest on.

They need nothing of the library, so that a change of what computes such tables does not show here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from helpers.association_tables import tidy_metrics, tidy_scores

LAYERS = {"decoder-70m": 13, "encoder-20m": 7, "nano-1m": 7, "mamba-1m": 7}
STEPS = ("step0", "step8", "step64")
CHECKPOINTS = {name: ["main"] for name in LAYERS} | {
    "nano-1m": list(STEPS),
    "mamba-1m": list(STEPS),
}
TYPES = ("Classification", "Clustering", "PairClassification", "Reranking", "STS")
N_PROMPTS = 24
PARTS = {"input_norm": 0.3, "mixer": -0.2, "mixer_residual": 0.1, "mlp_norm": 0.4, "mlp": -0.3}


@cache
def tables() -> dict[str, pd.DataFrame]:
    """Metrics, scores and prompts of four models, two with checkpoints, one with a sink."""
    rng = np.random.default_rng(3)
    found: dict[str, list[pd.DataFrame]] = {"metrics": [], "scores": [], "prompts": []}
    for model, n in LAYERS.items():
        depth = np.linspace(0, 1, n)
        for number, revision in enumerate(CHECKPOINTS[model], start=1):
            trained = number / len(CHECKPOINTS[model])
            for tokens in ("all", "drop_first"):
                hill = np.sin(np.pi * depth) * trained * (0.3 if "encoder" in model else 1)
                sunk = hill * (tokens == "all" and "decoder" in model)
                rise = depth**3 if "encoder" in model else hill
                values = rng.uniform(0.3, 0.7, (5, 1)) + 0.15 * rise - 0.3 * sunk
                values = values + rng.normal(0, 0.005, (5, n))
                curves = {
                    "prompt_entropy": 3.5 - 0.6 * hill - 2.0 * sunk,
                    "dataset_entropy": 3.0 - 0.4 * depth,
                    "curvature": 1.9 - 0.3 * hill,
                    "infonce": 2.2 - hill,
                    "lidar": 50 + 20 * hill,
                    "dime": 1 + hill,
                    "effective_rank": 30 - 10 * hill,
                }
                curves = {c: v + rng.normal(0, 0.01, n) for c, v in curves.items()}
                about = {"model": model, "revision": revision, "tokens": tokens}
                found["scores"].append(_scores(values).assign(**about))
                found["metrics"].append(tidy_metrics(curves, corpus="texts").assign(**about))
                for metric in ("prompt_entropy", "effective_rank", "curvature"):
                    level = rng.normal(0, 0.2, (N_PROMPTS, 1))
                    if "decoder" in model:
                        level[::2] += 1.0
                    alphas = (0.5, 1.0, np.inf) if metric == "prompt_entropy" else (np.nan,)
                    for alpha in alphas:
                        flat = 1.0 if np.isnan(alpha) else 1 + min(alpha, 2) / 4
                        own = curves[metric] / flat + level
                        own = own + rng.normal(0, 0.05, own.shape)
                        found["prompts"].append(_prompts(metric, alpha, own).assign(**about))
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def _scores(values: np.ndarray) -> pd.DataFrame:
    """Of the layers, and at the last one of the model's output, which is a little better."""
    none = dict.fromkeys(("score_low", "score_high"), np.nan)
    plain = tidy_scores(values, types=TYPES).assign(readout="residual", **none)
    output = plain[plain["depth"] == 1]
    better = output["main_score"] + 0.002 * (1 + output["task"].str[-1].astype(int))
    return pd.concat([plain, output.assign(readout="final_norm", main_score=better)])


def _prompts(metric: str, alpha: float, values: np.ndarray) -> pd.DataFrame:
    prompt, layer = (part.ravel() for part in np.indices(values.shape))
    return pd.DataFrame(
        {
            "corpus": "texts",
            "sublayer": "block",
            "layer": layer,
            "depth": layer / (values.shape[1] - 1),
            "metric": metric,
            "protocol": "paper",
            "alpha": alpha,
            "prompt_id": [f"p{number}" for number in prompt],
            "n_tokens": 30,
            "value": values.ravel(),
        }
    )


def parts_of_blocks() -> pd.DataFrame:
    """Prompts' values inside the blocks too."""
    prompts = tables()["prompts"]
    inside = prompts[prompts["layer"] > 0]
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.05, len(inside))
    parts = [
        inside.assign(sublayer=p, value=inside["value"] + r + noise) for p, r in PARTS.items()
    ]
    return pd.concat([prompts, *parts], ignore_index=True)


def positions() -> pd.DataFrame:
    """An entropy along the sequence."""
    metrics = tables()["metrics"]
    whole = metrics[metrics["metric"] == "prompt_entropy"]
    grown = [
        whole.assign(
            position=t,
            value=value,
            quartile_1=value - 0.1,
            median=value,
            quartile_3=value + 0.1,
            n=n,
            metric="prefix_entropy",
        )
        for t, n in ((2, 60), (4, 60), (8, 50), (16, 40), (32, 20))
        for value in [whole["value"] * np.log2(t) / 5]
    ]
    return pd.concat(grown, ignore_index=True)


def probes() -> pd.DataFrame:
    """Scores of probes of two tasks of two models."""
    rows = []
    for model, task, gains in (
        ("encoder-20m", "reviews", [0.0, 0.03, 0.2, 0.3]),
        ("decoder-70m", "words", [0.1, 0.2, 0.05, -0.02]),
    ):
        for layer, gain in enumerate(gains):
            rows.append(
                {
                    "model": model,
                    "revision": "main",
                    "task": task,
                    "task_type": "Classification",
                    "layer": layer,
                    "depth": layer / 3,
                    "tokens": "all",
                    "pooling": "mean",
                    "readout": "final_norm",
                    "main_score": 0.5 + gain,
                    "score_low": 0.45 + gain,
                    "score_high": 0.55 + gain,
                    "neighbours": 0.5 + gain / 2,
                    "neighbours_low": 0.4 + gain / 2,
                    "neighbours_high": 0.6 + gain / 2,
                    "control": 0.5,
                    "selectivity": gain,
                    "chance": 0.5,
                    "baseline": 0.5,
                    "penalty": 1.0,
                    "n_train": 320,
                    "n_runs": 400,
                }
            )
    return pd.DataFrame(rows)


def similarities() -> pd.DataFrame:
    """Similarity of all layers of three models of seven layers, and of their checkpoints."""
    places = [
        (model, revision)
        for model, n in LAYERS.items()
        for revision in CHECKPOINTS[model]
        if n == 7
    ]
    rng = np.random.default_rng(8)
    rows = []
    for a, one in enumerate(places):
        for b, other in enumerate(places[a:]):
            for measure in ("cka", "cka_debiased", "rsa"):
                for i, j in np.ndindex(7, 7):
                    value = np.exp(-abs(i - j) / 3 - b / 4) - 0.01 * rng.random()
                    value = 1.0 if one == other and i == j else value
                    rows.append((*one, *other, i, j, i / 6, j / 6, measure, value, 0.02))
    names = ["model", "revision", "other_model", "other_revision", "layer", "other_layer"]
    names += ["depth", "other_depth", "measure", "value", "stderr"]
    return pd.DataFrame(rows, columns=names).assign(
        corpus="texts", protocol="paper", tokens="all", n=N_PROMPTS
    )
