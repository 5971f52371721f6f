"""Find the best layer of each model, for the first page of the report."""

from __future__ import annotations

from pathlib import Path

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Read the scores, find, write."""
    from layerwise.association.order import Order
    from layerwise.association.sources import with_text_sources
    from layerwise.figures.report import first_table
    from layerwise.io import tables
    from layerwise.run import studies

    config = arguments.config
    settings = config.association
    paths = map(Path, studies.score_paths(config))
    scores = with_text_sources(tables.read([*paths], "scores"), settings.text_sources)
    found = first_table(scores, Order.of(config), settings.seed)
    tables.write_csv(arguments.output, found)


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, output="CSV table to write"))
