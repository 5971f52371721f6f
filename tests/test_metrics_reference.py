"""The protocol `reference` against plain loops on the states that transformers returns."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny

from layerwise.activations.store import Activations
from layerwise.config.settings import MetricsSettings
from layerwise.metrics.catalog.dime import permutations_of
from layerwise.metrics.table import compute

HIDDEN = 32


def unit_centred(X: np.ndarray) -> np.ndarray:
    X = X - X.mean(axis=0)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def shannon(K: np.ndarray) -> float:
    """Entropy of the eigenvalues above 0, made to sum to 1."""
    values = np.linalg.eigvalsh(K)
    p = values[values > 0] / values[values > 0].sum()
    return float(-(p * np.log(p)).sum())


def clamped_entropy(U: np.ndarray) -> float:
    """Of the inner products of rows or of columns, whichever are fewer; negative ones are 0."""
    K = np.maximum(U.T @ U if len(U) > U.shape[1] else U @ U.T, 0)
    return shannon(K / np.trace(K))


def mean_turn(U: np.ndarray) -> float:
    """Mean angle between successive steps, whose cosine loses its sign."""
    total = 0.0
    for a, b in zip(np.diff(U, axis=0)[:-1], np.diff(U, axis=0)[1:], strict=True):
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        total += math.acos(min(abs(float(a @ b)) / lengths, 1.0)) if lengths else 0.0
    return total / (len(U) - 2) if len(U) > 2 else 0.0


def one_way(A: np.ndarray, B: np.ndarray) -> float:
    logits = torch.from_numpy(A @ B.T / 0.1)
    return float(torch.nn.functional.cross_entropy(logits, torch.arange(len(A))))


def doe(A: np.ndarray, B: np.ndarray) -> float:
    KA, KB = (X.T @ X if len(X) > X.shape[1] else X @ X.T for X in (A, B))
    orders = permutations_of(len(KA), 10, seed=0)
    return float(np.mean([shannon(KA * KB[np.ix_(o, o)]) for o in orders]) - shannon(KA * KB))


def discriminants(views: np.ndarray) -> float:
    """LiDAR's entropy: of the scatter of class means whitened by that within classes."""
    means = views.mean(axis=0)
    rest = (views - means).reshape(-1, views.shape[2])
    within = rest.T @ rest / len(rest) + 1e-4 * np.eye(views.shape[2])
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return shannon(root @ np.cov(means.T, bias=True) @ root)


@pytest.mark.parametrize("n", [40, 20], ids=["N>D", "N<D"])
def test_reference_is_what_the_released_code_computes(n: int, tmp_path: Path) -> None:
    model = tiny.loaded("gpt2", tmp_path)
    # Of more tokens than features, and of one and two tokens.
    views = [tiny.texts(n - 4, seed=v, shortest=6, longest=60) for v in range(4)]
    views = [["x", "xy", "y", "yz", *own] for own in views]
    # As many tokens as features.
    (long,), _ = model.texts.prompts([tiny.SENTENCE * 2])
    views[0][4] = model.texts.tokenizer.decode(long[:HIDDEN])
    ids = [model.texts.prompts(view)[0] for view in views]
    assert HIDDEN in map(len, ids[0])
    assert {1, 2} <= set(map(len, ids[0])) and max(map(len, ids[0])) > HIDDEN > 8
    with torch.inference_mode():
        hidden = [
            [
                model.model(torch.tensor([own]), output_hidden_states=True).hidden_states
                for own in of
            ]
            for of in ids
        ]
    path = tiny.extracted(model, tmp_path / "a.h5", *views, protocols=("reference",))
    with Activations(path) as file:
        values, prompts = compute(file, MetricsSettings(alphas=(1.0,), normalizations=("logD",)))
    for layer in (0, 2, 3):
        states = [[one[layer][0].double().numpy() for one in view] for view in hidden]
        pooled = np.stack([unit_centred(np.stack([Z.mean(axis=0) for Z in of])) for of in states])
        own = states[0]
        expected = {
            "dataset_entropy": clamped_entropy(pooled[0]),
            "infonce": (loss := one_way(pooled[1], pooled[2])),
            "infonce_mi_bound": 1 - loss / math.log(n),
            "dime": doe(pooled[1], pooled[2]),
            "lidar": discriminants(pooled[1:]),
            "curvature": (turn := np.mean([mean_turn(unit_centred(Z)) for Z in own if len(Z) > 2]))
            * (sum(len(Z) > 2 for Z in own) / n),
        }
        rows = values[(values["layer"] == layer) & (values["tokens"] == "all")]
        raw = rows[rows["normalization"] == "raw"].set_index("metric")["value"]
        assert dict(raw[list(expected)]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert turn > 0
        of_logd = rows[rows["normalization"] == "logD"].set_index("metric")["value"]
        assert of_logd["lidar"] == pytest.approx(expected["lidar"] / math.log(HIDDEN), rel=1e-5)
        each = of_prompts(prompts, layer)
        many = [i for i, Z in enumerate(own) if len(Z) > 2]
        for i in many:
            spread = clamped_entropy(unit_centred(own[i]))
            assert each["prompt_entropy", f"p{i}"] == pytest.approx(spread, abs=1e-5)
            turn = mean_turn(unit_centred(own[i]))
            assert each["curvature", f"p{i}"] == pytest.approx(turn, abs=1e-5)


def of_prompts(prompts: pd.DataFrame, layer: int) -> pd.Series:
    rows = prompts[(prompts["layer"] == layer) & (prompts["tokens"] == "all")]
    return rows.set_index(["metric", "prompt_id"])["value"]
