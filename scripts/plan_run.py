"""Say what a run would do and cost, before it starts.

Asks Snakemake which jobs are due and goes by what the nearest earlier jobs have cost. Options that
this script does not know are handed on to Snakemake:

    python scripts/plan_run.py --configfile presets/pythia_sweep.yaml
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from layerwise import cli
from layerwise.errors import LayerwiseError


def main(arguments: argparse.Namespace) -> None:
    """Ask Snakemake for the jobs, estimate them, write the table to stdout and to a file."""
    from layerwise.account import estimate, past_jobs, pending_jobs
    from layerwise.files import replacing

    command = [sys.executable, "-m", "snakemake", "--summary", "--nolock", *arguments.snakemake]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        last = (asked.stderr.strip() or asked.stdout.strip()).splitlines()[-8:]
        raise LayerwiseError("Snakemake could not plan this run: " + " ".join(last))
    table = estimate(pending_jobs(asked.stdout, arguments.results), past_jobs(arguments.results))
    if table.empty:
        sys.stdout.write("Nothing to be done.\n")
    else:
        sys.stdout.write(table.to_string(index=False, float_format="{:.3g}".format) + "\n")
    if arguments.output:
        with replacing(arguments.output) as partial:
            table.to_csv(partial, index=False, float_format="%.4g")


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder")
    parser.add_argument("--output", type=Path, help="also write the table to this file (csv)")
    known, rest = parser.parse_known_args()
    known.snakemake = rest
    cli.run(main, known)
