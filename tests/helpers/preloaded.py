"""Snakemake with its imports done once: each line of JSON on stdin is a run in its own fork.

Each is answered with a line, the exit status.
"""

from __future__ import annotations

import json
import os
import sys

import snakemake.cli


def run(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """Be ``python -m snakemake`` with these arguments, and end like it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [folder, *paths]
    for path, targets in ((os.devnull, [0]), (output, [1, 2])):
        opened = os.open(path, os.O_RDWR)
        for target in targets:
            os.dup2(opened, target)
    snakemake.cli.main(arguments)


snakemake.cli.get_argument_parser()  # imports the plugins, too
for line in sys.stdin:
    child = os.fork()
    if not child:
        run(**json.loads(line))
        sys.exit()
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
