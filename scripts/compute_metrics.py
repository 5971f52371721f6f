"""Compute all metrics of all layers of a model's activations, into tidy tables.

    python scripts/compute_metrics.py --model minilm-l6 --corpus wikipedia

Needs no GPU and no model. Every row names its protocol, choice of tokens, order and normalisation.
"""

from __future__ import annotations

import logging

from layerwise import cli

log = logging.getLogger("layerwise")


def main(runs: list[cli.Run]) -> None:
    """Corpus after corpus."""
    cli.each(runs, compute)


def compute(run: cli.Run) -> None:
    """Open the activations, compute, write the tables; remove what need not be kept."""
    from layerwise import tables
    from layerwise.activations.layout import Activations
    from layerwise.metrics import sequence, table

    with Activations(run.input("activations"), **run.names) as activations:
        metrics, prompts = table.compute(activations, run.config.metrics, run.threads)
        positions = sequence.compute(activations, run.config.metrics)
        made_from = {
            key: str(value)
            for key, value in activations.attributes.items()
            if key.endswith("sha256") or key in ("model", "revision", "corpus", "dtype", "readout")
        }
    for role, frame in (
        ("prompts", prompts),
        ("positions", positions),
        ("metrics", metrics),
    ):
        tables.write(
            run.files[role], frame, key=run.stamp.key, recipe=run.stamp.recipe, **made_from
        )
    log.info(
        "%s: %d values of %d metrics, %d values of single prompts", " ".join(run.names.values()),
        len(metrics), metrics["metric"].nunique(), len(prompts),
    )  # fmt: skip
    run.release_activations()


if __name__ == "__main__":
    cli.run_bundle("compute_metrics", main, __doc__)
