"""Convert tables published elsewhere to this workflow's tables of metrics and scores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read, convert, write."""
    from layerwise.io import tables
    from layerwise.io.delimited import read_table
    from papers.published import published_metrics, published_scores

    entry = arguments.config.published[arguments.published]
    for table, convert in (("metrics", published_metrics), ("scores", published_scores)):
        path = getattr(entry, table)
        # A study of metrics alone reads no scores.
        found = convert(read_table(Path(path))) if path else pd.DataFrame({"model": []})
        source = Path(path).name if path else ""
        tables.write(getattr(arguments, table), found, key=arguments.key, source=source)


if __name__ == "__main__":
    files = {"scores": "table of scores to write", "metrics": "table of metrics to write"}
    script.run(main, script.parser(__doc__, "published", stage="published", **files))
