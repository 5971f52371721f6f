"""Add up what a run has cost, by stage and model, from the benchmark files of its jobs.

Can be run at any time, also by hand while a sweep is under way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise import cli


def main(arguments: argparse.Namespace) -> None:
    """Read the benchmarks and the sizes of the files, write the table."""
    from layerwise import tables
    from layerwise.workflow.account import account, past_jobs

    table = account(past_jobs(arguments.results))
    tables.write_csv(arguments.output, table, float_format="%.4g")


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--output", type=Path, required=True, help="table of costs (csv)")
    cli.run(main, parser.parse_args())
