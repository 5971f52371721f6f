"""Say what a run would do, why, and what it will cost, before it starts.

Bytes go by the shapes of models and the numbers of texts, hours by what the same model was seen to
take in the same results folder.

    python scripts/plan_run.py --config presets/pythia_sweep.yaml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Find the jobs that are due, estimate them, write the table to stdout and to a file."""
    from layerwise import tables
    from layerwise.config.reading import read_yaml
    from layerwise.workflow.account import estimate, on_disk, past_jobs
    from layerwise.workflow.run import Start

    start = Start(read_yaml(arguments.config), arguments.config)
    due = start.due()
    for line in start.reasons(due):
        sys.stdout.write(f"{line}\n")
    table = estimate(start.plan, start.plan.runs(due), past_jobs(start.results))
    if table.empty:
        sys.stdout.write("Nothing to be done.\n")
    else:
        told = table.to_string(index=False, float_format="{:.3g}".format, na_rep="–")
        sys.stdout.write(f"{told}\n")
        for line in on_disk(start.plan):
            sys.stdout.write(f"{line}\n")
    if arguments.output:
        tables.write_csv(arguments.output, table, float_format="%.4g")


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--config", "--configfile", type=Path, nargs="+", default=[Path("config.yaml")],
        help="the config (default config.yaml)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="also write the table to this file (csv)")
    cli.run(main, parser.parse_args())
