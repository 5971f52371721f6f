"""Select a layer by each metric and compare its score with the best layer and the output."""

from __future__ import annotations

import argparse

from layerwise.workflow import script


def main(arguments: argparse.Namespace) -> None:
    """Read the tables, select, compare, write."""
    from layerwise.association.selection import select_layers, summarize
    from layerwise.io import tables
    from layerwise.metrics.registry import directions

    config = script.config_of(arguments)
    settings, order = config.association, script.order_of(config)
    published = config.studies[arguments.study].published
    selections = select_layers(
        script.read_table(config, arguments.study, "metrics"),
        script.read_table(config, arguments.study, "scores"),
        {**directions(), **settings.directions},
        prompts=None if published else script.read_table(config, arguments.study, "prompts"),
        own_texts=config.own_texts,
        order=order,
        seed=settings.seed,
    )
    tables.write_csv(arguments.summary, summarize(selections, order))
    tables.write(arguments.output, selections, key=arguments.key)


if __name__ == "__main__":
    script.run(
        main,
        script.files(
            script.parser(__doc__, "study"),
            output="table of selections to write",
            summary="CSV summary to write",
        ),
    )
