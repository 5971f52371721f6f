"""The protocol `reference` against plain loops on the states that transformers returns."""

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

HIDDEN, ALPHAS = 32, (1.0, 2.0, math.inf)


def unit_centred(X: np.ndarray) -> np.ndarray:
    X = X - X.mean(axis=0)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def renyi(K: np.ndarray, alpha: float = 1.0) -> float:
    """Entropy of the eigenvalues above 0, made to sum to 1."""
    values = np.linalg.eigvalsh(K)
    p = values[values > 0] / values[values > 0].sum()
    if alpha == 1:
        return float(-(p * np.log(p)).sum())
    return float(-np.log(p.max()) if alpha == math.inf else -np.log((p**2).sum()))


def clamped(U: np.ndarray) -> np.ndarray:
    """Inner products of rows or of columns, whichever are fewer; negative ones are 0."""
    return np.maximum(U.T @ U if len(U) > U.shape[1] else U @ U.T, 0)


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


def doe(A: np.ndarray, B: np.ndarray, alpha: float) -> float:
    KA, KB = (X.T @ X if len(X) > X.shape[1] else X @ X.T for X in (A, B))
    orders = permutations_of(len(KA), 10, seed=0)
    permuted = [renyi(KA * KB[np.ix_(o, o)], alpha) for o in orders]
    return float(np.mean(permuted) - renyi(KA * KB, alpha))


def whitened(views: np.ndarray) -> np.ndarray:
    """LiDAR's scatter of class means, whitened by that within classes."""
    means = views.mean(axis=0)
    rest = (views - means).reshape(-1, views.shape[2])
    within = rest.T @ rest / len(rest) + 1e-4 * np.eye(views.shape[2])
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    return root @ np.cov(means.T, bias=True) @ root


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
        settings = MetricsSettings(alphas=ALPHAS, normalizations=("logD",))
        values, prompts = compute(file, settings)
    for layer in (0, 2, 3):
        states = [[one[layer][0].double().numpy() for one in view] for view in hidden]
        pooled = np.stack([unit_centred(np.stack([Z.mean(axis=0) for Z in of])) for of in states])
        own = states[0]
        if n > HIDDEN:
            assert np.linalg.eigvalsh(clamped(pooled[0])).min() < -1e-3, "clamping does that"
        turn = np.mean([mean_turn(unit_centred(Z)) for Z in own if len(Z) > 2])
        assert turn > 0
        expected = {
            ("infonce", 0.0): (loss := one_way(pooled[1], pooled[2])),
            ("infonce_mi_bound", 0.0): 1 - loss / math.log(n),
            ("curvature", 0.0): turn * (sum(len(Z) > 2 for Z in own) / n),
        }
        for alpha in ALPHAS:
            expected["dataset_entropy", alpha] = renyi(clamped(pooled[0]), alpha)
            expected["dime", alpha] = doe(pooled[1], pooled[2], alpha)
            expected["lidar", alpha] = renyi(whitened(pooled[1:]), alpha)
        rows = values[(values["layer"] == layer) & (values["tokens"] == "all")]
        rows = rows.fillna({"alpha": 0.0}).set_index(["metric", "alpha"])
        raw, of_logd = (
            rows.loc[rows["normalization"] == name, "value"] for name in ("raw", "logD")
        )
        assert dict(raw[list(expected)]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        of_lidar = expected["lidar", 1.0] / math.log(HIDDEN)
        assert of_logd["lidar", 1.0] == pytest.approx(of_lidar, rel=1e-5)
        each = of_prompts(prompts, layer)
        many = [i for i, Z in enumerate(own) if len(Z) > 2]
        for i in many:
            spread = renyi(clamped(unit_centred(own[i])))
            assert each["prompt_entropy", f"p{i}"] == pytest.approx(spread, abs=1e-5)
            turn = mean_turn(unit_centred(own[i]))
            assert each["curvature", f"p{i}"] == pytest.approx(turn, abs=1e-5)


def of_prompts(prompts: pd.DataFrame, layer: int) -> pd.Series:
    rows = prompts[(prompts["layer"] == layer) & (prompts["tokens"] == "all")]
    rows = rows[rows["alpha"].isin([np.nan, 1.0])]
    return rows.set_index(["metric", "prompt_id"])["value"]
