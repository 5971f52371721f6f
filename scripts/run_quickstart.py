"""Run the quickstart: say what is being done and what is left, then where to look and the result.

python scripts/run_quickstart.py --cores 2
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from layerwise import cli

# Lines of the result that are shown; the report has all.
LINES = 3


def main(arguments: argparse.Namespace) -> None:
    """Run Snakemake, make the report, sum up."""
    from layerwise.workflow.follow import follow

    run = ["snakemake", "--cores", str(arguments.cores)]
    report = ["snakemake", "--cores", "1", "--report", "results/report.html"]
    for command in (run, report):
        status = follow(command)
        if status:
            sys.exit(status)
    sys.stdout.write("\n".join(["", *summary(Path("results"))]) + "\n")


def summary(results: Path) -> list[str]:
    """Where to look, and the first page's sentences on each model's best layer."""
    page = (results / "report" / "best_layers.rst").read_text(encoding="utf-8")
    found = [line[2:] for line in page.splitlines() if line.startswith("- ")]
    plain = [re.sub(r"\*\*|\\", "", line) for line in found]
    return [
        f"Look at {results}/report.html in a browser: every figure and table on one page; and at "
        f"{results}/explore.html, which draws any metric and score of any layer. The files are in "
        f"{results}/figures and {results}/tables.",
        "Each model's best layer, by its mean score over the tasks:",
        *(f"  {line}" for line in plain[:LINES]),
    ]


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--cores", type=int, default=2, help="cores to use (default 2)")
    cli.run(main, parser.parse_args())
