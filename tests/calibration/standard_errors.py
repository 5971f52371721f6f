"""Standard errors of the metrics against the spread over fresh draws of prompts.

    python tests/calibration/standard_errors.py --metrics alpha_req lidar

Prompts are normal with a power-law spectrum, or differ beside that in length and in how far views
move them, as texts do; views are prompts with noise of a flatter spectrum. Printed for each
metric: reported standard error over true spread, and the same for two others that could be
reported: a delete-a-group jackknife of 10 groups, and the spread over random halves.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Sequence

import numpy as np

from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.layer import Arrays, Layer
from layerwise.metrics.table import compute_layer, wanted

METRICS = (
    "alpha_req", "anisotropy", "cka_first", "cka_last", "dataset_entropy", "dime", "infonce",
    "lidar", "logdet_entropy", "nesum", "participation_ratio", "rankme", "self_cluster", "two_nn",
)  # fmt: skip
SIZES = ((80, 128), (80, 576), (240, 128))
VIEWS = 8
KINDS = ("alike", "unlike")
DRAWS, RESAMPLED = 50, 12


def population(n, d, rng, last, kind):
    """Views (V + 1, n, d) and the embeddings of a first and a last layer."""
    ranks = np.arange(1, d + 1)
    length, moved = (np.exp(s * rng.normal(size=(n, 1)) * (kind == "unlike")) for s in (0.25, 0.3))
    x = length * rng.normal(size=(n, d)) * ranks**-0.5
    x[:, 0] += 1
    views = [x + moved * rng.normal(size=(n, d)) * 0.25 * ranks**-0.35 for _ in range(VIEWS)]
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


def ratios(n: int, d: int, kind: str, metrics: Sequence[str]):
    settings = MetricsSettings(metrics=tuple(metrics), alphas=(1.0,))
    rng = np.random.default_rng(0)
    last = np.linalg.qr(rng.normal(size=(d, d)))[0] * np.arange(1, d + 1) ** -0.25
    truth, kinds = {}, {"reported": {}, "group": {}, "half": {}}
    for draw in range(DRAWS):
        drawn = population(n, d, rng, last, kind)
        for name, (value, error) in values(drawn, np.arange(n), settings).items():
            truth.setdefault(name, []).append(value)
            kinds["reported"].setdefault(name, []).append(error)
        if draw >= RESAMPLED:
            continue
        groups = rng.permutation(n) % 10
        for how, parts in (
            ("group", [np.flatnonzero(groups != g) for g in range(10)]),
            ("half", [np.sort(rng.permutation(n)[: n // 2]) for _ in range(RESAMPLED)]),
        ):
            made = [values(drawn, rows, settings) for rows in parts]
            for name in set.intersection(*(set(m) for m in made)):
                spread = np.std([m[name][0] for m in made], ddof=0 if how == "group" else 1)
                factor = 3.0 if how == "group" else 1.0  # sqrt(G - 1) of the jackknife
                kinds[how].setdefault(name, []).append(factor * spread)
    return truth, kinds


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metrics", nargs="+", default=METRICS)
    given = parser.parse_args()
    for (n, d), kind in itertools.product(SIZES, KINDS):
        truth, kinds = ratios(n, d, kind, given.metrics)
        sys.stdout.write(f"{n} prompts, {d} dimensions, prompts {kind}\n")
        for name, drawn in truth.items():
            spread = np.std(drawn, ddof=1)
            cells = [
                f"{how} {np.sqrt(np.mean(np.square(each[name]))) / spread:5.2f}"
                for how, each in kinds.items()
                if name in each
            ]
            sys.stdout.write(f"  {name:<22}" + "  ".join(cells) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
