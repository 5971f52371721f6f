"""Turn tables published elsewhere into this workflow's tidy tables of metrics and scores.

They can then be associated and drawn like any others, without running a model.
"""

from __future__ import annotations

from pathlib import Path

from layerwise import cli


def main(run: cli.Run) -> None:
    """Read, convert, write."""
    import pandas as pd

    from layerwise import tables
    from layerwise.association.published import published_metrics, published_scores, read_table
    from layerwise.files import sha256_file

    entry = run.config.published[run.names["published"]]
    for role, convert in (("metrics", published_metrics), ("scores", published_scores)):
        given = getattr(entry, role)
        if given is None:  # no study reads them
            tables.write(
                run.files[role], pd.DataFrame({"model": []}), key=run.stamp.key,
                recipe=run.stamp.recipe,
            )  # fmt: skip
            continue
        source = Path(given)
        tables.write(
            run.files[role], convert(read_table(source)), key=run.stamp.key,
            recipe=run.stamp.recipe, source=source.name, sha256=sha256_file(source),
        )  # fmt: skip


if __name__ == "__main__":
    cli.run_job("import_published", main, __doc__)
