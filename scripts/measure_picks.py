"""How many prompts and views does each metric's pick of a layer need?

    python scripts/measure_picks.py --output picks.csv results/activations/*/main/wikipedia.h5

Cuts the prompts into samples that share none, lets every metric pick a layer on each, and writes
how often two samples agree, by number of prompts and of views; also prints that as a table.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from layerwise import cli

if TYPE_CHECKING:
    import argparse

    import pandas as pd

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Sample, pick, write."""
    import pandas as pd

    from layerwise import tables
    from layerwise.activations.store import Activations
    from layerwise.association.stability import agreement
    from layerwise.section import parse
    from layerwise.config.metrics import MetricsSettings
    from layerwise.config.reading import read_yaml
    from layerwise.metrics.registry import directions

    own = read_yaml([arguments.config]).get("metrics", {})
    given = {"tokens": ["drop_first"], "protocols": ["paper"], **own}
    settings = parse(MetricsSettings, given, "metrics")
    found = []
    for path in arguments.activations:
        with Activations(path) as activations:
            found.append(
                agreement(
                    activations, settings, directions(), prompts=arguments.prompts,
                    views=arguments.views, repeats=arguments.repeats, seed=settings.seed,
                )
            )  # fmt: skip
    table = pd.concat(found, ignore_index=True)
    tables.write_csv(arguments.output, table)
    sys.stdout.write("\n".join(lines(table)) + "\n")


def lines(table: pd.DataFrame) -> list[str]:
    """Markdown: a row a metric (and number of views), a column a model and number of prompts.

    Each cell: `near`, `near_all` and `change`, as `layerwise.association.stability.agreement` has
    them.
    """
    import pandas as pd

    models, sizes = list(dict.fromkeys(table["model"])), sorted(table["n"].unique())
    heads = [f"{model}, {n} prompts" for model in models for n in sizes]
    made = [f"| metric | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for (metric, views), part in table.groupby(["metric", "views"], dropna=False):
        name = metric if pd.isna(views) else f"{metric}, {views:.0f} views"
        cells = []
        for model in models:
            for n in sizes:
                row = part[(part["model"] == model) & (part["n"] == n)]
                cells.append(
                    f"{row['near'].iloc[0]:.2f}, {row['near_all'].iloc[0]:.2f}, "
                    f"{100 * row['change'].iloc[0]:.0f} %"
                    if len(row)
                    else "–"
                )
        made.append(f"| {name} | {' | '.join(cells)} |")
    return made


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("activations", type=Path, nargs="+", help="activations (HDF5)")
    parser.add_argument("--output", type=Path, required=True, help="table (CSV)")
    parser.add_argument("--prompts", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--views", type=int, nargs="+", default=[2, 4, 7])
    parser.add_argument("--repeats", type=int, default=6, help="random orders of the prompts")
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"),
        help="the config whose metrics are computed (default: config.yaml)",
    )  # fmt: skip
    cli.run(main, parser.parse_args())
