"""Find the best layer of each model, for the first page of the report."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the scores, find, write."""
    from layerwise.association.sources import with_text_sources
    from layerwise.figures.report import first_table
    from layerwise.io import tables
    from layerwise.workflow import studies

    config = script.config_of(arguments)
    settings = config.association
    paths = [Path(studies.task_table_path(config, *point)) for point in studies.scored(config)]
    scores = with_text_sources(tables.read(paths, "scores"), settings.text_sources)
    found = first_table(scores, script.order_of(config), settings.seed)
    tables.write_csv(arguments.output, found)


if __name__ == "__main__":
    script.run(main, script.files(script.parser(__doc__), output="CSV table to write"))
