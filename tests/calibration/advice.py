"""How often labels advise another layer than the output (`layerwise choose --labels`).

    python tests/calibration/advice.py
    python tests/calibration/advice.py --probes 100

Layers and output answer the same rows, right with the same chance but for one layer's lead, and
their answers go together. With --probes, rows have 24 features, of which the layers see noisy
copies, all equally noisy, and probes are trained on them: what splits and training share counts.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from scipy.stats import norm

from layerwise import probes
from layerwise.choosing.by_labels import LabelledChoice
from layerwise.tasks.labelled import Found, Labelled, layer_score

ROWS, LAYERS, RIGHT, FEATURES = 200, 31, 0.7, 24


def answered(shared: float, lead: float, rng: np.random.Generator) -> LabelledChoice:
    """Layers of which one is right more often, by `lead`."""
    hard = rng.normal(size=ROWS)
    noise = rng.normal(size=(LAYERS + 1, ROWS))
    chance = np.full(LAYERS + 1, RIGHT)
    chance[LAYERS // 2] += lead
    right = np.sqrt(shared) * hard + np.sqrt(1 - shared) * noise < norm.ppf(chance)[:, None]
    found = [Found(one.mean(), None, None, ROWS, None, None, parts=one / ROWS) for one in right]
    return LabelledChoice(found[:-1], found[-1], ROWS, "accuracy")


def trained(shared: float, rng: np.random.Generator) -> LabelledChoice:
    """Layers of equal noise, with probes."""
    labels = probes.classes((np.arange(ROWS) % 2).tolist())
    common = rng.normal(size=(ROWS, FEATURES)) + 0.25 * (2 * labels[:, None] - 1)
    names = [str(row) for row in range(ROWS)]
    data = Labelled("classification", [names], labels, names)
    noise = np.sqrt(1 / shared - 1)
    found = [
        layer_score(data, [common + noise * rng.normal(size=common.shape)])
        for _ in range(LAYERS + 1)
    ]
    return LabelledChoice(found[:-1], found[-1], ROWS, "accuracy")


def main() -> None:
    """Print a table."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--draws", type=int, default=400)
    made.add_argument("--probes", type=int, help="draws with probes, instead")
    made.add_argument("--seed", type=int, default=0)
    given = made.parse_args()
    rng = np.random.default_rng(given.seed)
    if given.probes:
        for shared in (0.5, 0.9):
            told = [trained(shared, rng).layer is not None for _ in range(given.probes)]
            sys.stdout.write(f"probes, shared {shared}: {np.mean(told):.3f}\n")
        return
    for shared in (0.0, 0.5, 0.8, 0.9, 0.95):
        said = [f"| {shared} |"]
        for lead in (0.0, 0.05, 0.1):
            told = [answered(shared, lead, rng).layer is not None for _ in range(given.draws)]
            said.append(f"{np.mean(told):.3f} |")
        sys.stdout.write(" ".join(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
