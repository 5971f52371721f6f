"""Compute all metrics of all layers of a model's activations, into tidy tables; and ask whether
there are enough prompts to choose a layer by each of them, where a study chooses.

    python scripts/compute_metrics.py --model minilm-l6 --corpus wikipedia

Needs no GPU and no model. Every row names its protocol, choice of tokens, order and normalisation.
Of each metric with a direction a table of picks has the layer it picks, the share of random halves
of the prompts that pick that layer and one within a tenth of the depth, how far its values move
from half of the prompts to all; for LiDAR also the share of its value that is set by its
regulariser.
"""

from __future__ import annotations

import logging

from layerwise import cli

log = logging.getLogger("layerwise")


def main(runs: list[cli.Run]) -> None:
    """Corpus after corpus."""
    cli.each(runs, lambda run: (check if run.job.stage == "check_picks" else compute)(run))


def compute(run: cli.Run) -> None:
    """Open the activations, compute, write the tables; remove what need not be kept."""
    from layerwise import tables
    from layerwise.activations.store import Activations
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


def check(run: cli.Run) -> None:
    """Open the activations, take halves of the prompts, write."""
    from layerwise import tables
    from layerwise.activations.store import Activations
    from layerwise.association.stability import stability
    from layerwise.metrics.registry import directions

    settings = run.config.association
    with Activations(run.input("activations"), **run.names) as activations:
        found = stability(
            activations,
            run.config.metrics,
            {**directions(), **settings.directions},
            seed=settings.seed,
        )
    tables.write(run.files["picks"], found, key=run.stamp.key, recipe=run.stamp.recipe)
    for row in found.to_dict("records"):
        log.info(
            "%s (%s, %s): layer %d, near it %.0f %% of halves, change from half %.0f %%%s",
            row["metric"], row["protocol"], row["tokens"], row["pick"], 100 * row["near"],
            100 * row["change_from_half"], f"; refused: {row['refused']}" * bool(row["refused"]),
        )  # fmt: skip
    run.release_activations()


if __name__ == "__main__":
    cli.run_bundle("compute_metrics", main, __doc__)
