"""Set the layers that metrics pick against the scores, and say how each metric did over models."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the tables, pick, compare, write."""
    from layerwise import tables
    from layerwise.association.choice import choose_layers, summarize
    from layerwise.association.sources import with_text_sources
    from layerwise.metrics.registry import directions
    from layerwise.models.checkpoints import check_weights

    settings = run.config.association
    checked = run.inputs.get("picks")
    check_weights(path for role in ("metrics", "scores") for path in run.inputs.get(role, []))
    scores = tables.read(run.inputs["scores"], "scores")
    choices = choose_layers(
        tables.read(run.inputs["metrics"], "metrics"),
        with_text_sources(scores, settings.text_sources),
        {**directions(), **settings.directions},
        own_texts=run.own_texts(),
        poolings=settings.poolings,
        stability=tables.read(checked, "picks") if checked else None,
        order=run.order(),
        seed=settings.seed,
    )
    tables.write_csv(run.files["summary"], summarize(choices, run.order()))
    tables.write(run.files["choices"], choices, key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("compare_choices", main, __doc__)
