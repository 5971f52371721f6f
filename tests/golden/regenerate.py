"""Write golden values anew, of the cases named or of all: a deliberate act, to be reviewed.

python -m tests.golden.regenerate [CASE …]
python -m tests.golden.regenerate --versions      after raising a stage's version
python -m tests.golden.regenerate --jobs          after changing rules, requests or commands
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compute
import drawings
import jobs
import of_tables
import tables
import test_versions
import torch


def main(wanted: list[str]) -> None:
    """Compute each case whose name starts with one of those wanted, and write its table."""
    torch.set_num_threads(1)
    for name in of_tables.VARIANTS:
        if not wanted or name.startswith(tuple(wanted)):
            drawings.write(name, of_tables.varied(name))
    for name, case in compute.CASES.items():
        if wanted and not name.startswith(tuple(wanted)):
            continue
        started = time.monotonic()
        path = tables.FOLDER / f"{name}.csv"
        tables.write(case.make(), path)
        if name.startswith("figure."):
            kind = name.removeprefix("figure.")
            drawings.write(kind, of_tables.drawn(kind))
        seconds = time.monotonic() - started
        sys.stdout.write(f"{name}: {path.stat().st_size // 1024} KB, {seconds:.1f} s\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--versions"]:
        test_versions.record()
    elif sys.argv[1:] == ["--jobs"]:
        jobs.write()
    else:
        main(sys.argv[1:])
