"""How many models, layers and tasks it takes to see an association, or a gain, of a size.

python scripts/plan_power.py --r 0.5 --models 4 6 8 12 --layers 7 25
python scripts/plan_power.py --gain 2 --spread 5 --tasks 5 10 32 --choose-from 13
"""

from __future__ import annotations

import argparse
import sys

from layerwise.cli import parser, run
from layerwise.errors import LayerwiseError
from layerwise.statistics.matching import FEWEST_MODELS
from layerwise.statistics.power import power_of_gain, power_of_matching, tasks_for_gain


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("--r", type=float, help="correlation of metric and score beyond depth")
    made.add_argument("--models", type=int, nargs="+", default=[4, 6, 8, 12])
    made.add_argument("--layers", type=int, nargs="+", default=[7, 13, 25])
    made.add_argument("--metrics", type=int, default=1, help="how many metrics are tried")
    made.add_argument("--gain", type=float, help="true lead of a layer, in points of score")
    made.add_argument("--spread", type=float, help="its standard deviation between tasks")
    made.add_argument("--tasks", type=int, nargs="+", default=[5, 10, 32])
    made.add_argument(
        "--choose-from", type=int, default=1, help="rivals the layer is chosen from by these tasks"
    )
    return made.parse_args()


def association(given: argparse.Namespace) -> list[str]:
    """Power of matching metrics and scores across models."""
    lines = [
        f"Chance to see r = {given.r:g} beyond depth among {given.metrics} metrics (p ≤ .05, "
        f"corrected); no test below {FEWEST_MODELS} models",
        "  models" + "".join(f"{layers:>5} layers" for layers in given.layers),
    ]
    for models in given.models:
        cells = [
            power_of_matching(models, layers, given.r, metrics=given.metrics)
            for layers in given.layers
        ]
        lines.append(f"  {models:>6}" + "".join(f"{cell:>12.2f}" for cell in cells))
    return lines


def gain(given: argparse.Namespace) -> list[str]:
    """Power of an interval over tasks."""
    of = given.choose_from
    lines = [
        f"Chance to see a lead of {given.gain:g} points that varies by {given.spread:g} between "
        "tasks" + (f", of a layer chosen from {of}" if of > 1 else "")
    ]
    lines += [
        f"  {tasks:>4} tasks {power_of_gain(tasks, given.gain, given.spread, layers=of):.2f}"
        for tasks in given.tasks
    ]
    enough = tasks_for_gain(given.gain, given.spread, layers=of)
    lines.append(f"  {enough or 'more than 2000'} tasks would see it in 8 of 10 cases")
    return lines


def main(given: argparse.Namespace) -> None:
    """Print the tables that were asked for.

    Raises
    ------
    LayerwiseError
        If nothing was asked for, or a gain without its spread.
    """
    if given.r is None and given.gain is None:
        raise LayerwiseError("Say what is to be seen: --r for an association, --gain for a lead.")
    if given.gain is not None and given.spread is None:
        raise LayerwiseError("A gain needs its standard deviation between tasks: give --spread.")
    if given.r is not None and not 0 <= given.r <= 1:
        raise LayerwiseError(f"A correlation of {given.r:g} is not within 0 and 1.")
    lines = association(given) if given.r is not None else []
    lines += gain(given) if given.gain is not None else []
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    run(main, arguments())
