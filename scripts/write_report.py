"""Write the report: one page with the best layer of each model, and all figures with captions."""

from pathlib import Path

from layerwise.io.files import replacing
from layerwise.run import script


def main(job: script.Job) -> None:
    """Collect the figures and tables, write the page."""
    from layerwise.run.report import render

    with replacing(Path(job.output[0])) as partial:
        partial.write_text(render(job.plan, job.key), encoding="utf-8")


if __name__ == "__main__":
    script.run(main, snakemake)
