"""Time `import layerwise` and `layerwise --help`, each in a process of its own.

Writes the medians of several runs beside those of a bare Python; fails above 0.3 s of processor
time, which, unlike the time by the clock, does not count what else the machine has to do.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

LIMIT_S = 0.3
CASES = {
    "python": "pass",
    "import layerwise": "import layerwise",
    "from layerwise import metrics": "from layerwise import metrics",
    "layerwise --help": "import sys; sys.argv = ['layerwise', '--help']; "
    "from layerwise.app import main; main()",
}


def main(repeats: int) -> int:
    """Time each, and say so."""
    slow = 0
    for name, code in CASES.items():
        wall, used = [], []
        for _ in range(repeats):
            start, before = time.perf_counter(), _processor()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            wall.append(time.perf_counter() - start)
            used.append(_processor() - before)
        median = statistics.median(used)
        slow += median > LIMIT_S
        sys.stdout.write(
            f"{name:32} {median:.3f} s of processor time, {statistics.median(wall):.3f} s by the "
            f"clock{' (too slow)' if median > LIMIT_S else ''}\n"
        )
    return slow


def _processor() -> float:
    """Seconds that the processes that have ended have taken."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="runs of each (default 9)")
    sys.exit(main(parser.parse_args().repeats))
