"""Whether there are enough prompts to choose a layer by each metric.

    python scripts/check_picks.py results/activations/smollm2-135m/main/wikipedia.h5

For each metric with a direction: the layer it picks, the share of random halves of the prompts
that pick that layer and one within a tenth of the depth, and how far its values move from half of
the prompts to all; for LiDAR also the share of its value that is set by its regulariser.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from layerwise.activations.layout import Activations
from layerwise.cli import parser, run
from layerwise.config.metrics import MetricsSettings
from layerwise.metrics.registry import directions
from layerwise.metrics.sample_size import against_n_by_layer
from layerwise.statistics import samples


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("activations", type=Path, nargs="+", help="files of activations")
    made.add_argument("--tokens", default="drop_first", help="which tokens count")
    made.add_argument("--repeats", type=int, default=12, help="random halves")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Print a table for each file."""
    settings = MetricsSettings(protocols=("paper",), tokens=(given.tokens,), alphas=(1.0,))
    for path in given.activations:
        with Activations(path) as file:
            n = len(file.prompts)
            layers = range(file.n_layers)
            frame = against_n_by_layer(file, settings, layers, (n // 2, n), given.repeats)
            shares = [
                samples.share_decided_by_delta(
                    file.views("paper", given.tokens, layer)[1:], settings.lidar.delta
                )
                for layer in layers
            ]
        sys.stdout.write(
            f"{path}: {n} prompts\n  {'metric':<22}{'picks':>6}{'same':>7}{'near':>7}"
            f"{'change from half':>18}\n"
        )
        for metric, direction in directions().items():
            part = frame[frame["metric"] == metric]
            if part.empty:
                continue
            wide = part.pivot_table(index=["n", "repeat"], columns="layer", values="value")
            found = samples.stability_of(
                wide.loc[n].to_numpy()[0], wide.loc[n // 2].to_numpy(), direction
            )
            note = "" if found.stable else "  the pick is not stable"
            if found.change_from_half > samples.CHANGED:
                note += "  too few prompts for its value"
            if metric == "lidar" and np.median(shares) > samples.DECIDED:
                note += f"  set by δ: {min(shares):.0%} to {max(shares):.0%}"
            sys.stdout.write(
                f"  {metric:<22}{found.pick:>6}{found.same:>7.2f}{found.near:>7.2f}"
                f"{found.change_from_half:>18.1%}{note}\n"
            )


if __name__ == "__main__":
    run(main, arguments())
