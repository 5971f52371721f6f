"""Build the explorer: one page that draws any metric and score of the run, without a network."""

from pathlib import Path

from layerwise.io.files import replacing
from layerwise.run import script


def main(job: script.Job) -> None:
    """Read, gather, write."""
    from explorer.gather import gather
    from explorer.page import render
    from explorer.stage import explored as shown
    from layerwise.run.results import Results

    results, output = Results.of(job.plan), Path(job.output[0])
    sources = {
        published: {
            table: [(results.read([path], table), Path(path)) for path in paths]
            for table, paths in named.items()
        }
        for published, named in shown(job.plan).items()
    }
    explored = gather(sources, results.order(), output, job.config.association.directions)
    with replacing(output) as partial:
        page = render(explored, "What each layer represents", key=job.key)
        partial.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    script.run(main, snakemake)  # type: ignore[name-defined]
