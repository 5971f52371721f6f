"""Standard errors of the metrics against the spread over fresh draws of prompts.

    python tests/calibration/standard_errors.py

Prompts are normal with a power-law spectrum, views are prompts with noise of a flatter one.
Printed for each metric: reported standard error over true spread, and the same for two others that
could be reported: a delete-a-group jackknife of 10 groups, and the spread over random halves of
the prompts.
"""

from __future__ import annotations

import logging
import sys

import numpy as np

from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.table import compute_layer, wanted

METRICS = (
    "alpha_req", "anisotropy", "cka_first", "cka_last", "dataset_entropy", "dime", "infonce",
    "lidar", "logdet_entropy", "nesum", "participation_ratio", "rankme", "self_cluster", "two_nn",
)  # fmt: skip
SIZES = ((80, 128), (80, 576), (240, 128))
DRAWS, RESAMPLED = 50, 12


def population(n, d, rng, last):
    """Views (3, n, d) and the embeddings of a first and a last layer."""
    ranks = np.arange(1, d + 1)
    x = rng.normal(size=(n, d)) * ranks**-0.5
    x[:, 0] += 1
    views = [x + rng.normal(size=(n, d)) * 0.25 * ranks**-0.35 for _ in range(2)]
    return np.stack([x, *views]), x + 0.3 * rng.normal(size=(n, d)) * ranks**-0.5, x @ last


def values(drawn, rows, settings):
    views, first, last = drawn
    arrays = Arrays(views[:, rows], ends=(first[rows], last[rows]))
    found = compute_layer(Layer(arrays, settings), wanted(settings)).values
    return {
        r["metric"]: (r["value"], r["stderr"])
        for r in found
        if r["normalization"] == "raw" and r["alpha"] in (None, 1.0)
    }


def ratios(n, d):
    settings = MetricsSettings(metrics=METRICS, alphas=(1.0,))
    rng = np.random.default_rng(0)
    last = np.linalg.qr(rng.normal(size=(d, d)))[0] * np.arange(1, d + 1) ** -0.25
    truth, kinds = {}, {"reported": {}, "group": {}, "half": {}}
    for draw in range(DRAWS):
        drawn = population(n, d, rng, last)
        for name, (value, error) in values(drawn, np.arange(n), settings).items():
            truth.setdefault(name, []).append(value)
            kinds["reported"].setdefault(name, []).append(error)
        if draw >= RESAMPLED:
            continue
        groups = rng.permutation(n) % 10
        for kind, parts in (
            ("group", [np.flatnonzero(groups != g) for g in range(10)]),
            ("half", [np.sort(rng.permutation(n)[: n // 2]) for _ in range(RESAMPLED)]),
        ):
            made = [values(drawn, rows, settings) for rows in parts]
            for name in set.intersection(*(set(m) for m in made)):
                spread = np.std([m[name][0] for m in made], ddof=0 if kind == "group" else 1)
                factor = 3.0 if kind == "group" else 1.0  # sqrt(G - 1) of the jackknife
                kinds[kind].setdefault(name, []).append(factor * spread)
    return truth, kinds


def main() -> None:
    logging.disable(logging.WARNING)
    for n, d in SIZES:
        truth, kinds = ratios(n, d)
        sys.stdout.write(f"{n} prompts, {d} dimensions\n")
        for name, drawn in truth.items():
            spread = np.std(drawn, ddof=1)
            cells = [
                f"{kind} {np.sqrt(np.mean(np.square(each[name]))) / spread:5.2f}"
                for kind, each in kinds.items()
                if name in each
            ]
            sys.stdout.write(f"  {name:<22}" + "  ".join(cells) + "\n")


if __name__ == "__main__":
    main()
