"""Draw one study of the config: figure, table and caption."""

import json
from pathlib import Path

from layerwise.io.files import versions
from layerwise.run import script


def main(job: script.Job) -> None:
    """Read the tables, draw, write."""
    from layerwise.figures.render import draw
    from layerwise.run.results import Results

    study, results = job.plan.studies[job.names["study"]], Results.of(job.plan)
    tables = {table: results.of_study(study, table) for table in study.needs}
    order = results.order() if "selections" in tables else None
    drawn = draw(study.study, tables, order, config=job.config)
    files = (job.output.png, job.output.pdf, job.output.table, job.output.caption)
    drawn.write(*map(Path, files), {"key": job.key, "versions": json.dumps(versions())})


if __name__ == "__main__":
    script.run(main, snakemake)
