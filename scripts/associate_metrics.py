"""Associate metrics with task scores over the layers of each model of a study."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Read the tables, associate, write."""
    from layerwise.association.table import associate
    from layerwise.io import tables
    from layerwise.run.results import Results

    results, study = Results.of(job.plan), job.plan.studies[job.names["study"]]
    settings = job.config.association.model_copy(update={"own_texts": job.config.own_texts})
    metrics, scores = (results.of_study(study, table) for table in ("metrics", "scores"))
    rows = associate(metrics, scores, settings, results.order(), study.study.over)
    tables.write(Path(job.output[0]), rows, key=job.key)


if __name__ == "__main__":
    script.run(main, snakemake)
