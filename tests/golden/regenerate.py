"""Write golden values that changed, of the cases named or of all; review them before you commit.

python -m tests.golden.regenerate [CASE …]
python -m tests.golden.regenerate --versions      after raising a stage's version
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import compute
import tables
import test_versions
import torch


def main(wanted: list[str]) -> None:
    """Compute each case whose name starts with one of those wanted, and write its table."""
    torch.set_num_threads(1)
    for name, case in compute.CASES.items():
        if wanted and not name.startswith(tuple(wanted)):
            continue
        started = time.monotonic()
        path, table = tables.FOLDER / f"{name}.csv", case.make()
        try:
            tables.compare(name, table, list(case.keys), case.rtol, case.atol)
            change = "unchanged"  # not rewritten: the last digits differ between processors
        except (AssertionError, OSError, KeyError):
            tables.write(table, path)
            change = "written"
        seconds = time.monotonic() - started
        sys.stdout.write(f"{name}: {change}, {path.stat().st_size // 1024} KB, {seconds:.1f} s\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--versions"]:
        test_versions.record()
    else:
        main(sys.argv[1:])
