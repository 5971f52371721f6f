"""Select a layer by each metric and compare its score with the best layer and the output."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Read the tables, select, compare, write."""
    from layerwise.association.selection import select_layers, summarize
    from layerwise.io import tables
    from layerwise.run.results import Results

    results, study = Results.of(job.plan), job.plan.studies[job.names["study"]]
    metrics, scores = (results.of_study(study, table) for table in ("metrics", "scores"))
    order = results.order()
    selections = select_layers(
        metrics,
        scores,
        job.plan.directions,
        prompts=None if study.study.published else results.of_study(study, "prompts"),
        own_texts=job.config.own_texts,
        order=order,
    )
    tables.write_csv(Path(job.output.summary), summarize(selections, order), job.key)
    tables.write(Path(job.output.selections), selections, key=job.key, copies=order.copies)


if __name__ == "__main__":
    script.run(main, snakemake)
