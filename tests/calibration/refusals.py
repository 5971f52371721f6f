"""What the refusal of picks achieves, by where its bounds stand (`layerwise.statistics.samples`).

    python tests/calibration/refusals.py

Two simulations of which the best layer is known; a pick is right within a tenth of the depth.

- Prompts that depart from a curve over layers with a hump as noise, Gaussian process and random
  walk do: how often is a pick kept, and right, by the share of halves that must pick near it?
- Layers with spectra of their own, of which prompts and views are drawn: how often is a metric's
  pick right, by how far half of the prompts move its value, and by what δ sets of LiDAR?
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from simulate import Floats, curves

from layerwise.metrics.catalog.lidar import lidar
from layerwise.metrics.catalog.rankme import rankme
from layerwise.statistics.samples import share_decided_by_delta, stability_of

PROMPTS, HALVES = 96, 12
HEIGHTS = (0.0, 1.0, 2.0, 4.0)  # in standard errors of a layer's mean
BOUNDS = (0.0, 0.5, 0.65, 0.8, 0.9, 1.0)
LAYERS, HIDDEN, MANY = 9, 48, 1500
EDGES = (0.0, 0.05, 0.1, 0.2, 0.4, np.inf)


def draw(kind: str, layers: int, height: float, rng: np.random.Generator) -> tuple[float, bool]:
    """Share of halves that pick near the pick, and whether that lies near the best layer."""
    at = int(rng.integers(layers))
    depth = np.arange(layers) / (layers - 1)
    hump = np.exp(-0.5 * ((depth - depth[at]) / 0.15) ** 2)
    values = 10 + hump * height / np.sqrt(PROMPTS) + curves(kind, PROMPTS, layers, rng)
    halves = [values[rng.permutation(PROMPTS)[: PROMPTS // 2]].mean(axis=0) for _ in range(HALVES)]
    found = stability_of(values.mean(axis=0), halves, 1)
    return found.near, abs(found.pick - at) <= 0.1 * (layers - 1)


def by_stability(repeats: int) -> list[str]:
    """Markdown: a row for each bound, kept and right of those for each height of the hump."""
    found = {}
    for height in HEIGHTS:
        rng = np.random.default_rng(7)
        found[height] = np.array(
            [
                draw(kind, layers, height, rng)
                for kind in ("iid", "smooth", "walk")
                for layers in (7, 31)
                for _ in range(repeats)
            ]
        ).T
    heads = [f"hump of {h:g} standard errors" if h else "no hump" for h in HEIGHTS]
    made = [f"| halves near the pick | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for bound in BOUNDS:
        cells = []
        for near, right in found.values():
            kept = near >= bound
            cells.append(f"{kept.mean():.2f}, {right[kept].mean() if kept.any() else np.nan:.2f}")
        made.append(f"| {bound:g} or more | {' | '.join(cells)} |")
    return made


def drawn(prompts: int, views: int, shapes: Floats, rng: np.random.Generator) -> Floats:
    """Views of the layers, (L, V, N, D); prompts and augmentations have spectra of their own."""
    ranks = np.arange(1, HIDDEN + 1)
    decay, noise, size = (s[:, None, None] for s in shapes)
    base = rng.normal(size=(prompts, HIDDEN)) * ranks ** -(0.5 + 0.2 * decay)
    moved = rng.normal(size=(views, 1, prompts, HIDDEN)) * ranks ** -(0.3 + 0.2 * noise)
    return np.moveaxis(base + 0.3 * np.exp(0.5 * size) * moved, 0, 1)


def by_sample(models: int) -> list[tuple[str, float, float, bool]]:
    """Of each model, number of prompts and views: metric, change from half, share of δ, right."""
    rng, found = np.random.default_rng(3), []
    for _ in range(models):
        shapes = curves("smooth", 3, LAYERS, rng)
        all_of_them = drawn(MANY, 8, shapes, rng)
        best = {
            "RankMe": np.argmax([rankme(x[0]) for x in all_of_them]),
            "LiDAR": np.argmax([lidar(x) for x in all_of_them]),
        }
        for n in (12, 24, 48, 96, 192):
            for v in (2, 8):
                x = drawn(n, v, shapes, rng)
                cut = [rng.permutation(n)[: n // 2] for _ in range(4)]
                for name, metric in (("RankMe", lambda y: rankme(y[0])), ("LiDAR", lidar)):
                    if name == "RankMe" and v > 2:
                        continue
                    whole = [metric(y) for y in x]
                    made = stability_of(whole, [[metric(y[:, k]) for y in x] for k in cut], 1)
                    share = np.nan
                    if name == "LiDAR":
                        share = float(np.median([share_decided_by_delta(y) for y in x]))
                    right = abs(made.pick - best[name]) <= 0.1 * (LAYERS - 1)
                    found.append((name, made.change_from_half, share, bool(right)))
    return found


def binned(found: list[tuple[str, float, float, bool]]) -> list[str]:
    """Markdown: share of picks that are right, and of how many, by change and by share of δ."""
    heads = [
        f"{low:g} to {high:g}" if np.isfinite(high) else f"above {low:g}"
        for low, high in itertools.pairwise(EDGES)
    ]
    made = [f"| right, by | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, column, said in (
        ("RankMe", 1, "RankMe, change from half"),
        ("LiDAR", 1, "LiDAR, change from half"),
        ("LiDAR", 2, "LiDAR, share set by δ"),
    ):
        of = [row for row in found if row[0] == name]
        at = np.digitize([row[column] for row in of], EDGES) - 1
        right = np.array([row[3] for row in of])
        cells = [
            f"{right[at == k].mean():.2f} of {(at == k).sum()}" if (at == k).any() else "–"
            for k in range(len(heads))
        ]
        made.append(f"| {said} | {' | '.join(cells)} |")
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="for each kind of curve and size")
    parser.add_argument("--models", type=int, default=40, help="with spectra of their own")
    given = parser.parse_args()
    sys.stdout.write("\n".join(by_stability(given.repeats)) + "\n\n")
    sys.stdout.flush()
    sys.stdout.write("\n".join(binned(by_sample(given.models))) + "\n")
