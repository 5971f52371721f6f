"""Build the explorer: one page that draws any metric and score of the run, without a network."""

from __future__ import annotations

import logging
from pathlib import Path

from layerwise import cli

log = logging.getLogger("layerwise")


def main(run: cli.Run) -> None:
    """Read, gather, write."""
    from layerwise import tables
    from layerwise.association.sources import with_text_sources
    from layerwise.explore.gather import Source, gather
    from layerwise.explore.page import render
    from layerwise.files import replacing
    from layerwise.workflow import stamps

    sources: dict[str, dict[str, list[tuple[object, Path]]]] = {"": {}}
    settings = run.config.association
    for role, paths in run.inputs.items():
        kind, _, published = role.partition(":")
        read = [(tables.read(path, kind), path) for path in paths]
        if kind == "scores":
            read = [(with_text_sources(frame, settings.text_sources), p) for frame, p in read]
        sources.setdefault(published, {})[kind] = read
    page = run.files["page"]
    explored = gather(
        [Source(**given, published=name) for name, given in sources.items()],
        run.order(),
        page,
        settings.directions,
    )
    with replacing(page) as partial:
        partial.write_text(render(explored, "What each layer represents"), encoding="utf-8")
    stamps.write(run.files["stamp"], run.stamp)
    log.info("%s: %.1f MB; open it in a browser", page, page.stat().st_size / 1e6)


if __name__ == "__main__":
    cli.run_job("build_explorer", main, __doc__)
