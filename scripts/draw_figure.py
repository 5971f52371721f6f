"""Draw one study of the config: figure, table of what it shows, and caption."""

from __future__ import annotations

import argparse

from layerwise.files import replacing
from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the tables, draw, write."""
    from layerwise import tables
    from layerwise.figures import style
    from layerwise.figures.studies import Tables, draw
    from layerwise.workflow import studies

    config, study = script.config_of(arguments), arguments.study
    read = {
        table: script.read_table(config, study, table) for table in studies.needs(config, study)
    }
    drawn = draw(
        config.studies[study],
        Tables(**read),
        script.order_of(config),
        directions=config.association.directions,
        own_texts=config.own_texts,
        labels=config.labels(),
    )
    tables.write_csv(arguments.table, drawn.table)
    with replacing(arguments.caption) as partial:
        partial.write_text(drawn.rst(), encoding="utf-8")
    style.save(drawn.figure, arguments.png, arguments.pdf, {"key": arguments.key})


if __name__ == "__main__":
    options = script.parser(__doc__, "study")
    script.files(
        options,
        png="PNG to write",
        pdf="PDF to write",
        caption="caption to write",
        table="CSV table to write",
    )
    script.run(main, options)
