"""Compute metrics on random subsets of the prompts: do 1,000 suffice, or 100?

Writes a table (CSV) with a row for each metric, layer and number of prompts, logs how much each
metric still changes when the prompts are doubled, and draws that for the first layer asked for.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from layerwise import cli

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Open the activations, compute on subsets, write and summarise."""
    from layerwise import tables
    from layerwise.activations.store import Activations
    from layerwise.section import parse
    from layerwise.config.metrics import MetricsSettings
    from layerwise.config.reading import read_yaml
    from layerwise.metrics import sample_size

    given = read_yaml([arguments.config]).get("metrics", {})
    settings = parse(MetricsSettings, given, "metrics")
    with Activations(arguments.activations) as activations:
        layers = arguments.layers or [activations.n_layers // 2]
        frame = sample_size.against_n_by_layer(
            activations, settings, layers, arguments.sizes, arguments.repeats, settings.seed
        )
    tables.write_csv(arguments.output, frame)
    summary = sample_size.change_by_doubling(frame)
    log.info("Change from half of the prompts to all:\n%s", summary.to_string(index=False))
    if arguments.figure:
        from layerwise.figures import sample_size as figures
        from layerwise.figures import style

        first = frame.iloc[0]
        with style.theme():
            drawn = figures.draw(frame, first["protocol"], first["tokens"], int(first["layer"]))
            style.save(drawn.figure, arguments.figure, arguments.figure.with_suffix(".pdf"))
        log.info("%s", drawn.title)


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--activations", type=Path, required=True, help="activations (HDF5)")
    parser.add_argument("--output", type=Path, required=True, help="table (CSV)")
    parser.add_argument("--figure", type=Path, help="also draw it here (PNG, and a PDF beside it)")
    parser.add_argument(
        "--config", type=Path, default=Path("config.yaml"),
        help="the config whose metrics are computed (default: config.yaml)",
    )  # fmt: skip
    parser.add_argument("--layers", type=int, nargs="+", help="default: the middle one")
    parser.add_argument("--sizes", type=int, nargs="+", help="default: all, half, a quarter, …")
    parser.add_argument("--repeats", type=int, default=5, help="random subsets of each size")
    cli.run(main, parser.parse_args())
