"""Say what a run would do and cost, before it starts.

Asks Snakemake which jobs are due and goes by what the nearest earlier jobs have cost. Options that
this script does not know are handed on to Snakemake; the results folder is that of the config:

    python scripts/plan_run.py --configfile presets/pythia_sweep.yaml
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerwise import cli
from layerwise.errors import LayerwiseError

SCHEMA = Path(__file__).parents[1] / "workflow" / "schemas" / "config.schema.yaml"


def main(arguments: argparse.Namespace) -> None:
    """Ask Snakemake for the jobs, estimate them, write the table to stdout and to a file."""
    from layerwise.account import estimate, past_jobs, pending_jobs
    from layerwise.files import replacing

    command = [sys.executable, "-m", "snakemake", "--summary", "--nolock", *arguments.snakemake]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        last = (asked.stderr.strip() or asked.stdout.strip()).splitlines()[-8:]
        raise LayerwiseError("Snakemake could not plan this run: " + " ".join(last))
    folder, results = results_of(arguments.snakemake)
    results = arguments.results or results
    table = estimate(pending_jobs(asked.stdout, results), past_jobs(folder / results))
    if table.empty:
        sys.stdout.write("Nothing to be done.\n")
    else:
        sys.stdout.write(table.to_string(index=False, float_format="{:.3g}".format) + "\n")
    if arguments.output:
        with replacing(arguments.output) as partial:
            table.to_csv(partial, index=False, float_format="%.4g")


def results_of(arguments: Sequence[str]) -> tuple[Path, Path]:
    """The folder that Snakemake works in, and where in it its config has the results written.

    Parameters
    ----------
    arguments : sequence of str
        Snakemake's, which it has accepted; so the configs that they name are valid.
    """
    import yaml

    from layerwise.config import read_schema

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--directory", "-d", type=Path, default=Path())
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path)
    parser.add_argument("--config", "-C", nargs="*", default=())
    known, _ = parser.parse_known_args(arguments)
    config: dict[str, Any] = {}
    for file in known.configfile or [known.directory / "config.yaml"]:
        config |= yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    config |= dict(entry.split("=", 1) for entry in known.config)
    default = read_schema(SCHEMA)["properties"]["results"]["default"]
    return known.directory, Path(str(config.get("results", default)))


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--results", type=Path, help="results folder (default: the config's)")
    parser.add_argument("--output", type=Path, help="also write the table to this file (csv)")
    known, rest = parser.parse_known_args()
    known.snakemake = rest
    cli.run(main, known)
