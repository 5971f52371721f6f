"""Draw one study of the config: figure, table of what it shows, and caption."""

from __future__ import annotations

import argparse

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the tables, draw, write."""
    import matplotlib as mpl

    from layerwise.figures.render import draw
    from layerwise.workflow import studies

    mpl.use("Agg")
    config, study = script.config_of(arguments), arguments.study
    drawn = draw(
        config.studies[study],
        {table: script.read_table(config, study, table) for table in studies.needs(config, study)},
        script.order_of(config),
        directions=config.association.directions,
        own_texts=config.own_texts,
        labels=config.labels(),
        confidence=config.scoring.confidence,
    )
    drawn.write(
        arguments.png,
        arguments.pdf,
        arguments.table,
        arguments.caption,
        {"key": arguments.key},
    )


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
