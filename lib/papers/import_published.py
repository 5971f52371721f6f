"""Convert tables published elsewhere to this workflow's tables of metrics and scores."""

from pathlib import Path

import pandas as pd

from layerwise.run import script


def main(job: script.Job) -> None:
    """Read, convert, write."""
    from layerwise.io import tables
    from layerwise.io.tables import read_table
    from papers.published import published_metrics, published_scores

    entry = job.config.published[job.names["published"]]
    for table, convert in (("metrics", published_metrics), ("scores", published_scores)):
        path = getattr(entry, table)
        # A study of metrics alone reads no scores.
        rows = convert(read_table(Path(path))) if path else pd.DataFrame({"model": []})
        source = Path(path).name if path else ""
        tables.write(Path(getattr(job.output, table)), rows, key=job.key, source=source)


if __name__ == "__main__":
    script.run(main, snakemake)  # type: ignore[name-defined]
