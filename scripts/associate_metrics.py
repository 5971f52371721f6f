"""Associate metrics with task scores over the layers of each model of a study."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read the tables, associate, write."""
    from layerwise import tables
    from layerwise.association.sources import with_text_sources
    from layerwise.association.table import associate
    from layerwise.models.checkpoints import check_weights

    check_weights(path for role in ("metrics", "scores") for path in run.inputs.get(role, []))
    metrics = tables.read(run.inputs["metrics"], "metrics")
    scores = tables.read(run.inputs["scores"], "scores")
    settings = run.config.association.model_copy(update={"own_texts": run.own_texts()})
    scores = with_text_sources(scores, settings.text_sources)
    found = associate(metrics, scores, settings, run.order())
    tables.write(run.files["associations"], found, key=run.stamp.key, recipe=run.stamp.recipe)


if __name__ == "__main__":
    cli.run_job("associate_metrics", main, __doc__)
