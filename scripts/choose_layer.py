"""Print the layer that each metric selects in a model, from tables of metrics alone.

python scripts/choose_layer.py --metrics results/metrics/smollm2-135m/main/wikipedia.parquet
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read, select, print."""
    from layerwise.association.selection import NO_LABELS, selected_layers
    from layerwise.io import tables
    from layerwise.metrics.registry import directions

    metrics = tables.read(arguments.metrics, "metrics")
    beside = [path.with_suffix(".prompts.parquet") for path in arguments.metrics]
    prompts = tables.read(beside, "prompts") if all(path.is_file() for path in beside) else None
    asked = {n: getattr(arguments, n) for n in ("revision", "tokens", "corpus", "protocol")}
    sys.stdout.write(f"{NO_LABELS}\n")
    for model in [arguments.model] if arguments.model else sorted(metrics["model"].unique()):
        table = selected_layers(metrics, directions(), model=model, prompts=prompts, **asked)
        sys.stdout.write(f"\n{table.round(2).to_string(index=False)}\n")


if __name__ == "__main__":
    options = script.parser(__doc__)
    options.add_argument("--metrics", type=Path, nargs="+", required=True, help="metrics tables")
    options.add_argument("--model", help="name in the tables (default: every model)")
    options.add_argument("--revision", help="checkpoint (default: the last)")
    options.add_argument("--tokens", help="all, drop_first or drop_sinks (default: drop_first)")
    options.add_argument("--corpus", help="corpus of the metrics, if they are on several")
    options.add_argument("--protocol", default="paper", help="paper (default) or reference")
    script.run(main, options)
