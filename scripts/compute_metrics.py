"""Compute all metrics of all layers of an activations file, into two tidy tables.

Needs no GPU and no model. Every row names its protocol, choice of tokens, order and normalisation.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

from layerwise import cli

log = logging.getLogger("layerwise")


def main(arguments: argparse.Namespace) -> None:
    """Open the activations, compute, write the two tables."""
    from layerwise.activations.layout import Activations
    from layerwise.files import provenance
    from layerwise.metrics import storage, table
    from layerwise.metrics.settings import Settings

    settings = Settings.from_mapping(arguments.settings)
    with Activations(
        arguments.activations,
        model=arguments.model,
        revision=arguments.revision,
        corpus=arguments.corpus,
    ) as activations:
        metrics, prompts = table.compute(activations, settings, arguments.threads)
        made_from = {
            key: str(value)
            for key, value in activations.attributes.items()
            if key.endswith("sha256") or key in ("model", "revision", "corpus", "dtype", "readout")
        }
    facts = provenance(**made_from, settings=json.dumps(arguments.settings))
    storage.write(metrics, arguments.output, facts)
    if arguments.prompts_output:
        storage.write(prompts, arguments.prompts_output, facts)
    log.info(
        "%d values of %d metrics, %d values of single prompts",
        len(metrics), metrics["metric"].nunique(), len(prompts),
    )  # fmt: skip


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--activations", type=Path, required=True, help="activations (HDF5)")
    parser.add_argument("--output", type=Path, required=True, help="table of metrics (parquet)")
    parser.add_argument("--prompts-output", type=Path, help="table of every prompt's values")
    parser.add_argument("--model", help="refuse a file about another model")
    parser.add_argument("--revision", help="refuse a file about another revision")
    parser.add_argument("--corpus", help="refuse a file about another corpus")
    parser.add_argument(
        "--settings", type=cli.json_argument, default={},
        help="JSON: metrics, protocols, tokens, alphas, normalizations, pair, dime_permutations, "
        "infonce_temperature, lidar_delta, alpha_req_ranks, two_nn_discard, stderr_groups, seed",
    )  # fmt: skip
    cli.run(main, parser.parse_args())
