"""Time what is imported before any work begins, each in a process of its own.

Writes the medians of several runs beside those of a bare Python. `import layerwise` and
`layerwise --help` fail above 0.3 s of processor time, which, unlike the time by the clock, does
not count what else the machine has to do; what every job of the workflow imports, above 0.8 s.
That of torch and transformers, which jobs with a model import as well, has no limit.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import time

HELP = "import sys; sys.argv = ['layerwise', '--help']; from layerwise.app import main; main()"
CASES = {
    "python": ("pass", 0.3),
    "import layerwise": ("import layerwise", 0.3),
    "from layerwise import metrics": ("from layerwise import metrics", 0.3),
    "layerwise --help": (HELP, 0.3),
    "any job": ("import layerwise.workflow.plan", 0.8),
    "torch": ("import torch", math.inf),
    "torch and transformers": ("from transformers import AutoModel, BertModel", math.inf),
}


def main(repeats: int) -> int:
    """Time each, and say so."""
    slow = 0
    for name, (code, limit) in CASES.items():
        wall, used = [], []
        for _ in range(repeats):
            start, before = time.perf_counter(), _processor()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            wall.append(time.perf_counter() - start)
            used.append(_processor() - before)
        median = statistics.median(used)
        slow += median > limit
        sys.stdout.write(
            f"{name:32} {median:.3f} s of processor time, {statistics.median(wall):.3f} s by the "
            f"clock{' (too slow)' if median > limit else ''}\n"
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
