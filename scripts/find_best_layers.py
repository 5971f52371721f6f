"""Find the best layer of each model, for the first page of the report."""

from pathlib import Path

from layerwise.run import script


def main(job: script.Job) -> None:
    """Read the scores, find, write."""
    from layerwise.io import tables
    from layerwise.names import Order
    from layerwise.run.report import first_table
    from layerwise.run.results import Results

    scores = Results.of(job.plan).read(job.input, "scores")
    rows = first_table(scores, Order.of(job.config))
    tables.write_csv(Path(job.output[0]), rows, job.key)


if __name__ == "__main__":
    script.run(main, snakemake)
