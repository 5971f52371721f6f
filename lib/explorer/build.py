"""Build the explorer: one page that draws any metric and score of the run, without a network."""

from __future__ import annotations

from pathlib import Path

from layerwise.io.files import replacing
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read, gather, write."""
    from explorer.gather import gather
    from explorer.page import render
    from explorer.stage import explored as shown
    from layerwise.run.results import Results

    config, results = arguments.config, Results.of(arguments.plan)
    sources = {
        published: {
            table: [(results.read([path], table), Path(path)) for path in paths]
            for table, paths in named.items()
        }
        for published, named in shown(arguments.plan).items()
    }
    directions = config.association.directions
    explored = gather(sources, results.order(), arguments.output, directions)
    with replacing(arguments.output) as partial:
        page = render(explored, "What each layer represents", key=arguments.key)
        partial.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, stage="explore", output="HTML page to write"))
