"""Select a layer by each metric and compare its score with the best layer and the output."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the tables, select, compare, write."""
    from layerwise.association.selection import select_layers, summarize
    from layerwise.io import tables
    from layerwise.metrics.registry import directions
    from layerwise.run.results import Results

    config, results = arguments.config, Results.of(arguments.plan)
    settings = config.association
    study = arguments.plan.studies[arguments.study]
    metrics, scores = (results.of_study(study, table) for table in ("metrics", "scores"))
    order = results.order()
    selections = select_layers(
        metrics,
        scores,
        {**directions(), **settings.directions},
        prompts=None if study.study.published else results.of_study(study, "prompts"),
        own_texts=config.own_texts,
        order=order,
        seed=settings.seed,
    )
    tables.write_csv(arguments.summary, summarize(selections, order), arguments.key)
    tables.write(arguments.output, selections, key=arguments.key, copies=order.copies)


if __name__ == "__main__":
    files = {"output": "table of selections to write", "summary": "CSV summary to write"}
    script.run(main, script.parser(__doc__, "study", stage="select", **files))
