"""Draw one study of the config: figure, table of what it shows, and caption."""

from __future__ import annotations

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Read the tables, draw, write."""
    import matplotlib as mpl

    from layerwise.figures.render import draw
    from layerwise.run import studies

    mpl.use("Agg")
    config, study = arguments.config, arguments.study
    tables = {t: script.read_table(config, study, t) for t in studies.needs(config, study)}
    drawn = draw(config.studies[study], tables, config=config)
    files = (arguments.png, arguments.pdf, arguments.table, arguments.caption)
    drawn.write(*files, {"key": arguments.key})


if __name__ == "__main__":
    files = {
        "png": "PNG to write",
        "pdf": "PDF to write",
        "caption": "caption to write",
        "table": "CSV table to write",
    }
    script.run(main, script.parser(__doc__, "study", **files))
