"""What the refusal of unstable picks achieves (`layerwise.statistics.samples.STABLE`).

    python tests/calibration/refusals.py

Curves of which the best layer is known, on prompts that depart from them as random walks over
layers do; the hump's height over the standard error of a layer's mean goes from none to clear. How
often is a pick within a tenth of the depth of the best layer, among those kept and those refused?
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from simulate import curves

from layerwise.statistics.samples import STABLE, stability_of

PROMPTS, HALVES = 96, 12
HEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # in standard errors of a layer's mean


def draw(kind: str, layers: int, height: float, rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether a pick is kept, and whether it lies near the best layer."""
    at = int(rng.integers(layers))
    depth = np.arange(layers) / (layers - 1)
    hump = np.exp(-0.5 * ((depth - depth[at]) / 0.15) ** 2)
    values = 10 + hump * height / np.sqrt(PROMPTS) + curves(kind, PROMPTS, layers, rng)
    halves = [values[rng.permutation(PROMPTS)[: PROMPTS // 2]].mean(axis=0) for _ in range(HALVES)]
    found = stability_of(values.mean(axis=0), halves, 1)
    return found.near >= STABLE, abs(found.pick - at) <= max(0.1 * (layers - 1), 0)


def lines(repeats: int) -> list[str]:
    """Markdown: a row for each height of the hump."""
    made = [
        "| height of the hump, in standard errors | kept | right, of those kept | right, of those "
        "refused |",
        "|---|---|---|---|",
    ]
    for height in HEIGHTS:
        rng = np.random.default_rng(7)
        kept, right = np.array(
            [
                draw(kind, layers, height, rng)
                for kind in ("iid", "smooth", "walk")
                for layers in (7, 31)
                for _ in range(repeats)
            ]
        ).T
        cells = [f"{right[k].mean():.2f}" if k.any() else "–" for k in (kept, ~kept)]
        made.append(f"| {height:g} | {kept.mean():.2f} | {cells[0]} | {cells[1]} |")
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100, help="for each kind of curve and size")
    sys.stdout.write("\n".join(lines(parser.parse_args().repeats)) + "\n")
