"""Find each model's best layer by its scores, and write the first page of the report."""

from __future__ import annotations

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read, find, write."""
    from layerwise import tables
    from layerwise.association.best import best_layers
    from layerwise.association.sources import with_text_sources
    from layerwise.figures.first_page import first_page
    from layerwise.files import replacing
    from layerwise.workflow import stamps

    settings = run.config.association
    scores = with_text_sources(tables.read(run.inputs["scores"], "scores"), settings.text_sources)
    best = best_layers(scores, seed=settings.seed)
    tables.write_csv(run.files["table"], best)
    with replacing(run.files["page"]) as partial:
        partial.write_text(first_page(best, run.order()), encoding="utf-8")
    stamps.write(run.files["stamp"], run.stamp)


if __name__ == "__main__":
    cli.run_job("find_best_layers", main, __doc__)
