"""Whether there are enough prompts to choose a layer by each metric of a model.

    python scripts/check_picks.py --model smollm2-135m --revision main --corpus wikipedia

For each metric with a direction: the layer it picks, the share of random halves of the prompts
that pick that layer and one within a tenth of the depth, how far its values move from half of the
prompts to all; for LiDAR also the share of its value that is set by its regulariser.
"""

from __future__ import annotations

import logging

from layerwise import cli

log = logging.getLogger("layerwise")


def main(run: cli.Run) -> None:
    """Open the activations, take halves, write."""
    from layerwise import tables
    from layerwise.activations.layout import Activations
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
    run.release_activations()
    for row in found.to_dict("records"):
        log.info(
            "%s (%s, %s): layer %d, near it %.0f %% of halves, change from half %.0f %%%s",
            row["metric"], row["protocol"], row["tokens"], row["pick"], 100 * row["near"],
            100 * row["change_from_half"], f"; refused: {row['refused']}" * bool(row["refused"]),
        )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("check_picks", main, __doc__)
