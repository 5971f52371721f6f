"""Find the best layer of each model, for the first page of the report."""

from __future__ import annotations

import argparse
from pathlib import Path

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the scores, find, write."""
    from layerwise import tables
    from layerwise.association.selection import best_layers
    from layerwise.association.sources import with_text_sources
    from layerwise.workflow import studies

    config = script.config_of(arguments)
    settings = config.association
    paths = [Path(studies.task_table_path(config, *point)) for point in studies.scored(config)]
    scores = with_text_sources(tables.read(paths, "scores"), settings.text_sources)
    tables.write_csv(arguments.output, best_layers(scores, seed=settings.seed))


if __name__ == "__main__":
    script.run(main, script.files(script.parser(__doc__), output="CSV table to write"))
